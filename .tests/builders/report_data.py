"""Builders of report data: a plausible run of a tiny model on a laptop, and a harder one with a failed deployment."""

from __future__ import annotations

import hashlib
from dataclasses import replace
from typing import Any

from builders import report_data_parts as parts
from builders.loads import load, split
from servemark import records
from servemark.report.gather import RunRecords

HOSTILE = "</script><img src=x onerror=\"document.title='owned'\">\"'`{{7*7}}\u202e\u05d0\u05d1&amp;"
POISON = 98765.4321
"""A figure that only INVALID records carry: it must appear nowhere."""


RAY = records.Topology(nodes=1, devices_per_node=2, tensor_parallel=2, executor="ray")
SPANNING = records.Topology(nodes=2, devices_per_node=4, tensor_parallel=4, pipeline_parallel=2, executor="ray", client="own")
FOUR = records.Topology(nodes=2, devices_per_node=4, tensor_parallel=2, replicas=4, executor="mp", client="own")
SHAPES = {
    "ray-tp2": RAY,
    "tp4-pp2-ray": SPANNING,
    "tp2-x4": FOUR,
    "tp4": records.Topology(devices_per_node=4, tensor_parallel=4, executor="mp"),
}
"""The topology of each deployment; one of another name is one process."""


def digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()


def summary(middle: float, spread: float, count: int = 32) -> records.Summary:
    return records.Summary(
        count=count,
        mean=middle * (1 + spread / 8),
        std=middle * spread / 2,
        p50=middle,
        p95=middle * (1 + spread),
        p99=middle * (1 + 1.6 * spread),
        max=middle * (1 + 1.7 * spread),
    )


def steady_latency(middle: float, spread: float, count: int) -> records.SteadyLatency:
    whole = summary(middle, spread, count).model_dump()
    short = {name: None for name, least in (("p95", 72), ("p99", 368)) if count < least}
    return records.SteadyLatency(**(whole | short), p95_range=None if short else (0.98 * whole["p95"], 1.03 * whole["p95"]))


def steady(output: float, ttft: float, tpot: float, count: int = 24, **changes: Any) -> records.Steady:
    """The steady state of 24 requests, too few for p95 and p99."""
    too_few = f"{count} requests start in the steady state; p95 needs 72, p99 needs 368." if count < 368 else None
    values: dict[str, Any] = {
        "begin_s": 0.4, "end_s": 1.6, "requests": count, "cycles": 2, "request_throughput": output / 32, "output_throughput": output,
        "total_throughput": 3 * output, "in_flight": 7.94, "waves": 0.4, "too_few": too_few, "ttft_ms": steady_latency(ttft, 0.3, count),
        "tpot_ms": steady_latency(tpot, 0.1, count), "itl_ms": steady_latency(tpot, 0.4, 31 * count),
        "e2el_ms": steady_latency(ttft + 31 * tpot, 0.15, count),
    }  # fmt: skip
    return records.Steady(**(values | changes))


def measurement(
    deployment: str = "plain",
    concurrency: int | None = 8,
    repetition: int = 1,
    output: float = 820.0,
    ttft: float = 21.4,
    tpot: float = 8.1,
    **changes: Any,
) -> records.Measurement:
    """An accepted measurement of 32 requests, 64 tokens in and 32 out."""
    workload = changes.get("workload", "chat")
    rate = changes.get("request_rate")
    point = f"{workload}-c{concurrency}-q{rate}-r{repetition}"
    inside, rest = split(changes)
    at = {"name": point, "concurrency": concurrency, "repetition": repetition, "seed": repetition, "requests": 32}
    values: dict[str, Any] = {
        "deployment": deployment,
        "load": load(**{**at, "input_tokens": 64, "output_tokens": 32, "warmups": 4, **inside}),
        "key": digest(deployment + point),
        "key_parts": {"deployment": {"topology": SHAPES.get(deployment, records.Topology()).model_dump()}},
        "verdict": "VALID",
        "attempt": "attempts/1",
        "started_at": "2026-03-04T10:12:44Z",
        "completed": 32,
        "failed": 0,
        "duration_s": 1024 / output,
        "total_input_tokens": 2048,
        "total_output_tokens": 1024,
        "request_throughput": output / 32,
        "output_throughput": output,
        "total_throughput": output * 3,
        "ttft_ms": summary(ttft, 0.55),
        "tpot_ms": summary(tpot, 0.12),
        "itl_ms": summary(tpot * 0.98, 0.4, 992),
        "e2el_ms": summary(ttft + 31 * tpot, 0.18),
        "in_flight_mean": 0.95 * (concurrency or 8),
        "in_flight_most": concurrency or 8,
        "peak_output_throughput": 1.2 * output,
        "tokens_per_chunk": 1.0,
        "client_exit_code": 0,
        "raw": f"{point}.json",
        "raw_sha256": digest(point),
    }
    values |= rest
    if "steady" not in values and values["output_throughput"] is not None:
        values["steady"] = steady(values["output_throughput"], 0.8 * ttft, tpot, in_flight=0.99 * (concurrency or 8))
    return records.Measurement(**values)


def invalid(deployment: str = "plain", **changes: Any) -> records.Measurement:
    """Return an INVALID measurement whose record wrongly contains results."""
    values: dict[str, Any] = {
        "verdict": "INVALID",
        "reasons": (records.Reason(code="requests_failed", severity="INVALID", detail="15 of 32 requests failed: HTTP 500."),),
        "completed": 17,
        "failed": 15,
        "output": POISON,
        "ttft": POISON,
        "tpot": POISON,
    }
    return measurement(deployment, **(values | changes))


def hardware(**changes: Any) -> records.Hardware:
    values: dict[str, Any] = {
        "accelerator": "cpu",
        "host": "node01",
        "cpu_model": "AMD EPYC 7763 64-Core Processor",
        "cpu_count": 2,
        "memory_gib": 15.62,
        "shm_gib": 7.81,
        "architecture": "x86_64",
        "kernel": "6.1.0-28-amd64",
        "os": "Debian GNU/Linux 12",
        "glibc": "2.36",
        "interfaces": (records.Interface(name="eth0", address="10.0.0.11"),),
        "nofile": 1048576,
        "nproc": 63000,
        "probed_at": "2026-03-04T10:02:10Z",
    }
    return records.Hardware(**(values | changes))


def environment(name: str = "cpu") -> records.Environment:
    return records.Environment(
        name=name,
        origin="lock",
        digest=digest(name),
        prefix=f"results/cache/environments/{name}",
        python=f"results/cache/environments/{name}/bin/python",
        lock=f"envs/{name}.lock",
        packages=163,
        seconds=92.4,
        size_mib=1893.0,
    )


def check(name: str = "cpu", **changes: Any) -> records.EnvironmentCheck:
    values: dict[str, Any] = {
        "name": name,
        "digest": digest(name),
        "python_version": "3.11.2",
        "vllm": "0.32.0+cpu",
        "torch": "2.13.0+cpu",
        "torch_cuda": None,
        "ray": "2.56.1",
        "vllm_platform": "cpu",
    }
    return records.EnvironmentCheck(**(values | changes))


def kernel_check(variables: tuple[str, ...] = (), **changes: Any) -> records.EnvironmentCheck:
    """Return the check of vLLM 0.32.0 for CUDA 13 on a node with a complete toolkit; ``changes``: fields of its kernel tools."""
    tools: dict[str, Any] = {
        "flashinfer": "0.7.0",
        "sampler": True,
        "nvcc": "/usr/local/cuda/bin/nvcc",
        "nvcc_cuda": "13.0",
        "headers_cuda": "13.0",
        "ninja": "/env/bin/ninja",
        "compiler": "/usr/bin/c++",
    }
    kernels = records.KernelTools(**(tools | changes))
    cuda = {"vllm": "0.32.0", "torch_cuda": "13.0", "vllm_platform": "cuda", "tensor_on": "cuda"}
    return check("gpu", **cuda, kernels=kernels, variables=variables)


def manifest(name: str = "tiny") -> records.Manifest:
    return records.Manifest(
        name=name,
        source="builtin:tiny-dense",
        path=f"results/cache/models/{name}",
        digest=digest(name),
        files=(
            records.ModelFile(path="config.json", size=812, sha256=digest("config")),
            records.ModelFile(path="model.safetensors", size=2_163_712, sha256=digest("weights")),
            records.ModelFile(path="tokenizer.json", size=98_304, sha256=digest("tokenizer")),
        ),
        bytes=2_262_828,
        config={"architectures": ["Qwen3ForCausalLM"], "hidden_size": 128},
        weight_bytes=2_161_152,
        parameters=1_080_576,
    )


def plan(deployment: str = "plain", points: tuple[records.Measurement, ...] = (), **changes: Any) -> records.Plan:
    values: dict[str, Any] = {
        "deployment": deployment,
        "model": "tiny",
        "environment": "cpu",
        "model_digest": digest("tiny"),
        "environment_digest": digest("cpu"),
        "served_name": "tiny",
        "topology": records.Topology(),
        "options": {"max-model-len": 512, "enforce-eager": True, "dtype": "bfloat16"},
        "variables": {"VLLM_CPU_KVCACHE_SPACE": "1"},
        "estimate": records.Estimate(
            weights_gib=0.00201,
            kv_bytes_per_token=2048,
            kv_cache_gib=1.0,
            kv_cache_tokens=524_288,
            max_concurrency=1024.0,
            max_model_len=512,
        ),
        "points": tuple(records.PlannedPoint(load=item.load, key=item.key) for item in points),
        "key_parts": {},
    }
    return records.Plan(**(values | changes))


def startup(deployment: str = "plain", **changes: Any) -> records.Startup:
    values: dict[str, Any] = {
        "deployment": deployment,
        "seconds_to_health": 34.1,
        "seconds_to_first_token": 34.9,
        "phases": (
            records.StartupPhase(name="imports and configuration", seconds=17.8),
            records.StartupPhase(name="load weights", seconds=0.6),
            records.StartupPhase(name="engine initialisation", seconds=8.9),
        ),
        "observed": {"weights_gib": 0.0021, "kv_cache_gib": 1.0, "kv_cache_tokens": 523_264, "max_concurrency": 1022.0},
        "differences": {"weights_gib": 1.045, "kv_cache_gib": 1.0, "kv_cache_tokens": 0.998, "max_concurrency": 0.998},
        "log": f"results/demo/deployments/{deployment}/attempts/1/server.log",
        "compile_cache": "filled",
    }
    return records.Startup(**(values | changes))


def sweep() -> list[records.Measurement]:
    """Two deployments at concurrency 1, 4, 8, two repetitions each; the last one SUSPECT."""
    figures = {
        ("plain", 1): (121.3, 9.8, 8.0),
        ("plain", 4): (431.9, 14.1, 8.9),
        ("plain", 8): (806.2, 21.6, 9.3),
        ("ray-tp2", 1): (61.7, 19.4, 15.9),
        ("ray-tp2", 4): (214.8, 30.2, 18.0),
        ("ray-tp2", 8): (389.5, 47.7, 19.6),
    }
    found = []
    for (name, concurrency), (output, ttft, tpot) in figures.items():
        for repetition in (1, 2):
            shift = 1 + (0.021 if repetition == 2 else -0.012)
            found.append(measurement(name, concurrency, repetition, output * shift, ttft / shift, tpot / shift))
    drift = records.Reason(
        code="slow_start",
        severity="SUSPECT",
        detail="The first quarter of the requests took 1.9 times as long as the rest: was the warm-up too short?",
    )
    found[-1] = found[-1].model_copy(update={"verdict": "SUSPECT", "reasons": (drift,)})
    return found


def demo() -> RunRecords:
    """Return a finished run of the default configuration on a laptop."""
    points = sweep()
    halves = records.Estimate(
        weights_gib=0.00104,
        kv_bytes_per_token=1024,
        kv_cache_gib=1.0,
        kv_cache_tokens=1_048_576,
        max_concurrency=2048.0,
        max_model_len=512,
    )
    return RunRecords(
        run="demo",
        config={
            "run": "demo",
            "models": {"tiny": {"source": "builtin:tiny-dense"}},
            "environments": {"cpu": {"lock": "cpu"}},
            "deployments": {"plain": {"model": "tiny"}, "ray-tp2": {"model": "tiny", "topology": {"executor": "ray"}}},
            "workloads": {"chat": {"dataset": "random", "concurrency": [1, 4, 8], "repetitions": 2}},
        },
        hardware=hardware(),
        environments={"cpu": environment()},
        checks={"cpu": check()},
        manifests={"tiny": manifest()},
        plans={
            "plain": plan("plain", tuple(item for item in points if item.deployment == "plain")),
            "ray-tp2": plan("ray-tp2", tuple(item for item in points if item.deployment == "ray-tp2"), topology=RAY, estimate=halves),
        },
        startups={
            "plain": startup("plain"),
            "ray-tp2": startup(
                "ray-tp2",
                cluster_seconds=13.2,
                seconds_to_health=41.3,
                seconds_to_first_token=42.7,
                observed={"weights_gib": 0.0011, "kv_cache_gib": 1.0, "kv_cache_tokens": 1_046_528.0},
                differences={"weights_gib": 1.058, "kv_cache_gib": 1.0, "kv_cache_tokens": 0.998},
            ),
        },
        stopped={
            "plain": records.Stopped(deployment="plain", seconds=2.4),
            "ray-tp2": records.Stopped(deployment="ray-tp2", seconds=6.1, leftovers=("raylet 4211",)),
        },
        measurements=points,
        version="0.1.0",
        sources=[records.Sources(servemark="0.1.0", commit="1f0c2d9a" * 5, dirty=False)],
        attempts=[parts.attempt("plain"), parts.attempt("ray-tp2")],
        distributions=parts.distributions(points),
        timelines=parts.timelines(points),
    )


def troubled() -> RunRecords:
    """Return a run with hostile names, a failed deployment, an INVALID point, earlier attempts and a workload by rate."""
    base = demo()
    failure = records.Failure(
        stage="await_ready",
        reason="server_exited",
        detail=f"The server ended with exit code 1 after 12 s. {HOSTILE}",
        log="results/demo/deployments/tp4/attempts/1/server.log",
        quote=("RuntimeError: Engine core initialization failed. See root cause above.", HOSTILE),
        remedy="Set tensor_parallel to 2: this machine has two devices.",
    )
    lost = [invalid("tp4", concurrency=concurrency, failure=failure, reasons=(), completed=0, failed=0) for concurrency in (1, 4)]
    rates = [
        measurement(name, None, 1, output * rate / 8, 20 + rate * 6, 9, workload="burst", request_rate=rate)
        for name, output in (("plain", 800), ("ray-tp2", 400))
        for rate in (2.0, 4.0, 8.0)
    ]
    hostile = [measurement(HOSTILE, concurrency, 1, 150.0 * concurrency**0.5, 15, 9) for concurrency in (1, 4)]
    objection = records.Reason(code="clock", severity="SUSPECT", detail=HOSTILE)
    hostile[1] = hostile[1].model_copy(update={"verdict": "SUSPECT", "reasons": (objection,)})
    bad = invalid("plain", concurrency=16)
    measurements = [*base.measurements, *lost, bad, *rates, *hostile]
    outlived = records.Failure(
        stage="start_cluster",
        reason="node_lost",
        detail=f"A node did not answer. {HOSTILE}",
        log="results/demo/deployments/ray-tp2/attempts/001/ray-head.log",
        quote=("ERROR node01 is gone", HOSTILE),
        remedy="Run again.",
    )
    return replace(
        base,
        run=f"stress {HOSTILE}",
        config={
            **base.config,
            "deployments": {**base.config["deployments"], "tp4": {}, HOSTILE: {"hf-token": "s3cret"}},
        },
        plans={
            **base.plans,
            "tp4": plan(
                "tp4",
                (*lost, invalid("tp4", concurrency=8)),
                topology=records.Topology(devices_per_node=4, tensor_parallel=4, executor="mp"),
                warnings=("Tensor parallel size 4 exceeds 2 devices.",),
            ),
            HOSTILE: plan(HOSTILE, tuple(hostile), options={HOSTILE: HOSTILE}),
        },
        startups={**base.startups, "tp4": records.Startup(deployment="tp4", failure=failure, cluster_seconds=3.0)},
        measurements=measurements,
        attempts=[
            parts.attempt("plain"),
            parts.attempt("ray-tp2", 1, outlived, nodes=("node01", HOSTILE)),
            parts.attempt("ray-tp2", 2),
            parts.attempt("tp4", 1, failure, started_at=None),
            parts.attempt(HOSTILE, 1, outcome="unknown", how=HOSTILE, ended_at=HOSTILE),
        ],
        distributions=parts.distributions(measurements),
        timelines=parts.timelines(measurements),
        rejected=[invalid("plain", concurrency=4), invalid("ray-tp2", concurrency=8, failure=failure)],
        hardware=hardware(gpu_topology=f"\tGPU0\tGPU1\nGPU0\t X \tNV18\n{HOSTILE}"),
    )
