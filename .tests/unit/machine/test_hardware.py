"""The hardware probe: recorded output of an H200 host, and a machine without a driver."""

from __future__ import annotations

import json
import os
import platform
import re
import shutil
import socket
import subprocess
from pathlib import Path

import pytest

from builders.paths import FIXTURES
from servemark.errors import ServemarkError
from servemark.machine import hardware, visible_gpus
from servemark.records import Hardware

RECORDED = FIXTURES / "hardware"
HEADER = (RECORDED / "nvidia-smi-h200x1.txt").read_text()
TOPOLOGY = (RECORDED / "nvidia-smi-topo-h200x4.txt").read_text()


def query() -> str:
    """Return the recorded names and sizes in the form of the probe's query, with invented ids."""
    rows = (RECORDED / "nvidia-smi-query-name-memory-h200x4.csv").read_text().split("\n")[:4]
    return "".join(f"{row.removesuffix(' MiB')}, GPU-{n}, 580.159.04, 700.00, Enabled, Disabled\n" for n, row in enumerate(rows))


def test_gpus_and_driver_of_a_recorded_host():
    gpus, driver = hardware.parse_gpus(query(), 1024)
    assert driver == "580.159.04"
    assert [(gpu.name, gpu.memory_mib, gpu.uuid) for gpu in gpus] == [("NVIDIA H200", 143771, f"GPU-{n}") for n in range(4)]


def test_recorded_output_of_the_query_is_parsed():
    (one, other), driver = hardware.parse_gpus((RECORDED / "nvidia-smi-query-h100x2.csv").read_text(), 1024)
    assert (one.name, one.memory_mib, driver) == ("NVIDIA H100 80GB HBM3", 81559, "580.159.04")
    assert (one.power_limit_w, one.ecc, one.mig, one.index, other.index) == (700.0, True, False, 0, 1)
    assert one.uuid and one.uuid.startswith("GPU-0000")


@pytest.mark.parametrize("power", ["[N/A]", "[Not Supported]", "[Unknown Error]"])
def test_missing_power_limit_and_modes_are_null(power):
    ((gpu,), _) = hardware.parse_gpus(f"NVIDIA L4, 23034, GPU-0, 580.1, {power}, [N/A], [N/A]\n", 1024)
    assert (gpu.power_limit_w, gpu.ecc, gpu.mig) == (None, None, None)


def test_active_nvlinks_are_counted_for_each_gpu():
    text = (RECORDED / "nvidia-smi-nvlink-h100x2.txt").read_text()
    assert list(hardware.parse_nvlinks(text).values()) == [18, 18]
    lost = text.replace("Link 3: 26.562 GB/s", "Link 3: <inactive>", 1)
    assert list(hardware.parse_nvlinks(lost).values()) == [17, 18]
    assert hardware.parse_nvlinks("GPU 0: NVIDIA L4 (UUID: GPU-7)\n") == {"GPU-7": 0}
    assert hardware.parse_nvlinks("") == {}


def test_product_name_is_read_from_the_first_file_that_has_one(tmp_path):
    (tmp_path / "empty").write_text("\n")
    (tmp_path / "model").write_text("GB10\0")
    (tmp_path / "dmi").write_text("PowerEdge XE9680\n")
    paths = [str(tmp_path / name) for name in ("missing", "empty", "model", "dmi")]
    assert hardware.node_model(paths) == "GB10" and hardware.node_model(paths[:2]) is None


def test_terminal_codes_are_removed_from_the_topology():
    recorded = (RECORDED / "nvidia-smi-topo-h200x1-terminal.txt").read_text()
    assert "\x1b[4m" in recorded
    assert hardware.plain(recorded).splitlines()[:2] == [
        "\tGPU0\tCPU Affinity\tNUMA Affinity\tGPU NUMA ID",
        "GPU0\t X \t0-15\t0\t\tN/A",
    ]
    assert hardware.plain(TOPOLOGY) == TOPOLOGY


@pytest.mark.parametrize("text", ["", "\n", "No devices were found\n"])
def test_no_row_is_no_gpu(text):
    assert hardware.parse_gpus(text, 1024) == ((), None)


def test_memory_with_a_unit_is_read():
    ((gpu,), _) = hardware.parse_gpus("NVIDIA H200, 143771 MiB, GPU-0, 580.159.04, 700.00, Enabled, Disabled\n", 1024)
    assert gpu.memory_mib == 143771


def test_gpu_without_own_memory_has_that_of_the_machine():
    ((gpu,), driver) = hardware.parse_gpus("NVIDIA GB10, [N/A], GPU-0, 580.95.05, 700.00, Enabled, Disabled\n", 122_570)
    assert (gpu.memory_mib, driver) == (122_570, "580.95.05")


def test_mig_slice_is_refused():
    with pytest.raises(ServemarkError, match=r"NVIDIA H100: '\[Insufficient Permissions\]'") as caught:
        hardware.parse_gpus("NVIDIA H100, [Insufficient Permissions], GPU-0, 580.95.05, 700.00, Enabled, Disabled\n", 1024)
    assert caught.value.reason == "gpu_part_named"


@pytest.mark.parametrize(
    ("text", "version"),
    [
        (HEADER, "13.0"),
        ("| Driver Version: 610.1    CUDA UMD Version: 13.3     |", "13.3"),
        ("NVIDIA-SMI has failed", None),
    ],
)
def test_cuda_version_of_the_driver(text, version):
    assert hardware.parse_cuda(text) == version


@pytest.mark.parametrize(
    ("text", "name"),
    [
        ("processor\t: 0\nmodel name\t: AMD EPYC 9V33X\nprocessor\t: 1\nmodel name\t: other\n", "AMD EPYC 9V33X"),
        ("processor\t: 0\nCPU part\t: 0xd4f\n", f"{platform.machine()} part 0xd4f"),
        ("", platform.machine()),
    ],
)
def test_cpu_name(text, name):
    assert hardware.parse_cpu_model(text) == name


def test_cpu_name_of_a_recorded_host_is_that_of_lscpu():
    said = re.search(r"^Model name: +(.+)$", (RECORDED / "lscpu-xeon-h200x1.txt").read_text(), re.MULTILINE)
    assert said
    assert hardware.parse_cpu_model((RECORDED / "cpuinfo-xeon-h200x1.txt").read_text()) == said[1]


@pytest.mark.skipif(not shutil.which("ip"), reason="no ip(8) here")
def test_interfaces_are_those_of_ip_addr():
    listed = json.loads(subprocess.run(["ip", "-j", "addr"], capture_output=True, check=True).stdout)
    addresses = {
        (info.get("label", link["ifname"]), info["local"]) for link in listed for info in link["addr_info"] if info["family"] == "inet"
    }
    assert {(found.name, found.address) for found in hardware.interfaces()} == addresses


def test_interfaces_are_ipv4_and_sorted():
    found = hardware.interfaces()
    assert ("lo", "127.0.0.1") in [(i.name, i.address) for i in found]
    assert [i.name for i in found] == sorted(i.name for i in found)
    assert all(re.fullmatch(r"\d+(\.\d+){3}", i.address) for i in found)


@pytest.fixture
def path(tmp_path, monkeypatch):
    """The only folder on PATH; CUDA_VISIBLE_DEVICES is not set."""
    folder = tmp_path / "bin"
    folder.mkdir()
    monkeypatch.delenv(visible_gpus.VARIABLE, raising=False)
    monkeypatch.setenv("PATH", str(folder))
    return folder


def put_nvidia_smi(folder: Path, body: str) -> None:
    script = folder / "nvidia-smi"
    script.write_text(f"#!/bin/sh\n{body}\n")
    script.chmod(0o755)


def test_machine_without_a_driver_is_a_cpu_machine(path, tmp_path):
    found = hardware.probe()
    assert (found.accelerator, found.gpus, found.driver, found.cuda, found.gpu_topology) == (
        "cpu",
        (),
        None,
        None,
        None,
    )
    assert found.host == socket.gethostname()
    assert found.cpu_count == found.devices == len(os.sched_getaffinity(0)) and found.cpus_online == os.cpu_count()
    assert found.memory_gib > 0 and found.shm_gib > 0 and found.nofile > 0
    found.write(tmp_path / "hardware.json")
    assert Hardware.read(tmp_path / "hardware.json") == found


@pytest.fixture
def four(path, tmp_path):
    """nvidia-smi of a host with four GPUs."""
    (tmp_path / "query").write_text(query())
    links = "".join(f"\t Link {n}: 26.562 GB/s\n" for n in range(18))
    (tmp_path / "nvlink").write_text("".join(f"GPU {n}: NVIDIA H200 (UUID: GPU-{n})\n{links}" for n in range(4)))
    put_nvidia_smi(
        path,
        f'case "$*" in "") f={RECORDED}/nvidia-smi-h200x1.txt;; "topo -m") f={RECORDED}/nvidia-smi-topo-h200x4.txt;; '
        f'"nvlink -s") f={tmp_path}/nvlink;; '
        f"*) f={tmp_path}/query;; esac\nwhile IFS= read -r line; do printf '%s\\n' \"$line\"; done < $f",
    )


def test_machine_with_four_gpus(four):
    found = hardware.probe()
    assert (found.accelerator, found.driver, found.cuda) == ("cuda", "580.159.04", "13.0")
    assert found.devices == len(found.gpus) == 4
    assert found.gpu_topology == TOPOLOGY
    assert [(gpu.index, gpu.power_limit_w, gpu.nvlinks) for gpu in found.gpus] == [(n, 700.0, 18) for n in range(4)]
    assert (found.hidden_gpus, found.cuda_visible_devices) == (0, None)


@pytest.mark.parametrize(
    ("value", "uuids"),
    [
        ("1", ["GPU-1"]),
        ("3,0", ["GPU-3", "GPU-0"]),
        ("GPU-2,GPU-1", ["GPU-2", "GPU-1"]),
        ("0,1,2,3", ["GPU-0", "GPU-1", "GPU-2", "GPU-3"]),
        ("2,8,1", ["GPU-2"]),
    ],
)
def test_visible_gpus_are_recorded_in_their_order(four, tmp_path, monkeypatch, value, uuids):
    monkeypatch.setenv(visible_gpus.VARIABLE, value)
    found = hardware.probe()
    assert [gpu.uuid for gpu in found.gpus] == uuids
    assert (found.accelerator, found.devices, found.hidden_gpus) == ("cuda", len(uuids), 4 - len(uuids))
    assert found.cuda_visible_devices == value and found.gpu_topology == TOPOLOGY
    found.write(tmp_path / "hardware.json")
    assert Hardware.read(tmp_path / "hardware.json") == found


@pytest.mark.parametrize("value", ["", "-1"])
def test_machine_with_all_gpus_hidden_is_a_cpu_machine(four, monkeypatch, value):
    monkeypatch.setenv(visible_gpus.VARIABLE, value)
    found = hardware.probe()
    assert (found.accelerator, found.gpus, found.hidden_gpus) == ("cpu", (), 4)
    assert found.devices == found.cpu_count
    assert f"'{value}'" in visible_gpus.hiding(found) and "4 of 4" in visible_gpus.hiding(found)


def test_variable_that_leaves_no_gpu_by_mistake_is_refused(four, monkeypatch):
    monkeypatch.setenv(visible_gpus.VARIABLE, "4")
    with pytest.raises(ServemarkError) as refused:
        hardware.probe()
    assert refused.value.reason == "gpus_hidden" and socket.gethostname() in refused.value.what


def test_variable_hides_nothing_on_a_machine_without_gpus(path, monkeypatch):
    monkeypatch.setenv(visible_gpus.VARIABLE, "0,1")
    found = hardware.probe()
    assert (found.accelerator, found.hidden_gpus, found.cuda_visible_devices) == ("cpu", 0, "0,1")


def test_broken_driver_is_refused(path):
    put_nvidia_smi(path, "echo 'NVIDIA-SMI has failed because it could not communicate with the NVIDIA driver.'; exit 9")
    with pytest.raises(ServemarkError) as refused:
        hardware.probe()
    assert refused.value.reason == "nvidia_smi_failed"
