"""Warm-ups of the client have other prompts and short outputs; measured requests are unchanged."""

from __future__ import annotations

import asyncio
import random
from dataclasses import dataclass
from types import SimpleNamespace

import pytest

from servemark.in_model_env import bench_client

PROMPTS = [" ".join(random.Random(seed).choices([f"w{n}" for n in range(1000)], k=200)) for seed in range(3)]


@dataclass
class Request:
    """The fields of vLLM's RequestFuncInput that matter."""

    prompt: object
    output_len: int
    request_id: str | None = None


def sent(warmup: dict | None) -> tuple[list[Request], list[Request]]:
    """Return the five warm-ups and three measured requests that reach vLLM's own function."""
    found = []

    async def send(request, session, pbar):
        found.append(request)
        return SimpleNamespace(success=True)

    async def benchmark():
        request_function = bench_client.request_function(send, None, warmup, None)
        first = Request(PROMPTS[0], 100)
        await asyncio.gather(*(request_function(request_func_input=first, session=None, pbar=None) for _ in range(5)))
        await asyncio.gather(*(request_function(Request(prompt, 100, str(n)), session=None) for n, prompt in enumerate(PROMPTS)))

    asyncio.run(benchmark())
    return found[:5], found[5:]


def test_each_warm_up_has_another_prompt_and_a_short_output():
    warmups, load = sent({"tokens": 7, "shared": 0.0})
    assert {request.output_len for request in warmups} == {7}
    beginnings = {request.prompt[:40] for request in warmups} | {prompt[:40] for prompt in PROMPTS}
    assert len(beginnings) == 5 + 3, "no prompt begins like another"
    assert all(0 < len(PROMPTS[0]) - len(request.prompt) < 50 for request in warmups)
    assert load == [Request(prompt, 100, str(number)) for number, prompt in enumerate(PROMPTS)]


def test_output_of_warm_up_is_no_longer_than_that_of_the_load():
    assert {request.output_len for request in sent({"tokens": 400, "shared": 0.0})[0]} == {100}


def test_without_the_variable_warm_ups_are_unchanged():
    assert sent(None)[0] == [Request(PROMPTS[0], 100)] * 5


@pytest.mark.parametrize("prompt", ["", "x", [1, 2, 3]])
def test_short_prompt_and_token_list_are_not_rotated(prompt):
    assert bench_client.rotated(prompt, 1, 0.0) == prompt


def test_rotated_prompt_never_begins_like_the_first():
    text = "abcdefghijklmnopqrstuvwxyz"
    assert {bench_client.rotated(text, number, 0.0)[0] for number in range(1, 500)} == set(text[1:])


def test_common_prefix_stays_and_the_rest_is_rotated():
    prefix, own = "P" * 100, "abcdefghijklmnopqrstuvwxyz" * 12
    turned = [bench_client.rotated(prefix + own, number, shared=100 / 412) for number in range(1, 20)]
    assert {text[:100] for text in turned} == {prefix} and len({text[100:140] for text in turned}) > 10
