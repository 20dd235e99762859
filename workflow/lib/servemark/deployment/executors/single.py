"""``executor: single``: a replica of one rank, in the process of its server."""

from servemark.deployment.executors import Executor
from servemark.records import Replica


class Single(Executor):
    """One process for each replica."""

    def processes(self, index: int, replica: Replica) -> list[list[str]]:
        return [[]]
