"""What is said of a whole run when it is archived, and the state of the sources that made it."""

from __future__ import annotations

from typing import Any

from pydantic import Field

from servemark.records.base import Record, Strict
from servemark.records.topology import Topology


class GivenFile(Strict):
    """A configuration file as the user wrote it."""

    path: str
    sha256: str
    text: str


class Sources(Record):
    """What a run's main process was started from. Written at its start, copied into the folder of every attempt that it makes."""

    KIND = "sources"
    servemark: str = Field(description="version")
    commit: str | None = Field(default=None, description="of the checkout, 40 hexadecimal digits")
    why: str | None = Field(default=None, description="why there is no commit")
    dirty: bool | None = Field(
        default=None,
        description="tracked files differ from the commit, or what runs holds untracked ones; None without a commit",
    )
    changes: int = Field(default=0, description="number of such files")
    changed: tuple[str, ...] = Field(default=(), description="their names, at most 100")
    changes_sha256: str | None = Field(
        default=None,
        description="sha256 of a line `SHA256  NAME` for each of them in the order of names, `deleted  NAME` for one that is gone",
    )
    configuration: tuple[GivenFile, ...] = Field(
        default=(), description="the files that were given, later ones over earlier ones; --config is in none of them"
    )


class ArchivedFile(Strict):
    """A file of the same archive."""

    name: str
    sha256: str


class RunSources(Strict):
    """A state of the sources and the attempts that were started from it."""

    servemark: str
    commit: str | None
    why: str | None = None
    dirty: bool | None
    changes_sha256: str | None
    attempts: tuple[str, ...] = Field(description="DEPLOYMENT/ATTEMPT")


class RunHardware(Strict):
    """Machine and limits as probed once; every node is described by the attempts that ran on it."""

    record: ArchivedFile
    accelerator: str
    gpus: tuple[str, ...] = Field(default=(), description="model and memory of each")
    driver: str | None
    cuda: str | None
    cpu_model: str
    cpu_count: int
    memory_gib: float
    shm_gib: float
    nofile: int
    nproc: int
    architecture: str
    kernel: str
    os: str
    glibc: str


class RunEnvironment(Strict):
    """An interpreter that ran vLLM."""

    name: str
    record: ArchivedFile
    check: ArchivedFile | None = Field(description="what it said of itself on a node")
    origin: str
    digest: str = Field(description="sha256 over what was installed")
    packages: int
    package_list: ArchivedFile | None = Field(
        description="every package with version and hash; None for an existing prefix, of whose packages the digest speaks alone"
    )
    versions: dict[str, str | None] = Field(description="of python, vllm, torch, cuda, nccl, ray, as it reported them")


class RunModel(Strict):
    name: str
    record: ArchivedFile = Field(description="the manifest: every file with size and sha256")
    source: str
    revision: str | None = Field(description="commit on the hub; None for a folder and for a builtin model")
    digest: str = Field(description="sha256 over the manifest's files")
    load_format: str = Field(description="dummy: served with random weights, of which none are stored")
    bytes: int


class RunNode(Strict):
    """A node as it was looked at before an attempt."""

    name: str
    record: ArchivedFile
    devices: int
    cpu_count: int
    memory_gib: float
    shm_gib: float
    kind: dict[str, Any] = Field(description="what of its hardware decides figures")
    python: str
    vllm: str
    ray: str | None


class RunProcess(Strict):
    """A long-lived process: a server, the router, Ray."""

    name: str
    record: ArchivedFile
    node: str | None
    argv: tuple[str, ...]
    started_at: str | None
    ended_at: str | None
    exit_code: int | None
    signal: int | None
    why: str | None


class RunClient(Strict):
    """The client's command line for the first point that an attempt measured; those of the others stand in their records."""

    point: str
    argv: tuple[str, ...]


class RunAttempt(Strict):
    """One start of a deployment."""

    number: int
    folder: str
    sources: ArchivedFile | None = Field(description="state of the sources that it was started from")
    started_at: str | None = Field(description="of the first process; None where none was started")
    ended_at: str | None
    why: str | None = Field(description="why its processes ended, in the keeper's word")
    failure: str | None = Field(description="the failure's stage and reason: await_ready: server_exited")
    failure_record: ArchivedFile | None
    startup: ArchivedFile | None
    nodes: tuple[RunNode, ...]
    processes: tuple[RunProcess, ...]
    client: RunClient | None
    measured: dict[str, int] = Field(description="number of the load points that it measured, by verdict")


class RunDeployment(Strict):
    name: str
    plan: ArchivedFile
    model: str
    environment: str
    topology: Topology
    variables: dict[str, str] = Field(description="set for its processes, the cluster's and its own")
    inherited: dict[str, str] = Field(
        default={}, description="of the shell's variables, those that reached it and decide"
    )
    modules: tuple[str, ...]
    stopped: ArchivedFile | None
    fabric: ArchivedFile | None
    accounting: ArchivedFile | None = Field(description="the scheduler's record of its jobs")
    jobs: tuple[str, ...] = Field(description="the scheduler's ids of them")
    asked: int = Field(description="load points")
    measured: dict[str, int] = Field(description="number of them by verdict")
    attempts: tuple[RunAttempt, ...]


class Run(Record):
    """A run as a whole. Written by archive_results, from the run's records alone, and found only in the archive.

    What an archived file says is stated once, there: here are its name and sha256.
    """

    KIND = "run"
    run: str
    servemark: str = Field(description="version that archived it")
    began_at: str | None = Field(description="the earliest time that a record of the run states, UTC")
    measured_at: str | None = Field(description="the end of the last measurement, UTC; None where nothing was measured")
    ended_at: str | None = Field(description="the latest time that a record of the run states, UTC")
    configuration: ArchivedFile = Field(description="resolved: sweeps applied, every default filled in")
    sources: tuple[RunSources, ...]
    hardware: RunHardware
    environments: tuple[RunEnvironment, ...]
    models: tuple[RunModel, ...]
    deployments: tuple[RunDeployment, ...]
    tables: tuple[ArchivedFile, ...]
    report: ArchivedFile
    asked: int = Field(description="load points of all deployments")
    measured: dict[str, int] = Field(description="number of them by verdict")
