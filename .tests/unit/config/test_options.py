"""Options of a configuration: values that the pinned vLLM refuses, and the file of ``options_file``."""

from __future__ import annotations

import re

import pytest
import yaml

from builders.config_text import BASE, failure, write
from builders.paths import ROOT
from servemark.config.expand import expand
from servemark.config.load import load

OPTIONS = "      max-model-len: 512\n"


def with_options(*lines: str, base: str = BASE) -> str:
    return base.replace(OPTIONS, "".join(f"      {line}\n" for line in lines))


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("dtype: bf16", "bfloat16"),
        ("kv-cache-dtype: fp7", "fp8"),
        ("kv_cache_dtype: fp7", "fp8"),
        ("max-num-seqs: -1", "1"),
        ("quantization: gptqq", "gptq"),
        ('enforce-eager: "yes"', "true"),
        ("compilation-config: '{\"mode\": '", "JSON"),
        ("max-num-seq: 4", "max-num-seqs"),
    ],
)
@pytest.mark.parametrize("lock", ["cpu", "cuda12", "auto"])
def test_wrong_value_is_refused_at_its_line(tmp_path, line, words, lock):
    path = write(tmp_path, with_options("disable-log-stats: true", line).replace("lock: cpu", f"lock: {lock}"))
    text = failure(path)
    number = path.read_text().splitlines().index(f"      {line}") + 1
    assert f"{path}:{number}: deployments.plain.options.{line.split(':')[0]}: " in text and words in text


def test_auto_accepts_what_one_of_its_versions_accepts(tmp_path):
    text = with_options("kv-cache-dtype: int4_per_token_head")
    load(write(tmp_path, text.replace("lock: cpu", "lock: auto")))
    assert "int4_per_token_head" in failure(write(tmp_path, text.replace("lock: cpu", "lock: cuda12")))


def test_each_wrong_value_has_its_own_line(tmp_path):
    text = failure(write(tmp_path, with_options("dtype: bf16", "max-num-seqs: 0")))
    assert ":15: " in text and ":16: " in text


def test_options_of_a_prefix_are_not_judged_before_its_plan(tmp_path):
    load(write(tmp_path, with_options("dtype: bf16").replace("lock: cpu", "prefix: /envs/any")))


def test_wrong_value_of_a_sweep_is_refused_at_the_sweep(tmp_path):
    sweep = "sweeps:\n- over: deployments.plain\n  grid:\n    options.dtype: [bfloat16, bf16]\n"
    text = failure(write(tmp_path, BASE + sweep))
    assert "sweeps[0].grid.options.dtype[1]: " in text and "dtype[0]" not in text


def test_wrong_client_option_is_refused_at_its_line(tmp_path):
    text = failure(write(tmp_path, BASE + "    client_options:\n      top_k: many\n"))
    assert ":26: workloads.chat.client_options.top_k: " in text


def test_number_of_cuda_graphs_may_follow_from_the_workload(tmp_path):
    load(write(tmp_path, with_options("max-cudagraph-capture-size: workload")))


def test_documented_forms_of_json_are_valid(tmp_path):
    text = (ROOT / "docs/explanation/start-up.md").read_text()
    (block,) = re.findall(r"```yaml\noptions:\n(.*?)```", text, re.DOTALL)
    lines = [line.strip() for line in block.splitlines()]
    assert len(load(write(tmp_path, with_options(*lines))).deployments["plain"].options) == len(lines) == 3
    assert "options.kernel-config: " in failure(write(tmp_path, with_options("kernel-config: {enable_jit_warmup: false}")))


FILE = """\
max_num_seqs: 8
enable-prefix-caching: true
no-enable-log-requests: true
compilation-config:
  cudagraph_mode: NONE
max-log-len: null
cudagraph_capture_sizes: [1, 2]
"""


def from_file(folder, content: str = FILE, *lines: str):
    site = write(folder, content, "site.yaml")
    options = "".join(f"      {line}\n" for line in lines)
    return site, write(
        folder, BASE.replace(f"    options:\n{OPTIONS}", f"    options_file: {site}\n" + (f"    options:\n{options}" if lines else ""))
    )


def test_options_of_a_file_equal_the_same_options_inline(tmp_path):
    _, path = from_file(tmp_path, FILE, "max-num-seqs: 4", "no_enable_prefix_caching: true")
    config = load(path)
    inline = with_options(
        "no-enable-log-requests: true", "compilation-config: '{\"cudagraph_mode\": \"NONE\"}'", 'max-log-len: "None"',
        "cudagraph-capture-sizes: [1, 2]", "max-num-seqs: 4", "no-enable-prefix-caching: true",
    )  # fmt: skip
    assert config == load(write(tmp_path, inline, "inline.yaml"))
    assert config.deployments["plain"].options_file is None


def test_file_alone_gives_all_options(tmp_path):
    _, path = from_file(tmp_path)
    assert load(path).deployments["plain"].options == {
        "max-num-seqs": 8, "enable-prefix-caching": True, "no-enable-log-requests": True,
        "compilation-config": '{"cudagraph_mode": "NONE"}', "max-log-len": "None", "cudagraph-capture-sizes": [1, 2],
    }  # fmt: skip


@pytest.mark.parametrize(
    ("content", "line", "key"),
    [
        ("max-num-seqs: 4\ndtype: bf16\n", 2, "dtype"),
        ("tensor-parallel-size: 4\n", 1, "tensor-parallel-size"),
        ("a: 1\nmodel: openai/gpt-oss-120b\n", 2, "model"),
        ("max-num-seqs: 1\nmax-num-seqs: 2\n", 2, "max-num-seqs"),
        ("compilation-config:\n  modes: 3\n", 1, "compilation-config"),
    ],
)
def test_wrong_option_of_a_file_is_refused_at_its_line_there(tmp_path, content, line, key):
    site, path = from_file(tmp_path, content)
    assert f"{site}:{line}: {key}: " in failure(path)


@pytest.mark.parametrize("content", ["- a\n", "text\n", "a: [\n"])
def test_file_that_is_no_mapping_is_refused(tmp_path, content):
    _, path = from_file(tmp_path, content)
    failure(path)


def test_missing_file_is_refused_at_the_key(tmp_path):
    site, path = from_file(tmp_path)
    site.unlink()
    assert ":14: deployments.plain.options_file: " in failure(path)


def test_missing_file_is_reported_with_the_other_problems(tmp_path):
    site, path = from_file(tmp_path)
    site.unlink()
    path.write_text(path.read_text() + "orders: grouped\n")
    text = failure(path)
    assert "deployments.plain.options_file: " in text and "orders: " in text


def test_empty_file_changes_nothing(tmp_path):
    _, path = from_file(tmp_path, "# nothing\n", "max-model-len: 512")
    assert load(path) == load(write(tmp_path, BASE, "inline.yaml"))


def test_options_of_a_file_are_swept_one_by_one_but_not_the_file(tmp_path):
    _, path = from_file(tmp_path)
    text = path.read_text()
    path.write_text(text + "sweeps:\n- over: deployments.plain\n  grid:\n    options.max-num-seqs: [1, 2]\n")
    found = expand(load(path)).deployments
    assert [one.options["max-num-seqs"] for one in found.values()] == [1, 2]
    path.write_text(text + "sweeps:\n- over: deployments.plain\n  grid:\n    options_file: [a.yaml]\n")
    assert "sweeps[0].grid.options_file: " in failure(path)


def test_file_may_be_named_by_an_anchor(tmp_path):
    site, _ = from_file(tmp_path)
    data = yaml.safe_load(BASE)
    shared = {"options_file": str(site)}
    data["deployments"] = {name: {"model": "tiny", "environment": "cpu", **shared} for name in ("a", "b")}
    config = load(write(tmp_path, yaml.safe_dump(data)))
    assert config.deployments["a"].options == config.deployments["b"].options != {}
