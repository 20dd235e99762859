"""Fast adapters and faster interfaces, from files like those in /sys/class."""

from __future__ import annotations

import pytest

from servemark.machine import fast_networks, hardware
from servemark.records import FastAdapter, Interface


@pytest.fixture
def port(tmp_path):
    """Return a function that adds a port of an adapter."""

    def add(device: str, state="4: ACTIVE", rate="200 Gb/sec (4X HDR)", layer="InfiniBand", driver="mlx5_core", number=1):
        folder = tmp_path / "infiniband" / device
        here = folder / "ports" / str(number)
        here.mkdir(parents=True)
        for name, text in (("state", state), ("rate", rate), ("link_layer", layer)):
            (here / name).write_text(f"{text}\n")
        (folder / "device").mkdir(exist_ok=True)
        if not (folder / "device/driver").is_symlink():
            (tmp_path / driver).mkdir(exist_ok=True)
            (folder / "device/driver").symlink_to(tmp_path / driver)

    return add


def test_adapters_with_an_active_port(tmp_path, port):
    port("mlx5_0", state="1: DOWN")
    port("mlx5_0", rate="400 Gb/sec (4X NDR)", number=2)
    port("mlx5_1", state="1: DOWN")
    port("mlx5_2", rate="25 Gb/sec (1X EDR)", layer="Ethernet")
    port("mlx5_3", rate="100 Gb/sec (4X EDR)", layer="Ethernet")
    port("mlx5_4", rate="")
    port("rdmap0s31", rate="100 Gb/sec (4X EDR)", layer="Unspecified", driver="efa")
    (tmp_path / "cxi" / "cxi0").mkdir(parents=True)
    assert fast_networks.adapters(tmp_path) == (
        FastAdapter(name="mlx5_0", kind="ib", gbit=400),
        FastAdapter(name="mlx5_3", kind="ib", gbit=100),
        FastAdapter(name="mlx5_4", kind="ib"),
        FastAdapter(name="rdmap0s31", kind="efa", gbit=100),
        FastAdapter(name="cxi0", kind="cxi"),
    )


def test_no_adapters(tmp_path):
    assert fast_networks.adapters(tmp_path) == ()


def test_faster_interfaces_of_real_devices(tmp_path):
    speeds = {"eth0": 1000, "eth1": 25000, "hsn0": 200000, "docker0": 10000, "eth2": 1000, "ib0": None}
    every = [Interface(name=name, address="10.0.0.1", speed_mbit=speed) for name, speed in speeds.items()]
    for name in speeds:
        if name != "docker0":
            (tmp_path / "net" / name / "device").mkdir(parents=True)
    assert [one.name for one in fast_networks.faster(every, every[0], tmp_path)] == ["hsn0", "eth1"]
    assert fast_networks.faster(every, every[2], tmp_path) == ()
    assert fast_networks.faster(every, every[5], tmp_path) == (), "its own speed is not known"


def test_interfaces_have_the_speed_that_linux_reports(monkeypatch):
    loopback = next(one for one in hardware.interfaces() if one.name == "lo")
    assert loopback.speed_mbit is None
