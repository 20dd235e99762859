"""How the GPUs of a node are connected, from ``nvidia-smi topo -m``, in a form that nodes of one kind share.

The command prints a row and a column for each GPU that the process may see, in the order of nvidia-smi. It also prints network cards and
CPU numbers, which this module leaves out. A cell is ``NV18`` (18 bonded NVLinks), ``PIX``, ``PXB``, ``PHB``, ``NODE``, ``SYS``, or ``X``.

The connection of some GPUs is not known if the probe's job had fewer of them (``small_jobs`` of the cluster file). If all pairs that the
probe saw are connected alike, those of any GPUs among them are known.
"""

import re

from servemark.records import Hardware

SELF = "X"
_GPU = re.compile(r"GPU(\d+)")


def matrix(text: str) -> list[list[str]]:
    """Return the connection of each GPU with each other one, in the order of nvidia-smi; empty if the text is no such table."""
    lines = text.splitlines()
    header = next((line for line in lines if _GPU.match(line.strip())), "")
    columns = [place for place, cell in enumerate(header.split("\t")) if _GPU.fullmatch(cell.strip())]
    rows = [line.split("\t") for line in lines if _GPU.match(line) and line is not header]
    if len(rows) != len(columns) or any(len(row) <= max(columns, default=0) for row in rows):
        return []
    return [[row[place].strip() for place in columns] for row in rows]


def links(hardware: Hardware, devices: int) -> list[str] | None:
    """Return the connections of the first ``devices`` usable GPUs, a row of words for each GPU; None if they are not known."""
    if devices < 2:
        return []
    every = matrix(hardware.gpu_topology or "")
    used = [gpu.index for gpu in hardware.gpus[:devices] if gpu.index is not None and gpu.index < len(every)]
    if len(used) == devices:
        return [" ".join(every[one][other] for other in used) for one in used]
    pairs = {cell for row, cells in enumerate(every) for column, cell in enumerate(cells) if row != column}
    if len(pairs) == 1 and devices <= len(every):
        (kind,) = pairs
        return [" ".join(SELF if one == other else kind for other in range(devices)) for one in range(devices)]
    return None
