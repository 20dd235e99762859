"""A run without faults: its results, no leftovers, and a second run with nothing to do."""

from __future__ import annotations

import json
import os
import subprocess
import tarfile
import time
from collections import Counter
from pathlib import Path

import pandas as pd
import psutil
import zstandard

from integration.harness import RUN, Checkout
from servemark import verification


def every_command_line() -> str:
    words = []
    for process in psutil.process_iter():
        try:
            words += process.cmdline()
        except psutil.Error:
            continue
    return "\n".join(words)


def unpack(archive: Path, destination: Path) -> Path:
    with archive.open("rb") as stream, zstandard.ZstdDecompressor().stream_reader(stream) as plain:
        with tarfile.open(fileobj=plain, mode="r|") as tar:
            tar.extractall(destination, filter="data")
    (top,) = destination.iterdir()
    return top


def files_that_hold(secret: str, *folders: Path) -> list[str]:
    files = [path for folder in folders for path in folder.rglob("*") if path.is_file() and not path.is_symlink()]
    return [str(path) for path in files if secret.encode() in path.read_bytes()]


def test_first_run_measures_all_and_second_does_nothing(fresh: Checkout, tmp_path: Path):
    looking = fresh.run("-n")
    assert looking.rc == 0 and "measure" in looking.text and not fresh.results.exists(), looking.text
    graph = fresh.run("--rulegraph")
    assert graph.rc == 0 and "digraph" in graph.text and "stop_deployment" in graph.text, graph.text

    running = fresh.start(STANDIN_TOKEN_S="0.05")  # on a busy machine, one look at all processes takes a second
    key_file = fresh.key_file()
    assert key_file.stat().st_mode & 0o777 == 0o600
    key = key_file.read_text().strip()
    assert len(key) >= 32
    seen = ""
    while key_file.exists() and running.process.poll() is None:
        seen += every_command_line()
        time.sleep(0.1)
    first = running.wait(480)

    assert first.rc == 0, first.text
    fresh.assert_all_dead()
    verdicts = {point: row["verdict"] for point, row in fresh.rows().items()}
    assert set(verdicts) == {(d, f"chat-c{c}-r1") for d in "ab" for c in (1, 2)}
    assert set(verdicts.values()) <= {"VALID", "SUSPECT"}
    assert all(float(row["output_tokens_per_s"]) > 0 for row in fresh.rows().values())
    assert len(pd.read_parquet(fresh.results / "measurements.parquet")) == 4
    assert "</html>" in fresh.report()
    assert fresh.record("check.json")["holes"] == []

    assert_sampled(fresh)

    archive = fresh.results / "archive" / f"{RUN}.tar.zst"
    subprocess.run(["sha256sum", "--quiet", "-c", f"{archive.name}.sha256"], cwd=archive.parent, check=True)
    top = unpack(archive, tmp_path / "unpacked")
    subprocess.run(["sha256sum", "--quiet", "-c", "manifest-sha256.txt"], cwd=top, check=True)
    assert (top / "report.html").exists() and (top / "deployments/a/points/chat-c1-r1.requests.json").exists()

    assert "run_clients.py" in seen and key not in seen, "the key was in a process's command line"
    assert fresh.secrets() == []
    assert files_that_hold(key, fresh.path / "results", fresh.path / ".snakemake", top, running.output.parent) == []

    assert_attempts_apart(fresh)
    before = fresh.digests("a") | fresh.digests("b")
    second = fresh.run()
    assert second.rc == 0, second.text
    assert "Nothing to be done" in second.text
    assert fresh.digests("a") | fresh.digests("b") == before

    # Table, report and archive made again have the same bytes, and the archive verifies.
    sealed = archive.read_bytes()
    for name in ("measurements.csv", "report.html", f"archive/{RUN}.tar.zst"):
        (fresh.results / name).unlink()
    third = fresh.run()
    assert third.rc == 0 and archive.read_bytes() == sealed, third.text
    assert verification.verify(archive).wrong == ()
    graph = json.loads((top / "ro-crate-metadata.json").read_text())["@graph"]
    told = {entity["@id"]: entity for entity in graph}
    for name in "ab":
        counted = Counter(verdict for (deployment, _), verdict in verdicts.items() if deployment == name)
        points = ", ".join(f"{counted[verdict]} {verdict}" for verdict in ("VALID", "SUSPECT") if counted[verdict])
        action = told[f"#deployment-{name}"]
        first, *commands = action["description"].splitlines()
        assert first == f"2 load points: {points}" and any("serve" in command for command in commands)
        assert action["actionStatus"].endswith("/CompletedActionStatus") and len(action["result"]) == 4
        assert (top / f"deployments/{name}/attempts/001/sources.json").exists()
    assert "," not in told["#servemark"]["description"], "both attempts were started from the same sources"


def assert_sampled(checkout: Checkout) -> None:
    """Assert that each deployment had a sampler that ended with it, and that each point keeps what it saw."""
    for name in "ab":
        sampler = checkout.daemon(name, "telemetry")
        assert (sampler["why"], sampler["exit_code"]) == ("stop_requested", 0)
        for record in checkout.points(name).values():
            (node,) = record["telemetry"]["nodes"]
            assert node["fault"] is None and node["cores"] == len(os.sched_getaffinity(0)) and node["foreign_cores"] is not None
            assert record["telemetry"]["end"] - record["telemetry"]["begin"] > 0.9 * record["duration_s"] - 0.01
            (file,) = (Path(checkout.path) / record["attempt"] / "telemetry").glob("*.jsonl")
            assert file.stem == node["node"]


def assert_attempts_apart(checkout: Checkout) -> None:
    """Assert that the servers of the two deployments never ran at the same time."""
    (first, second) = sorted((checkout.daemon(name)["started_at"], checkout.daemon(name)["ended_at"]) for name in "ab")
    assert first[0] < first[1] <= second[0] < second[1]


def test_deployments_on_one_core_measure_in_sequence(checkout: Checkout):
    checkout.config["workloads"]["chat"]["concurrency"] = [2]
    done = checkout.run("--cores", "1")
    assert done.rc == 0, done.text
    assert_attempts_apart(checkout)
    checkout.assert_all_dead()
