"""``executor: single``: a replica of one rank, in the process of its server."""

from __future__ import annotations

from servemark.deployment.executors import Executor, Rank


class Single(Executor):
    """One process for each replica."""

    def arguments(self, host: str, rank: Rank | None) -> list[str]:
        return []
