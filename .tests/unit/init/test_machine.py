"""Facts about this machine: each source may be missing."""

from __future__ import annotations

import os
from types import SimpleNamespace

import psutil

from servemark.errors import ServemarkError
from servemark.init import machine
from servemark.records import Interface


def test_folders_are_named_by_variables_and_listed_once(tmp_path):
    for name in ("project", "scratch"):
        (tmp_path / name).mkdir()
    env = {"PROJECT": f"{tmp_path}/project", "WORK": f"{tmp_path}/project/", "SCRATCH": f"{tmp_path}/scratch",
           "PSCRATCH": f"{tmp_path}/gone", "DATA": "relative"}  # fmt: skip
    assert [disk.name for disk in machine.disks(env)] == ["$PROJECT", "$SCRATCH"]


def test_shared_file_systems_come_first(tmp_path, monkeypatch):
    for name in ("project", "scratch"):
        (tmp_path / name).mkdir()
    parts = [SimpleNamespace(mountpoint=f"{tmp_path}/scratch", fstype="lustre")]
    monkeypatch.setattr(psutil, "disk_partitions", lambda all: parts)
    monkeypatch.setattr(machine.storage, "mount_point", lambda path: path)
    found = machine.disks({"PROJECT": f"{tmp_path}/project", "SCRATCH": f"{tmp_path}/scratch"})
    assert [(disk.name, disk.shared) for disk in found] == [("$SCRATCH", True), ("$PROJECT", False)]
    assert "lustre" in str(found[0]) and "unknown" in str(found[1])


def test_networks_that_are_up_come_first_and_the_fastest_of_them(monkeypatch):
    names = {"ib0": (False, 400_000), "lo": (True, 0), "eth0": (True, 1000), "hsn0": (True, 200_000)}
    stats = {name: SimpleNamespace(isup=up, speed=speed) for name, (up, speed) in names.items()}
    monkeypatch.setattr(psutil, "net_if_stats", lambda: stats)
    addresses = tuple(Interface(name=name, address="127.0.0.1" if name == "lo" else "10.0.0.1") for name in names)
    monkeypatch.setattr(machine.hardware, "interfaces", lambda: addresses)
    found = machine.networks()
    assert [one.name for one in found] == ["hsn0", "eth0", "ib0"]
    assert str(found[0]) == "hsn0 (10.0.0.1, up, 200 Gbit/s)"


def test_broken_driver_leaves_everything_else(monkeypatch, tmp_path):
    def fail():
        raise ServemarkError("nvidia-smi does not work: 9", reason="nvidia_smi_failed")

    monkeypatch.setattr(machine.hardware, "probe", fail)
    monkeypatch.chdir(tmp_path)
    found = machine.find({"LOADEDMODULES": "gcc/13.2:nccl:", "PATH": os.environ["PATH"]})
    assert found.hardware is None and found.modules == ("gcc/13.2", "nccl") and found.checkout.path == tmp_path
    assert len(found.unknown) == 1 and "nvidia-smi" in found.unknown[0]
