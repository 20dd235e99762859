"""A small finished run: per-request results, records, table, report and archive, all made by the library's own functions."""

from __future__ import annotations

import json
import re
import shutil
import socket
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from builders import report_data, report_data_parts
from builders.loads import load
from servemark import verification
from servemark.archive import contents
from servemark.archive import seal as archive
from servemark.errors import ServemarkError
from servemark.measurement import verdict
from servemark.measurement.ledger import file_sha256
from servemark.measurement.raw import RawError, RawResult, read_raw
from servemark.measurement.thresholds import Verdict
from servemark.nodes.survey import NodeResult
from servemark.records import (
    Accounting,
    DaemonState,
    Failure,
    Measurement,
    Node,
    Plan,
    PlannedPoint,
    Sources,
    Stopped,
    Timeline,
)
from servemark.report import gather, page, table
from servemark.supervisor import SupervisorState

REQUESTS, INPUT, OUTPUT = 8, 10, 4
LOADS = (1, 2)
FAILED = "broken"
"""A deployment that never came up: its points have no per-request results."""
BROKEN = Failure(stage="await_ready", reason="server_exited", detail="The server ended with exit code 1: größer")
FINE = verdict.ServerFacts(same_process=True, client_exit_code=0)


def raw_result(concurrency: int, repetition: int, slow: float = 1.0) -> dict[str, Any]:
    """Return a result file of the client (--save-detailed): requests in waves of ``concurrency``, all latencies different."""
    ttfts = [slow * (0.02 + 0.001 * concurrency + 0.0007 * number + 0.0001 * repetition) for number in range(REQUESTS)]
    itls = [[slow * (0.05 + 0.001 * gap + 0.0003 * number) for gap in range(OUTPUT - 1)] for number in range(REQUESTS)]
    latencies = [ttft + sum(gaps) for ttft, gaps in zip(ttfts, itls, strict=True)]
    starts = [100 + (number // concurrency) * slow * 0.3 for number in range(REQUESTS)]
    duration = max(start + latency for start, latency in zip(starts, latencies, strict=True)) - starts[0] + 0.01
    gaps = [gap for one in itls for gap in one]
    return {
        "num_prompts": REQUESTS,
        "completed": REQUESTS,
        "failed": 0,
        "duration": duration,
        "total_input_tokens": REQUESTS * INPUT,
        "total_output_tokens": REQUESTS * OUTPUT,
        "request_throughput": REQUESTS / duration,
        "output_throughput": REQUESTS * OUTPUT / duration,
        "total_token_throughput": REQUESTS * (INPUT + OUTPUT) / duration,
        "mean_ttft_ms": 1000 * sum(ttfts) / REQUESTS,
        "mean_itl_ms": 1000 * sum(gaps) / len(gaps),
        "input_lens": [INPUT] * REQUESTS,
        "output_lens": [OUTPUT] * REQUESTS,
        "ttfts": ttfts,
        "itls": itls,
        "latencies": latencies,
        "start_times": starts,
        "errors": [""] * REQUESTS,
    }


def attempt(deployment: str) -> str:
    """Return the folder of a deployment's only attempt, as records name it."""
    return f"results/demo/deployments/{deployment}/attempts/001"


def server(deployment: str) -> DaemonState:
    """Return the record of the ended server of a deployment's only attempt."""
    argv = ("python", "-m", "vllm.entrypoints.cli.main", "serve", "/models/tiny", "--port", "23231")
    return DaemonState(
        name="server", pid=176, argv=argv, log=f"{attempt(deployment)}/server.log", node="node01", exit_code=0,
        started_at="2026-03-04T10:11:09.155+00:00", ended_at="2026-03-04T10:13:00.000+00:00", why="stop_requested",
    )  # fmt: skip


class ArchivedRun:
    """``results/demo``: two deployments that were measured and one that never came up.

    ``plain`` at concurrency 2 takes less than a second, so it is SUSPECT.
    """

    def __init__(self, root: Path):
        self._place(root)
        deployments = {name: {"model": "tiny", "environment": "cpu"} for name in ("ray-tp2", "plain", FAILED)}
        config = {
            "run": "demo",
            "deployments": deployments,
            "verdict": Verdict().model_dump(mode="json"),
            "workloads": {"chat": {"concurrency": list(LOADS)}},
        }
        self.write("config.json", json.dumps(config))
        data = report_data.demo()
        data.hardware.write(self.folder / "hardware.json")
        made = data.environments["cpu"].model_copy(update={"lock": "cpu"})
        made.write(self.folder / "environments" / "cpu" / "environment.json")
        data.checks["cpu"].write(self.folder / "environments" / "cpu" / "check.json")
        data.manifests["tiny"].write(self.folder / "models" / "tiny" / "manifest.json")
        for name in deployments:
            self._deployment(name)
            stopped = Stopped(deployment=name, seconds=2.0, daemons=(server(name),))
            stopped.write(self.folder / "deployments" / name / "stopped.json")
            Accounting(deployment=name, scheduler="none").write(self.folder / "deployments" / name / "accounting.json")
            if name != FAILED:
                report_data.startup(name).write(self.folder / "deployments" / name / "startup.json")
        self.write("logs/measure/plain/chat-c1-r1.log", "8 requests\n")
        self.write("../../envs/cpu.lock", "vllm==0.32.0 \\\n    --hash=sha256:" + report_data.digest("vllm") + "\n")
        self.tabulate()
        self.report()

    def _place(self, root: Path) -> None:
        self.root = root
        self.folder = root / "results" / "demo"
        self.path = self.folder / "archive" / "demo.tar.zst"

    @classmethod
    def at(cls, root: Path) -> ArchivedRun:
        """Return the run that exists below ``root``, for example a copy."""
        run = cls.__new__(cls)
        run._place(root)
        return run

    def _deployment(self, name: str) -> None:
        points = tuple(
            PlannedPoint(
                load=load(
                    concurrency=concurrency, repetition=repetition, seed=repetition, requests=REQUESTS, input_tokens=INPUT,
                    output_tokens=OUTPUT, warmups=1,
                ),
                key=report_data.digest(f"{name}{concurrency}{repetition}"),
            )
            for concurrency in LOADS
            for repetition in (1, 2)
        )  # fmt: skip
        topology = report_data.SHAPES.get(name, report_data.records.Topology())
        plan = report_data.plan(name, topology=topology).model_copy(update={"points": points})
        plan.write(self.folder / "deployments" / name / "plan.json")
        for point in points:
            self._measure(name, point)
        self._attempt(name)

    def _attempt(self, deployment: str) -> None:
        """Write the files of the deployment's only attempt: processes, node, sources, reason of the end."""
        folder = f"deployments/{deployment}/attempts/001"
        supervisor = SupervisorState(
            state="ended", identity="142:1@node01", deployment=deployment, why="stop_requested",
            ended_at="2026-03-04T10:13:00.058+00:00",
        )  # fmt: skip
        node = Node(
            name="node01", host="node01", address="10.0.0.11", interface="eth0", devices=2, cpu_count=2,
            memory_gib=15.62, shm_gib=7.81, kind={"accelerator": "cpu"}, python="3.11.2", vllm="0.32.0+cpu", ports=(23231,),
        )  # fmt: skip
        sources = Sources(servemark="0.1.0", commit="1f0c2d9a" * 5, dirty=False)
        if deployment == FAILED:
            self.write(f"{folder}/failure.json", BROKEN.model_dump_json())
        self.write(f"{folder}/daemons/server.json", server(deployment).model_dump_json(indent=2))
        self.write(f"{folder}/supervisor.json", supervisor.model_dump_json(indent=2))
        self.write(f"{folder}/survey/look/node01.json", NodeResult(name="node01", node=node).model_dump_json())
        self.write(f"{folder}/server.log", "INFO: Application startup complete.\n")
        sources.write(self.folder / folder / "sources.json")

    def _measure(self, deployment: str, point: PlannedPoint) -> None:
        if deployment == FAILED:
            self.write(self.raw(deployment, point.load.name), "{}\n")
            record = verdict.not_measured(self._bare(deployment, point), BROKEN)
            record.write(self.folder / self.record(deployment, point.load.name))
            return
        slow = 2.0 if deployment == "ray-tp2" else 0.8
        result = raw_result(point.load.concurrency or 1, point.load.repetition, slow)
        self.write(self.raw(deployment, point.load.name), json.dumps(result))
        self._judge(deployment, point, FINE)

    def _bare(self, deployment: str, point: PlannedPoint, **seen: Any) -> Measurement:
        parts = _key_parts(deployment)
        return Measurement(deployment=deployment, load=point.load, key=point.key, key_parts=parts, verdict="INVALID", **seen)

    def _judge(self, deployment: str, point: PlannedPoint, facts: verdict.ServerFacts) -> None:
        path = self.folder / self.raw(deployment, point.load.name)
        raw: RawResult | RawError
        try:
            raw = read_raw(path)
        except RawError as error:
            # As if the client wrote no file and servemark wrote an empty object instead.
            raw = RawError(error.what, reason="raw_missing")
        bare = self._bare(
            deployment, point, attempt=attempt(deployment), started_at="2026-03-04T10:12:44.000+00:00",
            client_argv=("vllm", "bench", "serve", "--seed", str(point.load.seed)), client_exit_code=facts.client_exit_code,
            raw=path.name, raw_sha256=file_sha256(path),
        )  # fmt: skip
        record = verdict.judged(bare, verdict.judge(raw, point.load, Verdict(), facts))
        record.write(self.folder / self.record(deployment, point.load.name))
        timeline = report_data_parts.timeline(record)
        timeline.write(Timeline.path(self.folder / "deployments" / deployment / "attempts" / "001", point.load.name))

    def judge(self, deployment: str, point: str, facts: verdict.ServerFacts) -> None:
        """Judge a point again with these facts about server and client; write record, table and report."""
        plan = Plan.read(self.folder / "deployments" / deployment / "plan.json")
        self._judge(deployment, next(item for item in plan.points if item.load.name == point), facts)
        self.tabulate()
        self.report()

    def raw(self, deployment: str, point: str) -> str:
        return f"deployments/{deployment}/points/{point}.requests.json"

    def record(self, deployment: str, point: str) -> str:
        return f"deployments/{deployment}/points/{point}.json"

    def write(self, name: str, text: str) -> None:
        path = self.folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")

    def edit(self, name: str, change: Callable[[str], str]) -> None:
        """Change the content of a file; fail if it stays the same."""
        old = (self.folder / name).read_text()
        new = change(old)
        assert new != old, f"nothing to change in {name}"
        self.write(name, new)

    def edit_json(self, name: str, change: Callable[[Any], None]) -> None:
        def apply(text: str) -> str:
            data = json.loads(text)
            change(data)
            return json.dumps(data)

        self.edit(name, apply)

    def measurements(self) -> list[Measurement]:
        paths = sorted(self.folder.glob("deployments/*/points/*.json"))
        return [Measurement.read(path) for path in paths if not path.name.endswith(".requests.json")]

    def tabulate(self) -> None:
        frame = table.tidy(gather.read(self.folder).collected().measurements)
        table.write_csv(frame, self.folder / "measurements.csv")
        table.write_parquet(frame, self.folder / "measurements.parquet")

    def report(self) -> None:
        self.write("report.html", page.render(gather.gather(self.folder)))

    def edit_block(self, change: Callable[[Any], object]) -> None:
        """Change the report's data block; fail if it stays the same."""

        def apply(text: str) -> str:
            data = json.loads(text)
            change(data)
            return json.dumps(data)

        pattern = re.compile(f'(id="{page.BLOCK_ID}">)(.*?)(</script>)', re.DOTALL)
        self.edit("report.html", lambda text: pattern.sub(lambda found: found[1] + apply(found[2]) + found[3], text))

    def seal(self) -> Path:
        """Seal the present files, as archive_results does."""
        try:
            contents.archive(self.folder, self.root / "envs", self.path, {})
        except (ServemarkError, RecursionError):
            # A record cannot be read, so the crate cannot be written: seal the files without it.
            archive.seal(contents.archived_files(self.folder, self.root / "envs"), self.path)
        return self.path


def _key_parts(deployment: str) -> dict[str, Any]:
    topology = report_data.SHAPES.get(deployment, report_data.records.Topology())
    return {"deployment": {"topology": topology.model_dump()}}


@contextmanager
def copy_of(run: ArchivedRun, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[ArchivedRun]:
    """Yield a copy that a test may change; fail if the network is used or a temporary file is left."""
    room = tmp_path / "room"
    room.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(room))
    monkeypatch.setattr(socket, "socket", lambda *_: pytest.fail("the network was used"))
    shutil.copytree(run.root, tmp_path / "checkout")
    yield ArchivedRun.at(tmp_path / "checkout")
    assert list(room.iterdir()) == []


def wrong(path: Path) -> list[str]:
    """Return the problems of an archive."""
    return list(verification.verify(path).wrong)
