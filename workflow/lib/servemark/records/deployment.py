"""A live deployment, stage by stage, and a served endpoint."""

from typing import Any, Literal

from pydantic import Field

from servemark.records.base import Failure, Record, Strict
from servemark.records.inputs import FastAdapter, Interface

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
    """One node of the allocation at the start of the deployment."""

    name: str = Field(description="name in the scheduler; without a scheduler, this machine's host name")
    host: str = Field(description="the node's own host name")
    address: str = Field(description="IPv4 address on the chosen interface")
    interface: str
    devices: int = Field(description="devices that the allocation has there for ranks")
    cuda_visible_devices: str | None = Field(default=None, description="CUDA_VISIBLE_DEVICES there; null: not set")
    cpu_count: int
    memory_gib: float
    shm_gib: float
    kind: dict[str, Any] = Field(default={}, description="hardware that decides results, as in the ledger key")
    python: str = Field(description="version of the model environment's interpreter there")
    vllm: str
    ray: str | None = None
    torch: str | None = Field(default=None, description="null: not installed, or not recorded")
    nccl: str | None = Field(default=None, description="NCCL of the environment; null: none (a CPU build), or not recorded")
    packages: str | None = Field(
        default=None, description="sha256 of the names, versions and RECORD files of all packages there; null: not recorded"
    )
    loaded_modules: tuple[str, ...] = Field(default=(), description="environment modules loaded there (LOADEDMODULES), as `module list`")
    ports: tuple[int, ...] = Field(default=(), description="free ports on this address")
    speed_mbit: int | None = Field(default=None, description="of the chosen interface, Mbit/s; null: not reported, or not recorded")
    faster: tuple[Interface, ...] = Field(default=(), description="interfaces with a higher speed, the fastest first")
    adapters: tuple[FastAdapter, ...] = Field(default=(), description="InfiniBand, EFA and Slingshot adapters with an active port")
    leftovers: tuple[str, ...] = Field(default=(), description="processes of earlier attempts that servemark ended there")


class Part(Strict):
    """The part of one replica on one node."""

    node: int = Field(description="index into the cluster's nodes")
    devices: tuple[int, ...] = Field(description="indices of the node's devices")


class Replica(Strict):
    """One server of a deployment on its own part of the allocation. The node of its first part is the head."""

    name: str = Field(description="r0, r1, ...")
    parts: tuple[Part, ...]
    ray_address: str | None = None


class RayNode(Strict):
    """One node of a Ray cluster, as Ray reports it."""

    host: str
    address: str
    devices: int
    ray: str
    python: str


class RayState(Strict):
    """Resources, demands and failures of a Ray cluster, as Ray reports them when its check ends."""

    replica: str
    total: dict[str, float] = Field(default={}, description="Ray's resources, such as GPU and CPU")
    free: dict[str, float] = Field(default={}, description="the part of them that nothing uses")
    waiting: tuple[str, ...] = Field(default=(), description="bundles of each placement group that Ray cannot place yet")
    failed: tuple[str, ...] = Field(default=(), description="nodes that Ray lists as dead, with its reason")


class _Stage(Strict):
    deployment: str
    replay: bool = Field(default=False, description="all points are in the ledger: nothing is started")
    failure: Failure | None = None
    attempt: str | None = Field(default=None, description="folder of this attempt with the supervisor's state and logs")


class Cluster(_Stage, Record):
    """Live record: the deployment owns its nodes, and its Ray clusters (if any) are up. start_cluster writes it."""

    KIND = "cluster"
    job_id: str | None = Field(default=None, description="the scheduler's job; null without a scheduler")
    ends_at: str | None = Field(default=None, description="end of the allocation's time")
    nodes: tuple[Node, ...] = Field(default=(), description="the servers' nodes in order, then the client's own node (if any)")
    replicas: tuple[Replica, ...] = ()
    model_path: str | None = Field(default=None, description="folder from which the servers read the model, on every node")
    ray_nodes: tuple[RayNode, ...] = ()
    ray_states: tuple[RayState, ...] = ()
    warnings: tuple[str, ...] = Field(default=(), description="differences between the nodes that do not stop the start")
    seconds: float = Field(default=0.0, description="from the start until the Ray cluster check passed, without the wait for the machine")


class Fabric(Record):
    """Result of an all-reduce between all ranks with the server's variables. check_fabric writes it; unlike a live record, it stays."""

    KIND = "fabric"
    deployment: str
    replay: bool = False
    needed: bool = Field(default=False, description="false on one node, where nothing is checked")
    failure: Failure | None = None
    attempt: str | None = None
    backend: str | None = Field(default=None, description="nccl or gloo")
    ranks: int = 0
    transport: tuple[str, ...] = Field(default=(), description="connection between ranks, as the library reports it")
    transport_kind: Literal["ib", "efa", "cxi", "tcp"] | None = Field(default=None, description="null: not known, or not recorded")
    slow: str | None = Field(default=None, description="why the transport is slower than the nodes allow (reason `slow_transport`)")
    interfaces: tuple[str, ...] = ()
    bytes: int = Field(default=0, description="size of the reduced tensor")
    seconds: float | None = Field(default=None, description="median time of one all-reduce")
    bus_gib_per_s: float | None = Field(default=None, description="2 (n-1)/n bytes / seconds, as nccl-tests; GiB/s")


class ServerPlace(Strict):
    """One replica's server: its address, and its process under the supervisor."""

    replica: str
    daemon: str
    node: str
    url: str
    argv: tuple[str, ...] = ()


class _Served(_Stage):
    url: str | None = Field(default=None, description="address for clients: the router's if there is one, else the server's")
    served_name: str | None = None
    key_file: str | None = None
    servers: tuple[ServerPlace, ...] = ()
    router: ServerPlace | None = None


class Endpoint(_Served, Record):
    """Live record: the server's process is running. serve_model writes it."""

    KIND = "endpoint"
    started_at: str | None = None
    compile_cache: CompileCache | None = Field(default=None, description="as in startup.json")
    compile_cache_folder: str | None = Field(default=None, description="folder in which servemark notes servers that started; null: none")


class Ready(_Served, Record):
    """Live record: the server returned a real completion. await_ready writes it."""

    KIND = "ready"
    client_node: str | None = None
    ends_at: str | None = None


class StartupPhase(Strict):
    """A phase of a server's start."""

    name: str
    seconds: float
    note: str | None = Field(default=None, description="of compile: `made`, `loaded` (from a cache) or `made and loaded`")


class ReplicaStartup(Strict):
    """Start-up of one of several servers."""

    replica: str
    node: str
    seconds_to_first_token: float
    phases: tuple[StartupPhase, ...] = ()
    log: str


class Startup(Record):
    """Start-up of the server, and the memory that it reported. await_ready writes it; unlike a live record, it stays."""

    KIND = "startup"
    deployment: str
    failure: Failure | None = None
    attempt: str | None = None
    cluster_seconds: float = 0.0
    seconds_to_health: float | None = None
    seconds_to_first_token: float | None = Field(default=None, description="process start to the first generated token")
    phases: tuple[StartupPhase, ...] = ()
    observed: dict[str, float] = Field(default={}, description="from the log: weights_gib, kv_cache_gib, kv_cache_tokens, max_concurrency")
    differences: dict[str, float] = Field(default={}, description="observed / estimated value of each number")
    all_reduce: tuple[str, ...] = Field(default=(), description="all-reduces between tensor parallel ranks, in the log's order")
    log: str | None = None
    replicas: tuple[ReplicaStartup, ...] = Field(default=(), description="one for each of several servers; the values above: the slowest")
    nodes: tuple[Node, ...] = Field(default=(), description="copied from cluster.json, which is deleted with the deployment")
    placement: tuple[Replica, ...] = Field(default=(), description="devices of each replica on each node")
    ray_nodes: tuple[RayNode, ...] = ()
    ray_states: tuple[RayState, ...] = Field(default=(), description="one for each Ray cluster, before its server started")
    warnings: tuple[str, ...] = Field(default=(), description="differences between the nodes that do not stop the start")
    servers: tuple[ServerPlace, ...] = ()
    router: ServerPlace | None = None
    client_node: str | None = None
    compile_cache: CompileCache | None = Field(
        default=None,
        description="compiled code before the start: `none` (a fresh folder was configured), `empty`, `other` (other models or options), "
        "`filled` (same model and options); null: not known, because the deployment's variables name the folders",
    )


class Stopped(_Stage, Record):
    """End of the deployment. stop_deployment writes it."""

    KIND = "stopped"
    daemons: tuple[DaemonState, ...] = ()
    leftovers: tuple[str, ...] = Field(default=(), description="processes that still ran and that servemark ended")
    seconds: float = 0.0


class EndpointStatus(Record):
    """Heartbeat of a served endpoint. hold_endpoint writes it every few seconds; no rule reads it."""

    KIND = "endpoint_status"
    deployment: str
    state: Literal["held", "silent", "ended"] = Field(description="silent: alive, but a server does not respond to /metrics")
    at: str = Field(description="time of this record, UTC")
    since: str = Field(description="start of serving")
    ends_at: str | None = Field(default=None, description="end of the allocation's time; null without an allocation")
    url: str | None = None
    served_name: str | None = None
    nodes: tuple[str, ...] = ()
    job_id: str | None = None
    attempt: str | None = None
    finished: int = Field(default=0, description="requests completed since serving began")
    running: int = Field(default=0, description="requests in the servers now, queued ones included")
    why: str | None = Field(default=None, description="why it ended, as the supervisor reports it")


class Held(Record):
    """Regular end of a served endpoint. hold_endpoint writes it; the next run removes it when it begins."""

    KIND = "held"
    deployment: str
    attempt: str
    why: Literal["stop_requested", "out_of_time"]
    since: str | None = Field(default=None, description="null: the endpoint ended before it was ready")
    until: str
    finished: int = Field(default=0, description="requests completed, as of the last heartbeat")
    daemons: tuple[DaemonState, ...] = ()
    leftovers: tuple[str, ...] = Field(default=(), description="processes that servemark had to end")
