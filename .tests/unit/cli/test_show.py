"""``servemark show``: a run's main table in a terminal, from its folder or its archive."""

from __future__ import annotations

import contextlib
import json
import shutil
from pathlib import Path

import pytest

from builders.archived_run import FAILED
from servemark.archive import seal
from servemark.cli import main as cli
from servemark.errors import ServemarkError
from servemark.measurement.thresholds import Verdict
from servemark.report import table
from servemark.verification.show import WIDTH, show
from servemark.verification.unpack import NoSuchFile


def body(text: str) -> str:
    """Return what stands between the header and the links of a folder's results."""
    return text.split("\n\n")[1].rstrip("\n") + "\n"


def test_folder_and_archive_show_the_same_table(run):
    from_folder, from_archive = show(run.folder), show(run.path)
    assert body(from_folder) == body(from_archive) == table.text_table(table.tidy(run.measurements()))
    words = "head, one row a load point, which part, what few and ? mean, how many are SUSPECT for which reason"
    assert len(body(from_archive).splitlines()) == 2 + 12 + 4, words
    for text in (body(from_folder), from_archive):
        assert max(len(line) for line in text.splitlines()) <= WIDTH


def test_last_lines_are_links_of_the_files_that_exist(run):
    folder = run.folder.with_name("a b\N{LATIN SMALL LETTER U WITH DIAERESIS}")
    run.folder.rename(folder)
    (folder / "archive").mkdir(exist_ok=True)
    (folder / "archive" / f"{folder.name}.tar.zst").touch()
    (folder / "report.html").touch()
    (folder / "measurements.csv").unlink(missing_ok=True)
    report, archive = (line.split() for line in show(folder).splitlines()[-2:])
    place = f"file://{folder.parent}/a%20b%C3%BC"
    assert report == ["report", f"{place}/report.html"]
    assert archive == ["archive", f"{place}/archive/a%20b%C3%BC.tar.zst"]


def test_each_verdict_has_its_mark(run):
    rows = {tuple(line.split()[:4]): line for line in show(run.path).splitlines()}
    assert "INVALID: server_exited" in rows[(FAILED, "chat", "c=1", "1")]
    assert rows[("plain", "chat", "c=2", "1")].count("?") == 7
    assert "?" not in rows[("plain", "chat", "c=1", "1")]


def test_header_names_models_software_and_hardware(run):
    text = show(run.folder)
    assert text.startswith("run         demo\nfrom        folder")
    for said in (
        "vLLM 0.32.0+cpu, torch 2.13.0+cpu, Ray 2.56.1",
        "made by     servemark ",
        "AMD EPYC 7763",
        "TP 2, Ray executor",
    ):
        assert said in text
    identity = show(run.path)
    assert seal.hashlib.sha256(_manifest(run.path)).hexdigest() in identity


def _manifest(path: Path) -> bytes:
    from servemark.verification.unpack import unpacked

    with unpacked(path) as found:
        return (found.folder / seal.MANIFEST).read_bytes()


def test_software_without_a_record_is_not_shown(run):
    shutil.rmtree(run.folder / "environments")
    assert "software    not recorded" in show(run.folder)


def test_points_without_a_measurement_are_counted(run):
    for number in (1, 2):
        (run.folder / run.record("plain", f"chat-c1-r{number}")).unlink()
    last = next(line for line in show(run.folder).splitlines() if "planned point" in line)
    assert last.startswith("2 ") and last.endswith(": plain/chat-c1-r1, plain/chat-c1-r2")


def test_run_that_has_just_begun_is_shown(run):
    for name in (
        "hardware.json",
        "deployments/plain/attempts/001/sources.json",
        *(run.record("plain", f"chat-c{c}-r{r}") for c in (1, 2) for r in (1, 2)),
    ):
        (run.folder / name).unlink()
    text = show(run.folder)
    assert "hardware    not recorded" in text
    last = next(line for line in text.splitlines() if "planned point" in line)
    assert last.startswith("4 ") and ": plain/chat-c1-r1, plain/chat-c2-r1, plain/chat-c1-r2 and 1 " in last


def test_damaged_record_is_a_warning_below_the_table(run):
    run.write(run.record("plain", "chat-c1-r1"), "{")
    (warning,) = [line for line in show(run.folder).splitlines() if line.startswith("warning:")]
    assert "deployments/plain/points/chat-c1-r1.json" in warning


def test_records_without_thresholds_have_those_of_the_configuration(run):
    assert not any(name in show(run.folder) for name in Verdict.model_fields)
    run.edit_json(run.record("plain", "chat-c1-r1"), lambda data: data.pop("thresholds"))
    run.edit_json("config.json", lambda config: config["verdict"].update(min_requests_per_slot=2.0, max_client_cpu=0.5))
    (line,) = [line for line in show(run.folder).splitlines() if "min_requests_per_slot" in line]
    assert line.endswith(" min_requests_per_slot=2"), "max_client_cpu is stricter than the default"
    for other in ({"min_requests_per_slot": "2"}, {"min_requests_per_slot": 10**400}, [2], None):
        run.edit_json("config.json", lambda config, other=other: config.update(verdict=other))
        with contextlib.suppress(ServemarkError):
            assert "min_requests_per_slot" not in show(run.folder)


def test_control_characters_of_a_record_are_not_printed(run):
    run.edit_json("config.json", lambda config: config.update(run="demo\x1b[2J\u202e" + "x" * 300))
    run.edit_json("hardware.json", lambda hardware: hardware.update(cpu_model="\x1b]0;owned\x07"))
    text = show(run.folder)
    assert "\x1b" not in text and "\x07" not in text and "\u202e" not in text and "demo?[2J?" in text
    assert max(len(line) for line in text.splitlines() if "file://" not in line) <= WIDTH


def test_file_that_cannot_be_shown_gives_message_and_exit_code(run, tmp_path, capsys):
    with pytest.raises(NoSuchFile, match=r"config\.json"):
        show(tmp_path)
    assert cli.main(["show", str(tmp_path / "nothing")]) == 2
    run.write("config.json", json.dumps({"run": "demo", "deployments": {"other": {}}}))
    with pytest.raises(ServemarkError, match=r"deployments/other/plan\.json") as caught:
        show(run.folder)
    assert caught.value.exit_code == 1
    capsys.readouterr()
    assert cli.main(["show", str(run.path)]) == 0
    assert "tok/s" in capsys.readouterr().out
