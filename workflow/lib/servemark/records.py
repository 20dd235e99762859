"""Every record that one stage writes and another reads: typed, versioned, written atomically.

A record is a JSON file with ``kind`` and ``version``. Reading one of another kind, of another version or with unknown
keys is an error: conditions are checked in the record, never assumed from the file's existence.
"""

from __future__ import annotations

import json
import os
import tempfile
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, ClassVar, Literal, TypeVar

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from servemark.errors import ServemarkError


class Strict(BaseModel):
    """Base of all parts: unknown keys refused, values frozen."""

    model_config = ConfigDict(extra="forbid", frozen=True, protected_namespaces=())


class Failure(Strict):
    """Why a stage of a deployment failed. A failure travels through the later stages' records to report and gate."""

    stage: str = Field(description="rule that failed, e.g. await_ready")
    reason: str = Field(description="stable snake_case code, e.g. server_exited")
    detail: str = Field(description="what happened, in a sentence")
    log: str | None = Field(default=None, description="log file to look at, relative to the checkout")
    quote: tuple[str, ...] = Field(default=(), description="log lines that state the cause, verbatim")
    remedy: str | None = Field(default=None, description="what to do next")


class Record(Strict):
    """A whole file. ``KIND`` and ``VERSION`` are fixed by each subclass."""

    KIND: ClassVar[str] = ""
    VERSION: ClassVar[int] = 1

    @classmethod
    def read(cls: type[RecordT], path: str | os.PathLike[str]) -> RecordT:
        """Read and check one record.

        Raises:
            ServemarkError: the file is missing, not JSON, of another kind or version, or does not fit the type.
        """
        try:
            data = json.loads(Path(path).read_text())
        except FileNotFoundError:
            raise ServemarkError(
                f"The record {path} is missing.",
                do="Run snakemake again: it makes what is missing.",
                reason="record_missing",
            ) from None
        except (OSError, ValueError) as error:
            raise ServemarkError(
                f"The record {path} cannot be read: {error}",
                do="Delete it and run snakemake again.",
                reason="record_broken",
            ) from None
        kind, version = (data.pop("kind", None), data.pop("version", None)) if isinstance(data, dict) else (None, None)
        if (kind, version) != (cls.KIND, cls.VERSION):
            raise ServemarkError(
                f"{path} is a record of kind {kind!r} version {version!r}; expected {cls.KIND!r} version {cls.VERSION}.",
                do="Delete it and run snakemake again.",
                reason="record_broken",
            )
        try:
            return cls.model_validate(data)
        except ValidationError as error:
            raise ServemarkError(
                f"{path} does not fit the record type {cls.KIND!r}: {error}",
                do="Delete it and run snakemake again.",
                reason="record_broken",
            ) from None

    def to_json(self) -> str:
        """The file's text: kind and version first, stable key order, two-space indent."""
        data = {"kind": self.KIND, "version": self.VERSION, **self.model_dump(mode="json")}
        return json.dumps(data, indent=2, ensure_ascii=False) + "\n"

    def write(self, path: str | os.PathLike[str]) -> None:
        """Write atomically: a reader sees the whole record or none."""
        write_atomically(path, self.to_json())


RecordT = TypeVar("RecordT", bound=Record)


def write_atomically(path: str | os.PathLike[str], text: str, mode: int = 0o644) -> None:
    """Write ``text`` to a temporary file beside ``path``, flush it to disk and rename it into place."""
    target = Path(path)
    target.parent.mkdir(parents=True, exist_ok=True)
    handle, name = tempfile.mkstemp(dir=target.parent, prefix=f".{target.name}.")
    try:
        with os.fdopen(handle, "w") as stream:
            stream.write(text)
            stream.flush()
            os.fsync(stream.fileno())
        os.chmod(name, mode)
        os.replace(name, target)
    except BaseException:
        Path(name).unlink(missing_ok=True)
        raise


def utc_now() -> str:
    """The time as records state it: UTC, ISO 8601, to the millisecond."""
    return datetime.now(UTC).isoformat(timespec="milliseconds")


class Gpu(Strict):
    name: str
    memory_mib: int
    uuid: str | None = None


class Interface(Strict):
    name: str
    address: str


class Hardware(Record):
    """What the machine that will run the model is. Written by probe_hardware."""

    KIND = "hardware"
    accelerator: Literal["cpu", "cuda"]
    host: str
    cpu_model: str
    cpu_count: int = Field(description="logical CPUs this process may use")
    memory_gib: float
    shm_gib: float = Field(description="size of /dev/shm")
    architecture: str
    kernel: str
    os: str
    glibc: str
    gpus: tuple[Gpu, ...] = ()
    driver: str | None = None
    cuda: str | None = Field(default=None, description="highest CUDA version the driver can do")
    gpu_topology: str | None = Field(default=None, description="nvidia-smi topo -m, verbatim")
    interfaces: tuple[Interface, ...] = ()
    nofile: int
    nproc: int
    probed_at: str

    @property
    def devices(self) -> int:
        """Devices for ranks on one node: GPUs, or logical CPUs where there are none."""
        return len(self.gpus) if self.accelerator == "cuda" else self.cpu_count


class Environment(Record):
    """An interpreter with vLLM, Ray and torch. Written by build_environment."""

    KIND = "environment"
    name: str
    origin: Literal["lock", "prefix"]
    digest: str = Field(description="sha256 over what was installed; the ledger's environment identity")
    prefix: str
    python: str = Field(description="path of the interpreter")
    lock: str | None = None
    packages: int
    seconds: float = Field(description="time this build took; 0 when an existing one was used")
    size_mib: float


class EnvironmentCheck(Record):
    """What the environment says of itself on the node. Written by check_environment."""

    KIND = "environment_check"
    name: str
    digest: str
    python_version: str
    vllm: str
    torch: str
    torch_cuda: str | None
    ray: str | None
    nccl: str | None = None
    vllm_platform: str
    serve_options: tuple[str, ...] = Field(
        default=(), description="every option `vllm serve --help=all` knows, without dashes"
    )
    warnings: tuple[str, ...] = ()


class ModelFile(Strict):
    path: str
    size: int
    sha256: str


class Manifest(Record):
    """A model at an exact revision. Written by stage_weights."""

    KIND = "manifest"
    name: str
    source: str
    path: str = Field(description="directory with the files")
    digest: str = Field(description="sha256 over the sorted (path, size, sha256) lines; the ledger's model identity")
    files: tuple[ModelFile, ...]
    bytes: int
    config: dict[str, Any] = Field(description="the model's config.json")
    weight_bytes: int = Field(description="sum of the safetensors files' tensor bytes")
    parameters: int = Field(description="number of parameters counted from the safetensors headers")


class Topology(Strict):
    nodes: int = 1
    devices_per_node: int = 1
    tensor_parallel: int = 1
    pipeline_parallel: int = 1
    data_parallel: int = 1
    replicas: int = 1
    executor: Literal["single", "mp", "ray"] = "single"

    @property
    def world_size(self) -> int:
        """Ranks of the whole deployment: tp x pp x dp x replicas."""
        return self.tensor_parallel * self.pipeline_parallel * self.data_parallel * self.replicas


class Estimate(Strict):
    """What planning expects, per rank where not said otherwise. GiB are 2**30 bytes."""

    weights_gib: float = Field(description="weights on one rank")
    kv_bytes_per_token: int = Field(description="KV cache bytes of one token over all layers, on one rank")
    kv_cache_gib: float = Field(description="memory left for the KV cache on one rank")
    kv_cache_tokens: int = Field(description="tokens the KV cache of one engine holds")
    max_concurrency: float = Field(description="requests of max_model_len tokens that fit at once")
    max_model_len: int


class PlannedPoint(Strict):
    """One load point of a deployment."""

    name: str
    workload: str
    concurrency: int | None
    request_rate: float | None = None
    repetition: int
    seed: int
    requests: int
    input_tokens: int
    output_tokens: int
    warmups: int
    client_options: dict[str, Any] = {}
    key: str = Field(description="ledger key, sha256 hex")


class Plan(Record):
    """A deployment that is known to be legal, with its points. Written by plan_deployment."""

    KIND = "plan"
    deployment: str
    model: str
    environment: str
    model_digest: str
    environment_digest: str
    served_name: str
    topology: Topology
    options: dict[str, Any]
    variables: dict[str, str]
    estimate: Estimate | None = None
    warnings: tuple[str, ...] = ()
    points: tuple[PlannedPoint, ...]
    key_parts: dict[str, Any] = Field(description="the deployment's share of every point's ledger key")


class Plans(Record):
    """Every deployment of the run has a plan. Written by confirm_plans; nothing is started without it."""

    KIND = "plans"
    load_points: dict[str, int] = Field(description="number of load points by deployment")


class DaemonState(Strict):
    """One long-lived process under the keeper."""

    name: str
    pid: int | None = None
    argv: tuple[str, ...]
    log: str
    started_at: str | None = None
    ended_at: str | None = None
    exit_code: int | None = None
    signal: int | None = None
    why: str | None = Field(
        default=None, description="exited | stop_requested | lifeline_ended | sibling_ended | never_started"
    )


class Cluster(Record):
    """Token: the deployment holds the machine and its Ray cluster, if it has one, is up. Written by start_cluster."""

    KIND = "cluster"
    deployment: str
    replay: bool = Field(default=False, description="the ledger lacks no point: nothing is started")
    failure: Failure | None = None
    attempt: str | None = Field(default=None, description="folder of this attempt: keeper state and logs")
    ray_address: str | None = None
    nodes: tuple[dict[str, Any], ...] = ()
    seconds: float = 0.0


class Endpoint(Record):
    """Token: the server's process is running. Written by serve_model."""

    KIND = "endpoint"
    deployment: str
    replay: bool = False
    failure: Failure | None = None
    attempt: str | None = None
    url: str | None = None
    served_name: str | None = None
    key_file: str | None = None
    argv: tuple[str, ...] = ()
    started_at: str | None = None


class Ready(Record):
    """Token: the server answered a real completion. Written by await_ready."""

    KIND = "ready"
    deployment: str
    replay: bool = False
    failure: Failure | None = None
    attempt: str | None = None
    url: str | None = None
    served_name: str | None = None
    key_file: str | None = None
    server_pid: int | None = None


class StartupPhase(Strict):
    name: str
    seconds: float


class Startup(Record):
    """How the server came up, and what it said of its memory. Written by await_ready; kept."""

    KIND = "startup"
    deployment: str
    failure: Failure | None = None
    attempt: str | None = None
    cluster_seconds: float = 0.0
    seconds_to_health: float | None = None
    seconds_to_first_token: float | None = Field(default=None, description="process start to the first generated token")
    phases: tuple[StartupPhase, ...] = ()
    observed: dict[str, float] = Field(
        default={}, description="from the log: weights_gib, kv_cache_gib, kv_cache_tokens, max_concurrency"
    )
    differences: dict[str, float] = Field(default={}, description="observed over estimated, per figure")
    log: str | None = None


class Reason(Strict):
    code: str
    severity: Literal["SUSPECT", "INVALID"]
    detail: str


class Summary(Strict):
    """Distribution of one latency in milliseconds."""

    count: int
    mean: float
    std: float
    p50: float
    p95: float
    p99: float
    max: float


class Measurement(Record):
    """One load point on one deployment, with its verdict. Figures are None unless VALID or SUSPECT."""

    KIND = "measurement"
    deployment: str
    point: str
    workload: str
    concurrency: int | None
    request_rate: float | None = None
    repetition: int
    seed: int
    input_tokens: int
    output_tokens: int
    key: str
    key_parts: dict[str, Any]
    verdict: Literal["VALID", "SUSPECT", "INVALID"]
    reasons: tuple[Reason, ...] = ()
    failure: Failure | None = None
    attempt: str | None = None
    started_at: str | None = None
    asked: int = 0
    completed: int = 0
    failed: int = 0
    duration_s: float | None = None
    total_input_tokens: int | None = None
    total_output_tokens: int | None = None
    request_throughput: float | None = Field(default=None, description="requests/s")
    output_throughput: float | None = Field(default=None, description="output tokens/s")
    total_throughput: float | None = Field(default=None, description="input + output tokens/s")
    ttft_ms: Summary | None = None
    tpot_ms: Summary | None = None
    itl_ms: Summary | None = None
    e2el_ms: Summary | None = None
    client_argv: tuple[str, ...] = ()
    client_exit_code: int | None = None
    raw: str | None = Field(default=None, description="file name of the per-request results beside the record")
    raw_sha256: str | None = None


class Stopped(Record):
    """How the deployment ended. Written by stop_deployment."""

    KIND = "stopped"
    deployment: str
    replay: bool = False
    failure: Failure | None = None
    attempt: str | None = None
    daemons: tuple[DaemonState, ...] = ()
    leftovers: tuple[str, ...] = Field(default=(), description="processes that were still there and had to be ended")
    seconds: float = 0.0


class Check(Record):
    """The gate's answer. Written by check_measurements only when it passes."""

    KIND = "check"
    run: str
    valid: int
    suspect: int
    holes: tuple[dict[str, str], ...] = Field(
        default=(), description="accepted gaps: deployment, point, reason, detail"
    )


ALL_RECORDS: tuple[type[Record], ...] = (
    Hardware,
    Environment,
    EnvironmentCheck,
    Manifest,
    Plan,
    Plans,
    Cluster,
    Endpoint,
    Ready,
    Startup,
    Measurement,
    Stopped,
    Check,
)
