"""The peaks of GPUs in devices.yaml: each name that nvidia-smi prints, and rates that fit each other."""

from __future__ import annotations

import pytest
from pydantic import ValidationError

from servemark.planning import devices
from servemark.records import Gpu

NAMES = {
    # name in nvidia-smi, MiB: TB/s, TFLOP/s in 16 bits
    ("NVIDIA A100-SXM4-40GB", 40960): (1.555, 312),
    ("NVIDIA A100-SXM4-80GB", 81920): (2.039, 312),
    ("NVIDIA A100-PCIE-40GB", 40960): (1.555, 312),
    ("NVIDIA A100 80GB PCIe", 81920): (1.935, 312),
    ("A100-SXM4-40GB", 40536): (1.555, 312),
    ("NVIDIA A800-SXM4-80GB", 81920): (2.039, 312),
    ("NVIDIA A800 80GB PCIe", 81920): (1.935, 312),
    ("NVIDIA A30", 24576): (0.933, 165),
    ("NVIDIA A40", 46068): (0.696, 149.7),
    ("NVIDIA A10", 23028): (0.6, 125),
    ("NVIDIA A10G", 23028): (0.6, 70),
    ("NVIDIA A16", 15356): (0.2, 17.9),
    ("NVIDIA A2", 15356): (0.2, 18),
    ("NVIDIA L4", 23034): (0.3, 121),
    ("NVIDIA L20", 46068): (0.864, 119.5),
    ("NVIDIA L40", 46068): (0.864, 181.05),
    ("NVIDIA L40S", 46068): (0.864, 362.05),
    ("NVIDIA RTX 6000 Ada Generation", 49140): (0.96, 364.2),
    ("NVIDIA H100 80GB HBM3", 81559): (3.35, 989.4),
    ("NVIDIA H100 PCIe", 81559): (2.039, 756.4),
    ("NVIDIA H100 NVL", 95830): (3.9, 835.5),
    ("NVIDIA H800", 81559): (3.35, 989.4),
    ("NVIDIA H800 PCIe", 81559): (2.039, 756.4),
    ("NVIDIA H20", 97871): (4.0, 148),
    ("NVIDIA H20-3e", 143771): (4.8, 148),
    ("NVIDIA H200", 143771): (4.8, 989.4),
    ("NVIDIA H200 NVL", 143771): (4.8, 835.5),
    ("NVIDIA GH200 120GB", 97871): (4.0, 989.4),
    ("NVIDIA GH200 480GB", 97871): (4.0, 989.4),
    ("NVIDIA GH200 120GB", 147456): (4.9, 989.4),
    ("NVIDIA GH200 144G HBM3e", 146831): (4.9, 989.4),
    ("NVIDIA B100", 183359): (8.0, 1750),
    ("NVIDIA B200", 183359): (8.0, 2250),
    ("NVIDIA B300 SXM6 AC", 275040): (8.0, 2250),
    ("NVIDIA GB200", 189471): (8.0, 2500),
    ("NVIDIA GB300", 284208): (8.0, 2500),
    ("NVIDIA RTX PRO 6000 Blackwell Server Edition", 97887): (1.597, 503.8),
}


@pytest.mark.parametrize(("gpu", "peaks"), NAMES.items(), ids=str)
def test_peaks_by_name_and_memory(gpu, peaks):
    found = devices.find(Gpu(name=gpu[0], memory_mib=gpu[1]))
    assert (found.bandwidth, found.bf16) == peaks


def test_each_entry_describes_a_gpu_of_this_list():
    used = {devices.find(Gpu(name=name, memory_mib=mib)) for name, mib in NAMES}
    rare = {"L2", "RTX PRO 6000 Blackwell( Workstation Edition| Max-Q Workstation Edition)?"}
    assert {device.name for device in devices.devices() if device not in used} == rare


@pytest.mark.parametrize(
    "name", ["NVIDIA Tomorrow", "NVIDIA A10-24Q", "GRID A100-40C", "NVIDIA GeForce RTX 4090", "AMD Instinct MI300X", ""]
)
def test_other_gpus_and_parts_of_gpus_have_no_peaks(name):
    assert devices.find(Gpu(name=name, memory_mib=24564)) is None


def test_narrower_numbers_are_not_slower():
    for device in devices.devices():
        rates = [device.operations_per_s(bits) for bits in (16, 8, 4)]
        assert rates == sorted(rates), device.name
        assert rates[0] == device.bf16 * 1e12
        # Ada, Hopper and Blackwell: twice the rate in 8 bits, within the rounding of the data sheets.
        assert device.fp8 is None or device.fp8 == pytest.approx(2 * device.bf16, rel=0.015)


@pytest.mark.parametrize("fault", [{"bandwidth": 0}, {"name": "("}, {"source": ""}, {"fp16": 1}, {"bf16": None}], ids=str)
def test_wrong_entry_is_refused(fault):
    entry = {"name": "X", "bandwidth": 1.0, "bf16": 100, "source": "a data sheet"}
    devices.Devices.model_validate({"devices": [entry]})
    with pytest.raises(ValidationError):
        devices.Devices.model_validate({"devices": [entry | fault]})


def test_short_name_leads_to_its_own_entry():
    known = devices.by_short_name()
    assert {devices.find(gpu).short for gpu in known.values()} == set(known) and len(known) > 30
    assert {(gpu.name, gpu.memory_mib) for gpu in known.values()} - NAMES.keys() == {
        ("NVIDIA L2", 23034),
        ("NVIDIA RTX PRO 6000 Blackwell Workstation Edition", 97887),
    }
