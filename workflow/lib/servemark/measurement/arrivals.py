"""When the tokens of a load's requests arrived at the client."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from servemark.measurement.raw import Request


@dataclass(frozen=True)
class Arrivals:
    """Tokens by the time at which they arrived: ``outputs`` and ``inputs`` are running totals, ``moments`` ascending.

    A chunk's time follows from TTFT and ITLs. Results do not contain the tokens of each chunk: the first chunk counts as one token, because
    vLLM sends the first token at once (``stream_interval`` in vllm/config/scheduler.py, 0.32), and the others share the rest equally. Input
    tokens count at the first chunk, when the server has read them.
    """

    moments: np.ndarray
    outputs: np.ndarray
    inputs: np.ndarray

    @classmethod
    def of(cls, good: Sequence[Request]) -> "Arrivals":
        """Return the arrivals of one or more completed requests."""
        times, outputs, inputs = [], [], []
        for request in good:
            chunks = 1 + len(request.itls)
            times.append(request.start + np.cumsum([request.ttft, *request.itls]))
            first = min(1, request.output_tokens) if chunks > 1 else request.output_tokens
            outputs.append(np.array([first, *[(request.output_tokens - first) / max(1, chunks - 1)] * (chunks - 1)], dtype=np.float64))
            inputs.append(np.array([request.input_tokens, *[0] * (chunks - 1)], dtype=np.float64))
        moments = np.concatenate(times)
        order = np.argsort(moments, kind="stable")
        return cls(moments[order], *(np.concatenate([[0.0], np.cumsum(np.concatenate(of)[order])]) for of in (outputs, inputs)))

    def output_tokens(self, begin: np.ndarray, end: np.ndarray) -> np.ndarray:
        """Return the output tokens that arrived after each ``begin`` and until each ``end``."""
        return self._between(self.outputs, begin, end)

    def input_tokens(self, begin: np.ndarray, end: np.ndarray) -> np.ndarray:
        """Return the input tokens of the first chunks that arrived after each ``begin`` and until each ``end``."""
        return self._between(self.inputs, begin, end)

    def _between(self, totals: np.ndarray, begin: np.ndarray, end: np.ndarray) -> np.ndarray:
        first, last = (np.searchsorted(self.moments, at, side="right") for at in (begin, end))
        return np.asarray(totals[last] - totals[first])

    def peak(self) -> float:
        """Return the most output tokens that arrived in any one second."""
        before = np.searchsorted(self.moments, self.moments - 1.0, side="right")
        return float((self.outputs[1:] - self.outputs[before]).max())
