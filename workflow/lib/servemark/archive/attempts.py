"""What the run record says of one attempt."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from pathlib import PurePosixPath

from servemark.archive.reading import Reader
from servemark.nodes.survey import Answer
from servemark.records import DaemonState, Failure, Measurement, Node
from servemark.records.run import RunAttempt, RunClient, RunNode, RunProcess
from servemark.supervisor import KeeperState


def compile_attempt(
    reader: Reader,
    folder: str,
    measured: Sequence[Measurement],
    verdicts: Callable[[Iterable[Measurement]], dict[str, int]],
) -> RunAttempt:
    """One attempt.

    Args:
        folder: its name in the archive.
        measured: the points that it measured.
        verdicts: counts points by verdict.

    Raises:
        ServemarkError: something that it left cannot be read.
    """
    processes = _processes(reader, folder)
    keeper = reader.part(KeeperState, f"{folder}/keeper.json")
    failure = reader.part(Failure, f"{folder}/failure.json")
    return RunAttempt(
        number=int(PurePosixPath(folder).name),
        folder=folder,
        sources=reader.find(f"{folder}/sources.json"),
        started_at=processes[0].started_at if processes else None,
        ended_at=keeper.ended_at if keeper else None,
        why=keeper.why if keeper else None,
        failure=f"{failure.stage}: {failure.reason}" if failure else None,
        failure_record=reader.find(f"{folder}/failure.json"),
        startup=reader.find(f"{folder}/startup.json"),
        nodes=_nodes(reader, folder),
        processes=processes,
        client=_client(measured),
        measured=verdicts(measured),
    )


def _processes(reader: Reader, folder: str) -> tuple[RunProcess, ...]:
    found = []
    for name in reader.names(f"{folder}/daemons", ".json"):
        state = reader.part(DaemonState, name)
        assert state is not None, "it was listed"
        same = set(RunProcess.model_fields) - {"record"}
        found.append(RunProcess(record=reader.file(name), **{key: getattr(state, key) for key in same}))
    return tuple(sorted(found, key=lambda process: (process.started_at or "", process.name)))


def _nodes(reader: Reader, folder: str) -> tuple[RunNode, ...]:
    found = []
    for name in reader.names(f"{folder}/survey/look", ".json"):
        answer = reader.part(Answer, name)
        if answer and answer.node:
            found.append(_node(reader, name, answer.node))
    return tuple(found)


def _node(reader: Reader, name: str, node: Node) -> RunNode:
    same = set(RunNode.model_fields) - {"record"}
    return RunNode(record=reader.file(name), **{key: getattr(node, key) for key in same})


def _client(measured: Sequence[Measurement]) -> RunClient | None:
    started = [item for item in measured if item.client_argv]
    if not started:
        return None
    first = min(started, key=lambda item: (item.started_at or "", item.point))
    return RunClient(point=first.point, argv=first.client_argv)
