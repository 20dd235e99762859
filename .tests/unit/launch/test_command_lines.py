"""Command lines and environments of servers, Ray and the client."""

from __future__ import annotations

import json
from itertools import pairwise
from pathlib import Path

import pytest

from builders.deployed import planned_point
from builders.launching import NODE, plan
from builders.loads import UnevenPrompts, load
from servemark.launch import command_lines, random_weights
from servemark.records import AskedCheck


@pytest.mark.parametrize(
    ("options", "arguments"),
    [
        ({}, []),
        ({"enforce-eager": True}, ["--enforce-eager"]),
        ({"enable-prefix-caching": False}, ["--no-enable-prefix-caching"]),
        ({"max-model-len": 512, "dtype": "bfloat16"}, ["--max-model-len", "512", "--dtype", "bfloat16"]),
        ({"middleware": ["a.B", "c.D"]}, ["--middleware", "a.B", "c.D"]),
        ({"seed": 0, "quantization": None}, ["--seed", "0"]),
        ({"gpu-memory-utilization": 0.9}, ["--gpu-memory-utilization", "0.9"]),
        ({"kernel-config.enable_jit_warmup": False}, ["--kernel-config.enable_jit_warmup", "false"]),
        ({"compilation-config.mode": 0, "compilation-config.x": None}, ["--compilation-config.mode", "0"]),
        ({"compilation-config.cudagraph_mode": "NONE"}, ["--compilation-config.cudagraph_mode", "NONE"]),
        ({"compilation-config.compile_sizes": [1, 2]}, ["--compilation-config.compile_sizes", "[1, 2]"]),
    ],
)
def test_options_have_the_syntax_of_vllm(options, arguments):
    assert command_lines.option_arguments(options) == arguments


def environment(of) -> dict[str, str]:
    return command_lines.server_environment(of, "cuda", NODE, "/tmp/scratch", "/cache/x", {})


CACHES = {
    "VLLM_CACHE_ROOT": "/cache/x/vllm",
    "TORCHINDUCTOR_CACHE_DIR": "/cache/x/inductor",
    "TRITON_CACHE_DIR": "/cache/x/triton",
    "FLASHINFER_WORKSPACE_BASE": "/cache/x/flashinfer",
    "TILELANG_CACHE_DIR": "/cache/x/tilelang",
    "HUMMING_CACHE_DIR": "/cache/x/humming/cache",
    "HUMMING_TMP_DIR": "/cache/x/humming/tmp",
    "CUDA_CACHE_PATH": "/cache/x/ptx",
}


@pytest.mark.parametrize(
    ("variables", "changed"),
    [
        ({}, {}),
        ({"TRITON_CACHE_DIR": "/mine"}, {"TRITON_CACHE_DIR": "/mine"}),
        ({"TRITON_HOME": "/mine"}, {"TRITON_CACHE_DIR": None}),
        ({"HUMMING_CACHE_DIR": "/mine", "CUDA_CACHE_PATH": "/my/ptx"}, {"HUMMING_CACHE_DIR": "/mine", "CUDA_CACHE_PATH": "/my/ptx"}),
        ({"XDG_CACHE_HOME": "/mine"}, {"VLLM_CACHE_ROOT": None}),
    ],
)
def test_compile_caches_are_set_unless_the_deployment_sets_them(variables, changed):
    env = environment(plan(variables=variables))
    assert {name: env.get(name) for name in CACHES} == CACHES | changed


def test_only_a_server_with_random_weights_gets_the_plugin():
    random = plan(options={"load-format": random_weights.LOAD_FORMAT}, variables={"PYTHONPATH": "/mine"})
    path = environment(random)["PYTHONPATH"]
    assert path == f"{random_weights.FOLDER}:{command_lines.MIDDLEWARE_FOLDER}:/mine"
    assert str(random_weights.FOLDER) not in environment(plan())["PYTHONPATH"]


def test_ray_reads_its_token_from_a_file():
    env = command_lines.ray_environment("/attempt/ray-token", "/tmp/scratch")
    assert (env["RAY_AUTH_MODE"], env["RAY_AUTH_TOKEN_PATH"], env["RAY_TMPDIR"]) == (
        "token",
        "/attempt/ray-token",
        "/tmp/scratch",
    )


PINNED = {
    "--node-manager-port": "20002",
    "--object-manager-port": "20003",
    "--runtime-env-agent-port": "20004",
    "--metrics-export-port": "20005",
    "--min-worker-port": "0",
    "--max-worker-port": "0",
}


@pytest.mark.parametrize(
    ("head", "role", "devices", "cpus"),
    [
        (
            None,
            {
                "--head": "", "--port": "20000", "--ray-client-server-port": "20001",
                "--include-dashboard": "false", "--no-monitor": "",
            },
            2,
            "8",
        ),
        ("10.0.0.9:20500", {"--address": "10.0.0.9:20500"}, 16, "16"),
    ],
    ids=["head", "worker"],
)  # fmt: skip
def test_ray_stays_in_the_foreground_and_on_its_ports(head, role, devices, cpus):
    argv = command_lines.ray_node("/env/bin/python", NODE, devices, "/tmp/scratch", range(20000, 20006), head)
    assert argv[:4] == ["/env/bin/python", "-m", "ray.scripts.scripts", "start"]
    told = {name: value for name, _, value in (word.partition("=") for word in argv[4:])}
    assert told == role | PINNED | {
        "--block": "",
        "--node-ip-address": "10.0.0.1",
        "--num-gpus": str(devices),
        "--num-cpus": cpus,
        "--disable-usage-stats": "",
        "--object-store-memory": "200000000",
        "--temp-dir": "/tmp/scratch",
    }


def test_dataset_gives_its_arguments_to_the_client():
    prompts = UnevenPrompts(dataset="random", input_tokens=8, output_tokens=5)
    argv = command_lines.bench("python", "http://127.0.0.1:1", "tiny", "/models/tiny", load(prompts=prompts), "points", "raw")
    assert argv[argv.index("--dataset-name") + 1] == "uneven" and "--random-input-len" not in argv


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({}, ["--max-concurrency", "4"]),
        ({"concurrency": None, "request_rate": 2.5}, ["--request-rate", "2.5"]),
        ({"request_rate": 2.0}, ["--max-concurrency", "4", "--request-rate", "2.0"]),
        ({"client_options": {"burstiness": 0.5}}, ["--max-concurrency", "4", "--burstiness", "0.5"]),
    ],
)
def test_command_line_of_the_client(changes, expected):
    point = planned_point(3, {}, **changes).load
    argv = command_lines.bench("python", "http://127.0.0.1:20001", "tiny", "/models/tiny", point, "points", ".raw.json.draft")
    assert Path(argv[1]).is_file() and [argv[0], Path(argv[1]).name, *argv[2:4]] == [
        "python",
        "bench_client.py",
        "bench",
        "serve",
    ]
    assert argv[argv.index("--disable-tqdm") + 1 :] == expected
    told = dict(pairwise(argv))
    assert (told["--num-prompts"], told["--seed"], told["--num-warmups"]) == ("4", "3", "1")
    assert (told["--dataset-name"], told["--random-input-len"], told["--random-output-len"]) == ("random", "8", "5")
    assert (told["--result-dir"], told["--result-filename"]) == ("points", ".raw.json.draft")
    assert "--ignore-eos" in argv and "--save-detailed" in argv


def asked(**changes) -> AskedCheck:
    return AskedCheck(**{"name": "gsm8k", "limit": 200, "lock": "a" * 64, **changes})


def lm_eval(check: AskedCheck, **changes) -> list[str]:
    return command_lines.lm_eval("/lm/bin/python", "http://n1:8000", "tiny", "/m, x", plan(**changes), check, "/r/draft/lm-eval.json")


def test_lm_eval_asks_the_endpoint_with_the_models_tokenizer():
    argv = lm_eval(asked(shots=0, chat_template=True), options={"trust-remote-code": True})
    options = dict(pairwise(argv))
    model = json.loads(options["--model_args"])
    assert (model["base_url"], model["model"], model["tokenizer"]) == ("http://n1:8000/v1/completions", "tiny", "/m, x")
    assert (model["tokenizer_backend"], model["trust_remote_code"]) == ("huggingface", True)
    assert (options["--tasks"], options["--limit"], options["--num_fewshot"]) == ("gsm8k", "200", "0")
    assert "--apply_chat_template" in argv and "--include_path" not in argv and argv[2] == "/r/draft"


def test_lm_eval_runs_in_the_folder_of_a_users_task(monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    argv = lm_eval(asked(task="tasks/mine.yaml"))
    options = dict(pairwise(argv))
    assert argv[2] == options["--include_path"] == f"{tmp_path}/tasks" and options["--tasks"] == f"{tmp_path}/tasks/mine.yaml"
    assert not {"--num_fewshot", "--apply_chat_template"} & set(argv)


def test_lm_evals_command_line_holds_no_secret():
    assert not [word for word in lm_eval(asked()) if "key" in word.lower()]
