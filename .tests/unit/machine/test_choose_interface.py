"""The interface of a node: by its address in the scheduler, or by the cluster file."""

from __future__ import annotations

import pytest

from servemark.errors import StageFailed
from servemark.machine import network
from servemark.records import Interface

THERE = tuple(
    Interface(name=name, address=address)
    for name, address in (("lo", "127.0.0.1"), ("hsn1", "10.2.0.7"), ("hsn0", "10.1.0.7"), ("eth0", "192.168.3.7"))
)


@pytest.mark.parametrize(
    ("wanted", "known_as", "found"),
    [
        (None, "192.168.3.7", "eth0"),
        (None, "10.2.0.7", "hsn1"),
        ("hsn1", "192.168.3.7", "hsn1"),
        ("hsn*", None, "hsn0"),
        ("[eh]*0", None, "eth0"),
        ("10.0.0.0/8", None, "hsn0"),
        ("10.2.0.7/16", None, "hsn1"),
        ("lo", "192.168.3.7", "lo"),
    ],
)
def test_interface_is_chosen_by_address_name_pattern_or_network(wanted, known_as, found):
    assert network.choose_interface("node7", THERE, wanted, known_as).name == found


@pytest.mark.parametrize(
    ("interfaces", "wanted", "known_as"),
    [
        (THERE, "ib0", None),
        (THERE, "HSN0", None),
        (THERE, "172.16.0.0/12", None),
        (THERE, None, "10.9.9.9"),
        (THERE, None, None),
        ((), "hsn0", None),
    ],
)
def test_node_without_the_interface_lists_its_interfaces(interfaces, wanted, known_as):
    with pytest.raises(StageFailed) as refused:
        network.choose_interface("node7", interfaces, wanted, known_as)
    facts = ("node7", str(wanted or known_as), *(f"{found.name} ({found.address})" for found in interfaces))
    assert all(fact in refused.value.what for fact in facts)
    assert refused.value.reason == "wrong_interface" and "`interface`" in refused.value.do
