"""A simulated inference engine with continuous batching and chunked prefill, and the load that a client puts on it.

The engine works in steps, as vLLM's scheduler does (vllm/v1/core/sched/scheduler.py): each running request gets one token, and the rest of
the step's token budget goes to waiting prompts in order of arrival, in pieces if need be. The step that reads the last piece of a prompt
yields its first token. A step takes ``base_s + per_request_s * running + per_prompt_token_s * prompt tokens`` seconds.
"""

import heapq
import math
from collections import deque
from dataclasses import dataclass

import numpy as np

from servemark.measurement.raw import Request


@dataclass(frozen=True)
class Engine:
    """What a step costs, and what varies.

    ``noise``: standard deviation of a step's time over its mean. ``pause_s``: mean time between a response and the client's next request.
    The defaults resemble the archive of four H200 among the fixtures (1024 tokens in and out, 512 in flight).
    """

    base_s: float = 0.008
    per_request_s: float = 1.66e-5
    per_prompt_token_s: float = 2e-5
    token_budget: int = 8192
    noise: float = 0.03
    pause_s: float = 0.002


@dataclass(frozen=True)
class Simulated:
    """The requests of a load, in order of their start; times in seconds, ``first`` and ``last`` are numbers of steps.

    ``steps[i]`` is the end of step i: each request gets a token at the end of each step from ``first`` to ``last``.
    """

    input_tokens: int
    outputs: np.ndarray
    starts: np.ndarray
    first: np.ndarray
    last: np.ndarray
    steps: np.ndarray

    @property
    def ttfts(self) -> np.ndarray:
        """Times to first token, seconds."""
        return self.steps[self.first] - self.starts

    @property
    def ends(self) -> np.ndarray:
        """Times of the last tokens, seconds."""
        return self.steps[self.last]

    def requests(self, chunk: int = 1) -> list[Request]:
        """Return the requests as a client records them, with ``chunk`` tokens in each chunk after the first one."""
        return [self._request(number, chunk) for number in range(len(self.starts))]

    def _request(self, number: int, chunk: int) -> Request:
        start, first, last = float(self.starts[number]), int(self.first[number]), int(self.last[number])
        seen = [first, *range(first + chunk, last, chunk), last] if last > first else [first]
        times = self.steps[seen]
        itls = tuple(map(float, np.diff(times)))
        tokens = int(self.outputs[number])
        return Request(True, self.input_tokens, tokens, float(times[0]) - start, itls, float(times[-1]) - start, start, "")

    def output_throughput(self, begin: float, end: float) -> float:
        """Return the output tokens per second between two moments."""
        made = np.zeros(len(self.steps) + 1)
        np.add.at(made, self.first, 1)
        np.add.at(made, self.last + 1, -1)
        running = np.cumsum(made)[:-1]
        return float(running[(self.steps > begin) & (self.steps <= end)].sum() / (end - begin))


def lengths(kind: str, mean: int, count: int, seed: int) -> np.ndarray:
    """Return output lengths: ``fixed``, ``uniform`` (half to one and a half of the mean) or ``lognormal`` (as wide as its mean)."""
    rng = np.random.default_rng(seed)
    if kind == "fixed":
        return np.full(count, mean)
    if kind == "uniform":
        return rng.integers(mean // 2, 3 * mean // 2, count, endpoint=True)
    sigma = math.sqrt(math.log(2))
    return np.maximum(1, rng.lognormal(math.log(mean) - sigma**2 / 2, sigma, count)).astype(int)


def closed_loop(engine: Engine, concurrency: int, outputs: np.ndarray, input_tokens: int = 1024, seed: int = 0) -> Simulated:
    """Return the load of ``concurrency`` slots. Each sends its next request after a short pause."""
    return _run(engine, outputs, input_tokens, [0.0] * min(concurrency, len(outputs)), seed)


def open_loop(engine: Engine, rate: float, outputs: np.ndarray, input_tokens: int = 1024, seed: int = 0) -> Simulated:
    """Return the load of Poisson arrivals, ``rate`` requests per second."""
    arrivals = np.cumsum(np.random.default_rng(seed).exponential(1 / rate, len(outputs)))
    return _run(engine, outputs, input_tokens, list(map(float, arrivals)), seed)


def _run(engine: Engine, outputs: np.ndarray, input_tokens: int, due: list[float], seed: int) -> Simulated:
    """Return the requests, the first ones at the times ``due``. Each of the others follows the end of an earlier one."""
    rng, count = np.random.default_rng((seed, 1)), len(outputs)
    starts, first, last = np.zeros(count), np.zeros(count, dtype=int), np.zeros(count, dtype=int)
    steps: list[float] = []
    waiting: deque[list[int]] = deque()
    ends: list[tuple[int, int]] = []
    now, running, sent, later = 0.0, 0, 0, count - len(due)
    while True:
        while due and due[0] <= now:
            starts[sent] = heapq.heappop(due)
            waiting.append([sent, input_tokens])
            sent += 1
        if not waiting and not running:
            if not due:
                return Simulated(input_tokens, np.asarray(outputs), starts, first, last, np.asarray(steps))
            now = due[0]
            continue
        budget, begun = engine.token_budget - running, []
        while waiting and budget > 0:
            part = min(budget, waiting[0][1])
            budget, waiting[0][1] = budget - part, waiting[0][1] - part
            if waiting[0][1] == 0:
                begun.append(waiting.popleft()[0])
        read, step = engine.token_budget - running - budget, len(steps)
        running += len(begun)
        cost = engine.base_s + engine.per_request_s * running + engine.per_prompt_token_s * read
        now += cost * max(0.5, 1 + engine.noise * rng.standard_normal())
        steps.append(now)
        for number in begun:
            first[number] = step
            heapq.heappush(ends, (step + int(outputs[number]) - 1, number))
        while ends and ends[0][0] == step:
            last[heapq.heappop(ends)[1]] = step
            running -= 1
            if later:
                later -= 1
                heapq.heappush(due, now + float(rng.exponential(engine.pause_s)))
