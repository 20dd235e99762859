"""The stand-in of vLLM's benchmark client writes the same output as the real one, and fails in the same way."""

from __future__ import annotations

import json
import math
import subprocess

import pytest

from builders.paths import TESTS
from builders.standin_running import CLI, KEY, bench, environment, free_port, server
from servemark.diagnosis import diagnose


@pytest.fixture
def python(standin):
    return standin.python


def shape(value):
    """Return the type of a JSON value; for a list, the types of its items."""
    if isinstance(value, list):
        return ["list", *sorted({str(shape(item)) for item in value})]
    return "number" if isinstance(value, (int, float)) else type(value).__name__


def test_client_writes_the_keys_order_and_shapes_of_the_recorded_result(python, tmp_path):
    with server(python, tmp_path, VLLM_API_KEY=KEY) as running:
        done = bench(python, tmp_path, running.url, OPENAI_API_KEY=KEY)
    assert done.returncode == 0 and "stand-in client" in done.stdout
    written = json.loads((tmp_path / "raw.json").read_text())
    recorded = json.loads((TESTS / "fixtures" / "bench-0.32.0-cpu-detailed.json").read_text())
    assert list(written) == list(recorded)
    assert {key: shape(value) for key, value in written.items()} == {key: shape(value) for key, value in recorded.items()}
    assert (written["completed"], written["failed"], written["total_output_tokens"]) == (6, 0, 24)
    assert written["input_lens"] == [5] * 6 and written["output_lens"] == [4] * 6
    assert [len(gaps) for gaps in written["itls"]] == [3] * 6
    assert all(ttft + sum(gaps) == pytest.approx(latency) for ttft, gaps, latency in
               zip(written["ttfts"], written["itls"], written["latencies"], strict=True))  # fmt: skip


@pytest.mark.parametrize(
    ("fault", "completed", "error"),
    [
        ("fail_requests:2", 3, "Internal Server Error"),
        ("cut_streams:3", 4, "IncompleteRead"),
        ("wrong_name", 0, "Not Found"),
        ("die_after:3", 3, "Traceback"),
    ],
)
def test_client_exits_0_whatever_happens_to_the_requests(python, tmp_path, fault, completed, error):
    with server(python, tmp_path, STANDIN_FAULT=fault) as running:
        done = bench(python, tmp_path, running.url, "--max-concurrency", "1")
    written = json.loads((tmp_path / "raw.json").read_text())
    assert done.returncode == 0
    assert (written["completed"], written["failed"]) == (completed, 6 - completed)
    assert sum(error in text for text in written["errors"]) == 6 - completed
    assert diagnose(done.stdout).reason == "requests_failed"


def test_zero_tokens_count_as_success_without_output(python, tmp_path):
    with server(python, tmp_path, STANDIN_FAULT="zero_tokens") as running:
        bench(python, tmp_path, running.url)
    written = json.loads((tmp_path / "raw.json").read_text())
    assert (written["completed"], written["total_output_tokens"], written["errors"]) == (6, 0, [""] * 6)


def test_client_without_detail_warmup_rate_and_metadata(python, tmp_path):
    with server(python, tmp_path) as running:
        argv = [python, *CLI, "bench", "serve", "--base-url", running.url, "--model", "tiny", "--num-prompts", "3"]
        argv += ["--random-input-len", "2", "--random-output-len", "2", "--num-warmups", "2", "--request-rate", "50"]
        argv += ["--metadata", "wf_tp=2", "--save-result", "--result-dir", str(tmp_path), "--result-filename", "r.json"]
        subprocess.run(argv, env=environment(), check=True, timeout=120, capture_output=True)
        assert 'vllm:generation_tokens_total{engine="0",model_name="tiny"} 10.0' in running.get("/metrics").text
    written = json.loads((tmp_path / "r.json").read_text())
    assert written["wf_tp"] == "2" and written["request_rate"] == 50
    assert "ttfts" not in written and "latencies" in written


def test_ready_check_that_times_out_exits_1(python, tmp_path):
    done = bench(python, tmp_path, f"http://127.0.0.1:{free_port()}", "--ready-check-timeout-sec", "1")
    assert done.returncode == 1
    assert diagnose(done.stderr).reason == "client_first_request_failed"


def test_client_faults(python, tmp_path):
    with server(python, tmp_path) as running:
        raw = tmp_path / "raw.json"
        assert bench(python, tmp_path, running.url, STANDIN_CLIENT_FAULT="no_file").returncode == 0
        assert not raw.exists()
        assert bench(python, tmp_path, running.url, STANDIN_CLIENT_FAULT="exit_1").returncode == 1
        assert not raw.exists()
        bench(python, tmp_path, running.url, STANDIN_CLIENT_FAULT="truncated_json")
        with pytest.raises(json.JSONDecodeError):
            json.loads(raw.read_text())
        bench(python, tmp_path, running.url, STANDIN_CLIENT_FAULT="nan")
        assert math.isnan(json.loads(raw.read_text())["duration"])
        argv = [python, *CLI, "bench", "serve", "--base-url", running.url, "--model", "tiny"]
        with pytest.raises(subprocess.TimeoutExpired):
            subprocess.run(argv, env=environment(STANDIN_CLIENT_FAULT="hang"), timeout=0.7, capture_output=True)
