"""How far a starting vLLM server is, and where its start-up time went, from the lines of its log."""

from __future__ import annotations

import re
from collections.abc import Callable
from datetime import datetime
from typing import NamedTuple

from servemark.records import StartupPhase

CONNECTING = "connecting the ranks"
STAGES = (
    "importing vLLM",
    "starting the engine",
    "creating the Ray placement group",
    CONNECTING,
    "loading weights",
    "compiling",
    "profiling memory / KV cache",
    "capturing CUDA graphs",
    "starting the HTTP server",
    "ready",
)

PHASES = (
    "imports and config",
    "engine start",
    "weights",
    "compile",
    "KV cache and profiling",
    "graph capture (estimate)",
    "kernel build",
    "graph capture",
    "HTTP server",
)

BUILDING = "building FlashInfer's kernels"
"""The stage while FlashInfer compiles a module. It has no place among `STAGES`: vLLM may ask for a module at any of them."""

_ANSI = re.compile(r"\x1b\[[0-9;]*[A-Za-z]")
_STAMPS = (
    re.compile(r"\b(?:DEBUG|INFO|WARNING|ERROR|CRITICAL) (\d\d)-(\d\d) (\d\d):(\d\d):(\d\d)\b"),
    re.compile(r"^\d{4}-(\d\d)-(\d\d) (\d\d):(\d\d):(\d\d),\d+ - "),  # FlashInfer's own logger
)
_LONGEST_LINE = 1 << 16

# What a line says about the stage the server is in from then on. Wordings of vLLM 0.15 to 0.33.
_MARKERS = tuple(
    (re.compile(pattern), STAGES.index(stage))
    for pattern, stage in (
        (r"Application startup complete", "ready"),
        (r"Starting vLLM (API )?server|init engine \(profile, create kv cache", "starting the HTTP server"),
        (r"Capturing CUDA graphs|Graph capturing finished", "capturing CUDA graphs"),
        (
            r"torch\.compile (?:and initial profiling/warmup run together )?(?:took|takes) .* in total"
            r"|Initial profiling/warmup run took|Available KV cache memory|KV cache size: [\d,]+ tokens"
            r"|Explicitly set .* for KV cache|Profiling CUDA graph memory",
            "profiling memory / KV cache",
        ),
        (r"Starting torch\.compile|for vLLM's torch\.compile|Dynamo bytecode transform|Warming up model for the compilation", "compiling"),
        (r"Starting to load model|Loading weights took|Loading safetensors checkpoint", "loading weights"),
        (r"world_size=\d+ rank=\d+ .*distributed_init_method", CONNECTING),
        (r"Connected to Ray cluster|Creating a new placement group", "creating the Ray placement group"),
        (r"Initializing a V1 LLM engine \(v", "starting the engine"),
    )
)
_MODEL_LOADED = re.compile(r"Model loading took [\d.]+ GiB(?: memory)? and ([\d.]+) seconds")
_WEIGHTS_LOADED = re.compile(r"Loading weights took ([\d.]+) seconds")
_COMPILED = re.compile(r"torch\.compile (?:took|takes) ([\d.]+) s in total|\(compilation: ([\d.]+) s\b")
# On CPU no line has the seconds of compiling; it lies between these two (v1/worker/cpu_model_runner.py, 0.32.0).
_WARMING, _WARM = "Warming up model for the compilation", "Warming up done"
# vllm/compilation/backends.py and decorators.py, alike in 0.25.1 and 0.32.0.
_MADE = re.compile(r"Compiling a graph for compile range|saved AOT compiled function to|Compiling model again due to")
_LOADED = re.compile(r"Directly load (?:AOT compilation|the compiled graph\(s\))")
# flashinfer/jit/core.py, 0.7.0: printed once for each module that is not in its cache. No line says when the module is ready.
_BUILD = re.compile(r"flashinfer\.jit: Building JIT module")
# Every version sizes the KV cache before it captures graphs. From 0.32 on vLLM captures a few before that too, to estimate their memory.
_SIZED = re.compile(r"Available KV cache memory|KV cache size: [\d,]+ tokens|Explicitly set .* for KV cache")
_CAPTURING = re.compile(r"Capturing CUDA graphs|Graph capturing finished")
_CAPTURED = re.compile(r"Graph capturing finished in ([\d.]+) secs")
_ENGINE_DONE = re.compile(r"init engine \(profile, create kv cache, warmup model\) took ([\d.]+) s")
_EAGER = re.compile(r"Enforce eager set|enforce_eager=True")
_HEARTBEAT = re.compile(
    r"Waiting for \d+ local, \d+ remote core engine proc|No available shared memory broadcast block"
    r"|Waiting for creating a placement group|Job step creation temporarily disabled"
)


class _Stamp(NamedTuple):
    month: int
    day: int
    hour: int
    minute: int
    second: int

    def near(self, reference: datetime) -> datetime:
        """Return the time in the year that puts it nearest to ``reference``: the log writes no year."""
        candidates = []
        for year in (reference.year - 1, reference.year, reference.year + 1):
            try:
                candidates.append(datetime(year, *self))
            except ValueError:  # 29 February of a year that has none
                continue
        return min(candidates, key=lambda moment: abs(moment - reference))

    def seconds_after(self, other: _Stamp) -> float:
        """Return seconds since an earlier stamp, which may lie in the year before."""
        later = datetime(2004, *self)  # a leap year
        return (later - other.near(later)).total_seconds()


class StartupLog:
    """Incremental reader of one server's log: `feed` it text as it grows, then look at `stage` and `phases`.

    Attributes:
        progress: lines seen so far that are no heartbeats: while this grows, the start moves.
    """

    def __init__(self) -> None:
        self.progress = 0
        self._rest = ""
        self._stage = 0
        self._eager = False
        self._engine: _Stamp | None = None
        self._load: _Stamp | None = None
        self._loaded: _Stamp | None = None
        self._done: _Stamp | None = None
        self._latest: _Stamp | None = None
        self._ready: _Stamp | None = None
        self._model_s: float | None = None
        self._weights_s: float | None = None
        self._compile_s = 0.0
        self._warming: _Stamp | None = None
        self._made = self._loaded_graphs = False
        self._sized = False
        self._estimate_s = self._capture_s = 0.0
        self._building: _Stamp | None = None
        self._build_s = 0.0
        self._init_s: float | None = None

    @property
    def stage(self) -> str:
        """What the server is doing now: one of `STAGES`, or `BUILDING`. `STAGES` never go back, since Ray repeats old lines later."""
        return BUILDING if self._building else STAGES[self._stage]

    def feed(self, text: str) -> None:
        """Read more of the log; ``text`` may end anywhere, a carriage return ends a line too."""
        if STAGES[self._stage] == "ready":
            return
        *lines, self._rest = re.split(r"[\r\n]", self._rest + text)
        if len(self._rest) > _LONGEST_LINE:
            lines, self._rest = [*lines, self._rest], ""
        for line in lines:
            self._line(_ANSI.sub("", line))

    def phases(self, started_at: datetime | str, ready_at: datetime | str | None = None) -> tuple[StartupPhase, ...]:
        """Return seconds of each of `PHASES`, which sum to the time from the process start to readiness.

        The server's own figures are used where it gives them: weights (slowest rank), compilation, graph capture and
        the engine's initialisation, which contains all that follows the weights. A kernel build of FlashInfer lasts from its
        line to the next one. What the initialisation has left is profiling and KV cache. What lies between the engine's
        first line and its end besides all that is the engine's start (processes, placement group, ranks). A phase takes at
        most what is left, so nothing counts twice. Before readiness the end is the latest line. The log's clock ticks in
        whole seconds.

        Args:
            started_at: when the server's process started; a datetime or ISO text, in local time or with a zone. It must
                be the time of the server's own zone, since the log states none.
            ready_at: when it was ready, where that is known better than from the log.
        """
        start = _local(started_at)
        last = self._ready or self._latest
        end = _local(ready_at) if ready_at is not None else last.near(start) if last else start
        total = max((end - start).total_seconds(), 0.0)

        def since_start(stamp: _Stamp) -> float:
            return min(max((stamp.near(start) - start).total_seconds(), 0.0), total)

        engine_at = since_start(self._engine) if self._engine else total
        done_at = max(since_start(self._done), engine_at) if self._done else total
        middle = done_at - engine_at
        weights = min(self._seconds_of_weights(total, since_start), middle)
        init = min(self._seconds_of_init(total, since_start), middle - weights)
        compiling = min(self._compile_s, init)
        capture = min(self._capture_s, init - compiling)
        estimate = min(self._estimate_s, init - compiling - capture)
        build = min(self._build_s, init - compiling - capture - estimate)
        seconds = (
            engine_at,
            middle - weights - init,
            weights,
            compiling,
            init - compiling - capture - estimate - build,
            estimate,
            build,
            capture,
            total - done_at,
        )
        notes = {"compile": self._compiled()}
        return tuple(StartupPhase(name=name, seconds=round(s, 3), note=notes.get(name)) for name, s in zip(PHASES, seconds, strict=True))

    def _compiled(self) -> str | None:
        """Return whether the compiled model was made or found; ranks and parts of a model may differ. None where nothing was compiled."""
        told = {"made": self._made, "loaded": self._loaded_graphs}
        return " and ".join(word for word, said in told.items() if said) or None

    def _seconds_of_weights(self, total: float, since_start: Callable[[_Stamp], float]) -> float:
        if self._model_s is not None:
            return self._model_s
        if self._weights_s is not None:
            return self._weights_s
        return total - since_start(self._load) if self._load else 0.0

    def _seconds_of_init(self, total: float, since_start: Callable[[_Stamp], float]) -> float:
        if self._init_s is not None:
            return self._init_s
        return total - since_start(self._loaded) if self._loaded else 0.0

    def _line(self, line: str) -> None:
        if not line.strip() or STAGES[self._stage] == "ready":
            return
        if not _HEARTBEAT.search(line):
            self.progress += 1
        # Ray shows a line of another rank seconds later, marked "[repeated 3x across cluster]", with its old stamp.
        stamped = next(filter(None, (pattern.search(line) for pattern in _STAMPS)), None)
        stamp = _Stamp(*map(int, stamped.groups())) if stamped else None
        if stamp and "[repeated" not in line:
            self._latest = stamp
            self._kernel_build(line, stamp)
        self._eager = self._eager or bool(_EAGER.search(line))
        self._sized = self._sized or bool(_SIZED.search(line))
        self._figures(line, stamp)
        if _CAPTURING.search(line) and not self._sized:
            self._reach(STAGES.index("profiling memory / KV cache"), stamp)
            return
        for pattern, stage in _MARKERS:
            if pattern.search(line):
                self._reach(stage, stamp)
                break

    def _kernel_build(self, line: str, stamp: _Stamp) -> None:
        """Time FlashInfer's builds: from the first line of one to the next line of the server that says that something moves."""
        if _BUILD.search(line):
            self._building = self._building or stamp
        elif self._building and not _HEARTBEAT.search(line):
            captured = _CAPTURED.search(line)
            spent = stamp.seconds_after(self._building) - (float(captured[1]) if captured else 0.0)
            self._build_s += max(spent, 0.0)
            self._building = None

    def _reach(self, stage: int, stamp: _Stamp | None) -> None:
        self._stage = max(self._stage, stage)
        name = STAGES[stage]
        if name == "starting the engine":
            self._engine = self._engine or stamp
        elif name == "loading weights":
            self._load = self._load or stamp
        elif name == "ready":
            self._ready = self._latest

    def _figures(self, line: str, stamp: _Stamp | None) -> None:
        if found := _MODEL_LOADED.search(line):
            self._model_s = max(self._model_s or 0.0, float(found[1]))
            self._loaded = stamp
            following = "profiling memory / KV cache" if self._eager else "compiling"
            self._stage = max(self._stage, STAGES.index(following))
        elif found := _WEIGHTS_LOADED.search(line):
            self._weights_s = max(self._weights_s or 0.0, float(found[1]))
            self._loaded = stamp
        elif found := _CAPTURED.search(line):
            if self._sized:
                self._capture_s = max(self._capture_s, float(found[1]))
            else:
                self._estimate_s = max(self._estimate_s, float(found[1]))
        elif found := _ENGINE_DONE.search(line):
            self._init_s = max(self._init_s or 0.0, float(found[1]))
            self._done = stamp
        elif _WARMING in line:
            self._warming = self._warming or stamp
        elif _WARM in line and self._warming and stamp:
            self._compile_s = max(self._compile_s, stamp.seconds_after(self._warming))
        self._made = self._made or bool(_MADE.search(line))
        self._loaded_graphs = self._loaded_graphs or bool(_LOADED.search(line))
        if found := _COMPILED.search(line):
            self._compile_s = max(self._compile_s, float(found[1] or found[2]))


def _local(moment: datetime | str) -> datetime:
    """Return a time in this machine's zone, without the zone, as the log writes it."""
    value = datetime.fromisoformat(moment) if isinstance(moment, str) else moment
    return value.astimezone().replace(tzinfo=None) if value.tzinfo else value
