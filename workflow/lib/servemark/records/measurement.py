"""Measurements, what the scheduler says, and the gate."""

from __future__ import annotations

from typing import Any, Literal

from pydantic import Field

from servemark.records.base import Failure, Record, Strict
from servemark.records.load_point import LoadPoint, embed
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
    """One load point on one deployment, with its verdict. Figures are None unless VALID or SUSPECT."""

    KIND = "measurement"
    VERSION = 2
    deployment: str
    load: LoadPoint
    key: str
    key_parts: dict[str, Any]
    verdict: Literal["VALID", "SUSPECT", "INVALID"]
    reasons: tuple[Reason, ...] = ()
    failure: Failure | None = None
    attempt: str | None = None
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
    replica_requests: dict[str, int] = Field(
        default={}, description="requests that each replica finished, by its own count, warm-ups included"
    )
    client_cpu: float | None = Field(
        default=None, description="cores of the client's busiest process; None: less than two samples, 1 s apart"
    )
    client_node: str | None = None
    client_argv: tuple[str, ...] = Field(default=(), description="of the first process; others differ in load, seed and result file")
    client_exit_code: int | None = None
    raw: str | None = Field(default=None, description="file name of the per-request results, next to the record")
    raw_sha256: str | None = None

    @classmethod
    def upgraded(cls, data: Any, version: Any) -> dict[str, Any] | None:
        """Return a measurement of version 1 in the present form."""
        return embed(data) if version == 1 else None


class JobAccount(records.JobAccount):
    """One start of a job as the scheduler saw it."""

    attempts: tuple[str, ...] = Field(default=(), description="folders of the attempts that ran in it")


class Accounting(Record):
    """The scheduler's own record of a deployment's jobs. Written by account_allocation."""

    KIND = "accounting"
    deployment: str
    scheduler: Literal["none", "slurm"]
    source: Literal["none", "sacct", "scontrol", "journal"] = Field(
        default="none", description="the poorest of any job's; with slurm, none: one job is unknown"
    )
    trouble: str | None = Field(default=None, description="message of a better source that did not respond")
    jobs: tuple[JobAccount, ...] = Field(default=(), description="one per start of a job, requeues included, oldest first")
    gpu_hours_allocated: float | None = Field(default=None, description="elapsed x GPUs of all jobs, hours; None: not known of every job")
    gpu_hours_used: float = Field(
        default=0.0, description="devices x time from the last server's first token to the first server's end, hours, over all attempts"
    )


class Check(Record):
    """Result of the final check. check_measurements writes it only if the check passes."""

    KIND = "check"
    run: str
    valid: int
    suspect: int
    holes: tuple[dict[str, str], ...] = Field(default=(), description="accepted gaps: deployment, point, reason, detail")
