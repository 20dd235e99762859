"""Topology of a deployment: nodes, devices, parallel sizes; the tables of executors and of router policies.

To add an executor, write a row of :data:`EXECUTORS`, its name in ``ExecutorName``, and a module in ``servemark.deployment.executors``.
To add a router policy, write a row of :data:`ROUTER_POLICIES` and its name in ``PolicyName``. Name both in the key's description.
"""

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
    """Properties of an executor for configuration, planning and report; ``servemark.deployment.executors`` starts it.

    Attributes:
        label: name in reports.
        ports: free ports that each node of a replica needs in addition to the server's own.
        one_rank: a replica has one rank.
        engines_span_nodes: an engine may use several whole nodes.
        needs_ray: the environment must contain Ray.
        copies_variables: vLLM copies ``NCCL_*`` of the server's process to the ranks on all nodes (vllm/ray/ray_env.py,
            v1/executor/ray_executor.py, 0.32.0), so the server's process must not have an interface name of its own node.
        open_store: the store through which ranks connect listens on every address, even if all ranks share a node.
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
    """How the router selects the replica (or engine, with ``balancing: router``) of a request; ``label``: for reports, or None."""

    label: str | None
    arguments: tuple[str, ...]


ROUTER_POLICIES: dict[PolicyName, RouterPolicy] = {
    "round_robin": RouterPolicy(None, ("--policy", "round_robin")),
    # The router's only policy that counts in-flight requests. If the counts differ, the replica with the fewest gets the request; if they
    # are equal, the replica with the least text so far, because no prompt exceeds the similarity threshold of 1.
    "least_requests": RouterPolicy(
        "requests to the least busy",
        (
            *("--policy", "cache_aware", "--balance-abs-threshold", "0", "--balance-rel-threshold", "1.0"),
            # Characters of prompts that the router keeps for each replica; its default is 32 times larger.
            *("--cache-threshold", "1.0", "--max-tree-size", str(2**20)),
        ),
    ),
}


def _executor(sizes: dict[str, Any]) -> ExecutorName:
    ranks = sizes["tensor_parallel"] * sizes["pipeline_parallel"] * sizes["data_parallel"]
    return "single" if ranks == 1 else "mp"


class Shape(Strict):
    """How a deployment uses nodes and devices."""

    nodes: Size = Field(
        default=1,
        description="nodes of the servers; more than 1 needs a `cluster`, and whole replicas on each node or whole nodes for each replica",
    )
    tensor_parallel: Size = Field(default=1, description="tensor parallel size: ranks that share each layer")
    pipeline_parallel: Size = Field(default=1, description="pipeline parallel size: ranks with different layers")
    data_parallel: Size = Field(default=1, description="data parallel size: engines of a server; `mp` puts whole engines on each node")
    replicas: Size = Field(default=1, description="servers of the same kind behind one address")
    balancing: Literal["server", "router"] = Field(
        default="server",
        description="what distributes requests over data parallel engines: `server` (vLLM, by the last reported queue lengths, so loads "
        "may be unequal) or `router` (each engine in turn, so loads are equal if requests are alike)",
    )
    routing: PolicyName = Field(
        default="round_robin",
        description="how the router selects a replica (or engine, with `balancing: router`): `round_robin` (in turn) or `least_requests` "
        "(the one with the fewest requests in flight, so loads stay equal also when a wave of requests ends)",
    )
    client: Literal["head", "own"] = Field(
        default="head",
        description="node of the benchmark client: `head` (the first server's node) or `own` (an additional node; needs a `cluster`)",
    )
    # Last: its default depends on the sizes above.
    executor: ExecutorName = Field(
        default_factory=_executor,
        description="what starts a replica's ranks: `single` (one process), `mp` (vLLM's processes, on every node) or `ray`. Default: "
        "`single` for one rank, `mp` for several",
    )

    @property
    def traits(self) -> ExecutorTraits:
        """Properties of the executor."""
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
        """Nodes of one replica; 1 if several replicas share a node."""
        return max(1, self.nodes // self.replicas)

    @property
    def routed(self) -> bool:
        """Whether the deployment has a router."""
        return self.replicas > 1 or self.balancing == "router"

    @property
    def routed_engines(self) -> int:
        """Engines of each replica that the router selects from; 1: the server distributes requests itself."""
        return self.data_parallel if self.balancing == "router" else 1

    @property
    def all_nodes(self) -> int:
        """Nodes of the allocation: the servers' nodes, and the client's own node if it has one."""
        return self.nodes + (self.client == "own")

    def asked(self, ask: str) -> Self:
        """Return the part that serves the requests: all of it, or one replica without the router (``ask: replica``)."""
        alone = {"replicas": 1, "balancing": "server", "routing": "round_robin"}
        return self.model_copy(update=alone) if ask == "replica" else self


class Topology(Shape):
    """A shape with the devices that it uses on each node, for records and planning."""

    devices_per_node: int = 1
