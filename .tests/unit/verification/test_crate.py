"""The crate of an archive is compared with its files."""

from __future__ import annotations

import json

import pytest

from builders.archived_run import wrong
from servemark import verification
from servemark.archive import contents
from servemark.archive import seal as archive
from servemark.archive.crate import CRATE, FORMAT


def sealed_with(run, monkeypatch, change) -> verification.Verification:
    """Verify an archive whose crate was changed before sealing."""
    real = contents.describe

    def describe(folder, digests):
        made = dict(real(folder, digests))
        data = json.loads(made[CRATE])
        change(data)
        made[CRATE] = json.dumps(data).encode()
        return made

    monkeypatch.setattr(contents, "describe", describe)
    return verification.verify(run.seal())


def entity(crate, name):
    return next(item for item in crate["@graph"] if item["@id"] == name)


@pytest.mark.parametrize(
    ("change", "named"),
    [
        (lambda crate: entity(crate, "config.json").update(contentSize="1"), "config.json"),
        (lambda crate: entity(crate, "config.json").update(contentSize=None), "None"),
        (lambda crate: entity(crate, "config.json").update({"@type": "Thing"}), "config.json"),
        (lambda crate: crate["@graph"].remove(entity(crate, "report.html")), "report.html"),
        (lambda crate: entity(crate, "./")["hasPart"].pop(), ""),
        (lambda crate: entity(crate, "./")["hasPart"].append({"@id": "../x%20y"}), "../x y"),
        (lambda crate: crate["@graph"].append({"@id": "more.json", "@type": "File"}), "more.json"),
        (lambda crate: crate.pop("@graph"), "KeyError"),
        (lambda crate: crate.update({"@graph": 7}), "TypeError"),
        (lambda crate: crate["@graph"].append([]), "TypeError"),
        (lambda crate: crate["@graph"].append({"@id": 7, "@type": "File"}), "TypeError"),
    ],
)  # fmt: skip
def test_wrong_statement_of_crate_is_named(run, monkeypatch, change, named):
    (line,) = sealed_with(run, monkeypatch, change).wrong
    assert line.startswith(CRATE) and named in line


def test_missing_crate_is_named(run):
    archive.seal(contents.archived_files(run.folder, run.root / "envs"), run.path)
    assert [line.split()[0] for line in wrong(run.path)] == [CRATE]


def test_first_format_lists_unchecked_files(run, monkeypatch):
    def first(crate):
        del entity(crate, "./")["schemaVersion"]

    run.without_thresholds()
    run.edit("report.html", lambda _: "a page without a block")
    result = sealed_with(run, monkeypatch, first)
    assert result.wrong == () and result.sealed_by.format == 1
    assert [text.partition(" ")[0] for text in result.not_checked] == ["report.html", "run.json", "checks", "requests_overtaken"]
    assert result.not_checked[0] in result.summary()


def test_later_format_is_a_problem(run, monkeypatch):
    def later(crate):
        entity(crate, "./").update(schemaVersion=str(FORMAT + 1))
        entity(crate, "#servemark").update(softwareVersion="9.9")

    (line,) = sealed_with(run, monkeypatch, later).wrong
    assert str(FORMAT + 1) in line and "9.9" in line


@pytest.mark.parametrize("stated", ["two", None, [2]])
def test_non_numeric_format_is_named(run, monkeypatch, stated):
    (line,) = sealed_with(run, monkeypatch, lambda crate: entity(crate, "./").update(schemaVersion=stated)).wrong
    assert line.startswith(CRATE)


def test_file_changed_after_description_stops_archive(run, monkeypatch):
    real = contents.describe

    def describe(folder, digests):
        made = real(folder, digests)
        run.edit_json("deployments/plain/attempts/001/daemons/server.json", lambda state: state.update(exit_code=1))
        return made

    monkeypatch.setattr(contents, "describe", describe)
    with pytest.raises(archive.ArchiveRefused, match=r"daemons/server\.json"):
        contents.archive(run.folder, run.root / "envs", run.path, {})
