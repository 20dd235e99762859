"""The GPUs that ``CUDA_VISIBLE_DEVICES`` leaves to this process. nvidia-smi ignores the variable.

In a job the scheduler sets the variable. If it also restricts devices (Slurm: ConstrainDevices), nvidia-smi lists the job's GPUs alone
and the variable's numbers refer to these; otherwise both refer to all GPUs.

With a value of :data:`NOTHING` a run uses CPUs, and records and warnings state why. Any other value that leaves no GPU is refused,
because an unwanted run on CPUs costs hours.
"""

import re
from collections.abc import Mapping, Sequence

from servemark.errors import ServemarkError
from servemark.records import Gpu, Hardware

VARIABLE = "CUDA_VISIBLE_DEVICES"
ORDER = "CUDA_DEVICE_ORDER"
# Users write the first two; Slurm has set the third in jobs without GPUs.
NOTHING = ("", "-1", "NoDevFiles")
UUID, _MIG = "GPU-", "MIG-"


def names_nothing(value: str) -> bool:
    """Return whether the value selects no GPU on purpose."""
    return value.strip() in NOTHING


def places(value: str, uuids: Sequence[str]) -> tuple[int, ...]:
    """Return the GPUs that CUDA selects for a value, in the value's order, as indices into ``uuids``.

    Source: CUDA 13.0 on two H200 (driver 580.159.04). The beginning of the value decides whether all entries are UUIDs or numbers. CUDA
    ignores the text behind a number. A UUID may be shortened while it is unique, in upper or lower case. The list ends at the first entry
    without a GPU, and is empty if a GPU occurs twice.
    """
    found: list[int] = []
    for entry in value.split(","):
        if value.startswith(UUID):
            word = entry.lower()
            hits = [place for place, uuid in enumerate(uuids) if entry and uuid and uuid.lower().startswith(word[: len(uuid)])]
        else:
            number = re.match(r"\s*([+-]?\d+)", entry)
            hits = [int(number[1])] if number and 0 <= int(number[1]) < len(uuids) else []
        if len(hits) != 1:
            break
        if hits[0] in found:
            return ()
        found += hits
    return tuple(found)


def choose(gpus: tuple[Gpu, ...], env: Mapping[str, str], host: str) -> tuple[Gpu, ...]:
    """Return the GPUs that a process with this environment may use, in the variable's order; ``gpus`` as nvidia-smi lists them.

    Raises:
        ServemarkError: the variable leaves no GPU, names a MIG slice, is ambiguous, or has a form that vLLM does not read.
    """
    value = env.get(VARIABLE)
    if value is None or not gpus:
        return gpus
    if names_nothing(value):
        return ()
    if value.startswith(_MIG):
        raise ServemarkError(
            f"{VARIABLE} on {host} names a MIG slice, {value!r}. nvidia-smi does not list its memory, and results would show the name of "
            "the whole GPU.",
            do=f"Set whole GPUs (`nvidia-smi -L`), or unset {VARIABLE}. On a cluster request whole GPUs (`gpu_type` in the cluster file).",
            reason="gpu_part_named",
        )
    found = places(value, [gpu.uuid or "" for gpu in gpus])
    if not found:
        raise ServemarkError(
            f"{VARIABLE} is {value!r} on {host} and leaves none of its {len(gpus)} GPU(s): CUDA's list ends at the first entry without a "
            "GPU, and is empty if a GPU occurs twice.",
            do="Correct it (`nvidia-smi -L`) or unset it. In a job the scheduler sets it: show this message to its administrators. "
            f"For a run on the CPUs of this machine: export {VARIABLE}=",
            reason="gpus_hidden",
        )
    numbered = not value.startswith(UUID)
    kinds = sorted({f"{gpu.name}, {gpu.memory_mib} MiB" for gpu in gpus})
    # By default CUDA counts from the fastest GPU (FASTEST_FIRST), nvidia-smi by the PCI bus. GPUs of one kind have the same numbers in
    # both (two H200). For several kinds a guess could record the wrong GPU.
    if numbered and len(kinds) > 1 and len(found) < len(gpus) and env.get(ORDER) != "PCI_BUS_ID":
        raise ServemarkError(
            f"{VARIABLE} is {value!r} on {host}, which has GPUs of several kinds ({'; '.join(kinds)}). CUDA counts them from the fastest, "
            "nvidia-smi by their place on the bus, so the value is ambiguous.",
            do=f"export {ORDER}=PCI_BUS_ID to use the numbers of `nvidia-smi -L`, or set the GPUs' UUIDs.",
            reason="gpu_order_open",
        )
    plain = [str(place) if numbered else gpus[place].uuid or "" for place in found]
    taken = [re.sub(r"^\s*\+?0*(?=\d)|\s+$", "", entry) if numbered else entry for entry in value.split(",")[: len(plain)]]
    if taken != plain:
        # vLLM reads an entry by int(), else by NVML, which needs the whole UUID (vllm/platforms/cuda.py, 0.25.1 and 0.32.0,
        # device_control_id_to_physical_device_id).
        raise ServemarkError(
            f"{VARIABLE} is {value!r} on {host}. CUDA accepts this value; vLLM accepts only plain numbers and whole UUIDs.",
            do=f"export {VARIABLE}={','.join(plain)}",
            reason="gpu_named_short",
        )
    return tuple(gpus[place] for place in found)


def hiding(hardware: Hardware) -> str:
    """Return a phrase with the number of GPUs that the variable hides on the probed machine; empty for none."""
    if not hardware.hidden_gpus:
        return ""
    every = len(hardware.gpus) + hardware.hidden_gpus
    return f"{VARIABLE} is {hardware.cuda_visible_devices!r} and hides {hardware.hidden_gpus} of {every} GPU(s)"


PROBE_AGAIN = f"change or unset {VARIABLE} (unless the scheduler sets it) and delete results/RUN/hardware.json to repeat the planning"
"""The remedy for :func:`hiding`, as part of a sentence."""
