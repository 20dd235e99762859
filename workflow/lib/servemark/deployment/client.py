"""The benchmark client of one load point: one process or several, each with its share of the load, their results made one."""

from __future__ import annotations

import contextlib
import hashlib
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from servemark.deployment.context import Stage
from servemark.deployment.launcher import Ground
from servemark.launch import command_lines
from servemark.measurement.merge import Samples, merge
from servemark.measurement.raw import RawError, RawResult, read_data, read_raw
from servemark.processes.children import ToolResult
from servemark.records import LoadPoint, Ready, write_atomically
from servemark.supervisor.process_request import DaemonRequest

# As in in_model_env/bench_client.py.
WARMUP = "SERVEMARK_WARMUP"
_RUN_CLIENTS = Path(__file__).parents[1] / "in_model_env" / "run_clients.py"


def shares(point: LoadPoint) -> list[LoadPoint]:
    """Return what each of the point's client processes sends, adding up to the point.

    Places are split as evenly as they go, and requests and warm-ups in proportion to places, so that all processes work for as long.
    With a rate each has as many requests, and one warm-up or more: at its end they wait for each other (in_model_env/bench_client.py).
    The first keeps the point's seed; the others derive theirs from it, so that no two send the same prompts.
    """
    count, paced = point.clients, point.request_rate is not None
    concurrency = [None] * count if point.concurrency is None else _split(point.concurrency, [1] * count)
    places = [1] * count if paced else [share or 1 for share in concurrency]
    least = 1 if paced and count > 1 else 0
    return [
        point.model_copy(
            update={
                "clients": 1,
                "concurrency": concurrency[index],
                "request_rate": point.request_rate / count if point.request_rate is not None else None,
                "requests": requests,
                "warmups": max(warmups, least),
                "seed": _seed(point.seed, index),
            }
        )
        for index, (requests, warmups) in enumerate(zip(_split(point.requests, places), _split(point.warmups, places), strict=True))
    ]


def _split(total: int, weights: Sequence[int]) -> list[int]:
    """Return a total in whole shares in proportion to weights: what is left by rounding down goes to the largest remainders."""
    whole = sum(weights)
    shares = [total * weight // whole for weight in weights]
    remainders = sorted(range(len(weights)), key=lambda index: (-(total * weights[index] % whole), index))
    for index in remainders[: total - sum(shares)]:
        shares[index] += 1
    return shares


def _seed(seed: int, index: int) -> int:
    """31 bits, as the seeds of points have."""
    if index == 0:
        return seed
    return int.from_bytes(hashlib.sha256(f"{seed} {index}".encode()).digest()[:4], "big") >> 1


@dataclass(frozen=True)
class BenchmarkClient:
    """The client's processes for one load point.

    Args:
        draft: where the point's result file is made. The processes' files lie next to it, under names that begin with its own.
        tokenizer: the folder of the model.
    """

    point: LoadPoint
    ready: Ready
    draft: Path
    python: str
    tokenizer: str
    variables: Mapping[str, str] = field(default_factory=dict)

    @property
    def commands(self) -> list[list[str]]:
        """The command line of each process."""
        ready, folder = self.ready, str(self.draft.parent.absolute())
        url = ready.servers[0].url if self.point.ask == "replica" else ready.url
        assert url and ready.served_name, "a live deployment's live record is complete"
        return [
            command_lines.bench(self.python, url, ready.served_name, self.tokenizer, share, folder, self._beside(index).name)
            for index, share in enumerate(shares(self.point))
        ]

    def _beside(self, suffix: str | int) -> Path:
        return self.draft.with_name(f"{self.draft.name}.{suffix}")

    def clear(self) -> None:
        """Remove what the processes wrote."""
        for pattern in (f"{self.draft.name}*", f".{self.draft.name}*"):  # the second: a writing that was killed
            for path in self.draft.parent.glob(pattern):
                path.unlink(missing_ok=True)

    def run(self, attempt: Path, modules: tuple[str, ...], timeout_s: float, here: Stage, check: Callable[[], str | None]) -> ToolResult:
        """Run all processes to their end, on the client's node. A text from ``check`` ends them."""
        order, point = self._beside("order"), self.point
        words = {"processes": self.commands, "cpu": str(self._beside("cpu").absolute())}
        write_atomically(order, json.dumps(words) + "\n")
        warmup = {"tokens": point.warmup_tokens, "shared": point.prefix_tokens / point.prompt_tokens}
        ground = Ground.of(attempt)
        request = DaemonRequest(
            name=f"client-{point.name}",
            argv=(self.python, str(_RUN_CLIENTS), str(order.absolute())),
            env={
                "HF_HUB_OFFLINE": "1",
                "VLLM_NO_USAGE_STATS": "1",
                **({} if point.warmup_tokens is None else {WARMUP: json.dumps(warmup)}),
                **command_lines.NO_PROXY,
                **self.variables,
            },
            secret_env={"OPENAI_API_KEY": str(self.ready.key_file)},
            log=str(here.log.absolute()),
            modules=modules,
            grace_s=3.0,
        )
        tool = ground.tool(self.ready.client_node or ground.alloc.nodes[0], request)
        return tool.run(log=here.log, timeout_s=timeout_s, watch=here.watch, check=check)

    def collect(self) -> RawResult | RawError:
        """Make the point's result file at ``draft``, and read it.

        Where the result of a process cannot be used, that one stays as evidence and its fault is returned.
        """
        parts = []
        for index in range(self.point.clients):
            try:
                parts.append(read_data(self._beside(index)))
            except RawError as error:
                if self._beside(index).exists():
                    self._beside(index).replace(self.draft)
                return error
        samples: list[Samples] = [()] * self.point.clients
        # Without them the record has no CPU time of the client; the requests' times do not depend on it.
        with contextlib.suppress(OSError, ValueError):
            samples = json.loads(self._beside("cpu").read_text())
        write_atomically(self.draft, json.dumps(merge(parts, samples)))
        return read_raw(self.draft)
