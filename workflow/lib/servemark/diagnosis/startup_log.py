"""Progress of a starting vLLM server, and the time of each phase, from the lines of its log."""

import calendar
import re
from datetime import datetime
from pathlib import Path

from servemark.diagnosis.text import ANSI
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
    "first run of the model",
    "graph capture (estimate)",
    "KV cache and profiling",
    "kernel warm-up",
    "kernel build",
    "graph capture",
    "HTTP server",
)

BUILDING = "building FlashInfer's kernels"
"""The stage while FlashInfer compiles a module. It is not one of `STAGES`, because vLLM may need a module at any of them."""

_STAMPS = (
    re.compile(r"\b(?:DEBUG|INFO|WARNING|ERROR|CRITICAL) (\d\d)-(\d\d) (\d\d):(\d\d):(\d\d)\b"),
    re.compile(r"^\d{4}-(\d\d)-(\d\d) (\d\d):(\d\d):(\d\d),\d+ - "),  # FlashInfer's own logger
)
_LONGEST_LINE = 1 << 16

# Lines that begin a stage, as vLLM 0.15 to 0.33 writes them.
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
# Lines that state seconds; the slowest rank counts.
_STATED = {
    "run": re.compile(r"Initial profiling/warmup run took ([\d.]+) s"),
    "model": re.compile(r"Model loading took [\d.]+ GiB(?: memory)? and ([\d.]+) seconds"),
    "weights": re.compile(r"Loading weights took ([\d.]+) seconds"),
    "captured": re.compile(r"Graph capturing finished in ([\d.]+) secs"),
    "init": re.compile(r"init engine \(profile, create kv cache, warmup model\) took ([\d.]+) s"),
    "compile": re.compile(r"torch\.compile (?:took|takes) ([\d.]+) s in total|\(compilation: ([\d.]+) s\b"),
}
# Lines that mark a phase whose seconds vLLM does not state. The V1 runner estimates the memory of CUDA graphs between the first two
# (v1/worker/gpu_model_runner.py, 0.25.1 and 0.32.0); the V2 runner states the seconds ("captured").
# The warm-up of kernels begins at the last line of the pattern (v1/worker/gpu_worker.py, compile_or_warm_up_model, 0.32.0).
_ESTIMATING, _ESTIMATED = "Profiling CUDA graph memory", "Estimated CUDA graph memory"
_WARMUP = re.compile(r"GPU KV cache size: [\d,]+ tokens|JIT kernel warmup starting")
# On CPU no line states the seconds of compilation: it is the time between these two (v1/worker/cpu_model_runner.py, 0.32.0).
_WARMING, _WARM = "Warming up model for the compilation", "Warming up done"
_SEEN = {
    # vllm/compilation/backends.py and decorators.py, equal in 0.25.1 and 0.32.0.
    "made": re.compile(r"Compiling a graph for compile range|saved AOT compiled function to|Compiling model again due to"),
    "loaded": re.compile(r"Directly load (?:AOT compilation|the compiled graph\(s\))"),
    "eager": re.compile(r"Enforce eager set|enforce_eager=True|Inductor compilation was disabled by user settings"),
    # vLLM sizes the KV cache before it captures CUDA graphs. vLLM 0.32 and newer also captures a few earlier, to estimate memory.
    "sized": re.compile(r"Available KV cache memory|KV cache size: [\d,]+ tokens|Explicitly set .* for KV cache"),
}
# flashinfer/jit/core.py, 0.7.0: one line for each module that is not in its cache. No line marks the end of a build.
_BUILD = re.compile(r"flashinfer\.jit: Building JIT module")
_HEARTBEAT = re.compile(
    r"Waiting for \d+ local, \d+ remote core engine proc|No available shared memory broadcast block"
    r"|Waiting for creating a placement group|Job step creation temporarily disabled"
)
# Stage -> name of the moment at which it is first reached.
_MOMENTS = {"starting the engine": "engine", "loading weights": "load"}


def _moment(*parts: int) -> datetime | None:
    """Return month, day, hour, minute and second in a leap year; None if another program's line has an impossible date."""
    try:
        return datetime(2004, *parts)  # type: ignore[arg-type]
    except ValueError:
        return None


class StartupLog:
    """Incremental reader of one server's log: `feed` it text, or `read_on` in its file, then use `stage` and `phases`.

    Attributes:
        progress: number of lines that are no heartbeats; while it grows, the start makes progress.
    """

    def __init__(self, path: Path | None = None) -> None:
        self.progress = 0
        self._path, self._offset = path, 0
        self._rest = ""
        self._stage = 0
        self._seen: set[str] = set()
        self._at: dict[str, datetime] = {}
        self._longest = dict.fromkeys(("capture", "estimate", "compile", "build"), 0.0)
        self._runs: dict[str, float] = {}
        self._built_before = 0.0
        self._building: datetime | None = None

    @property
    def stage(self) -> str:
        """The current stage: `BUILDING` or one of `STAGES`, which never go back although Ray repeats old lines."""
        return BUILDING if self._building else STAGES[self._stage]

    def read_on(self) -> bool:
        """Feed the new text of the file; return whether the server has made progress."""
        assert self._path is not None
        before = self.progress
        with self._path.open(errors="replace") as stream:
            stream.seek(self._offset)
            self.feed(stream.read())
            self._offset = stream.tell()
        return self.progress != before

    def feed(self, text: str) -> None:
        """Read more of the log; ``text`` may end within a line, and a carriage return ends a line too."""
        if STAGES[self._stage] == "ready":
            return
        *lines, self._rest = re.split(r"[\r\n]", self._rest + text)
        if len(self._rest) > _LONGEST_LINE:
            lines, self._rest = [*lines, self._rest], ""
        for line in lines:
            self._line(ANSI.sub("", line))

    def phases(self, started_at: datetime | str, ready_at: datetime | str | None = None) -> tuple[StartupPhase, ...]:
        """Return seconds of each of `PHASES`; their sum is the time from the process start to readiness (or to the latest line).

        The server's own numbers count if it logs them: weights (slowest rank), compilation, first run, graph capture and the engine's
        initialisation, which contains all phases after the weights. A kernel build of FlashInfer lasts from its line to the next one.
        The warm-up of kernels lasts from its first line to the capture, without such builds. Profiling and KV cache are the rest of the
        initialisation. The engine's start (processes, placement group, ranks) is the rest of the time between the engine's first line
        and its end. A phase takes at most the time that is left, so no time counts twice. The log's clock has whole seconds.

        Args:
            started_at: start of the server's process, a datetime or ISO text, in the server's local time or with a zone.
            ready_at: time of readiness, if it is known more exactly than from the log.
        """
        start = _local(started_at)
        last = self._at.get("ready") or self._at.get("latest")
        end = _local(ready_at) if ready_at is not None else _near(last, start) if last else start
        total = max((end - start).total_seconds(), 0.0)

        def reached(moment: str) -> float:
            stamp = self._at.get(moment)
            return min(max((_near(stamp, start) - start).total_seconds(), 0.0), total) if stamp else total

        longest = self._longest
        engine = reached("engine")
        middle = max(reached("done"), engine) - engine
        weights = min(longest.get("model", longest.get("weights", total - reached("load"))), middle)
        init = left = min(longest.get("init", total - reached("loaded")), middle - weights)
        # The shortest first run counts: it is the run of the rank that compiled longest, because the ranks wait for each other in it.
        spent = longest | {"run": min(self._runs.values(), default=0.0), "warm-up": self._warm_up()}
        parts = {}
        for part in ("compile", "capture", "estimate", "build", "run", "warm-up"):
            parts[part] = min(spent[part], left)
            left -= parts[part]
        seconds = (
            *(engine, middle - weights - init, weights, parts["compile"], parts["run"], parts["estimate"], left),
            *(parts["warm-up"], parts["build"], parts["capture"], total - engine - middle),
        )
        # Whether vLLM compiled the model or loaded it from a cache. Ranks and parts of a model may differ. None: no compilation.
        notes = {"compile": " and ".join(word for word in ("made", "loaded") if word in self._seen) or None}
        return tuple(StartupPhase(name=name, seconds=round(s, 3), note=notes.get(name)) for name, s in zip(PHASES, seconds, strict=True))

    def _warm_up(self) -> float:
        """Return the seconds from the beginning of the kernels' warm-up to the last capture, or to the end if vLLM captures nothing."""
        begin = self._at.get("warm-up")
        if not begin or (STAGES[self._stage] == "capturing CUDA graphs" and "captured" not in self._at):
            return 0.0
        end = self._at.get("captured") or self._at.get("done") or self._at.get("latest", begin)
        return max(_seconds(begin, end) - self._longest["capture"] - (self._longest["build"] - self._built_before), 0.0)

    def _line(self, line: str) -> None:
        if not line.strip() or STAGES[self._stage] == "ready":
            return
        if not _HEARTBEAT.search(line):
            self.progress += 1
        # Ray shows a line of another rank seconds later, marked "[repeated 3x across cluster]", with its old time stamp.
        stamped = next(filter(None, (pattern.search(line) for pattern in _STAMPS)), None)
        stamp = _moment(*map(int, stamped.groups())) if stamped else None
        if stamp and "[repeated" not in line:
            self._at["latest"] = stamp
            self._kernel_build(line, stamp)
        self._seen |= {name for name, pattern in _SEEN.items() if pattern.search(line)}
        self._numbers(line, stamp)
        stage = next((stage for pattern, stage in _MARKERS if pattern.search(line)), None)
        if stage == STAGES.index("capturing CUDA graphs") and "sized" not in self._seen:
            stage = STAGES.index("profiling memory / KV cache")
        if stage is not None:
            self._stage = max(self._stage, stage)
            if STAGES[stage] == "ready" and "latest" in self._at:
                self._at["ready"] = self._at["latest"]
            elif stamp and STAGES[stage] in _MOMENTS:
                self._at.setdefault(_MOMENTS[STAGES[stage]], stamp)

    def _kernel_build(self, line: str, stamp: datetime) -> None:
        """Add the time of FlashInfer's builds: from the first line of a build to the server's next line that is no heartbeat."""
        if _BUILD.search(line):
            self._building = self._building or stamp
        elif self._building and not _HEARTBEAT.search(line):
            captured = _STATED["captured"].search(line)
            spent = _seconds(self._building, stamp) - (float(captured[1]) if captured else 0.0)
            self._longest["build"] += max(spent, 0.0)
            self._building = None

    def _numbers(self, line: str, stamp: datetime | None) -> None:
        for name, pattern in _STATED.items():
            if not (found := pattern.search(line)):
                continue
            key = name if name != "captured" else "capture" if "sized" in self._seen else "estimate"
            stated = float(found[found.lastindex or 1])
            self._longest[key] = max(self._longest.get(key, 0.0), stated)
            if name == "run":
                # A process has several runs if the model has several parts that are compiled, such as an encoder.
                process = line.split(" INFO ")[0]
                self._runs[process] = self._runs.get(process, 0.0) + stated
            moment = {"model": "loaded", "weights": "loaded", "init": "done", "capture": "captured"}.get(key)
            if moment and stamp:
                self._at[moment] = stamp
            if name == "model":
                self._stage = max(self._stage, STAGES.index("profiling memory / KV cache" if "eager" in self._seen else "compiling"))
        if stamp and _WARMUP.search(line):
            self._at["warm-up"], self._built_before = stamp, self._longest["build"]
        elif stamp and _ESTIMATING in line:
            self._at.setdefault("estimating", stamp)
        elif stamp and _ESTIMATED in line and "estimating" in self._at:
            self._longest["estimate"] = max(self._longest["estimate"], _seconds(self._at["estimating"], stamp))
        elif stamp and _WARMING in line:
            self._at.setdefault("warming", stamp)
        elif stamp and _WARM in line and "warming" in self._at:
            self._longest["compile"] = max(self._longest["compile"], _seconds(self._at["warming"], stamp))


def _near(stamp: datetime, reference: datetime) -> datetime:
    """Return the time in the year in which it is nearest to ``reference``: log lines have no year."""
    years = [year for year in range(reference.year - 1, reference.year + 2) if (stamp.month, stamp.day) != (2, 29) or calendar.isleap(year)]
    return min((stamp.replace(year=year) for year in years), key=lambda moment: abs(moment - reference))


def _seconds(earlier: datetime, later: datetime) -> float:
    """Return the seconds between two time stamps; the earlier one may be in the previous year."""
    return (later - _near(earlier, later)).total_seconds()


def _local(moment: datetime | str) -> datetime:
    """Return a time in this machine's zone, without the zone, like the log's time stamps."""
    value = datetime.fromisoformat(moment) if isinstance(moment, str) else moment
    return value.astimezone().replace(tzinfo=None) if value.tzinfo else value
