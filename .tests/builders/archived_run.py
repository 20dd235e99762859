"""A small finished run: per-request results, records, table, report and archive, all made by the library's own functions."""

from __future__ import annotations

import heapq
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
from servemark import verification
from servemark.archive import contents
from servemark.archive import seal as archive
from servemark.config.expand import expand, points
from servemark.config.model import Config
from servemark.deployment.client import shares
from servemark.errors import ServemarkError
from servemark.launch import command_lines
from servemark.measurement import key, verdict
from servemark.measurement.ledger import file_sha256
from servemark.measurement.raw import RawError, RawResult, read_raw
from servemark.measurement.thresholds import Verdict
from servemark.nodes.survey import NodeResult
from servemark.records import (
    Accounting,
    DaemonState,
    Failure,
    Hardware,
    Measurement,
    Node,
    Plan,
    PlannedPoint,
    ServerPlace,
    Sources,
    Startup,
    Stopped,
    Timeline,
)
from servemark.report import gather, page, table
from servemark.supervisor import SupervisorState
from servemark.weights import manifest as manifests

REQUESTS, INPUT, OUTPUT = 8, 10, 4
LOADS = (1, 2)
BETWEEN_S = 10
"""Seconds between the starts of two load points. All must start within the same minute."""
FAILED = "broken"
"""A deployment that never came up: its points have no per-request results."""
BROKEN = Failure(stage="await_ready", reason="server_exited", detail="The server ended with exit code 1: größer")
ADDRESS, PORT = "10.0.0.11", 23231
BANNER = "(APIServer pid=176) INFO 03-04 10:11:12 [api_utils.py:347]   █▄█▀ █     █     █     █  version 0.32.0\n"
FINE = verdict.ServerFacts(client_exit_code=0)


def raw_result(concurrency: int, repetition: int, slow: float = 1.0, begin: float = 100.0) -> dict[str, Any]:
    """Return the client's result file (--save-detailed): ``concurrency`` requests in flight from ``begin`` on, no two latencies alike."""
    ttfts = [slow * (0.02 + 0.001 * concurrency + 0.0007 * number + 0.0001 * repetition) for number in range(REQUESTS)]
    itls = [[slow * (0.05 + 0.001 * gap + 0.0003 * number) for gap in range(OUTPUT - 1)] for number in range(REQUESTS)]
    latencies = [ttft + sum(gaps) for ttft, gaps in zip(ttfts, itls, strict=True)]
    free, starts = [begin] * concurrency, []
    for latency in latencies:
        starts.append(heapq.heapreplace(free, free[0] + latency + 1e-4))
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


def configuration() -> dict[str, Any]:
    """Return the resolved configuration: two repetitions of two loads on three deployments."""

    def deployment(name: str) -> dict[str, Any]:
        ray = {"tensor_parallel": 2, "executor": "ray"} if name == "ray-tp2" else {}
        options = {"max-model-len": 256 if name == FAILED else 512, "enforce-eager": True, "dtype": "bfloat16"}
        return {"model": "tiny", "environment": "cpu", "topology": ray, "options": options, "variables": {"VLLM_CPU_KVCACHE_SPACE": "1"}}

    lengths = {"input_tokens": INPUT, "output_tokens": OUTPUT}
    chat = {"dataset": "random", **lengths, "concurrency": LOADS, "requests": REQUESTS, "repetitions": 2, "warmups": 1}
    given = {
        "run": "demo",
        "models": {"tiny": {"source": "builtin:tiny-dense"}},
        "environments": {"cpu": {"lock": "cpu"}},
        "deployments": {name: deployment(name) for name in ("ray-tp2", "plain", FAILED)},
        "workloads": {"chat": chat},
    }
    return Config.model_validate(given).model_dump(mode="json")


def server(plan: Plan) -> DaemonState:
    """Return the record of the ended server of a deployment's only attempt."""
    executor = plan.topology.executor
    ranks = [] if executor == "single" else ["--distributed-executor-backend", executor]
    return DaemonState(
        name="server", pid=176, argv=tuple(command_lines.serve("python", "/models/tiny", plan, ADDRESS, PORT, ranks)),
        log=f"{attempt(plan.deployment)}/server.log", node="node01", exit_code=0, started_at="2026-03-04T10:11:09.155+00:00",
        ended_at="2026-03-04T10:13:00.000+00:00", why="stop_requested",
    )  # fmt: skip


class ArchivedRun:
    """``results/demo``: two deployments that were measured and one that never came up.

    ``plain`` at concurrency 2 takes less than a second, so it is SUSPECT.
    """

    def __init__(self, root: Path):
        self._place(root)
        self.write("config.json", json.dumps(configuration()))
        data = report_data.demo()
        report_data.hardware().write(self.folder / "hardware.json")
        check = data.checks["cpu"]
        made = data.environments["cpu"].model_copy(update={"lock": "cpu", "installed": check.digest})
        made.write(self.folder / "environments" / "cpu" / "environment.json")
        check.write(self.folder / "environments" / "cpu" / "check.json")
        model = data.manifests["tiny"]
        model = model.model_copy(update={"digest": manifests.digest(model.files)})
        model.write(self.folder / "models" / "tiny" / "manifest.json")
        for name in configuration()["deployments"]:
            self._deployment(name)
            Accounting(deployment=name, scheduler="none").write(self.folder / "deployments" / name / "accounting.json")
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
        config = expand(Config.model_validate(configuration()))
        asked, model = config.deployments[name], manifests.Manifest.read(self.folder / "models" / "tiny" / "manifest.json")
        topology, environment = asked.topology.record(), report_data.check().digest
        parts = key.deployment_parts(
            model_digest=model.digest, environment_digest=environment, topology=topology, options=asked.options,
            variables=asked.variables, hardware=self.hardware(),
        )  # fmt: skip
        planned = tuple(PlannedPoint(load=load, key=key.digest(parts, key.point_parts(load))) for load in points(config, name))
        plan = report_data.plan(name, topology=topology, options=asked.options, variables=asked.variables, model_digest=model.digest)
        plan = plan.model_copy(update={"points": planned, "key_parts": parts, "key_format": key.FORMAT})
        plan.write(self.folder / "deployments" / name / "plan.json")
        for number, point in enumerate(planned):
            self._measure(plan, point, number)
        self._attempt(plan)

    def hardware(self) -> Hardware:
        return Hardware.read(self.folder / "hardware.json")

    def plan(self, deployment: str) -> Plan:
        return Plan.read(self.folder / "deployments" / deployment / "plan.json")

    def _attempt(self, plan: Plan) -> None:
        """Write the files of the deployment's only attempt: processes, node, start-up, sources, reason of the end."""
        deployment = plan.deployment
        folder = f"deployments/{deployment}/attempts/001"
        supervisor = SupervisorState(
            state="ended", identity="142:1@node01", deployment=deployment, why="stop_requested",
            ended_at="2026-03-04T10:13:00.058+00:00",
        )  # fmt: skip
        node = Node(
            name="node01", host="node01", address="10.0.0.11", interface="eth0", devices=2, cpu_count=2,
            memory_gib=15.62, shm_gib=7.81, kind=plan.key_parts["hardware"], python="3.11.2", vllm="0.32.0+cpu", ray="2.56.1",
            ports=(PORT,),
        )  # fmt: skip
        sources = Sources(servemark="0.1.0", commit="1f0c2d9a" * 5, dirty=False)
        if deployment == FAILED:
            self.write(f"{folder}/failure.json", BROKEN.model_dump_json())
        else:
            place = ServerPlace(replica="r0", daemon="server", node="node01", url=f"http://{ADDRESS}:{PORT}", argv=server(plan).argv)
            came_up = report_data.startup(deployment).model_dump() | {"attempt": attempt(deployment), "nodes": (node,), "servers": (place,)}
            for path in (folder, f"deployments/{deployment}"):
                Startup.model_validate(came_up).write(self.folder / path / "startup.json")
        stopped = Stopped(deployment=deployment, attempt=attempt(deployment), seconds=2.0, daemons=(server(plan),))
        stopped.write(self.folder / "deployments" / deployment / "stopped.json")
        self.write(f"{folder}/daemons/server.json", server(plan).model_dump_json(indent=2))
        self.write(f"{folder}/supervisor.json", supervisor.model_dump_json(indent=2))
        self.write(f"{folder}/survey/look/node01.json", NodeResult(name="node01", node=node).model_dump_json())
        self.write(f"{folder}/server.log", BANNER + "INFO: Application startup complete.\n")
        sources.write(self.folder / folder / "sources.json")

    def _measure(self, plan: Plan, point: PlannedPoint, number: int) -> None:
        deployment, load = plan.deployment, point.load
        if deployment == FAILED:
            self.write(self.raw(deployment, load.name), "{}\n")
            verdict.not_measured(self._bare(plan, point), BROKEN).write(self.folder / self.record(deployment, load.name))
            return
        slow = 2.0 if deployment == "ray-tp2" else 0.8
        self.write(
            self.raw(deployment, load.name), json.dumps(raw_result(load.concurrency or 1, load.repetition, slow, 100.0 + 10 * number))
        )
        self._judge(plan, point, FINE)

    def _bare(self, plan: Plan, point: PlannedPoint, **seen: Any) -> Measurement:
        parts = {"deployment": plan.key_parts, "point": key.point_parts(point.load)}
        return Measurement(
            deployment=plan.deployment,
            load=point.load,
            key=point.key,
            key_parts=parts,
            key_format=plan.key_format,
            verdict="INVALID",
            **seen,
        )

    def _judge(self, plan: Plan, point: PlannedPoint, facts: verdict.ServerFacts) -> None:
        deployment, load = plan.deployment, point.load
        path, number = self.folder / self.raw(deployment, load.name), [item.load for item in plan.points].index(load)
        second = 10 + BETWEEN_S * number
        raw: RawResult | RawError
        try:
            raw = read_raw(path)
        except RawError as error:
            # As if the client wrote no file and servemark wrote an empty object instead.
            raw = RawError(error.what, reason="raw_missing")
        share = shares(load)[0]
        argv = command_lines.bench(
            "python", f"http://{ADDRESS}:{PORT}", "tiny", "/models/tiny", share, "points", f".{path.name}.001.draft.0"
        )
        bare = self._bare(
            plan, point, attempt=attempt(deployment), started_at=f"2026-03-04T10:12:{second}.000+00:00", client_argv=tuple(argv),
            client_exit_code=facts.client_exit_code, client_node="node01", raw=path.name, raw_sha256=file_sha256(path),
            replica_requests={"r0": load.requests + sum(one.warmups for one in shares(load))}, telemetry=facts.telemetry,
        )  # fmt: skip
        record = verdict.judged(bare, verdict.judge(raw, load, Verdict(), facts))
        record.write(self.folder / self.record(deployment, load.name))
        timeline = report_data_parts.timeline(record)
        timeline.write(Timeline.path(self.folder / "deployments" / deployment / "attempts" / "001", load.name))

    def judge(self, deployment: str, point: str, facts: verdict.ServerFacts) -> None:
        """Judge a point again with these facts about server and client; write record, table and report."""
        plan = self.plan(deployment)
        self._judge(plan, next(item for item in plan.points if item.load.name == point), facts)
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

    def without_thresholds(self) -> None:
        """Remove from the records what only archives of format 3 and later state, and make table and report again."""
        for path in self.folder.glob("deployments/*/points/*.json"):
            if not path.name.endswith(".requests.json"):
                self.edit_json(path.relative_to(self.folder).as_posix(), lambda data: data.pop("thresholds", None))
        self.tabulate()
        self.report()

    def measurements(self) -> list[Measurement]:
        paths = sorted(self.folder.glob("deployments/*/points/*.json"))
        return [Measurement.read(path) for path in paths if not path.name.endswith(".requests.json")]

    def tabulate(self) -> None:
        found = gather.read(self.folder).collected()
        frame = table.tidy(found.measurements, attainments=found.attainments)
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
