"""Snakemake's own report of a run: made without a network, with our captions; without results it names the missing file."""

from __future__ import annotations

from integration.harness import Checkout

# Every request to another host would fail here at once.
NOWHERE = dict.fromkeys(("http_proxy", "https_proxy", "HTTP_PROXY", "HTTPS_PROXY", "all_proxy"), "http://127.0.0.1:9")


def test_snakemake_report_has_results_and_captions(measured: Checkout):
    before = measured.digests("a")
    done = measured.run("--report", "own.html", **NOWHERE)
    assert done.rc == 0 and "Report created" in done.text, done.text
    page = (measured.path / "own.html").read_text()
    for said in (
        "HTML report",
        "all measurements",
        "It is the file to send",
        "full precision",
        "write_report",
    ):
        assert said in page, said
    for name in "ab":
        assert f"Plan of deployment <em>{name}</em>" in page and f"Start-up of deployment <em>{name}</em>" in page
    assert measured.digests("a") == before
    assert not (measured.path / ".snakemake" / "servemark-owner.json").exists(), "making a report claims nothing"


def test_snakemake_report_without_results_names_missing_file(fresh: Checkout):
    done = fresh.run("--report", "own.html", **NOWHERE)
    assert done.rc == 1 and "marked for report but does not exist" in done.text, done.text
    assert "Traceback" not in done.text and not (fresh.path / "own.html").exists()
    assert not fresh.results.exists()
