"""Adapters for fast communication between nodes, and the speeds of network interfaces, from Linux's /sys/class."""

import re
from collections.abc import Iterable
from pathlib import Path
from typing import Literal

from servemark.records import FastAdapter, Interface

CLASSES = Path("/sys/class")
ETHERNET_GBIT = 100.0
"""An Ethernet port with RDMA counts from this speed on. Slower ones are usual in servers whose network is not set up for RDMA."""


def adapters(classes: Path = CLASSES) -> tuple[FastAdapter, ...]:
    """Return the adapters with an active port: InfiniBand and fast RoCE (``ib``), EFA, and Slingshot (``cxi``).

    Linux lists the first two kinds in ``infiniband`` (Documentation/ABI/stable/sysfs-class-infiniband) and HPE's driver its own in ``cxi``.
    """
    found = []
    for device in sorted(classes.glob("infiniband/*")):
        kind: Literal["ib", "efa"] = "efa" if (device / "device/driver").resolve().name == "efa" else "ib"
        active = [port for port in sorted(device.glob("ports/*")) if "ACTIVE" in _text(port / "state")]
        speeds = [speed for port in active if (speed := _gbit(port)) is not None]
        if active and (speeds or not _ethernet(active[0])):
            found.append(FastAdapter(name=device.name, kind=kind, gbit=max(speeds, default=None)))
    found += [FastAdapter(name=device.name, kind="cxi") for device in sorted(classes.glob("cxi/cxi*"))]
    return tuple(found)


def _gbit(port: Path) -> float | None:
    """Return a port's speed from a rate such as ``200 Gb/sec (4X HDR)``; None if unknown, or for slow Ethernet."""
    rate = re.match(r"[\d.]+", _text(port / "rate"))
    speed = float(rate[0]) if rate else None
    return None if speed and _ethernet(port) and speed < ETHERNET_GBIT else speed


def _ethernet(port: Path) -> bool:
    return _text(port / "link_layer") == "Ethernet"


def _text(path: Path) -> str:
    try:
        return path.read_text().strip()
    except OSError:
        return ""


def faster(interfaces: Iterable[Interface], chosen: Interface, classes: Path = CLASSES) -> tuple[Interface, ...]:
    """Return the interfaces with a higher speed than the chosen one, the fastest first; none if its speed is not known.

    Virtual interfaces, such as a container's bridge, do not lead to other nodes and do not count.
    """
    if chosen.speed_mbit is None:
        return ()
    better = [one for one in interfaces if (one.speed_mbit or 0) > chosen.speed_mbit and (classes / "net" / one.name / "device").exists()]
    return tuple(sorted(better, key=lambda one: (-(one.speed_mbit or 0), one.name)))
