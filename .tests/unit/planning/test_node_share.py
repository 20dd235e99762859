"""The node share of a deployment's job, computed from a probe with one GPU and a core."""

from __future__ import annotations

import pytest

from builders import report_data
from servemark.errors import ServemarkError
from servemark.measurement.key import hardware_part
from servemark.planning.node_share import NodePart, Share, complete, count
from servemark.records import Gpu

NODE = (
    "NodeName=n1 Arch=x86_64 CoresPerSocket=32 CPUAlloc=2 CPUEfctv=128 CPUTot=128 CPULoad=0.10 AvailableFeatures=ib "
    "Gres=gpu:h100:4(S:0-1) NodeAddr=n1 RealMemory=1000000 Sockets=2 ThreadsPerCore=2 "
)
WHOLE = Share(exclusive=True, gpus=4, cpus=None)
H100 = Gpu(name="NVIDIA H100", memory_mib=81559, uuid="GPU-1")


def part(described: str = NODE, given: int = 2, online: int = 128) -> NodePart:
    found = NodePart.read(described, given)
    return found.model_copy(update={"online": online})


def seen(gpus: int = 1, cpus: int = 2, hidden: int = 0, **more: object):
    """The hardware that the probe's job finds."""
    facts = {"accelerator": "cuda", "gpus": (H100,) * gpus, "cpu_count": cpus, "hidden_gpus": hidden, **more}
    return report_data.hardware().model_copy(update=facts)


@pytest.mark.parametrize(
    ("found", "of"),
    [
        # Control groups constrain devices and cores.
        (seen(), part()),
        # They constrain neither: only the variable selects a GPU.
        (seen(cpus=128, hidden=3, cuda_visible_devices="0"), part()),
        # Slurm counts cores, and a job on one of them may use both threads.
        (seen(), part(NODE.replace("=128", "=64"), given=1)),
        # A partition that gives whole nodes.
        (seen(gpus=4, cpus=128), part(given=128)),
    ],
)
def test_part_of_a_node_gives_the_hardware_of_the_whole_node(found, of):
    whole = complete(found, WHOLE, of)
    assert hardware_part(whole, 4) == hardware_part(seen(gpus=4, cpus=128), 4)
    assert (whole.hidden_gpus, whole.memory_gib) == (0, found.memory_gib)
    worked_out = {name for name, same in (("gpus", len(found.gpus) == 4), ("cpu_count", found.cpu_count == 128)) if not same}
    assert set(whole.worked_out) == worked_out and all(text[0].isdigit() for text in whole.worked_out.values())


def test_cores_reserved_by_slurm_are_not_counted():
    assert complete(seen(), WHOLE, part(NODE.replace("CPUEfctv=128", "CPUEfctv=124"))).cpu_count == 124


def test_older_slurm_without_cpuefctv_gives_cputot():
    assert complete(seen(), WHOLE, part(NODE.replace("CPUEfctv=128 ", ""))).cpu_count == 128


@pytest.mark.parametrize(("cpus", "count"), [(8, 8), (7, 8), (1, 2)])
def test_shared_node_gives_requested_cpus_in_whole_cores(cpus, count):
    whole = complete(seen(), Share(exclusive=False, gpus=2, cpus=cpus), part())
    assert (len(whole.gpus), whole.cpu_count) == (2, count)


@pytest.mark.parametrize(("cpus", "given"), [(128, 128), (64, 128), (124, 124)])
def test_job_with_the_whole_node_records_its_own_hardware(cpus, given):
    """Also if a plug-in gives one thread of each core, or Slurm reserves cores."""
    found = seen(gpus=4, cpus=cpus)
    assert complete(found, WHOLE, part(NODE.replace("Efctv=128", f"Efctv={given}"), given=given)) == found


def test_node_without_gpus_stays_as_found():
    found = seen(gpus=0, cpus=128, accelerator="cpu")
    assert complete(found, WHOLE, part(NODE.replace("gpu:h100:4(S:0-1)", "(null)"))) == found


def test_gpus_that_are_not_requested_stay_as_found():
    found = seen(gpus=4, cpus=128)
    for asked in (Share(exclusive=False, gpus=0, cpus=4), Share(exclusive=True, gpus=0, cpus=None)):
        assert complete(found, asked, part(NODE.replace("gpu:h100:4(S:0-1)", "(null)"))) == found


def test_gpus_that_only_the_variable_hides_have_their_place():
    one = H100.model_copy(update={"index": 2})
    places = [gpu.index for gpu in complete(seen(hidden=3, gpus=1).model_copy(update={"gpus": (one,)}), WHOLE, part()).gpus]
    assert places == [2, 0, 1, 3]
    assert [gpu.index for gpu in complete(seen().model_copy(update={"gpus": (one,)}), WHOLE, part()).gpus] == [2, None, None, None]


def test_topology_of_all_gpus_is_kept_if_found():
    assert complete(seen(hidden=3, gpu_topology="x"), WHOLE, part()).gpu_topology == "x"
    assert complete(seen(gpu_topology="x"), WHOLE, part()).gpu_topology is None


@pytest.mark.parametrize(
    ("gres", "gpus"),
    [
        ("gpu:4", {"": 4}),
        ("gpu:h100:4(S:0-1)", {"h100": 4}),
        ("nvme:1,gpu:h100:2(S:0),gpu:l4:1", {"h100": 2, "l4": 1}),
        ("(null)", {}),
        ("gpu_mem:80,shard:gpu:8", {}),
    ],
)
def test_gpus_are_read_from_slurms_gres(gres, gpus):
    assert part(NODE.replace("gpu:h100:4(S:0-1)", gres)).gpus == gpus


def test_gpus_of_several_kinds_are_refused():
    with pytest.raises(ServemarkError) as refused:
        complete(seen(), WHOLE, part(NODE.replace("gpu:h100:4", "gpu:h100:2,gpu:l4:2")))
    assert refused.value.reason == "gpu_kinds_open" and "small_jobs.whole_node" in refused.value.do


@pytest.mark.parametrize(("described", "cpus"), [("", 2), (NODE, 0)])
def test_node_without_cpus_in_slurm_is_refused(described, cpus):
    with pytest.raises(ServemarkError) as refused:
        NodePart.read(described, cpus)
    assert refused.value.reason == "node_not_described" and "small_jobs.whole_node" in refused.value.do


@pytest.mark.parametrize(("numbers", "expected"), [("0\n", 1), ("0-3,8", 5), ("0-127\n", 128)])
def test_count_of_cpus_in_a_kernel_list(numbers, expected):
    assert count(numbers) == expected
