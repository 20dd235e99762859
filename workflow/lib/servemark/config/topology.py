"""The topology of a deployment in the configuration, and the checks that need no model."""

from __future__ import annotations

from typing import Any

from pydantic import ValidationInfo, model_validator
from pydantic_core import PydanticCustomError

from servemark.config.cluster import Site
from servemark.config.field_types import refuse
from servemark.records import Topology
from servemark.records.topology import EXECUTORS, Shape

MAX_RANKS = 100_000


class AskedTopology(Shape):
    """How a deployment spreads over nodes and devices."""

    @property
    def devices_per_node(self) -> int:
        """Devices that the servers use on each of their nodes."""
        return -(-self.world_size // self.nodes)

    def record(self) -> Topology:
        """Return the topology for records and planning, with its number of devices on each node."""
        return Topology(**self.model_dump(), devices_per_node=self.devices_per_node)

    # The first fault ends the check: the search for legal numbers of nodes below needs a bounded number of ranks.
    @model_validator(mode="after")
    def _possible(self, info: ValidationInfo) -> AskedTopology:
        context = info.context or {}
        cluster: Site | None = context.get("cluster")
        gpus = cluster.gpus_per_node if cluster else 0
        if self.traits.one_rank and self.replica_size > 1:
            raise refuse(
                f"`{self.executor}` is {self.traits.label}, and tensor_parallel x pipeline_parallel x data_parallel is "
                f"{self.replica_size}; write `mp`, or leave it out",
                at=("executor",),
                allowed=[name for name, traits in EXECUTORS.items() if not traits.one_rank],
            )
        if (ranks := self.world_size) > MAX_RANKS:
            product = "tensor_parallel x pipeline_parallel x data_parallel x replicas"
            raise refuse(f"{product} is {ranks:,} ranks; the limit is {MAX_RANKS:,}")
        if self.balancing == "router" and self.data_parallel == 1:
            raise refuse(
                "`router` distributes requests over data parallel engines, and data_parallel is 1; leave it out, or raise data_parallel",
                at=("balancing",),
            )
        if self.routing != "round_robin" and not self.routed:
            raise refuse(
                f"`{self.routing}` is a policy of the router, and one server has no router; leave it out, raise replicas, or set "
                "`balancing: router` for data parallel engines",
                at=("routing",),
            )
        # None in the validation context: this machine alone. Without the key, it is unknown whether there is a cluster.
        if "cluster" in context and cluster is None and (self.nodes > 1 or self.client == "own"):
            what, key = ("more than one node", "nodes") if self.nodes > 1 else ("the client's own node", "client")
            raise refuse(f"{what} needs a cluster; run with --profile slurm, or write `cluster: NAME`", at=(key,))
        if 0 < gpus < self.devices_per_node:
            fault = (
                f"{ranks} ranks on {self.nodes} node(s) need {self.devices_per_node} devices on each, and the cluster's nodes have {gpus}"
            )
            raise refuse(f"{fault} (gpus_per_node); {self._legal_nodes(gpus)}", at=("nodes",))
        if not self._divides(self.nodes):
            raise self._uneven(gpus)
        return self

    def _uneven(self, gpus_per_node: int) -> PydanticCustomError:
        """Return the error of replicas, ranks or engines that do not divide over the nodes."""
        if self.nodes % self.replicas:
            legal = [n for n in range(1, 2 * self.nodes + 1) if n % self.nodes == 0 or self.nodes % n == 0]
            return refuse(
                f"{self.replicas} replicas do not divide over {self.nodes} nodes, nor the nodes over the replicas; with "
                f"{self.nodes} nodes legal: {', '.join(map(str, legal))} and further multiples of {self.nodes}",
                at=("replicas",),
            )
        nodes, ranks = self.nodes_of_a_replica, self.replica_size
        if ranks % nodes:
            fault = f"tensor_parallel x pipeline_parallel x data_parallel = {ranks} ranks of a replica do not divide over its {nodes} nodes"
            return refuse(f"{fault}; {self._legal_nodes(gpus_per_node)}", at=("nodes",))
        others = [name for name in EXECUTORS if self.model_copy(update={"executor": name})._divides(self.nodes)]
        return refuse(
            f"{self.data_parallel} engines do not divide over the {nodes} nodes of a replica with `{self.executor}`; "
            + self._legal_nodes(gpus_per_node)
            + (f"; or write `executor: {others[0]}`, whose engines may span nodes" if others else ""),
            at=("data_parallel",),
        )

    def _divides(self, nodes: int) -> bool:
        """Return whether vLLM can distribute the ranks over ``nodes``.

        With Ray, each node has the same number of whole engines, or each engine the same number of whole nodes
        (vllm/v1/engine/utils.py, create_dp_placement_groups, 0.25.1 and 0.32.0).
        """
        if self.replicas % nodes == 0:
            return True
        each = nodes // self.replicas
        if nodes % self.replicas or self.replica_size % each:
            return False
        spans = self.traits.engines_span_nodes and each % self.data_parallel == 0
        return self.data_parallel == 1 or self.data_parallel % each == 0 or spans

    def _legal_nodes(self, gpus_per_node: int) -> str:
        """Return in words the numbers of nodes over which the ranks divide. ``gpus_per_node``: 0 for no limit."""
        ranks = self.world_size
        found = [n for n in range(1, ranks + 1) if self._divides(n) and ranks <= n * (gpus_per_node or ranks)]
        return f"legal for `nodes` here: {', '.join(map(str, found))}" if found else "no number of nodes fits: change the sizes"


AUTO = "auto"


class AutomaticTopology(AskedTopology):
    """``topology: auto`` until servemark has chosen; its sizes are those of one process."""


def automatic(value: Any) -> Any:
    """Return the topology that stands for ``auto``; anything else unchanged. Another text is refused with the word that it may mean."""
    if isinstance(value, str) and value != AUTO:
        raise refuse("must be `auto` or a mapping, in indented lines below the key", allowed=(AUTO,))
    return AutomaticTopology() if value == AUTO else value


def schema_with_auto(schema: dict[str, Any]) -> None:
    """Let a JSON schema take ``auto`` next to the mapping."""
    if reference := schema.pop("$ref", None):
        schema["anyOf"] = [{"$ref": reference}, {"const": AUTO}]
