"""What vLLM's client sends before it looks at the clock: other prompts, short answers; and what it measures, as it is."""

from __future__ import annotations

import json
import os
import random
import subprocess
import sys

import pytest

from servemark.environments.build import IN_MODEL_ENV
from servemark.in_model_env import bench_client

# As much of vllm/benchmarks/serve.py as matters: a test run, warm-ups, what is awaited before the clock, the load.
SERVE = """
import asyncio, dataclasses, json, time

@dataclasses.dataclass
class RequestFuncInput:
    prompt: object
    output_len: int

SENT = []

async def send(request_func_input, session, pbar=None):
    SENT.append([phase, request_func_input.prompt, request_func_input.output_len])

ASYNC_REQUEST_FUNCS = {"openai": send, "other": None}
phase = "before"

async def fetch_spec_decode_metrics(url, session):
    return "spec"

async def benchmark(prompts):
    global phase
    request_func = ASYNC_REQUEST_FUNCS["openai"]
    test_input = RequestFuncInput(prompts[0], 100)
    await request_func(test_input, None)
    await asyncio.gather(*(request_func(request_func_input=test_input, session=None, pbar=None) for _ in range(4)))
    STEP
    phase = "load"
    begin = time.perf_counter()
    await asyncio.gather(*(request_func(request_func_input=RequestFuncInput(prompt, 100), session=None) for prompt in prompts))
    await fetch_spec_decode_metrics("u", None)
    print(json.dumps(SENT))
"""
MAIN = """
import asyncio, sys, json
if __name__ == "__main__":
    import vllm.benchmarks.serve
    asyncio.run(vllm.benchmarks.serve.benchmark(json.loads(sys.argv[1])))
"""
PROMPTS = [" ".join(random.Random(seed).choices([f"w{n}" for n in range(1000)], k=200)) for seed in range(3)]


@pytest.fixture
def sent(tmp_path):
    """What the client sends, as (phase, prompt, tokens of the answer) in order, and what it says on stderr."""

    def run(tokens: int | None, step: str = "await fetch_spec_decode_metrics('u', None)"):
        for package in ("vllm", "vllm/benchmarks", "vllm/entrypoints", "vllm/entrypoints/cli"):
            (tmp_path / package).mkdir(parents=True, exist_ok=True)
            (tmp_path / package / "__init__.py").touch()
        (tmp_path / "vllm/entrypoints/cli/main.py").write_text(MAIN)
        (tmp_path / "vllm/benchmarks/serve.py").write_text(SERVE.replace("STEP", step))
        given = {} if tokens is None else {"SERVEMARK_WARMUP_TOKENS": str(tokens)}
        argv = [sys.executable, str(IN_MODEL_ENV / "bench_client.py"), json.dumps(PROMPTS)]
        env = os.environ | {"PYTHONPATH": str(tmp_path)} | given
        done = subprocess.run(argv, cwd=tmp_path, env=env, capture_output=True, text=True, timeout=60)
        assert done.returncode == 0, done.stderr
        return json.loads(done.stdout), done.stderr

    return run


def test_each_warm_up_is_a_prompt_of_its_own_with_a_short_answer_and_the_load_is_as_it_was(sent):
    requests, _ = sent(7)
    before = [request for request in requests if request[0] == "before"]
    assert len(before) == 5 and {tokens for _, _, tokens in before} == {7}
    beginnings = {prompt[:40] for _, prompt, _ in before} | {prompt[:40] for prompt in PROMPTS}
    assert len(beginnings) == 5 + 3, "no prompt begins like another"
    assert all(0 < len(PROMPTS[0]) - len(prompt) < 50 for _, prompt, _ in before)
    assert [request for request in requests if request[0] == "load"] == [["load", prompt, 100] for prompt in PROMPTS]


def test_an_answer_is_never_longer_than_the_loads(sent):
    assert {tokens for phase, _, tokens in sent(400)[0] if phase == "before"} == {100}


def test_without_being_told_it_is_vllms_own_client(sent):
    assert [request[1:] for request in sent(None)[0][:5]] == [[PROMPTS[0], 100]] * 5


def test_a_vllm_that_we_do_not_know_has_its_own_warm_ups_and_this_is_told(sent):
    requests, said = sent(7, step="pass")
    assert [request[1:] for request in requests[:5]] == [[PROMPTS[0], 100]] * 5
    assert "its warm-ups are its own, the first prompt again and again" in said


@pytest.mark.parametrize("prompt", ["", "x", [1, 2, 3]])
def test_what_cannot_be_turned_stays(prompt):
    assert bench_client.another(prompt, 1) == prompt


def test_a_turned_prompt_never_begins_where_the_first_does():
    text = "abcdefghijklmnopqrstuvwxyz"
    assert {bench_client.another(text, number)[0] for number in range(1, 500)} == set(text[1:])


@pytest.mark.parametrize(
    ("arguments", "share"),
    [
        (["--random-input-len", "300"], 0.0),
        (["--random-input-len", "300", "--random-prefix-len", "100"], 0.25),
        (["--random_prefix_len", "100", "--seed", "7", "--random-input-len", "300"], 0.25),
        (["--random-prefix-len"], 0.0),
    ],
)
def test_what_all_prompts_begin_with_is_known_from_the_command_line(arguments, share):
    assert bench_client.shared(["bench_client.py", "bench", "serve", *arguments]) == share


def test_what_all_prompts_begin_with_stays_and_the_rest_begins_elsewhere():
    prefix, own = "P" * 100, "abcdefghijklmnopqrstuvwxyz" * 12
    turned = [bench_client.another(prefix + own, number, kept=100 / 412) for number in range(1, 20)]
    assert {text[:100] for text in turned} == {prefix} and len({text[100:140] for text in turned}) > 10
