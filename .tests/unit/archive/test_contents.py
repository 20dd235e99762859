"""Selection of the files of an archive."""

from __future__ import annotations

import pytest

from builders import report_data
from servemark.archive import contents
from servemark.archive import seal as archive
from servemark.errors import ServemarkError
from servemark.records import Environment


@pytest.fixture
def run_folder(tmp_path):
    return tmp_path / "results" / "demo"


def put(folder, *names):
    for name in names:
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(name)


KEPT = (
    "config.json",
    "hardware.json",
    "environments/cpu/check.json",
    "measurements.csv",
    "report.html",
    "deployments/plain/stopped.json",
    "deployments/plain/points/chat-c4-r1.json",
    "deployments/plain/points/chat-c4-r1.requests.json",
    "deployments/plain/attempts/001/server.log",
    "deployments/plain/attempts/001/supervisor.json",
    "deployments/plain/attempts/002/keeper.json",
    "deployments/plain/attempts/001/failure.json",
    "deployments/plain/attempts/001/daemons/server.json",
    "deployments/plain/attempts/001/sources.json",
    "rejected/plain/chat-c4-r1.1.json",
    "logs/measure/plain/chat-c4-r1.log",
    "logs/await_ready/plain.log",
    "benchmarks/measure/plain/chat-c4-r1.tsv",
)
LEFT_OUT = (
    "deployments/plain/cluster.json",
    "deployments/plain/endpoint.json",
    "deployments/plain/ready.json",
    "deployments/plain/attempts/001/api-key",
    "deployments/plain/attempts/001/ray-token",
    "deployments/plain/attempts/001/supervisor-spec.json",
    "deployments/plain/attempts/002/keeper-spec.json",
    "deployments/plain/attempts/001/requests/server.json",
    "deployments/plain/points/chat-c9-r1.json",
    "deployments/plain/points/chat-c9-r1.requests.json",
    "deployments/plain/points/.chat-c4-r1.requests.json.draft",
    "ledger/ab/abcd/measurement.json",
    "archive/demo.tar.zst",
    "progress.jsonl",
    "check.json",
    "sources.json",
    "summary.txt",
    "logs/archive_results.log",
    "logs/check_measurements.log",
    "benchmarks/archive_results.tsv",
    "benchmarks/write_report.tsv",
    "benchmarks/collect_measurements.tsv",
)


def test_archived_files_are_selected(run_folder, tmp_path):
    put(run_folder, *KEPT, *LEFT_OUT)
    point = report_data.measurement(name="chat-c4-r1")
    plan = run_folder / "deployments" / "plain" / "plan.json"
    report_data.plan("plain", (point,)).write(plan)
    (run_folder / "link.json").symlink_to(run_folder / "config.json")
    envs = tmp_path / "envs"
    report_data.environment().model_copy(update={"lock": "cpu"}).write(run_folder / "environments/cpu/environment.json")
    put(envs, "workflow.lock", "cuda13.lock", "cuda13.in", "test.lock")
    put(envs, "cpu.lock", "cpu.in", "README.md", "cpu-shim/pyproject.toml", "cpu-shim/shim.py", "lock.sh")
    put(envs, "cpu-shim/__pycache__/shim.py", "cpu-shim/__pycache__/shim.pyc")
    files = contents.archived_files(run_folder, envs)
    assert files.pop("deployments/plain/plan.json") == plan
    assert files.pop("environments/cpu/environment.json")
    listed = {name for name in files if not name.startswith("envs/")}
    assert listed == set(KEPT)
    assert {name.removeprefix("envs/") for name in files if name.startswith("envs/")} == {
        "cpu.lock",
        "cpu.in",
        "workflow.lock",
        "README.md",
        "cpu-shim/pyproject.toml",
        "cpu-shim/shim.py",
    }
    assert all(path.read_text() == name.removeprefix("envs/") for name, path in files.items())


def test_existing_key_in_file_stops_archive(run_folder, tmp_path):
    key = "0123456789abcdef" * 4
    for name in ("api-key", "ray-token"):
        put(run_folder, f"deployments/plain/attempts/001/{name}")
        (run_folder / "deployments/plain/attempts/001" / name).write_text(f"{name}-{key}\n")
    secrets = contents.known_secrets(run_folder, {})
    assert {text: kind.split()[0] for text, kind in secrets.items()} == {f"{name}-{key}": name for name in ("api-key", "ray-token")}
    put(run_folder, "logs/server.log")
    (run_folder / "logs" / "server.log").write_text(f"listening, key api-key-{key}\n")
    with pytest.raises(ServemarkError, match=r"server\.log"):
        archive.seal(contents.archived_files(run_folder, tmp_path / "envs"), tmp_path / "demo.tar.zst", secrets=secrets)
    assert contents.known_secrets(tmp_path / "nowhere", {}) == {}


def test_own_lock_file_of_an_environment_is_archived(run_folder, tmp_path):
    put(tmp_path, "prefix/servemark-own.lock", "envs/cpu.lock")
    place = run_folder / "environments" / "mine" / "environment.json"
    made = {"name": "mine", "origin": "lock", "digest": "d", "python": "p", "packages": 2, "seconds": 0, "size_mib": 0}
    Environment(**made, prefix=str(tmp_path / "prefix"), lock="/somewhere/my.lock").write(place)
    files = contents.archived_files(run_folder, tmp_path / "envs")
    assert files["envs/own-mine.lock"] == tmp_path / "prefix" / "servemark-own.lock" and "envs/cpu.lock" not in files
