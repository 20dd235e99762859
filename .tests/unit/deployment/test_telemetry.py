"""Telemetry of points on a live stand-in: its samplers belong to the deployment, and never fail it."""

from __future__ import annotations

import json
import os
import signal
import threading
import time

import pytest

from builders.deployed import HARDWARE, Deployment, assert_all_gone, kill_supervisor, reasons, verdict
from servemark import supervisor
from servemark.deployment import attempts, telemetry
from servemark.deployment.launcher import Launcher
from servemark.deployment.telemetry import FOLDER, SAMPLER
from servemark.measurement import samples
from servemark.nodes.allocation import Allocation
from servemark.processes.identity import Identity
from servemark.records import Container, Gpu, Node, Part, Replica, Timeline
from servemark.report import columns, measured
from servemark.supervisor.process_request import DaemonRequest

GPUS = HARDWARE.model_copy(update={"accelerator": "cuda", "gpus": (Gpu(name="Stand-in GPU", memory_mib=81920, uuid="GPU-a"),)})
# 28 requests in seven rounds of about half a second.
LONG = {"points": 1, "point": {"requests": 28}, "variables": {"STANDIN_TOKEN_S": "0.1"}}


def value(name: str, record) -> float | None:
    (column,) = [column for column in columns.COLUMNS if column.name == name]
    return column.value(measured.Row(record, None))


@pytest.fixture
def gpu_node(deploy, tmp_path, monkeypatch):
    """Makes a deployment whose node has these GPUs, by the stand-in of NVML."""

    def make(*gpus: dict, **changes) -> Deployment:
        described = tmp_path / "nvml.json"
        described.write_text(json.dumps({"gpus": gpus}))
        monkeypatch.setenv("STANDIN_NVML", str(described))
        return deploy(**({"hardware": GPUS} | LONG | changes))

    return make


def test_point_on_cpu_has_load_of_others_and_sampler_ends(deploy):
    plain = deploy(**LONG)
    plain.up()
    record = plain.measure()
    assert (verdict(record), record.telemetry.gpus) == ("VALID", ())
    (node,) = record.telemetry.nodes
    assert node.fault is None and node.samples >= 2 and node.longest_gap_s < 10
    assert node.cores == len(os.sched_getaffinity(0)) and 0 <= node.foreign_cores <= node.busy_cores <= node.cores + 0.5
    assert record.telemetry.end - record.telemetry.begin == pytest.approx(record.duration_s, abs=0.01)
    assert value("foreign_cpu_cores", record) == node.foreign_cores and value("gpu_power_w", record) is None
    timeline = Timeline.read(Timeline.path(plain.attempt, record.load.name)).telemetry
    assert timeline.power_w == () and len(timeline.foreign_cores) == len(timeline.seconds) >= 2
    stopped = plain.stop()
    assert {daemon.name: daemon.why for daemon in stopped.daemons} == dict.fromkeys((SAMPLER, "server", "client-server"), "stop_requested")
    assert_all_gone(plain)
    assert "of CPU time" in (plain.attempt / f"{SAMPLER}.log").read_text()


def test_load_of_others_makes_the_point_suspect_also_from_ledger(deploy):
    plain = deploy(**LONG)
    plain.up()
    record = plain.measure()
    plain.stop()
    # As if others had used one core.
    busy = record.telemetry.nodes[0].model_copy(update={"foreign_cores": 1.0})
    stored = record.model_copy(update={"telemetry": record.telemetry.model_copy(update={"nodes": (busy,)})})
    plain.ledger.forget(record.key, record.raw_sha256)
    plain.ledger.store(record.key, stored, plain.raw())
    plain.verdict = plain.verdict.model_copy(update={"max_foreign_cpu": 0.99 / busy.cores})
    replayed = plain.measure()
    assert (replayed.verdict, reasons(replayed, "foreign_load"), replayed.telemetry) == ("SUSPECT", {"foreign_load"}, stored.telemetry)


def test_killed_sampler_leaves_a_gap_and_nothing_else(deploy):
    plain = deploy(**(LONG | {"points": 2}))
    plain.up()

    def kill() -> None:
        time.sleep(1.0)
        os.kill(plain.pid(SAMPLER), signal.SIGKILL)

    thread = threading.Thread(target=kill)
    thread.start()
    record = plain.measure(1)
    thread.join()
    assert (record.verdict, reasons(record, "telemetry_gap")) == ("SUSPECT", {"telemetry_gap"}), record.reasons
    assert record.output_throughput > 0 and record.telemetry.nodes[0].longest_gap_s > 3
    assert plain.ledger.find(record.key).record == record
    assert supervisor.is_alive(plain.attempt)
    assert reasons(plain.measure(2), "telemetry_gap") == {"telemetry_gap"}
    ended = next(daemon for daemon in plain.stop().daemons if daemon.name == SAMPLER)
    assert (ended.signal, ended.why) == (signal.SIGKILL, "exited")
    assert_all_gone(plain)


def test_point_on_gpus_has_energy(gpu_node):
    plain = gpu_node({"uuid": "GPU-a", "power_w": 400.0, "events": 4}, {"uuid": "GPU-b"})
    plain.up()
    record = plain.measure()
    assert verdict(record) == "VALID"
    # Without a scheduler the second GPU is not the deployment's.
    (gpu,) = record.telemetry.gpus
    assert (gpu.uuid, gpu.replica, gpu.power_w, gpu.clock_events) == ("GPU-a", "r0", 400.0, {"sw_power_cap": gpu.samples})
    assert gpu.energy_j == pytest.approx(400.0 * record.duration_s, rel=0.3)
    joules = value("gpu_energy_j_per_output_token", record)
    assert joules == pytest.approx(gpu.energy_j / record.total_output_tokens)
    assert value("gpu_kwh_per_million_tokens", record) == pytest.approx(joules / 3.6)
    assert (value("gpu_power_w", record), value("gpus_allocated", record), value("gpus_idle", record)) == (400.0, 1, None)
    timeline = Timeline.read(Timeline.path(plain.attempt, record.load.name)).telemetry
    assert 400.0 in timeline.power_w and 1980 in timeline.sm_clock_mhz and timeline.foreign_cores == ()


def test_foreign_process_and_idle_gpu_make_the_point_suspect(gpu_node):
    plain = gpu_node({"uuid": "GPU-a", "busy": 0, "pids": [os.getppid()], "events": 64})
    plain.up()
    record = plain.measure()
    assert (record.verdict, reasons(record)) == ("SUSPECT", {"foreign_process", "idle_gpus", "throttled"})


def test_node_without_driver_states_it_and_measures(gpu_node, monkeypatch):
    plain = gpu_node({"uuid": "GPU-a"})
    monkeypatch.delenv("STANDIN_NVML")
    plain.up()
    record = plain.measure()
    assert verdict(record) == "VALID" and "LibraryNotFound" in record.telemetry.nodes[0].fault
    assert "LibraryNotFound" in (plain.attempt / f"{SAMPLER}.log").read_text()
    assert value("gpu_power_w", record) is None and value("gpu_energy_j_per_output_token", record) is None
    assert supervisor.is_alive(plain.attempt)


def test_served_endpoint_is_not_sampled(deploy):
    plain = deploy(points=1)
    plain.start(hold=True)
    assert [daemon.name for daemon in supervisor.read_daemons(plain.attempt)] == [] and not (plain.attempt / FOLDER).exists()


NODE = {"address": "10.0.0.1", "interface": "hsn0", "devices": 4, "cpu_count": 8, "memory_gib": 1, "shm_gib": 1, "python": "3", "vllm": "1"}
TWO = (Replica(name="r0", parts=(Part(node=0, devices=(0, 1)),)), Replica(name="r1", parts=(Part(node=1, devices=(2, 3)),)))


@pytest.mark.parametrize(
    ("job", "named"),
    [
        (None, {SAMPLER: ["0=r0", "1=r0"], f"{SAMPLER}-n1": ["2=r1", "3=r1"]}),
        ("7", {SAMPLER: ["0=r0", "1=r0", "2", "3"], f"{SAMPLER}-n1": ["0", "1", "2=r1", "3=r1"]}),
    ],
)
def test_every_node_with_ranks_has_a_sampler_of_its_gpus(deploy, tmp_path, monkeypatch, job, named):
    asked: list[DaemonRequest] = []
    monkeypatch.setattr(Launcher, "start", lambda self, node, request: asked.append(request))
    nodes = tuple(Node(name=f"gn{n}", host=f"gn{n}", **NODE) for n in range(3))
    attempt = tmp_path / "attempts" / "001"
    attempt.mkdir(parents=True)
    telemetry.start(deploy(hardware=GPUS).context(), Launcher(Allocation(job, ("gn0", "gn1", "gn2")), attempt, tmp_path), nodes, TWO)
    assert {one.name: list(one.argv[one.argv.index("--gpus") + 1 :]) for one in asked} == named
    assert all(one.optional and one.devices is None for one in asked)
    assert [one.argv[one.argv.index("--node") + 1] for one in asked] == ["gn0", "gn1"]


@pytest.mark.parametrize("contained", [False, True])
def test_sampler_in_an_image_loads_the_modules_that_bring_the_runtime(deploy, standin, tmp_path, monkeypatch, contained):
    asked: list[DaemonRequest] = []
    monkeypatch.setattr(Launcher, "start", lambda self, node, request: asked.append(request))
    image = Container(image="/x.sqsh", runtime="enroot", place="/x.sqsh", digest="sha256:" + "0" * 64)
    plain = deploy(environment=standin.model_copy(update={"container": image if contained else None}))
    plain.plan = plain.plan.model_copy(update={"modules": ("enroot/4",)})
    attempt = tmp_path / "attempts" / "001"
    attempt.mkdir(parents=True)
    telemetry.start(
        plain.context(), Launcher(Allocation("7", ("gn0",)), attempt, tmp_path), (Node(name="gn0", host="gn0", **NODE),), TWO[:1]
    )
    assert [one.modules for one in asked] == [("enroot/4",) if contained else ()]


def test_sampler_ends_with_killed_supervisor(deploy, wait_for):
    plain = deploy(points=1)
    plain.start()
    pid, node = plain.pid(SAMPLER), attempts.find_daemon(plain.attempt, SAMPLER).node
    wait_for(lambda: samples.read(node, plain.attempt / FOLDER / f"{node}.jsonl").header)
    kill_supervisor(plain)
    wait_for(lambda: Identity.of(pid) is None)
