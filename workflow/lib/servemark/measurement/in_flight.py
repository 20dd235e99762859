"""How many requests were in flight at each moment of a load."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from servemark.measurement.raw import Request


@dataclass(frozen=True)
class InFlight:
    """Requests in flight as a step function.

    ``moments`` are the times of all starts and ends in ascending order, seconds on the client's clock. ``counts[i]`` requests are in flight
    from ``moments[i]`` to ``moments[i + 1]``; the last count is 0. A request is in flight from its start to its last chunk.
    """

    moments: np.ndarray
    counts: np.ndarray

    @classmethod
    def of(cls, requests: Sequence[Request]) -> "InFlight":
        """Return the step function of one or more requests."""
        starts = np.array([request.start for request in requests])
        ends = starts + np.array([request.latency for request in requests])
        moments = np.concatenate([starts, ends])
        changes = np.concatenate([np.ones(len(starts)), -np.ones(len(ends))])
        # At the same moment ends come first: the slot of an ended request is free for the next one.
        order = np.lexsort((changes, moments))
        return cls(moments[order], np.cumsum(changes[order]))

    @property
    def most(self) -> int:
        """The highest number of requests in flight."""
        return int(self.counts.max())

    @property
    def empty(self) -> float:
        """The share of the time from first start to last end in which no request was in flight."""
        lengths = np.diff(self.moments)
        return float(lengths[self.counts[:-1] == 0].sum() / lengths.sum()) if lengths.sum() > 0 else 0.0

    def mean(self, begin: float | None = None, end: float | None = None) -> float:
        """Return the mean number of requests in flight from ``begin`` to ``end`` (default: first start to last end).

        Raises:
            ValueError: the time is empty.
        """
        begin, end = float(self.moments[0]) if begin is None else begin, float(self.moments[-1]) if end is None else end
        if not end > begin:
            raise ValueError(f"no time between {begin} and {end}")
        edges = np.clip(np.concatenate([self.moments, [self.moments[-1]]]), begin, end)
        return float(np.dot(np.diff(edges), self.counts) / (end - begin))
