"""What an archive says of itself is compared with what is in it."""

from __future__ import annotations

import json

import pytest

from builders.archived_run import wrong
from servemark.archive import contents, description
from servemark.archive import seal as archive
from servemark.archive.description import CRATE, RUN_RECORD


def sealed_with(run, monkeypatch, name, change) -> list[str]:
    """What is wrong with an archive of which one description was changed before it was sealed."""
    real = description.describe

    def describe(folder, digests):
        made = dict(real(folder, digests))
        data = json.loads(made[name])
        change(data)
        made[name] = json.dumps(data).encode()
        return made

    monkeypatch.setattr(description, "describe", describe)
    return wrong(run.seal())


def entity(crate, name):
    return next(item for item in crate["@graph"] if item["@id"] == name)


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (lambda run: run.update(run="other"), ["run.json: run: stated other, the records give demo"]),
        (
            lambda run: run["deployments"][1]["measured"].update(VALID=9),
            ["run.json: deployments[1].measured.VALID: stated 9, the records give 2"],
        ),
        (
            lambda run: run["deployments"][1]["attempts"][0]["processes"][0]["argv"].append("--x"),
            ["run.json: deployments[1].attempts[0].processes[0].argv: stated ("],
        ),
        (
            lambda run: run["configuration"].update(sha256="0" * 64),
            [f"run.json: configuration.sha256: stated {'0' * 64}, the records give "],
        ),
        (lambda run: run["deployments"].pop(), ["run.json: deployments: stated 2 entries, the records give 3 entries"]),
        (
            lambda run: (run.update(servemark="0.0.9"), run["hardware"].update(nofile=1)),
            ["run.json: hardware.nofile: stated 1, the records give 1048576", "run.json was written by servemark 0.0.9"],
        ),
        (lambda run: run.update(servemark="0.0.9"), []),
        (
            lambda run: run.update(kind="plan"),
            ["run.json was not checked: run.json is a record of kind 'plan' version 1; expected 'run' version 1."],
        ),
        (lambda run: run.update(more=1), ["run.json was not checked: run.json does not fit the record type 'run'"]),
    ],
)  # fmt: skip
def test_a_wrong_statement_of_the_run_record_is_named(run, monkeypatch, change, said):
    found = [line for line in sealed_with(run, monkeypatch, RUN_RECORD, change) if line.startswith(RUN_RECORD)]
    assert len(found) == len(said) and all(line.startswith(text) for line, text in zip(found, said, strict=True)), found


def test_many_differences_are_counted(run, monkeypatch):
    def change(record):
        for model in record["models"], record["environments"], record["deployments"]:
            for item in model:
                item["name"] = "x"
                item[next(key for key in item if key not in ("name", "attempts"))]["sha256"] = "0" * 64
        record["hardware"].update(cpu_count=9, memory_gib=9, shm_gib=9, nofile=9, nproc=9)

    found = sealed_with(run, monkeypatch, RUN_RECORD, change)
    assert [line for line in found if "more differences" in line] == ["run.json: 5 more differences."]


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (lambda crate: entity(crate, "config.json").update(contentSize="1"), "config.json has "),
        (lambda crate: entity(crate, "config.json").update(contentSize=None), "and None are stated"),
        (lambda crate: entity(crate, "config.json").update({"@type": "Thing"}), "does not list config.json"),
        (lambda crate: crate["@graph"].remove(entity(crate, "report.html")), "does not list report.html"),
        (lambda crate: entity(crate, "./")["hasPart"].pop(), "does not list "),
        (lambda crate: entity(crate, "./")["hasPart"].append({"@id": "../x%20y"}), "lists ../x y, which is not in the archive"),
        (lambda crate: crate["@graph"].append({"@id": "more.json", "@type": "File"}), "lists more.json, which is not in the archive"),
        (lambda crate: crate.pop("@graph"), "cannot be read: KeyError"),
        (lambda crate: crate.update({"@graph": 7}), "cannot be read: TypeError"),
        (lambda crate: crate["@graph"].append([]), "cannot be read: TypeError"),
        (lambda crate: crate["@graph"].append({"@id": 7, "@type": "File"}), "cannot be read: TypeError"),
    ],
)  # fmt: skip
def test_a_wrong_statement_of_the_crate_is_named(run, monkeypatch, change, said):
    (line,) = sealed_with(run, monkeypatch, CRATE, change)
    assert line.startswith(CRATE) and said in line


def test_an_archive_that_describes_nothing_is_named(run):
    archive.seal(contents.archived_files(run.folder, run.root / "envs"), run.path)
    assert wrong(run.path) == [f"{CRATE} is missing.", f"{RUN_RECORD} is missing."]


def test_a_file_that_was_changed_after_it_was_described_is_named(run, monkeypatch):
    real = description.describe

    def describe(folder, digests):
        made = real(folder, digests)
        run.edit_json("deployments/plain/attempts/001/daemons/server.json", lambda state: state.update(exit_code=1))
        return made

    monkeypatch.setattr(description, "describe", describe)
    with pytest.raises(archive.ArchiveRefused, match=r"daemons/server\.json changed while it was archived"):
        contents.archive(run.folder, run.root / "envs", run.path, {})
