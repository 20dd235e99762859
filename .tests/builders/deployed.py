"""One deployment whose stages a test runs one by one, and checks of it."""

from __future__ import annotations

import functools
import hashlib
import json
import signal
import time
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from builders.loads import load
from servemark import supervisor
from servemark.config.cluster import Site
from servemark.config.model import Config, Timeouts
from servemark.deployment import attempts, cluster, fabric
from servemark.deployment.context import StageContext
from servemark.deployment.measure import Measuring
from servemark.deployment.readiness import Waiting
from servemark.deployment.server import Serving
from servemark.deployment.stop import stop
from servemark.machine import hardware
from servemark.measurement import key
from servemark.measurement.ledger import Ledger
from servemark.measurement.thresholds import Verdict, stored
from servemark.processes import identity as processes
from servemark.processes.children import OwnerWatch
from servemark.progress import Progress
from servemark.records import (
    Cluster,
    Endpoint,
    Environment,
    Fabric,
    Hardware,
    Manifest,
    Measurement,
    ModelFile,
    Plan,
    PlannedPoint,
    Ready,
    Startup,
    Stopped,
    Topology,
)
from servemark.weights import manifest as weights_manifest

HARDWARE = Hardware(
    accelerator="cpu",
    host="node01",
    cpu_model="a CPU",
    cpu_count=2,
    memory_gib=16.0,
    shm_gib=8.0,
    architecture="x86_64",
    kernel="6.1",
    os="Debian GNU/Linux 12",
    glibc="2.36",
    nofile=1024,
    nproc=1000,
    probed_at="2026-03-04T10:02:10Z",
)
CONFIG = Config.model_validate(
    {
        "run": "demo",
        "models": {"tiny": {"source": "builtin:tiny-dense"}},
        "environments": {"standin": {"prefix": "/envs/standin"}},
        "deployments": {"plain": {"model": "tiny", "environment": "standin"}},
        "workloads": {"chat": {"dataset": "random", "input_tokens": 8, "output_tokens": 5, "requests": 4, "concurrency": [4]}},
    }
)
FIGURES = (
    "duration_s",
    "request_throughput",
    "output_throughput",
    "total_throughput",
    "ttft_ms",
    "tpot_ms",
    "itl_ms",
    "e2el_ms",
)


@functools.cache
def _this_machine() -> Hardware:
    return hardware.probe()


class Told(Progress):
    """Progress that a test can read."""

    def __init__(self, path: Path):
        super().__init__(path, "stage", "subject", "the.log")
        self._file = path

    @property
    def words(self) -> list[str]:
        """The texts of all lines so far."""
        return [line["text"] for line in self.lines]

    @property
    def lines(self) -> list[dict[str, Any]]:
        """All lines so far."""
        return [json.loads(line) for line in self._file.read_text().splitlines()] if self._file.exists() else []


def planned_point(number: int, share: dict[str, Any], **changes: Any) -> PlannedPoint:
    """Return a short planned point: 4 requests at once, 8 tokens in, 5 out."""
    point = load(**{"repetition": number, "seed": number, "warmups": 1, **changes})
    return PlannedPoint(load=point, key=key.digest(share, key.point_parts(point)))


def stage_context(folder: Path, told: Progress, plan: Plan, **changes: Any) -> StageContext:
    """Return the context of a stage without reading files."""
    values = {
        "progress": told,
        "log": folder / "stage.log",
        "watch": None,
        "deployment": folder,
        "config": CONFIG,
        "plan": plan,
        "environment": SimpleNamespace(python="py", bytecode=None, container=None),
        "manifest": SimpleNamespace(path="/m"),
        "hardware": HARDWARE,
    }
    return StageContext(**(values | changes))


@dataclass
class Deployment:
    """One deployment with its folder, ledger and model; each stage is called as its rule's script calls it."""

    root: Path
    environment: Environment
    told: Told
    watch: OwnerWatch
    name: str = "plain"
    variables: dict[str, str] = field(default_factory=dict)
    topology: Topology = field(default_factory=Topology)
    site: Site | None = None
    hardware: Hardware = HARDWARE
    points: int = 2
    point: dict[str, Any] = field(default_factory=dict)
    timeouts: Timeouts = field(
        default_factory=lambda: Timeouts(start=90.0, stall=60.0, point=90.0, no_progress=60.0, stop=1.0, cluster=60.0)
    )
    # Loads of milliseconds on a machine that may be busy. `verdict` below leaves out what else that does to them.
    verdict: Verdict = field(default_factory=lambda: stored({"min_duration_s": 0.0, "min_requests_per_slot": 1.0, "min_in_flight": 0.0}))

    def __post_init__(self) -> None:
        self.folder.mkdir(parents=True)
        model = self.root / f"{self.name}-model"
        model.mkdir()
        text = json.dumps({"architectures": ["Standin"]})
        (model / "config.json").write_text(text)
        files = (ModelFile(path="config.json", size=len(text), sha256=hashlib.sha256(text.encode()).hexdigest()),)
        self.manifest = Manifest(
            name="tiny",
            source=str(model),
            path=str(model),
            digest=weights_manifest.digest(files),
            files=files,
            bytes=len(text),
            config={},
            weight_bytes=0,
            parameters=0,
        )
        variables = {"STANDIN_START_S": "0.1", "STANDIN_TOKEN_S": "0.001", **self.variables}
        share = key.deployment_parts(
            model_digest=self.manifest.digest,
            environment_digest=self.environment.digest,
            topology=self.topology,
            options={},
            variables=variables,
            # The hardware of the nodes must equal the planned one.
            hardware=_this_machine(),
        )
        self.plan = Plan(
            deployment=self.name,
            model="tiny",
            environment="standin",
            model_digest=self.manifest.digest,
            environment_digest=self.environment.digest,
            served_name="tiny",
            topology=self.topology,
            options={"max-model-len": 4096},
            variables=variables,
            points=tuple(planned_point(n + 1, share, **self.point) for n in range(self.points)),
            key_format=key.FORMAT,
            key_parts=share,
        )

    @property
    def config(self) -> Config:
        own = {"timeouts": self.timeouts, "verdict": self.verdict, "cluster": self.site, "cache": self.root / "cache"}
        return CONFIG.model_copy(update=own)

    @property
    def folder(self) -> Path:
        return self.root / "deployments" / self.name

    @property
    def live_records(self) -> list[Path]:
        return attempts.live_records(self.folder)

    @property
    def ledger(self) -> Ledger:
        return Ledger(self.root / "ledger")

    @property
    def attempt(self) -> Path:
        found = attempts.latest(self.folder)
        assert found is not None, "no attempt was started"
        return found

    @property
    def left(self) -> list[str]:
        """Processes of all attempts that still run."""
        return [processes.describe(p) for a in attempts.every(self.folder) for p in attempts.left_over(a)]

    def pid(self, daemon: str = "server") -> int:
        state = attempts.find_daemon(self.attempt, daemon)
        assert state is not None and state.pid is not None, f"{daemon} was not started"
        return state.pid

    def context(self, log: str = "stage.log") -> StageContext:
        return stage_context(
            self.folder,
            self.told,
            self.plan,
            log=self.root / log,
            watch=self.watch,
            config=self.config,
            environment=self.environment,
            manifest=self.manifest,
            hardware=self.hardware,
        )

    def start(self, *, hold: bool = False) -> Cluster:
        started = cluster.start(self.context("start.log"), self.ledger, hold=hold)
        started.write(self.live_records[0])
        return started

    def check(self, started: Cluster) -> Fabric:
        return fabric.check(self.context("fabric.log"), started)

    def serve(self, started: Cluster, port: int | None = None) -> Endpoint:
        endpoint = Serving(self.context(), started, port).run(Fabric(deployment=self.name, attempt=started.attempt))
        endpoint.write(self.live_records[1])
        return endpoint

    def wait(self, started: Cluster, endpoint: Endpoint) -> tuple[Ready, Startup]:
        ready, startup = Waiting(self.context(), started, endpoint).run()
        ready.write(self.live_records[2])
        return ready, startup

    def up(self) -> Ready:
        """Run all stages until the server is ready or has failed."""
        started = self.start()
        return self.wait(started, self.serve(started))[0]

    def measure(self, number: int = 1) -> Measurement:
        name = self.plan.loads[number - 1].name
        return Measuring(self.context(f"{name}.log"), self.ledger).run(name, self.live_records[2], self.raw(number))

    def raw(self, number: int = 1) -> Path:
        return self.folder / "points" / f"{self.plan.loads[number - 1].name}.requests.json"

    def stop(self) -> Stopped:
        return stop(self.plan, self.folder, stop_s=self.timeouts.stop, log=self.root / "stop.log", progress=self.told)

    def end(self) -> None:
        """End all processes that a test left."""
        for attempt in attempts.every(self.folder):
            if supervisor.is_alive(attempt):
                supervisor.stop(attempt, 60)
            processes.signal_all(attempts.left_over(attempt), 9)


BUSY_MACHINE = {
    "chunks_missing", "client_saturated", "client_saturated_at_times", "clients_out_of_step", "concurrency_not_kept", "foreign_load",
    "slow_drain", "telemetry_gap", "tokens_in_bursts",
}  # fmt: skip
"""Reasons that other work on the machine can add to any load of milliseconds."""


def reasons(record: Measurement, *about: str) -> set[str]:
    """Return the codes of a verdict's reasons, without those of a busy machine that the test is not about."""
    return {reason.code for reason in record.reasons} - (BUSY_MACHINE - set(about))


def verdict(record: Measurement) -> str:
    """Return VALID for a measurement that only a busy machine made SUSPECT, else its verdict."""
    return "VALID" if record.verdict == "SUSPECT" and not reasons(record) else record.verdict


def assert_no_figure(deployment: Deployment, record: Measurement) -> None:
    assert record.verdict == "INVALID"
    assert [name for name in FIGURES if getattr(record, name) is not None] == []
    assert deployment.ledger.find(record.key) is None


def assert_all_gone(deployment: Deployment) -> None:
    deadline = time.monotonic() + 30  # a supervisor writes its last state shortly before it exits
    while deployment.left and time.monotonic() < deadline:
        time.sleep(0.02)
    assert deployment.left == []
    state = supervisor.read_state(deployment.attempt)
    assert state is not None and state.state == "ended"
    assert not attempts.scratch_folder(deployment.attempt).exists()


def kill_supervisor(deployment: Deployment) -> None:
    state = supervisor.read_state(deployment.attempt)
    assert state is not None
    identity = processes.Identity.parse(state.identity)
    identity.signal(signal.SIGKILL)
    assert processes.wait_for_end(identity, 60)
