"""Real vLLM and real Ray (CPU): the default configuration to its archive, each class of fault once, each end of a run.

Needs the requirements of the cpu lock (CPython 3.11 on x86_64, a pip that finds PyTorch's CPU build). Without them the tests skip with
the reason; with SERVEMARK_REQUIRE_REAL=1 they fail. The environment is built once, in the checkout's cache.
"""

from __future__ import annotations

import json
import os
import platform
import re
import signal
import subprocess
import sys
import tarfile
import tempfile
import time
from datetime import datetime
from pathlib import Path

import httpx
import jsonschema
import psutil
import pytest
import yaml
import zstandard

from builders import hub_cache
from integration.harness import ROOT, Checkout, wait_until
from servemark import verification
from servemark.measurement.ledger import is_keepable
from servemark.records import ALL_RECORDS, Measurement
from servemark.records.schemas import record_schema

pytestmark = [pytest.mark.real, pytest.mark.timeout(900)]
CACHE = ROOT / "results" / "cache"
TINY = {
    "model": "tiny",
    "environment": "cpu",
    "options": {"max-model-len": 512, "enforce-eager": True, "dtype": "bfloat16"},
    "variables": {"VLLM_CPU_KVCACHE_SPACE": "1"},
}


@pytest.fixture(autouse=True)
def _short_runtime(fresh):
    """Ray's socket paths lie below the runtime folder and may have at most 107 bytes."""
    with tempfile.TemporaryDirectory(prefix="sm", dir="/tmp") as folder:
        fresh.runtime = Path(folder)
        yield
        for process in fresh.processes():
            process.kill()


@pytest.fixture(scope="session", autouse=True)
def _possible():
    if sys.version_info[:2] == (3, 11) and platform.machine() == "x86_64":
        return
    reason = "the cpu lock is for CPython 3.11 on x86_64"
    if os.environ.get("SERVEMARK_REQUIRE_REAL") == "1":
        pytest.fail(reason)
    pytest.skip(reason)


def real(base: Checkout, deployments: dict, **workload) -> dict:
    """Return a configuration of real deployments with one workload of some seconds a point."""
    config = {
        "run": base.config["run"],
        "models": {"tiny": {"source": "builtin:tiny-dense"}},
        "environments": {"cpu": {"lock": "cpu"}},
        "deployments": deployments,
        "workloads": {"chat": {"dataset": "random", "input_tokens": 32, "output_tokens": 32, "requests": 600, "concurrency": 2} | workload},
        "cache": str(CACHE),
        "timeouts": {"start": 240.0, "no_progress": 6.0, "stop": 10.0},
    }
    return config


def validate_records(results: Path) -> int:
    """Validate every record of a run against its schema; return their number."""
    schemas = {record.KIND: record_schema(record) for record in ALL_RECORDS}
    count = 0
    for path in results.rglob("*.json"):
        data = json.loads(path.read_text())
        if isinstance(data, dict) and data.get("kind") in schemas:
            jsonschema.validate(data, schemas[data["kind"]])
            count += 1
    return count


def logged_at(words: str, log: str) -> datetime:
    """Return the time stamp of the first line of vLLM with these words, in a leap year."""
    return datetime.strptime("2004-" + re.search(rf"INFO (\S+ \S+) .*{words}", log)[1], "%Y-%m-%d %H:%M:%S")


def test_default_run_completes_after_crash_and_interruption(fresh, tmp_path):
    """kill -9 while vLLM loads over Ray, SIGTERM while a point is measured, then a plain run to the end."""
    config = yaml.safe_load((ROOT / "config" / "config.yaml").read_text())
    # Both deployments, two of the three concurrencies, one repetition; the rest of the default repeats these.
    # The second point, which is interrupted, takes several seconds also on a fast machine.
    config["workloads"]["chat"] |= {"concurrency": [1, 8], "requests": [32, 96], "repetitions": 1}
    fresh.config = config | {"run": fresh.config["run"], "cache": str(CACHE)}
    over_ray = f"results/{fresh.config['run']}/deployments/ray-tp2/stopped.json"

    loading = fresh.start("--", over_ray)
    fresh.wait_for_progress("placement group", subject="ray-tp2", seconds=400)
    loading.interrupt(signal.SIGKILL)
    fresh.assert_all_dead()

    measuring = fresh.start("--", over_ray)
    fresh.wait_for_progress("chat-c8-r1: 96 requests", subject="ray-tp2", seconds=300)
    time.sleep(1)  # the client runs
    measuring.interrupt(signal.SIGTERM)
    assert measuring.wait(20).rc != 0
    fresh.assert_all_dead()
    assert list(fresh.points("ray-tp2")) == ["chat-c1-r1"]
    first = Measurement.read(fresh.results / "deployments/ray-tp2/points/chat-c1-r1.json")

    done = fresh.run(seconds=600)
    assert done.rc == 0, done.text
    again = fresh.started_at("ray-tp2")["chat-c1-r1"] != first.started_at
    # On a busy machine the server may stand still for seconds. Such a point is measured again, and no other one.
    assert again == (not is_keepable(first)), (first.verdict, first.reasons)
    rows = fresh.rows()
    assert len(rows) == 4
    assert {row["verdict"] for row in rows.values()} <= {"VALID", "SUSPECT"}
    assert all(float(row["output_tokens_per_s"]) > 0 and float(row["ttft_p50_ms"]) > 0 for row in rows.values())
    assert validate_records(fresh.results) >= 4 + 2 * 3 + 4
    assert "report.html" in done.text and "tok/s" in done.text, "the table's main lines and where the report is"

    for name in ("plain", "ray-tp2"):
        startup = fresh.record(f"deployments/{name}/startup.json")
        assert startup["observed"]["kv_cache_tokens"] > 0
        assert startup["differences"]["kv_cache_tokens"] == pytest.approx(1.0, abs=0.02), "planned against logged"
        phases = sum(phase["seconds"] for phase in startup["phases"])
        assert phases == pytest.approx(startup["seconds_to_health"], abs=0.01)
        assert fresh.record(f"deployments/{name}/stopped.json")["failure"] is None
        # 9 s and more without the description of the model class that check_environment makes.
        log = (fresh.attempts(name)[-1] / "server.log").read_text()
        began, resolved = (logged_at(words, log) for words in ("non-default args", "Resolved architecture"))
        assert (resolved - began).total_seconds() < 5
    assert list(CACHE.glob("model-classes-*/*/Qwen3ForCausalLM/modelinfos/*.json"))
    ray = fresh.attempts("ray-tp2")[-1]
    (node,) = json.loads((ray / "ray-head.nodes.json").read_text())["nodes"]
    assert node["devices"] == 2
    log = (ray / "server.log").read_text()
    assert "Connected to Ray cluster" in log and "world_size=2" in log, "the real Ray executor, two ranks"

    archive = next((fresh.results / "archive").glob("*.tar.zst"))
    with archive.open("rb") as stream, zstandard.ZstdDecompressor().stream_reader(stream) as plain:
        with tarfile.open(fileobj=plain, mode="r|") as tar:
            tar.extractall(tmp_path / "unpacked", filter="data")
    (top,) = (tmp_path / "unpacked").iterdir()
    checked = subprocess.run(["sha256sum", "-c", "--quiet", "manifest-sha256.txt"], cwd=top, capture_output=True, text=True)
    assert checked.returncode == 0, checked.stdout + checked.stderr
    # Only a real environment shows whether its records agree: its builds name their versions in several forms.
    assert verification.verify(archive).wrong == ()
    fresh.assert_all_dead()


@pytest.mark.faults
def test_faults_of_live_servers_spare_the_healthy_deployment(fresh, tmp_path):
    """API server killed, engine killed, server stopped, exit at start, requests refused: one deployment each, one run.

    The model is a snapshot of a Hugging Face cache, a folder of links, with a served name as on the hub.
    """
    # A different seed each: the ledger key holds a deployment's properties, not its name.
    deployments = {
        name: TINY | {"options": TINY["options"] | {"seed": seed}}
        for seed, name in enumerate(("killed", "engine", "frozen", "refused", "healthy"))
    }
    deployments["refused"]["options"]["max-model-len"] = 100_000
    # The model's own length, 4096. With max_model_len set, a longer workload would be refused before anything starts.
    del deployments["healthy"]["options"]["max-model-len"]
    fresh.config = real(fresh, deployments)
    snapshot = hub_cache.make(tmp_path / "hub")
    fresh.config["models"]["tiny"] = {"source": str(snapshot), "served_name": hub_cache.REPOSITORY}
    # Longer than the server accepts: every response is 400, and the client exits with 0.
    fresh.config["workloads"]["toolong"] = fresh.config["workloads"]["chat"] | {
        "input_tokens": 4200,
        "requests": 8,
    }
    for name in ("killed", "engine", "frozen", "refused"):
        fresh.config["deployments"][name] = deployments[name] | {"workloads": ["chat"]}
    running = fresh.start()
    waiting = {"killed", "engine", "frozen"}
    while waiting:
        name = wait_until(lambda: next((n for n in waiting if busy(fresh, n)), None), 400, f"one of {waiting} measures")
        server = psutil.Process(fresh.daemon(name)["pid"])
        if name == "engine":
            engines = [p for p in server.children(recursive=True) if "EngineCore" in " ".join([p.name(), *p.cmdline()])]
            assert engines, [p.name() for p in server.children(recursive=True)]
            engines[0].kill()
        else:
            server.send_signal(signal.SIGKILL if name == "killed" else signal.SIGSTOP)
        waiting.discard(name)
    done = running.wait(600)
    assert done.rc == 1
    reasons = {name: {reason["code"] for reason in record["reasons"]} for name, record in fresh.rejected().items()}
    assert "server_died" in reasons["killed/chat-c2-r1.1"]
    assert "server_died" in reasons["engine/chat-c2-r1.1"]
    assert "server_hung" in reasons["frozen/chat-c2-r1.1"]
    assert "requests_failed" in reasons["healthy/toolong-c2-r1.1"]
    failure = fresh.rejected()["refused/chat-c2-r1.1"]["failure"]
    assert failure["stage"] == "await_ready"
    assert any("max_model_len" in line or "max-model-len" in line for line in failure["quote"]), failure
    assert failure["remedy"]
    rows = fresh.rows()
    assert rows["healthy", "chat-c2-r1"]["verdict"] in ("VALID", "SUSPECT")
    assert fresh.record("models/tiny/manifest.json")["path"] == str(snapshot)
    assert hub_cache.REPOSITORY in fresh.points("healthy")["chat-c2-r1"]["client_argv"]
    for key, row in rows.items():
        if key != ("healthy", "chat-c2-r1"):
            assert (row["verdict"], row["output_tokens_per_s"], row["ttft_p50_ms"]) == ("INVALID", "", ""), key
    assert "server_hung" in fresh.report() and failure["quote"][0][:40] in done.text + fresh.report()
    fresh.assert_all_dead()


def busy(checkout: Checkout, deployment: str, above: int = 300) -> bool:
    """Return whether this deployment's server has generated more than ``above`` tokens (warm-ups and probe have fewer)."""
    attempts = checkout.attempts(deployment)
    if not attempts or not (attempts[-1] / "daemons" / "server.json").exists():
        return False
    daemon = checkout.daemon(deployment)
    key = attempts[-1] / "api-key"
    if daemon["ended_at"] or not key.exists():
        return False
    url = f"http://127.0.0.1:{daemon['argv'][daemon['argv'].index('--port') + 1]}/metrics"
    try:
        text = httpx.get(url, headers={"Authorization": f"Bearer {key.read_text()}"}, timeout=2, trust_env=False).text
    except (httpx.HTTPError, OSError):
        return False
    tokens = [float(line.split()[-1]) for line in text.splitlines() if line.startswith("vllm:generation_tokens_total")]
    return sum(tokens) > above
