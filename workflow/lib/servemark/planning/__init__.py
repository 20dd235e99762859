"""Is a topology legal for a model, does it fit, and did the server agree: pure functions."""

from servemark.planning.legality import legality, stage_layers
from servemark.planning.memory import estimate, refusals, require
from servemark.planning.observed import compare, observe

__all__ = ["compare", "estimate", "legality", "observe", "refusals", "require", "stage_layers"]
