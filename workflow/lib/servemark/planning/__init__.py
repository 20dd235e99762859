"""Is a topology legal for a model, where does it go, does it fit, and did the server agree: pure functions."""

from servemark.planning.legality import first_request_fails, legality, stage_layers, stages
from servemark.planning.memory import estimate, refusals, require
from servemark.planning.observed import compare, observe
from servemark.planning.placement import place
from servemark.planning.software import software

__all__ = [
    "compare",
    "estimate",
    "first_request_fails",
    "legality",
    "observe",
    "place",
    "refusals",
    "require",
    "software",
    "stage_layers",
    "stages",
]
