"""The GPUs that CUDA_VISIBLE_DEVICES leaves: CUDA's rules as observed on two H200, and refused values."""

from __future__ import annotations

import pytest

from builders import report_data
from servemark.errors import ServemarkError
from servemark.machine import visible_gpus
from servemark.machine.visible_gpus import ORDER, VARIABLE
from servemark.records import Gpu

A, B = "GPU-073a564c-1e69-b944-6991-f4e2f94c23c6", "GPU-c2e9cc53-a1bf-0ab8-4650-fa5b10e97510"


# Results of cuDeviceGetCount and cuDeviceGetUuid for each value (driver 580.159.04; the same with CUDA_DEVICE_ORDER=PCI_BUS_ID).
@pytest.mark.parametrize(
    ("value", "shown"),
    [
        ("1", (1,)),
        ("1,0", (1, 0)),
        ("0,1", (0, 1)),
        ("0,7,1", (0,)),
        ("1,0,9", (1, 0)),
        ("2", ()),
        ("0,-1,1", (0,)),
        ("-1", ()),
        ("0,0", ()),
        ("1,0,1", ()),
        ("", ()),
        (" ", ()),
        (",0", ()),
        ("0,", (0,)),
        ("0,,1", (0,)),
        (" 1", (1,)),
        ("1 , 0", (1, 0)),
        ("0 1", (0,)),
        ("0;1", (0,)),
        ("+1", (1,)),
        ("01", (1,)),
        ("0x1", (0,)),
        ("1gpu", (1,)),
        ("1.0", (1,)),
        ("0,abc,1", (0,)),
        ("abc,0", ()),
        ("all", ()),
        ("none", ()),
        ("NoDevFiles", ()),
        (A, (0,)),
        (f"{B},{A}", (1, 0)),
        ("GPU-c2e9c", (1,)),
        ("GPU-c2e9c,GPU-073a5", (1, 0)),
        ("GPU-", ()),
        ("GPU", ()),
        (A.upper(), (0,)),
        (f"{A}x", (0,)),
        (A.removeprefix("GPU-"), ()),
        (f" {A}", ()),
        (f"{A}, {B}", (0,)),
        (f"{A} , {B}", (0,)),
        (f"{A},{A}", ()),
        (f"{A},GPU-073a5", ()),
        (f"GPU-deadbeef,{A}", ()),
        (f"{A},GPU-deadbeef,{B}", (0,)),
        (f"{B},7,{A}", (1,)),
        (f"{A},1", (0,)),
        (f"0,{A}", (0,)),
        (f"1,{A}", (1,)),
    ],
)
def test_value_selects_the_gpus_that_cuda_selects(value, shown):
    assert visible_gpus.places(value, (A, B)) == shown


def test_gpu_without_uuid_is_found_by_number_only():
    assert visible_gpus.places("0", ("",)) == (0,)
    assert visible_gpus.places(A, ("",)) == ()


def gpus(*names: str) -> tuple[Gpu, ...]:
    return tuple(Gpu(name=name, memory_mib=143771, uuid=f"GPU-{n}{n}aa-bb") for n, name in enumerate(names))


FOUR = gpus(*["H200"] * 4)
MIXED = gpus("A6000", "H200", "H200")


# Slurm with ConstrainDevices: nvidia-smi shows the job's GPUs alone, and the variable counts among them. Without: among all.
@pytest.mark.parametrize(
    ("every", "env", "chosen"),
    [
        (FOUR, {}, FOUR),
        (FOUR, {VARIABLE: "1"}, (FOUR[1],)),
        (FOUR, {VARIABLE: "3,0"}, (FOUR[3], FOUR[0])),
        (FOUR, {VARIABLE: "2, 3"}, FOUR[2:]),
        (FOUR, {VARIABLE: "1,9,0"}, (FOUR[1],)),
        (FOUR, {VARIABLE: "GPU-33aa-bb,GPU-11aa-bb"}, (FOUR[3], FOUR[1])),
        (FOUR[:2], {VARIABLE: "0,1"}, FOUR[:2]),
        (FOUR, {VARIABLE: "2,3"}, FOUR[2:]),
        (FOUR, {VARIABLE: ""}, ()),
        (FOUR, {VARIABLE: " "}, ()),
        (FOUR, {VARIABLE: "-1"}, ()),
        (FOUR, {VARIABLE: "NoDevFiles"}, ()),
        ((), {VARIABLE: "0,1"}, ()),
        ((), {VARIABLE: "MIG-1"}, ()),
        (MIXED, {VARIABLE: "1", ORDER: "PCI_BUS_ID"}, (MIXED[1],)),
        (MIXED, {VARIABLE: "GPU-22aa-bb"}, (MIXED[2],)),
        (MIXED, {VARIABLE: "2,1,0"}, MIXED[::-1]),
        (FOUR, {VARIABLE: "2", ORDER: "FASTEST_FIRST"}, (FOUR[2],)),
    ],
)
def test_gpus_of_a_process(every, env, chosen):
    assert visible_gpus.choose(every, env, "here") == chosen


@pytest.mark.parametrize(
    ("every", "env", "reason", "export"),
    [
        (FOUR, {VARIABLE: "4"}, "gpus_hidden", ""),
        (FOUR, {VARIABLE: "1,1"}, "gpus_hidden", ""),
        (FOUR, {VARIABLE: "all"}, "gpus_hidden", ""),
        (FOUR, {VARIABLE: "GPU-dead"}, "gpus_hidden", ""),
        (FOUR[:2], {VARIABLE: "2,3"}, "gpus_hidden", ""),
        (FOUR, {VARIABLE: "MIG-1/2/3"}, "gpu_part_named", None),
        (MIXED, {VARIABLE: "1"}, "gpu_order_open", "PCI_BUS_ID"),
        (MIXED, {VARIABLE: "0", ORDER: "FASTEST_FIRST"}, "gpu_order_open", "PCI_BUS_ID"),
        (FOUR, {VARIABLE: "GPU-2,GPU-0"}, "gpu_named_short", "GPU-22aa-bb,GPU-00aa-bb"),
        (FOUR, {VARIABLE: "GPU-11AA-BB"}, "gpu_named_short", "GPU-11aa-bb"),
        (FOUR, {VARIABLE: "GPU-11aa-bb ,GPU-0"}, "gpu_named_short", "GPU-11aa-bb"),
        (FOUR, {VARIABLE: "2gpu,0x3,1"}, "gpu_named_short", "2,0,1"),
    ],
)  # fmt: skip
def test_ambiguous_or_wrong_value_is_refused_with_a_remedy(every, env, reason, export):
    with pytest.raises(ServemarkError) as refused:
        visible_gpus.choose(every, env, "node7")
    assert refused.value.reason == reason and repr(env[VARIABLE]) in refused.value.what and "node7" in refused.value.what
    if export is not None:
        name = ORDER if reason == "gpu_order_open" else VARIABLE
        assert f"export {name}={export}" in refused.value.do


def test_hidden_gpus_are_counted():
    assert visible_gpus.hiding(report_data.hardware()) == ""
    assert visible_gpus.hiding(report_data.hardware(cuda_visible_devices="0,1,2,3", accelerator="cuda", gpus=FOUR)) == ""
    one = report_data.hardware(cuda_visible_devices="2", accelerator="cuda", gpus=FOUR[2:3], hidden_gpus=3)
    assert visible_gpus.hiding(one).endswith("'2' and hides 3 of 4 GPU(s)")
    none = report_data.hardware(cuda_visible_devices="", hidden_gpus=4)
    assert visible_gpus.hiding(none).endswith("'' and hides 4 of 4 GPU(s)")
