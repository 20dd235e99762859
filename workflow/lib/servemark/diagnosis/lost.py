"""Which rank, actor or node a server's log says has died, and where it was."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

from servemark.diagnosis.text import parse

# Address of what ran on the node of the process that wrote the log.
HERE = ""

# vllm/v1/executor/ray_executor_v2.py and multiproc_executor.py; each worker says its rank (vllm/distributed/parallel_state.py), Ray puts
# process and address before the lines of actors on other nodes (ray/_private/worker.py).
_DEAD_RANKS = re.compile(r"RayWorkerProc rank=\[([\d, ]+)\] died unexpectedly")
_DEAD_PROCESS = re.compile(r"Worker proc \w+-(\d+) died unexpectedly")
# One of several data parallel engines in one log, each of which counts its ranks from 0 (vllm/v1/engine/core.py).
_ENGINE = re.compile(r"\(EngineCore_DP(\d+) pid=\d+\)")
_RANK = re.compile(r"\bworld_size=\d+ rank=(\d+) local_rank=\d+ ")
_PROCESS = re.compile(r"\(\w+ pid=(\d+)(?:, ip=([^)\s]+))?\)")
# ray/exceptions.py, ActorDiedError; the fields are in lines of their own.
_DEAD_ACTOR = re.compile(r"The actor died unexpectedly before finishing this task\.")
_FIELD = re.compile(r"^\s+(pid|ip): (\S+)$")
_FIELDS = 8
# Ray's message about the same, when the driver does not ask for the actor's answer.
_DEAD_WORKER = re.compile(r"A worker died or was killed while executing a task.* Worker IP address: (\S+) .*Worker PID: (\d+) ")
# Ray's head, when a raylet does not answer any more; the raylet's own last words, when an agent of it ended.
_DEAD_NODE = re.compile(
    r"The node with node id: \w+ and address: (\S+) and node name: \S+ has been marked dead"
    r"|\(raylet, ip=([^)\s]+)\) .*The raylet exited immediately"
)


class Lost(NamedTuple):
    """A rank (``rank`` is known), an actor of Ray (only ``pid`` is) or a whole node (neither is).

    ``address``: where it was; None: not known. ``engine``: whose rank it is, where the log is one of several data parallel engines.
    """

    rank: int | None = None
    pid: int | None = None
    address: str | None = None
    engine: int | None = None

    @property
    def is_node(self) -> bool:
        """Whether no process is named."""
        return self.rank is None and self.pid is None


def lost(lines: Sequence[str]) -> tuple[Lost, ...]:
    """Return what has died, in the order of the log, each once.

    A rank's place is what the worker itself printed when it started; two workers of the same rank (several engines in one log, or
    nodes that share a temporary folder of Ray) leave it unknown.
    """
    ranks = _ranks(lines)
    found: dict[Lost, None] = {}
    for number, line in enumerate(lines):
        if match := _DEAD_RANKS.search(line):
            found |= dict.fromkeys(_of_rank(int(word), ranks) for word in match[1].split(","))
        elif match := _DEAD_PROCESS.search(line):
            engine = _ENGINE.search(line, 0, match.start())
            dead = Lost(int(match[1]), engine=int(engine[1])) if engine else _of_rank(int(match[1]), ranks)
            found[dead._replace(address=HERE)] = None
        elif match := _DEAD_WORKER.search(line):
            found[_of_actor(int(match[2]), match[1], ranks)] = None
        elif _DEAD_ACTOR.search(line):
            following = (_FIELD.match(parse(each).message) for each in lines[number + 1 : number + 1 + _FIELDS])
            fields = {field[1]: field[2] for field in following if field}
            if "pid" in fields:
                found[_of_actor(int(fields["pid"]), fields.get("ip"), ranks)] = None
        elif match := _DEAD_NODE.search(line):
            found[Lost(address=match[1] or match[2])] = None
    elsewhere = {one.address for one in found if not one.is_node}
    return tuple(one for one in found if not one.is_node or one.address not in elsewhere)


def in_words(found: Iterable[Lost], names: Mapping[str, str], here: str | None) -> str:
    """Return one sentence for each that died.

    Args:
        names: node by address.
        here: the node of the process that wrote the log, if it is to be named.
    """
    sentences = []
    for one in found:
        node = here if one.address == HERE else names.get(one.address or "", one.address)
        who = "An actor of Ray" if one.rank is None else f"Rank {one.rank}"
        who += "" if one.engine is None else f" of data parallel engine {one.engine}"
        who += f"{f' on {node}' if node else ''}{f' (pid {one.pid})' if one.pid is not None else ''}"
        sentences.append(f"Ray lost node {node}." if one.is_node else f"{who} died.")
    return " ".join(sentences)


def _ranks(lines: Iterable[str]) -> dict[int, set[tuple[int, str]]]:
    """Return for each rank the pids and addresses of the workers that claimed it."""
    found: dict[int, set[tuple[int, str]]] = {}
    for line in lines:
        # Ray counts lines of several actors as one and leaves their addresses out, unless RAY_DEDUP_LOGS forbids it.
        if (match := _RANK.search(line)) and "[repeated " not in line and (writer := _PROCESS.findall(line, 0, match.start())):
            address = next((address for _, address in writer if address), HERE)
            found.setdefault(int(match[1]), set()).add((int(writer[-1][0]), address))
    return found


def _of_rank(rank: int, ranks: Mapping[int, set[tuple[int, str]]]) -> Lost:
    places = ranks.get(rank, set())
    return Lost(rank, *next(iter(places))) if len(places) == 1 else Lost(rank)


def _of_actor(pid: int, address: str | None, ranks: Mapping[int, set[tuple[int, str]]]) -> Lost:
    said = [rank for rank, places in ranks.items() if places in ({(pid, address)}, {(pid, HERE)})]
    return _of_rank(said[0], ranks) if len(said) == 1 else Lost(None, pid, address)
