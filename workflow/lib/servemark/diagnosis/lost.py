"""Find which rank, Ray actor or node died, and on which node, in a server's log."""

import re
from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

from servemark.diagnosis.text import parse

# Address that stands for the node of the process that wrote the log.
HERE = ""

# vllm/v1/executor/ray_executor_v2.py and multiproc_executor.py. Each worker logs its rank (vllm/distributed/parallel_state.py); Ray puts
# process and address in front of the lines of actors on other nodes (ray/_private/worker.py).
_DEAD_RANKS = re.compile(r"RayWorkerProc rank=\[([\d, ]+)\] died unexpectedly")
_DEAD_PROCESS = re.compile(r"Worker proc \w+-(\d+) died unexpectedly")
# One of several data parallel engines in one log; each counts its ranks from 0 (vllm/v1/engine/core.py).
_ENGINE = re.compile(r"\(EngineCore_DP(\d+) pid=\d+\)")
_RANK = re.compile(r"\bworld_size=\d+ rank=(\d+) local_rank=\d+ ")
_PROCESS = re.compile(r"\(\w+ pid=(\d+)(?:, ip=([^)\s]+))?\)")
# ray/exceptions.py, ActorDiedError; each field has its own line.
_DEAD_ACTOR = re.compile(r"The actor died unexpectedly before finishing this task\.")
_FIELD = re.compile(r"^\s+(pid|ip): (\S+)$")
_FIELDS = 8
# Ray's message about a dead actor if the driver does not wait for its result.
_DEAD_WORKER = re.compile(r"A worker died or was killed while executing a task.* Worker IP address: (\S+) .*Worker PID: (\d+) ")
# Ray's head, if a raylet stops responding; or the raylet's last message, if one of its agents ended.
_DEAD_NODE = re.compile(
    r"The node with node id: \w+ and address: (\S+) and node name: \S+ has been marked dead"
    r"|\(raylet, ip=([^)\s]+)\) .*The raylet exited immediately"
)


class Lost(NamedTuple):
    """A rank (``rank`` is set), a Ray actor (only ``pid`` is set) or a whole node (neither is set).

    ``address``: of its node; None: not known. ``engine``: the rank's data parallel engine, if the log is from several.
    """

    rank: int | None = None
    pid: int | None = None
    address: str | None = None
    engine: int | None = None

    @property
    def is_node(self) -> bool:
        """Whether it is a whole node."""
        return self.rank is None and self.pid is None


def lost(lines: Sequence[str]) -> tuple[Lost, ...]:
    """Return the ranks, actors and nodes that died, in the order of the log, each once.

    A rank's node comes from the worker's own start message. It is unknown if two workers have the same rank (several engines in one log, or
    nodes with a common temporary folder of Ray).
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
    """Return a sentence for each rank, actor or node that died.

    Args:
        names: node by address.
        here: name of the node of the process that wrote the log; None: leave it out.
    """
    sentences = []
    for one in found:
        node = here if one.address == HERE else names.get(one.address or "", one.address)
        who = "A Ray actor" if one.rank is None else f"Rank {one.rank}"
        who += "" if one.engine is None else f" of data parallel engine {one.engine}"
        who += f"{f' on {node}' if node else ''}{f' (pid {one.pid})' if one.pid is not None else ''}"
        sentences.append(f"Ray lost node {node}." if one.is_node else f"{who} died.")
    return " ".join(sentences)


def _ranks(lines: Iterable[str]) -> dict[int, set[tuple[int, str]]]:
    """Return the pids and addresses of the workers of each rank."""
    found: dict[int, set[tuple[int, str]]] = {}
    for line in lines:
        # Ray merges equal lines of several actors and leaves out their addresses, unless RAY_DEDUP_LOGS is off.
        if (match := _RANK.search(line)) and "[repeated " not in line and (writer := _PROCESS.findall(line, 0, match.start())):
            address = next((address for _, address in writer if address), HERE)
            found.setdefault(int(match[1]), set()).add((int(writer[-1][0]), address))
    return found


def _of_rank(rank: int, ranks: Mapping[int, set[tuple[int, str]]]) -> Lost:
    places = ranks.get(rank, set())
    return Lost(rank, *next(iter(places))) if len(places) == 1 else Lost(rank)


def _of_actor(pid: int, address: str | None, ranks: Mapping[int, set[tuple[int, str]]]) -> Lost:
    found = [rank for rank, places in ranks.items() if places in ({(pid, address)}, {(pid, HERE)})]
    return _of_rank(found[0], ranks) if len(found) == 1 else Lost(None, pid, address)
