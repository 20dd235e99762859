"""Connections of GPUs from `nvidia-smi topo -m`, in a form that nodes of one kind share."""

from __future__ import annotations

import pytest

from builders import report_data
from builders.paths import FIXTURES
from servemark.machine.gpu_topology import links, matrix
from servemark.machine.hardware import plain
from servemark.records import Gpu, Hardware

RECORDED = FIXTURES / "hardware"
FOUR = (RECORDED / "nvidia-smi-topo-h200x4.txt").read_text()
SWITCHED = ["X NV18", "NV18 X"]
# Two pairs of GPUs, each with a bridge; a network card between the columns.
PAIRS = """\tGPU0\tGPU1\tNIC0\tGPU2\tGPU3\tCPU Affinity\tNUMA Affinity
GPU0\t X \tNV4\tPIX\tSYS\tSYS\t0-31\t0
GPU1\tNV4\t X \tPIX\tSYS\tSYS\t0-31\t0
NIC0\tPIX\tPIX\t X \tSYS\tSYS
GPU2\tSYS\tSYS\tSYS\t X \tNV4\t32-63\t1
GPU3\tSYS\tSYS\tSYS\tNV4\t X \t32-63\t1

Legend:
"""


def machine(text: str | None, *indices: int | None) -> Hardware:
    gpus = tuple(Gpu(name="NVIDIA H200", memory_mib=143771, index=index) for index in indices)
    return report_data.hardware(accelerator="cuda", gpus=gpus, gpu_topology=text)


def test_recorded_tables_give_the_gpus_alone():
    assert matrix(FOUR) == [["X" if one == other else "NV18" for other in range(4)] for one in range(4)]
    assert matrix(plain((RECORDED / "nvidia-smi-topo-h100x2-terminal.txt").read_text())) == [["X", "NV18"], ["NV18", "X"]]
    assert matrix(plain((RECORDED / "nvidia-smi-topo-h200x1-terminal.txt").read_text())) == [["X"]]


@pytest.mark.parametrize("text", ["", "No devices were found", "\tGPU0\tGPU1\nGPU0\t X \n", "\tGPU0\nGPU0\t X \nGPU1\t X \n"])
def test_other_text_gives_nothing(text):
    assert matrix(text) == []


@pytest.mark.parametrize(
    ("text", "indices", "devices", "expected"),
    [
        # Cards and CPU numbers do not count, nor GPUs that are not in use.
        (FOUR, (0, 1, 2, 3), 2, SWITCHED),
        (FOUR, (3, 1), 2, SWITCHED),
        (FOUR, (0,), 1, []),
        (None, (0,), 1, []),
        (PAIRS, (0, 1, 2, 3), 2, ["X NV4", "NV4 X"]),
        (PAIRS, (2, 3), 2, ["X NV4", "NV4 X"]),
        (PAIRS, (0, 2), 2, ["X SYS", "SYS X"]),
        (PAIRS, (1, 2, 3), 3, ["X SYS SYS", "SYS X NV4", "SYS NV4 X"]),
        # The probe saw one GPU, and a deployment gets more.
        (None, (0, None), 2, None),
        ("\tGPU0\nGPU0\t X \n", (0, None), 2, None),
        # It saw all of them, and which of them a job gets is open.
        (FOUR, (0, None), 2, SWITCHED),
        (PAIRS, (0, None), 2, None),
        (FOUR, (0, None, None, None, None), 5, None),
    ],
)
def test_links_of_the_gpus_in_use(text, indices, devices, expected):
    assert links(machine(text, *indices), devices) == expected
