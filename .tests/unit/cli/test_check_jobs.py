"""``servemark check`` on Slurm: whether it accepts the jobs, and the most that they cost."""

from __future__ import annotations

import re

import pytest

from builders.checked import run, slurm
from builders.recorded_site import BODIES, SILENT, only

REFUSE = "case $* in *test-only*|*begin*) echo 'sbatch: error: invalid partition specified: bad' >&2; exit 1 ;; esac"


def test_slurm_checks_the_requests_of_a_run(checkout, tmp_path, monkeypatch, capsys):
    calls = tmp_path / "calls"
    slurm(tmp_path, monkeypatch, sbatch=f'echo "$@" >> {calls}')
    code, found = run(capsys, site="partition: batch\ngpus_per_node: 4")
    assert code == 0 and any(text.startswith("jobs: ") and "d, probe_hardware" in text for text in found["ok"])
    lines = calls.read_text().splitlines()
    assert all(line.startswith("--test-only ") for line in lines)
    assert "--test-only --nodes=1 --ntasks-per-node=1 --partition=batch --gres=gpu:4 --time=30 --exclusive --mem=0" in lines


@pytest.mark.parametrize(
    ("site", "deployment", "top", "words"),
    [
        ("gpus_per_node: 4", "", "", ["d: at most 30 minutes on 1 node(s) x 4 GPU(s), 2.0 GPU-hours"]),
        ("gpus_per_node: 4\nmax_minutes: 15", "", "prices: {gpu_hour: 2.5, currency: EUR}", ["1.0 GPU-hours, 2.50 EUR"]),
        ("gpus_per_node: 0", "", "", ["1 node(s), 0.5 node-hours"]),
        ("gpus_per_node: 4", "}\n  other: {model: m, environment: e", "", [" 2.0 GPU-hours", " 2.0 GPU-hours", "at most 4.0 GPU-hours"]),
        (
            "gpus_per_node: 4\nclient_partition: cpu",
            ", topology: {client: own}",
            "",
            ["1 node(s) x 4 GPU(s) and one for the client, 2.0 GPU-hours"],
        ),
        ("gpus_per_node: 0\nclient_partition: cpu", ", topology: {client: own}", "", ["1 node(s) and one for the client, 1.0 node-hours"]),
        ("gpus_per_node: 1", ", topology: {nodes: 2, tensor_parallel: 2}", "", ["2 node(s) x 1 GPU(s), 1.0 GPU-hours"]),
    ],
)
def test_most_that_the_jobs_cost_is_stated(checkout, tmp_path, monkeypatch, capsys, site, deployment, top, words):
    slurm(tmp_path, monkeypatch)
    code, found = run(capsys, site=site, deployment=deployment, top=top)
    costs = [text for text in found["ok"] if text.startswith("jobs: ") and "-hours" in text]
    assert code == 0 and len(costs) == len(words)
    assert all(text.endswith(end) for text, end in zip(costs, words, strict=True)), costs


def test_job_that_slurm_refuses_is_a_problem(checkout, tmp_path, monkeypatch, capsys):
    slurm(tmp_path, monkeypatch, sbatch=REFUSE)
    code, found = run(capsys, site="partition: bad")
    assert code == 2 and any("invalid partition" in text and "partition" in text for text in found["problem"])


@pytest.mark.parametrize("missing", ["all", "srun", "silent"])
def test_jobs_are_not_checked_without_a_working_slurm(checkout, tmp_path, monkeypatch, capsys, missing):
    if missing == "silent":
        only(tmp_path / "slurm", monkeypatch, dict.fromkeys(BODIES, SILENT))
    elif missing == "srun":
        only(tmp_path / "slurm", monkeypatch, {name: body for name, body in BODIES.items() if name != "srun"})
    code, found = run(capsys, site="")
    (text,) = [text for text in found["not checked"] if text.startswith("jobs: ")]
    assert code == 0 and not re.search(r"[^.] Rerun", text), "each sentence has its full stop"
