"""How a deployment spreads over nodes and devices, as the configuration says it."""

from __future__ import annotations

from pydantic import ValidationInfo, model_validator

from servemark.config.cluster import Site
from servemark.config.field_types import refuse
from servemark.records import Topology
from servemark.records.topology import EXECUTORS, Shape

MAX_RANKS = 100_000


class AskedTopology(Shape):
    """How a deployment spreads over devices."""

    @property
    def devices_per_node(self) -> int:
        """Devices that the servers use on each of their nodes."""
        return -(-self.world_size // self.nodes)

    def record(self) -> Topology:
        """Return the topology as records and planning have it, with the devices that it takes of each node."""
        return Topology(**self.model_dump(), devices_per_node=self.devices_per_node)

    # The first fault alone: the numbers of nodes below are sought among as many ranks.
    @model_validator(mode="after")
    def _possible(self, info: ValidationInfo) -> AskedTopology:
        context = info.context or {}
        cluster: Site | None = context.get("cluster")
        gpus = cluster.gpus_per_node if cluster else 0
        if self.traits.one_rank and self.replica_size > 1:
            raise refuse(
                f"`{self.executor}` is {self.traits.label}, and tensor_parallel x pipeline_parallel x data_parallel is "
                f"{self.replica_size}; write `mp` or nothing",
                at=("executor",),
                allowed=[name for name, traits in EXECUTORS.items() if not traits.one_rank],
            )
        if (ranks := self.world_size) > MAX_RANKS:
            product = "tensor_parallel x pipeline_parallel x data_parallel x replicas"
            raise refuse(f"{product} is {ranks:,} ranks; at most {MAX_RANKS:,} are possible")
        if self.balancing == "router" and self.data_parallel == 1:
            raise refuse(
                "`router` spreads requests over data parallel engines, and data_parallel is 1; leave it out, or raise data_parallel",
                at=("balancing",),
            )
        if self.routing != "round_robin" and not self.routed:
            raise refuse(
                f"`{self.routing}` is a policy of the router, and one server has none; leave it out, raise replicas, or give "
                "data parallel engines `balancing: router`",
                at=("routing",),
            )
        # Without a cluster, or None, as validation context it is not known whether there are such nodes.
        if "cluster" in context and cluster is None and (self.nodes > 1 or self.client == "own"):
            what, key = ("more than one node", "nodes") if self.nodes > 1 else ("a node of its own for the client", "client")
            raise refuse(f"{what} needs a scheduler: run with --profile slurm, or write `cluster: NAME`", at=(key,))
        if 0 < gpus < self.devices_per_node:
            raise refuse(
                f"{ranks} ranks on {self.nodes} node(s) take {self.devices_per_node} devices of each, and the "
                f"cluster's nodes have {gpus} (gpus_per_node); {self._legal_nodes(gpus)}",
                at=("nodes",),
            )
        if self.replicas % self.nodes:
            self._divides_over_nodes(gpus)
        return self

    def _divides_over_nodes(self, gpus_per_node: int) -> None:
        """Check that each replica has whole nodes, with as many ranks on each."""
        if self.nodes % self.replicas:
            legal = [n for n in range(1, 2 * self.nodes + 1) if n % self.nodes == 0 or self.nodes % n == 0]
            raise refuse(
                f"{self.replicas} replicas do not divide over {self.nodes} nodes, nor the nodes over the replicas; with "
                f"{self.nodes} nodes legal: {', '.join(map(str, legal))} and further multiples of {self.nodes}",
                at=("replicas",),
            )
        nodes, ranks, legal_nodes = self.nodes_of_a_replica, self.replica_size, self._legal_nodes(gpus_per_node)
        if ranks % nodes:
            raise refuse(
                f"tensor_parallel x pipeline_parallel x data_parallel = {ranks} ranks of a replica do not divide over its "
                f"{nodes} nodes; {legal_nodes}",
                at=("nodes",),
            )
        if not self._divides(self.nodes):
            placed = (
                "vLLM places engines over nodes only where as many are on each, or each has as many nodes"
                if self.traits.engines_span_nodes
                else f"with `{self.executor}` a replica of {nodes} nodes has whole engines on each"
            )
            others = [name for name in EXECUTORS if self.model_copy(update={"executor": name})._divides(self.nodes)]
            raise refuse(
                f"{placed}, so {self.data_parallel} engines do not divide over {nodes} nodes; {legal_nodes}"
                + (f"; or write `executor: {others[0]}`, which has engines across nodes" if others else ""),
                at=("data_parallel",),
            )

    def _divides(self, nodes: int) -> bool:
        """Return whether vLLM can spread the ranks over so many nodes.

        Over Ray, engines of one node each are packed by node, as many on each, and engines of several nodes need each the same number of
        whole ones (vllm/v1/engine/utils.py, create_dp_placement_groups, 0.25.1 and 0.32.0).
        """
        if self.replicas % nodes == 0:
            return True
        each = nodes // self.replicas
        if nodes % self.replicas or self.replica_size % each:
            return False
        spans = self.traits.engines_span_nodes and each % self.data_parallel == 0
        return self.data_parallel == 1 or self.data_parallel % each == 0 or spans

    def _legal_nodes(self, gpus_per_node: int) -> str:
        """Return which numbers of nodes the other sizes divide over, on nodes of so many devices (0: any number), in words."""
        ranks = self.world_size
        found = [n for n in range(1, ranks + 1) if self._divides(n) and ranks <= n * (gpus_per_node or ranks)]
        return f"legal for `nodes` here: {', '.join(map(str, found))}" if found else "no number of nodes has them so: change the sizes"
