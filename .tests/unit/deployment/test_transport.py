"""The transport between nodes: read from NCCL's log, compared with the cluster file and with the nodes' adapters."""

from __future__ import annotations

import pytest

from builders.launching import NODE
from builders.paths import FIXTURES
from servemark.deployment import transport
from servemark.errors import StageFailed
from servemark.records import FastAdapter, Topology

NCCL = FIXTURES / "nccl" / "nccl-2.28.9-h200-2nodes-socket.txt"
HCA = FastAdapter(name="mlx5_0", kind="ib", gbit=400)


def test_transports_are_read_from_nccl_log():
    assert transport.named(NCCL.read_text()) == (
        "NET/Socket : Using [0]hsn0:10.77.0.2<0>",
        "Using network Socket",
        "via P2P/CUMEM",
        "via NET/Socket/0",
        "via NET/Socket/0/Shared",
    )


@pytest.mark.parametrize(
    ("line", "found"),
    [
        ("n1:7:7 [0] NCCL INFO NET/IB : Using [0]mlx5_0:1/IB [1]mlx5_1:1/IB [RO]; OOB hsn0:10.0.0.1<0>",
         ("NET/IB : Using [0]mlx5_0:1/IB [1]mlx5_1:1/IB [RO]; OOB hsn0:10.0.0.1<0>",)),
        ("n1:7:7 [0] NCCL INFO Using network AWS Libfabric", ("Using network AWS Libfabric",)),
        ("n1:7:9 [3] NCCL INFO Channel 00/0 : 3[3] -> 4[0] [send] via NET/IB/0/GDRDMA", ("via NET/IB/0/GDRDMA",)),
        ("n1:7:9 [3] NCCL INFO Channel 00 : 0[0] -> 1[1] via SHM/direct/direct", ("via SHM/direct/direct",)),
        ("n1:7:7 [0] NCCL INFO NET/Plugin : No plugin found (libnccl-net.so)", ()),
        ("n1:7:7 [0] NCCL INFO NET/OFI Selected Provider is efa (found 1 nics)", ("NET/OFI Selected Provider is efa (found 1 nics)",)),
        ("n1:7:9 [3] NCCL INFO Channel 00/0 : 3[3] -> 4[0] [send] via NET/AWS Libfabric/1/GDRDMA", ("via NET/AWS Libfabric/1/GDRDMA",)),
        ("Using network Socket", ()),
        ("", ()),
    ],
)  # fmt: skip
def test_transport_is_read_from_a_line_of_nccl(line, found):
    assert transport.named(line) == found
    assert transport.named(f"{line}\n{line}\n") == found, "each once"


@pytest.mark.parametrize(
    ("lines", "kind"),
    [
        (transport.named(NCCL.read_text()), "tcp"),
        (("NET/IB : Using [0]mlx5_0:1/IB [RO]; OOB ib0:10.0.0.1<0>", "Using network IB", "via NET/IB/0/GDRDMA"), "ib"),
        (("Using network IBext_v8", "via NET/IBext_v8/0/GDRDMA"), "ib"),
        (("NET/OFI Selected provider is cxi, fabric is cxi (found 4 nics)", "Using network AWS Libfabric"), "cxi"),
        (("NET/OFI Selected Provider is efa (found 1 nics)", "via NET/AWS Libfabric/0/GDRDMA"), "efa"),
        (("NET/OFI Selected provider is tcp;ofi_rxm (found 1 nics)", "Using network AWS Libfabric"), "tcp"),
        (("Using network IB", "via NET/Socket/0"), "tcp"),
        (("Using network FasTrak",), None),
        ((), None),
    ],
)
def test_kind_of_transport(lines, kind):
    assert transport.kind_of(lines) == kind


@pytest.mark.parametrize(
    ("wanted", "kind", "refused"),
    [("any", "tcp", False), ("any", None, False), ("ib", "ib", False), ("ib", "tcp", True), ("cxi", None, True), ("efa", "ib", True)],
)
def test_required_transport(wanted, kind, refused):
    if not refused:
        return transport.require(wanted, kind, ["x"], [], "log")
    with pytest.raises(StageFailed) as caught:
        transport.require(wanted, kind, ["via NET/Socket/0"], ["mlx5_0 (InfiniBand or RoCE)"], "log")
    error = caught.value
    assert (error.reason, error.look, error.quote) == ("wrong_transport", "log", ("via NET/Socket/0",))
    assert f"require_transport: {wanted}" in error.what and "mlx5_0" in error.what and error.do
    return None


@pytest.mark.parametrize(
    ("wanted", "kind", "replicas", "unmet"),
    [
        ("any", "tcp", 1, False),
        ("ib", "ib", 1, False),
        ("ib", "tcp", 1, True),
        ("ib", None, 1, True),
        # No result depends on the transport if each replica fits on one node.
        ("ib", "tcp", 2, False),
    ],
)
def test_required_transport_of_a_stored_measurement(wanted, kind, replicas, unmet):
    size = 2 // replicas
    topology = Topology(nodes=2, devices_per_node=1, tensor_parallel=1, pipeline_parallel=size, replicas=replicas, executor="mp")
    found = transport.unmet(wanted, kind, topology)
    assert (found is not None) == unmet
    assert found is None or f"require_transport: {wanted}" in found


@pytest.mark.parametrize(
    ("kind", "adapters", "replicas", "slow"),
    [
        ("tcp", (HCA,), 1, True),
        ("tcp", (HCA,), 2, False),
        ("tcp", (), 1, False),
        ("ib", (HCA,), 1, False),
        (None, (HCA,), 1, False),
    ],
)
def test_tcp_is_slow_if_a_node_has_a_fast_adapter_and_a_replica_needs_it(kind, adapters, replicas, slow):
    size = 2 // replicas
    topology = Topology(nodes=2, devices_per_node=1, tensor_parallel=1, pipeline_parallel=size, replicas=replicas, executor="mp")
    found = transport.slow(kind, [NODE, NODE.model_copy(update={"adapters": adapters})], topology)
    assert (found is not None) == slow
    assert found is None or "mlx5_0 (InfiniBand or RoCE, 400 Gbit/s)" in found
