"""Secrets are refused and never printed; names that only resemble one are allowed."""

from __future__ import annotations

import pytest

from builders.config_text import BASE, failure, write
from servemark.config.load import load

OPTION = "      max-model-len: 512"
VARIABLE = "      OMP_NUM_THREADS: 2"
LOAD = "    concurrency: [1, 4]"
SECRET = "s3cr3t-value"


@pytest.mark.parametrize(
    ("old", "new"),
    [
        (OPTION, f"      api-key: {SECRET}"),
        (OPTION, f"      hf_token: {SECRET}"),
        (VARIABLE, f"      HF_TOKEN: {SECRET}"),
        (VARIABLE, f"      DB_PASSWORD: [{SECRET}]"),
        ("run: demo", f"run: demo\napi_key: {SECRET}"),
        ("run: demo", f"run: demo\nextra: {{password: {SECRET}}}"),
        ("run: demo", f"run: demo\nextra: [{SECRET}]"),
        ("run: demo", f"run: demo\nsweeps: [{{over: deployments.plain, grid: {{variables.HF_TOKEN: [{SECRET}]}}}}]"),
        (
            "run: demo",
            f"run: demo\nsweeps: [{{over: workloads.chat, grid: {{client_options.header: [{SECRET * 9}]}}}}]",
        ),
        (LOAD, f"    concurrency: 1\n    client_options: {{header: {SECRET}}}"),
        (VARIABLE, f"      HF_TOKEN: {SECRET}: broken"),
    ],
)
def test_a_secret_is_refused_and_never_printed(tmp_path, old, new):
    assert SECRET not in failure(write(tmp_path, BASE.replace(old, new)))


@pytest.mark.parametrize("name", ["TOKENIZERS_PARALLELISM", "VLLM_CPU_KVCACHE_SPACE", "VLLM_MAX_TOKENS", "KEYBOARD"])
def test_names_that_only_resemble_a_secret_are_allowed(tmp_path, name):
    config = load(write(tmp_path, BASE.replace("OMP_NUM_THREADS", name)))
    assert config.deployments["plain"].variables == {name: "2"}


@pytest.mark.parametrize("value", ["0", '"0"', '" 0 "'])
def test_rust_front_end_may_be_turned_off(tmp_path, value):
    config = load(write(tmp_path, BASE.replace("OMP_NUM_THREADS: 2", f"VLLM_USE_RUST_FRONTEND: {value}")))
    assert config.deployments["plain"].variables["VLLM_USE_RUST_FRONTEND"].strip() == "0"


@pytest.mark.parametrize("name", ["HF_TOKEN", "VLLM_API_KEY", "OPENAI_APIKEY", "AWS_SECRET_ACCESS_KEY", "PGPASSWORD_X_PASSWORD"])
def test_variables_that_hold_secrets_are_refused(tmp_path, name):
    message = failure(write(tmp_path, BASE.replace("OMP_NUM_THREADS", name)))
    assert f"my.yaml:17: deployments.plain.variables.{name}: " in message
