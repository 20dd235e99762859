"""A live deployment, stage by stage."""

from __future__ import annotations

from typing import Any, Literal

from pydantic import Field

from servemark.records.base import Failure, Record, Strict

CompileCache = Literal["none", "empty", "other", "filled"]


class DaemonState(Strict):
    """One long-lived process that the supervisor started."""

    name: str
    pid: int | None = None
    argv: tuple[str, ...]
    log: str
    node: str | None = Field(default=None, description="node of the process; null: the supervisor's node")
    started_at: str | None = None
    ended_at: str | None = None
    exit_code: int | None = None
    signal: int | None = None
    why: str | None = Field(default=None, description="exited | stop_requested | lifeline_ended | sibling_ended | never_started")


class Node(Strict):
    """One node of the allocation as it was found when the deployment began."""

    name: str = Field(description="as the scheduler names it; this machine's host name without one")
    host: str = Field(description="what the node calls itself")
    address: str = Field(description="IPv4 address on the chosen interface")
    interface: str
    devices: int = Field(description="devices for ranks that the allocation has there")
    cuda_visible_devices: str | None = Field(default=None, description="CUDA_VISIBLE_DEVICES there; null: it was not set")
    cpu_count: int
    memory_gib: float
    shm_gib: float
    kind: dict[str, Any] = Field(default={}, description="hardware that decides results, as in the ledger key")
    python: str = Field(description="version of the model environment's interpreter there")
    vllm: str
    ray: str | None = None
    ports: tuple[int, ...] = Field(default=(), description="ports that were free on this address")
    leftovers: tuple[str, ...] = Field(default=(), description="processes of earlier attempts that were ended there")


class Part(Strict):
    """What one replica has on one node."""

    node: int = Field(description="index into the cluster's nodes")
    devices: tuple[int, ...] = Field(description="which of the node's devices")


class Replica(Strict):
    """One server of a deployment, on its own part of the allocation. The first part's node is its head."""

    name: str = Field(description="r0, r1, ...")
    parts: tuple[Part, ...]
    ray_address: str | None = None


class RayNode(Strict):
    """One node of a Ray cluster, as Ray itself reports it."""

    host: str
    address: str
    devices: int
    ray: str
    python: str


class _Stage(Strict):
    deployment: str
    replay: bool = Field(default=False, description="the ledger lacks no point: nothing is started")
    failure: Failure | None = None
    attempt: str | None = Field(default=None, description="folder of this attempt: supervisor's state and logs")


class Cluster(_Stage, Record):
    """Live record: the deployment holds its nodes, and its Ray clusters, if it has any, are up. Written by start_cluster."""

    KIND = "cluster"
    job_id: str | None = Field(default=None, description="the scheduler's job; None without a scheduler")
    ends_at: str | None = Field(default=None, description="when the allocation's time is over")
    nodes: tuple[Node, ...] = Field(default=(), description="the servers' nodes in order, then the client's own if it has one")
    replicas: tuple[Replica, ...] = ()
    model_path: str | None = Field(default=None, description="where the servers read the model, on every node")
    ray_nodes: tuple[RayNode, ...] = ()
    seconds: float = Field(default=0.0, description="from the beginning to the passed gate, waiting for the machine left out")


class Fabric(Record):
    """All ranks reach each other: an all-reduce with the variables that the server will get. Written by check_fabric; kept."""

    KIND = "fabric"
    deployment: str
    replay: bool = False
    needed: bool = Field(default=False, description="false on one node: nothing was checked")
    failure: Failure | None = None
    attempt: str | None = None
    backend: str | None = Field(default=None, description="nccl or gloo")
    ranks: int = 0
    transport: tuple[str, ...] = Field(default=(), description="how ranks reach each other, in the library's own words")
    interfaces: tuple[str, ...] = ()
    bytes: int = Field(default=0, description="size of the reduced tensor")
    seconds: float | None = Field(default=None, description="median of one all-reduce")
    bus_gib_per_s: float | None = Field(default=None, description="2 (n-1)/n bytes / seconds, as nccl-tests; GiB/s")


class ServerPlace(Strict):
    """One replica's server: its address and its process under the supervisor."""

    replica: str
    daemon: str
    node: str
    url: str
    argv: tuple[str, ...] = ()


class _Served(_Stage):
    url: str | None = Field(default=None, description="the one address: the server's, or the router's, where there is one")
    served_name: str | None = None
    key_file: str | None = None
    servers: tuple[ServerPlace, ...] = ()
    router: ServerPlace | None = None


class Endpoint(_Served, Record):
    """Live record: the server's process is running. Written by serve_model."""

    KIND = "endpoint"
    started_at: str | None = None
    compile_cache: CompileCache | None = Field(default=None, description="as in startup.json")
    compile_cache_folder: str | None = Field(default=None, description="where servers that came up are noted; None: they are not")


class Ready(_Served, Record):
    """Live record: the server returned a real completion. Written by await_ready."""

    KIND = "ready"
    client_node: str | None = None
    ends_at: str | None = None


class StartupPhase(Strict):
    """A phase of a server's start."""

    name: str
    seconds: float
    note: str | None = Field(default=None, description="of compile: `made`, `loaded` (from a cache) or `made and loaded`")


class ReplicaStartup(Strict):
    """How one of several servers came up."""

    replica: str
    node: str
    seconds_to_first_token: float
    phases: tuple[StartupPhase, ...] = ()
    log: str


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
    observed: dict[str, float] = Field(default={}, description="from the log: weights_gib, kv_cache_gib, kv_cache_tokens, max_concurrency")
    differences: dict[str, float] = Field(default={}, description="observed over estimated, per figure")
    all_reduce: tuple[str, ...] = Field(default=(), description="of tensor parallel ranks, in the log's words and order")
    log: str | None = None
    replicas: tuple[ReplicaStartup, ...] = Field(default=(), description="each server, if several; the values above are the last one's")
    nodes: tuple[Node, ...] = Field(default=(), description="those of cluster.json, which does not outlive the deployment")
    placement: tuple[Replica, ...] = Field(default=(), description="which replica has which devices of which node")
    ray_nodes: tuple[RayNode, ...] = ()
    servers: tuple[ServerPlace, ...] = ()
    router: ServerPlace | None = None
    client_node: str | None = None
    compile_cache: CompileCache | None = Field(
        default=None,
        description="compiled code before the start: `none` (a fresh folder was asked for), `empty`, `other` (of other models or options), "
        "`filled` (by the same model and options); null: not known, the deployment's variables name the places",
    )


class Stopped(_Stage, Record):
    """How the deployment ended. Written by stop_deployment."""

    KIND = "stopped"
    daemons: tuple[DaemonState, ...] = ()
    leftovers: tuple[str, ...] = Field(default=(), description="processes that were still there and had to be ended")
    seconds: float = 0.0
