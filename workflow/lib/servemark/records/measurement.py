"""Measurements, their timelines, the scheduler's accounting, and the final check."""

from pathlib import Path
from typing import Any, Literal, Self

from pydantic import Field, FiniteFloat, model_validator

from servemark.records.base import Failure, Record, Strict
from servemark.records.counters import ServerCounters
from servemark.records.load_point import LoadPoint, embed
from servemark.records.steady import Steady
from servemark.records.telemetry import Telemetry, TelemetryTimeline
from snakemake_executor_plugin_slurm_guarded import records


class Reason(Strict):
    """Why a measurement is not VALID."""

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
    """One load point on one deployment, with its verdict. Results are null if it is INVALID."""

    KIND = "measurement"
    VERSION = 2
    deployment: str
    load: LoadPoint
    key: str
    key_format: int = Field(default=2, description="form of the ledger key")
    key_parts: dict[str, Any]
    verdict: Literal["VALID", "SUSPECT", "INVALID"]
    reasons: tuple[Reason, ...] = ()
    failure: Failure | None = None
    attempt: str | None = Field(default=None, description="folder of the attempt, in the run and on the machine that measured the point")
    attempt_id: str | None = Field(default=None, description="unique id of the attempt, as in its supervisor.json; null: an older file")
    started_at: str | None = None
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
    steady: Steady | None = Field(default=None, description="results without start and end of the load; the other results are of all of it")
    steady_missing: str | None = Field(default=None, description="why the load has no steady state")
    in_flight_mean: float | None = Field(default=None, description="mean number of requests in flight, from first start to last end")
    in_flight_most: int | None = Field(default=None, description="highest number of requests in flight")
    peak_output_throughput: float | None = Field(default=None, description="most output tokens in any one second")
    tokens_per_chunk: float | None = Field(default=None, description="mean output tokens of a chunk after the first one")
    replica_requests: dict[str, int] = Field(default={}, description="each replica's own count of completed requests, with warm-ups")
    counters: ServerCounters | None = Field(default=None, description="of the servers; null: one of them did not respond, or an older file")
    thresholds: dict[str, float] = Field(default={}, description="thresholds of the verdict in force; empty: an older file")
    client_cpu: float | None = Field(default=None, description="cores of the client's busiest process; null: fewer than two samples")
    transport_kind: Literal["ib", "efa", "cxi", "tcp"] | None = Field(
        default=None, description="transport between ranks on several nodes; null: one node, not known, or an older file"
    )
    telemetry: Telemetry | None = Field(default=None, description="GPUs or CPU load of the servers' nodes; null: not sampled")
    client_node: str | None = None
    client_argv: tuple[str, ...] = Field(default=(), description="of the first process; others differ in load, seed and result file")
    client_exit_code: int | None = None
    raw: str | None = Field(default=None, description="file name of the per-request results, next to the record")
    raw_sha256: str | None = None

    @classmethod
    def upgraded(cls, data: Any, version: Any) -> dict[str, Any] | None:
        """Return a measurement of version 1 in the form of version 2."""
        return embed(data) if version == 1 else None

    def measured_in(self, attempt_id: str | None) -> bool:
        """Return whether the point was measured in the attempt with this id, and not in one of another machine with the same folder.

        Args:
            attempt_id: None for an attempt of an older version, which its folder alone identifies.
        """
        return attempt_id in (None, self.attempt_id)


class ServerTimeline(Strict):
    """One server's responses to /metrics in order of time: entry i of each list belongs to the same response."""

    replica: str
    seconds: tuple[FiniteFloat, ...] = Field(description="since the first sample, shortly before the client started")
    running: tuple[FiniteFloat, ...] = Field(description="requests in the batch; sum of all engines")
    waiting: tuple[FiniteFloat, ...] = Field(description="requests in the queue; sum of all engines")
    kv_cache_usage: tuple[FiniteFloat | None, ...] = Field(description="0 to 1, of the fullest engine; null: not reported")
    engines: int = Field(default=1, description="data parallel engines that the server reports")
    fullest: tuple[FiniteFloat, ...] = Field(default=(), description="requests of the fullest engine; empty: one engine")

    @model_validator(mode="after")
    def _same_length(self) -> Self:
        lists = (self.seconds, self.running, self.waiting, self.kv_cache_usage)
        if len({len(values) for values in lists}) != 1 or len(self.fullest) not in (0, len(self.seconds)):
            raise ValueError("the lists of a server have different lengths")
        return self


class Timeline(Record):
    """A load point second by second; its measurement has the same deployment, point and ``started_at``. No result depends on it."""

    KIND = "timeline"
    deployment: str
    point: str
    started_at: str
    interval_s: FiniteFloat = Field(description="time between two samples, seconds")
    servers: tuple[ServerTimeline, ...]
    telemetry: TelemetryTimeline | None = Field(default=None, description="null: not sampled")

    @staticmethod
    def path(attempt: Path, point: str) -> Path:
        """Return the file of a point's timeline. It is in the attempt's folder, which stays on a replay and goes into the archive."""
        return attempt / "timelines" / f"{point}.json"


class JobAccount(records.JobAccount):
    """One start of a job, as the scheduler recorded it."""

    attempts: tuple[str, ...] = Field(default=(), description="folders of the attempts in this job")
    attempt_ids: tuple[str | None, ...] = Field(
        default=(), description="their unique ids; null: an attempt of an older version; empty: an older file"
    )


class Accounting(Record):
    """The scheduler's record of a deployment's jobs. account_allocation writes it."""

    KIND = "accounting"
    deployment: str
    scheduler: Literal["none", "slurm"]
    source: Literal["none", "sacct", "scontrol", "journal"] = Field(
        default="none", description="least detailed source of any job; none with slurm: a job is unknown"
    )
    trouble: str | None = Field(default=None, description="message of a more detailed source that did not respond")
    jobs: tuple[JobAccount, ...] = Field(default=(), description="one per start of a job, requeues included, oldest first")
    gpu_hours_allocated: float | None = Field(default=None, description="elapsed time x GPUs of all jobs, hours; null: a job is unknown")
    gpu_hours_used: float = Field(
        default=0.0, description="devices x hours from the last server's first token to the first server's end, all attempts"
    )


class Published(Record):
    """End of the command `publish`. publish_archive writes it only if the command succeeds."""

    KIND = "published"
    command: tuple[str, ...]
    archive_sha256: str
    published_at: str
    seconds: float


class Check(Record):
    """Result of the final check. check_measurements writes it only if the check passes."""

    KIND = "check"
    run: str
    valid: int
    suspect: int
    holes: tuple[dict[str, str], ...] = Field(default=(), description="points without results: deployment, point, reason, detail")
