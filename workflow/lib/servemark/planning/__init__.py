"""Is a topology legal for a model, where does it go, does it fit, and did the server agree: pure functions."""

from servemark.planning.advice import advise
from servemark.planning.all_reduce import observed as observed_all_reduce
from servemark.planning.compare_log import compare, observe
from servemark.planning.cuda_graphs import resolve as resolve_capture_size
from servemark.planning.demand import Asked
from servemark.planning.flashinfer import turned_off
from servemark.planning.legality import first_request_fails, legality, not_on_cpu, stages, too_long
from servemark.planning.memory import estimate, longest_fitting, require
from servemark.planning.placement import place
from servemark.planning.server import EXPERT_PARALLEL, Server
from servemark.planning.software import require_software

__all__ = [
    "EXPERT_PARALLEL",
    "Asked",
    "Server",
    "advise",
    "compare",
    "estimate",
    "first_request_fails",
    "legality",
    "longest_fitting",
    "not_on_cpu",
    "observe",
    "observed_all_reduce",
    "place",
    "require",
    "require_software",
    "resolve_capture_size",
    "stages",
    "too_long",
    "turned_off",
]
