"""Which of a machine's GPUs ``CUDA_VISIBLE_DEVICES`` leaves to us: nvidia-smi shows all of them, CUDA does not.

In a job the scheduler sets the variable. Where it shuts devices off (Slurm: ConstrainDevices), nvidia-smi shows the job's GPUs alone and
the variable counts among those; where it does not, nvidia-smi shows all and the variable counts among all. Both are one rule.

A variable that leaves nothing on a machine with GPUs is either said on purpose (:data:`NOTHING`): then the run is one on CPUs, and its
records and warnings say why. Or it is a mistake, and refused: a run on CPUs that nobody asked for costs hours before anybody looks.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

from servemark.errors import ServemarkError
from servemark.records import Gpu, Hardware

VARIABLE = "CUDA_VISIBLE_DEVICES"
ORDER = "CUDA_DEVICE_ORDER"
# The first two are how people say "no GPU", the third is how Slurm has said it of a job that asked for none.
NOTHING = ("", "-1", "NoDevFiles")
UUID, _MIG = "GPU-", "MIG-"


def names_nothing(value: str) -> bool:
    """Return whether the variable's value says that no GPU is to be used."""
    return value.strip() in NOTHING


def places(value: str, uuids: Sequence[str]) -> tuple[int, ...]:
    """Return which GPUs CUDA shows for a value, in its order, as places in ``uuids``.

    As CUDA 13.0 did it on two H200 (driver 580.159.04): the beginning of the value decides whether all entries are UUIDs or numbers. A
    number is what an entry begins with; of a UUID a beginning that only one GPU has is enough, in any case of letters. The list ends at
    the first entry that names no GPU, and is empty when one is named twice.
    """
    find = _by_uuid if value.startswith(UUID) else _by_number
    found: list[int] = []
    for entry in value.split(","):
        place = find(entry, uuids)
        if place is None:
            break
        if place in found:
            return ()
        found.append(place)
    return tuple(found)


def _by_number(entry: str, uuids: Sequence[str]) -> int | None:
    number = re.match(r"\s*([+-]?\d+)", entry)
    return int(number[1]) if number and 0 <= int(number[1]) < len(uuids) else None


def _by_uuid(entry: str, uuids: Sequence[str]) -> int | None:
    word = entry.lower()
    hits = [place for place, uuid in enumerate(uuids) if uuid and uuid.lower().startswith(word[: len(uuid)])]
    return hits[0] if entry and len(hits) == 1 else None


def choose(gpus: tuple[Gpu, ...], env: Mapping[str, str], host: str) -> tuple[Gpu, ...]:
    """Return the GPUs that a process with this environment may use, in the variable's order.

    Args:
        gpus: all that nvidia-smi shows, in its order.

    Raises:
        ServemarkError: the variable names no GPU of this machine, a part of one, or GPUs in a way that leaves open which ones are meant
            or that vLLM does not read.
    """
    value = env.get(VARIABLE)
    if value is None or not gpus:
        return gpus
    if names_nothing(value):
        return ()
    if value.startswith(_MIG):
        raise ServemarkError(
            f"{VARIABLE} on {host} names a part of a GPU, {value!r}. How much memory that has, nvidia-smi's list of GPUs does not say, and "
            "results would go by the whole GPU's name.",
            do=f"Name whole GPUs (`nvidia-smi -L` lists them), or unset {VARIABLE}; on a cluster ask for whole GPUs (`gpu_type` in the "
            "cluster file).",
            reason="gpu_part_named",
        )
    found = places(value, [gpu.uuid or "" for gpu in gpus])
    if not found:
        raise ServemarkError(
            f"{VARIABLE} is {value!r} on {host} and leaves none of the {len(gpus)} GPU(s) there: CUDA's list ends at the first entry that "
            "names no GPU, and is empty when one is named twice.",
            do="Correct it (`nvidia-smi -L` lists the GPUs) or unset it; in a job the scheduler sets it: show its administrators this. "
            f"For a run on the CPUs of this machine: export {VARIABLE}=",
            reason="gpus_hidden",
        )
    numbered = not value.startswith(UUID)
    kinds = sorted({f"{gpu.name}, {gpu.memory_mib} MiB" for gpu in gpus})
    # By default CUDA counts from the fastest GPU (FASTEST_FIRST), nvidia-smi by the PCI bus. Of GPUs of one kind none is faster and both
    # count alike (seen on two H200); of several kinds only CUDA's driver knows, and a guess would record another GPU than the one used.
    if numbered and len(kinds) > 1 and len(found) < len(gpus) and env.get(ORDER) != "PCI_BUS_ID":
        raise ServemarkError(
            f"{VARIABLE} is {value!r} on {host}, which has GPUs of several kinds ({'; '.join(kinds)}). CUDA counts them from the fastest, "
            "nvidia-smi by their place on the bus: which ones are meant is open.",
            do=f"export {ORDER}=PCI_BUS_ID, so that the numbers are those of `nvidia-smi -L`, or name the GPUs by their UUIDs.",
            reason="gpu_order_open",
        )
    plain = [str(place) if numbered else gpus[place].uuid or "" for place in found]
    if not all(_plain(entry, word, numbered) for entry, word in zip(value.split(","), plain, strict=False)):
        # vLLM looks an entry up by itself: int(), else NVML, which finds a GPU only by the whole UUID (vllm/platforms/cuda.py, 0.25.1 and
        # 0.32.0, device_control_id_to_physical_device_id).
        raise ServemarkError(
            f"{VARIABLE} is {value!r} on {host}. CUDA reads that, and vLLM does not: it takes plain numbers and whole UUIDs.",
            do=f"export {VARIABLE}={','.join(plain)}",
            reason="gpu_named_short",
        )
    return tuple(gpus[place] for place in found)


def _plain(entry: str, word: str, numbered: bool) -> bool:
    return re.fullmatch(rf"\s*\+?0*{word}\s*", entry) is not None if numbered else entry == word


def hiding(hardware: Hardware) -> str:
    """Return what the variable keeps from us of the probed machine, for a message; empty when it hides nothing."""
    if not hardware.hidden_gpus:
        return ""
    every = len(hardware.gpus) + hardware.hidden_gpus
    return f"{VARIABLE} is {hardware.cuda_visible_devices!r} and hides {hardware.hidden_gpus} of {every} GPU(s)"


PROBE_AGAIN = f"change or unset {VARIABLE} (where no scheduler sets it) and delete results/RUN/hardware.json: all is planned anew"
"""What to do about :func:`hiding`, as part of a sentence."""
