"""The result of one check of ``servemark check``."""

from dataclasses import dataclass
from typing import Any, Literal

ELSEWHERE = "Slurm's commands are not on this machine. Rerun the check on the cluster's login node."
Loc = tuple[Any, ...]


@dataclass(frozen=True)
class Finding:
    """The result of one check. ``loc``: the configuration key that it concerns, () for none."""

    state: Literal["ok", "problem", "not checked"]
    text: str
    loc: Loc = ()
