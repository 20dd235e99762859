"""The stand-in environment and its server behave like vLLM, as the fault tests require."""

from __future__ import annotations

import http.client
import json
import signal
import socket
import subprocess
import time
from pathlib import Path

import httpx
import psutil
import pytest

from builders.counters import requests_served
from builders.standin_running import CLI, KEY, environment, server
from servemark.diagnosis import diagnose
from servemark.diagnosis.startup_log import StartupLog
from servemark.launch import command_lines


@pytest.fixture
def python(standin):
    return standin.python


def test_prefix_imports_only_standins_that_name_themselves(python):
    code = (
        "import sys, importlib.metadata as m, torch, vllm, ray\n"
        "print(m.version('vllm'), vllm.__version__, torch.__version__, ray.__version__, torch.version.cuda,"
        " float(torch.zeros(1).sum()), float(torch.ones(2, device='cpu').sum()))\n"
        "import importlib.util; print(importlib.util.find_spec('pydantic'), sys.prefix)"
    )
    lines = subprocess.run([python, "-c", code], capture_output=True, text=True, check=True).stdout.splitlines()
    assert lines[0].split() == ["0.0.0+standin"] * 4 + ["None", "0.0", "2.0"]
    assert lines[1] == f"None {Path(python).parents[1]}"


def stage(running) -> str:
    """Return the stage of the start by the server's log."""
    log = StartupLog()
    log.feed(running.log.read_text())
    return log.stage


def test_socket_refuses_until_ready_and_log_has_all_stages(python, tmp_path, wait_for):
    with server(python, tmp_path, ready=False, STANDIN_START_S="4") as running:
        wait_for(lambda: stage(running) == "loading weights")
        with pytest.raises(httpx.ConnectError):
            running.get("/health")
        running.wait_until_ready()
        assert running.get("/health").status_code == 200
        wait_for(lambda: stage(running) == "ready")
        assert "servemark stand-in server, not vLLM" in running.log.read_text()


def test_models_completion_tokenizer_and_metrics_respond_like_vllm(python, tmp_path):
    with server(python, tmp_path, "--max-model-len", "64") as running:
        assert [card["id"] for card in running.get("/v1/models").json()["data"]] == ["tiny"]
        answer = running.complete(tokens=5).json()
        assert answer["usage"] == {"prompt_tokens": 3, "completion_tokens": 5, "total_tokens": 8}
        assert answer["choices"][0]["finish_reason"] == "length"
        tokens = httpx.post(running.url + "/tokenize", json={"prompt": "t7 t9"}).json()["tokens"]
        assert tokens == [7, 9]
        assert httpx.post(running.url + "/detokenize", json={"tokens": tokens}).json() == {"prompt": "t7 t9"}
        assert running.complete(tokens=62).status_code == 400
        assert running.complete(model="other").status_code == 404
        metrics = running.get("/metrics").text
        assert 'vllm:generation_tokens_total{engine="0",model_name="tiny"} 5.0' in metrics
        for name in ("num_requests_running", "num_requests_waiting", "kv_cache_usage_perc"):
            assert f'vllm:{name}{{engine="0",model_name="tiny"}} 0.0' in metrics


def test_stream_has_one_event_per_token_then_usage_then_done(python, tmp_path):
    with server(python, tmp_path) as running:
        text = running.complete(tokens=3, stream=True, stream_options={"include_usage": True}).text
        events = [line.removeprefix("data: ") for line in text.splitlines() if line]
        assert events[-1] == "[DONE]"
        *tokens, usage = map(json.loads, events[:-1])
        assert [event["choices"][0]["finish_reason"] for event in tokens] == [None, None, "length"]
        assert usage["choices"] == [] and usage["usage"]["completion_tokens"] == 3


def test_key_guards_v1_only(python, tmp_path):
    with server(python, tmp_path, VLLM_API_KEY=KEY) as running:
        assert running.complete().status_code == 401
        assert running.complete(key="wrong").status_code == 401
        assert running.complete(key=KEY).status_code == 200
        assert running.get("/health").status_code == running.get("/metrics").status_code == 200
        assert KEY not in running.log.read_text()


def test_middleware_runs_before_anything_else(python, tmp_path):
    variables = {command_lines.API_KEY: KEY, **command_lines.key_environment({})}
    with server(python, tmp_path, *command_lines.key_arguments(), **variables) as running:
        for path in ("/metrics", "/health", "/v1/models", "/nothing"):
            refused = running.get(path)
            assert (refused.status_code, refused.json()["error"]["code"]) == (401, "invalid_api_key")
        assert running.get("/metrics", headers={"Authorization": f"Bearer {KEY}"}).status_code == 200
        assert running.complete(key=KEY).status_code == 200


def test_unknown_middleware_ends_the_start(python, tmp_path):
    with server(python, tmp_path, "--middleware", "some.Class", ready=False) as running:
        assert running.process.wait(60) == 1


def test_metrics_count_finished_requests_as_vllm_does(python, tmp_path):
    with server(python, tmp_path) as running:
        assert requests_served(running.get("/metrics").text) == 0
        assert [running.complete(tokens=2).status_code for _ in range(3)] == [200] * 3
        assert running.complete(model="other").status_code == 404
        assert requests_served(running.get("/metrics").text) == 3


@pytest.mark.parametrize(
    ("fault", "code", "reason", "quoted"),
    [
        ("exit_at_start", 1, "kv_cache_too_small", "ValueError: No available memory for the cache blocks"),
        ("bad_option", 2, "bad_server_option", "unrecognized arguments: --standin-bad-option"),
    ],
)
def test_start_faults_exit_with_vllms_codes_and_are_diagnosed(python, tmp_path, fault, code, reason, quoted):
    with server(python, tmp_path, ready=False, STANDIN_FAULT=fault) as running:
        assert running.process.wait(60) == code
        found = diagnose(running.log)
        assert found.reason == reason
        assert any(quoted in line for line in found.quote)


def test_taken_port_fails_at_once(python, tmp_path):
    with socket.socket() as holder:
        holder.bind(("127.0.0.1", 0))
        holder.listen()
        argv = [python, *CLI, "serve", "m", "--port", str(holder.getsockname()[1])]
        done = subprocess.run(argv, env=environment(), capture_output=True, text=True, timeout=120)
    assert done.returncode == 1
    assert diagnose(done.stdout + done.stderr).reason == "port_taken"


def test_never_ready_stays_at_loading_until_the_fault_is_lifted(python, tmp_path, wait_for):
    switch = tmp_path / "fault"
    switch.write_text("never_ready")
    with server(python, tmp_path, ready=False, STANDIN_FAULT_FILE=str(switch)) as running:
        wait_for(lambda: stage(running) == "loading weights")
        time.sleep(0.5)
        assert stage(running) == "loading weights"
        with pytest.raises(httpx.ConnectError):
            running.get("/health")
        switch.write_text("none")
        running.wait_until_ready()


def test_slow_start_takes_the_configured_seconds(python, tmp_path):
    begin = time.monotonic()
    with server(python, tmp_path, STANDIN_FAULT="slow_start:1.0"):
        assert time.monotonic() - begin >= 1.1


def test_faults_switch_while_it_runs(python, tmp_path):
    switch = tmp_path / "fault"
    with server(python, tmp_path, STANDIN_FAULT_FILE=str(switch)) as running:
        assert running.complete().status_code == 200  # request 1
        switch.write_text("fail_requests:2")
        assert [running.complete().status_code for _ in range(4)] == [500, 200, 500, 200]
        switch.write_text("zero_tokens")
        assert running.complete().json()["usage"]["completion_tokens"] == 0
        switch.write_text("short_tokens")
        assert running.complete(tokens=8).json()["usage"]["completion_tokens"] == 4
        switch.write_text("wrong_name")
        assert running.get("/v1/models").json()["data"][0]["id"] != "tiny"
        assert running.complete().status_code == 404
        switch.write_text("cut_streams:2")
        assert running.complete(stream=True).status_code == 200
        with pytest.raises(httpx.RemoteProtocolError):
            running.complete(stream=True)
        switch.write_text("hang")
        with pytest.raises(httpx.ReadTimeout):
            httpx.get(running.url + "/health", timeout=0.3)
        switch.write_text("")
        assert running.complete().status_code == 200


def test_die_after_kills_the_server_and_leaves_its_engine_like_vllm(python, tmp_path):
    with server(python, tmp_path, STANDIN_FAULT="die_after:2") as running:
        (engine,) = psutil.Process(running.process.pid).children()
        assert [running.complete().status_code for _ in range(2)] == [200, 200]
        with pytest.raises(httpx.TransportError):
            running.complete()
        assert running.process.wait(60) == -signal.SIGKILL
        assert engine.is_running() and engine.name() == "EngineCore"


def test_dead_engine_returns_503_then_exits_with_code_0(python, tmp_path, wait_for):
    with server(python, tmp_path) as running:
        (engine,) = psutil.Process(running.process.pid).children()
        assert "EngineCore" in engine.name()
        engine.kill()
        wait_for(lambda: running.get("/health").status_code == 503)
        assert running.process.wait(60) == 0
        assert diagnose(running.log).reason == "engine_died"


def test_term_ends_it_with_code_0_and_a_log_that_is_no_failure(python, tmp_path):
    with server(python, tmp_path) as running:
        engines = psutil.Process(running.process.pid).children()
        running.process.terminate()
        assert running.process.wait(60) == 0
        psutil.wait_procs(engines, 60)
        assert not any(engine.is_running() for engine in engines)
        assert diagnose(running.log, stop_requested=True) is None


def test_ignore_term_survives_sigterm(python, tmp_path):
    with server(python, tmp_path, STANDIN_FAULT="ignore_term") as running:
        running.process.terminate()
        time.sleep(0.3)
        assert running.get("/health").status_code == 200


def test_keep_alive_connection_serves_several_requests(python, tmp_path):
    with server(python, tmp_path) as running:
        connection = http.client.HTTPConnection("127.0.0.1", int(running.url.rpartition(":")[2]), timeout=60)
        for _ in range(2):
            connection.request("GET", "/health")
            assert connection.getresponse().read() == b""
        connection.close()
