"""How a deployment spreads over nodes and devices; the tables of executors and of router policies.

To add an executor: a row of :data:`EXECUTORS` and its name in ``ExecutorName``, and a module in ``servemark.deployment.executors``.
To add a router policy: a row of :data:`ROUTER_POLICIES` and its name in ``PolicyName``. Name both in the key's description.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Any, Literal, Self

from pydantic import Field

from servemark.records.base import Strict

ExecutorName = Literal["single", "mp", "ray"]
PolicyName = Literal["round_robin", "least_requests"]
# The largest machines have some 50,000 accelerators in 10,000 nodes.
Size = Annotated[int, Field(strict=True, ge=1, le=10_000)]


@dataclass(frozen=True)
class ExecutorTraits:
    """What configuration, planning and report need of an executor; ``servemark.deployment.executors`` starts it.

    Attributes:
        label: for people.
        ports: free ports that each node of a replica needs, besides the server's own.
        one_rank: a replica has one rank.
        engines_span_nodes: an engine may have several whole nodes, not only a part of one.
        needs_ray: the environment must contain Ray.
        copies_variables: vLLM copies ``NCCL_*`` of the server's process to the ranks on all nodes (vllm/ray/ray_env.py,
            v1/executor/ray_executor.py, 0.32.0), so the server's process must not have an interface name of its own node.
        open_store: the store through which ranks connect listens on every address, also if they share a node.
    """

    label: str
    ports: int
    one_rank: bool = False
    engines_span_nodes: bool = False
    needs_ray: bool = False
    copies_variables: bool = False
    open_store: bool = False


EXECUTORS: dict[ExecutorName, ExecutorTraits] = {
    "single": ExecutorTraits("one process", ports=0, one_rank=True),
    "mp": ExecutorTraits("multiprocessing executor", ports=1),
    "ray": ExecutorTraits("Ray executor", ports=6, engines_span_nodes=True, needs_ray=True, copies_variables=True, open_store=True),
}


@dataclass(frozen=True)
class RouterPolicy:
    """Which replica, or which engine with ``balancing: router``, gets the next request; ``label`` in reports, None for the default."""

    label: str | None
    arguments: tuple[str, ...]


ROUTER_POLICIES: dict[PolicyName, RouterPolicy] = {
    "round_robin": RouterPolicy(None, ("--policy", "round_robin")),
    # The router's only policy that counts requests in flight. A request goes to the replica with the fewest as soon as one has more than
    # another; while all have as many, to the one that was given the least text, for no prompt is more alike than threshold 1.
    "least_requests": RouterPolicy(
        "requests to the least busy",
        (
            *("--policy", "cache_aware", "--balance-abs-threshold", "0", "--balance-rel-threshold", "1.0"),
            # It keeps so many characters of prompts for each replica; its default is 32 times as much.
            *("--cache-threshold", "1.0", "--max-tree-size", str(2**20)),
        ),
    ),
}


def _executor(sizes: dict[str, Any]) -> ExecutorName:
    ranks = sizes["tensor_parallel"] * sizes["pipeline_parallel"] * sizes["data_parallel"]
    return "single" if ranks == 1 else "mp"


class Shape(Strict):
    """How a deployment spreads over devices."""

    nodes: Size = Field(
        default=1,
        description="nodes of the servers; more than 1 needs a `cluster`: whole replicas on each node, or whole nodes for each replica",
    )
    tensor_parallel: Size = Field(default=1, description="tensor parallel size: ranks that share every layer")
    pipeline_parallel: Size = Field(default=1, description="pipeline parallel size: ranks that each hold some layers")
    data_parallel: Size = Field(
        default=1, description="data parallel size: engines behind one server; with `mp`, each node of a replica has whole engines"
    )
    replicas: Size = Field(default=1, description="servers of the same kind behind one address")
    balancing: Literal["server", "router"] = Field(
        default="server",
        description="what spreads requests over data parallel engines: `server` (vLLM, by queues it last heard of, which leaves some with "
        "more) or `router` (one to each in turn, equal if requests are alike)",
    )
    routing: PolicyName = Field(
        default="round_robin",
        description="`round_robin`: the router sends each replica (or engine, with `balancing: router`) the next request in turn; "
        "`least_requests`: to the one with the fewest in flight, equal also when a wave of requests ends",
    )
    client: Literal["head", "own"] = Field(
        default="head",
        description="place of the benchmark client: `head`, on the first server's node, or `own`, one more node (needs a `cluster`)",
    )
    # Last: its default looks at the sizes above.
    executor: ExecutorName = Field(
        default_factory=_executor,
        description="what starts a replica's ranks: `single` (one process), `mp` (vLLM's processes, on every node) or `ray`; when left "
        "out, `single` for one rank and `mp` for several",
    )

    @property
    def traits(self) -> ExecutorTraits:
        """What is particular to the executor."""
        return EXECUTORS[self.executor]

    @property
    def engine_size(self) -> int:
        """Ranks of one engine: tp x pp."""
        return self.tensor_parallel * self.pipeline_parallel

    @property
    def replica_size(self) -> int:
        """Ranks of one replica: tp x pp x dp."""
        return self.engine_size * self.data_parallel

    @property
    def world_size(self) -> int:
        """Ranks of the whole deployment: tp x pp x dp x replicas."""
        return self.replica_size * self.replicas

    @property
    def nodes_of_a_replica(self) -> int:
        """Nodes that one replica spans; 1 where several share a node."""
        return max(1, self.nodes // self.replicas)

    @property
    def routed(self) -> bool:
        """Whether a router stands in front of the servers."""
        return self.replicas > 1 or self.balancing == "router"

    @property
    def routed_engines(self) -> int:
        """Engines of each replica that the router chooses between; 1: the server does that itself."""
        return self.data_parallel if self.balancing == "router" else 1

    @property
    def all_nodes(self) -> int:
        """Nodes of the allocation: those of the servers, and the client's own where it has one."""
        return self.nodes + (self.client == "own")

    def asked(self, ask: str) -> Self:
        """Return the part that requests go to: all of it, or one replica when they go past the router (``ask: replica``)."""
        alone = {"replicas": 1, "balancing": "server", "routing": "round_robin"}
        return self.model_copy(update=alone) if ask == "replica" else self


class Topology(Shape):
    """A shape as records and planning have it, with the devices that it takes of each node."""

    devices_per_node: int = 1
