"""Endpoints for users: they start, print how to use them, appear in `servemark status`, and leave nothing behind."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import tarfile
import time
from pathlib import Path

import httpx
import pytest

from integration.harness import RUN, Checkout, Running, copy_living, wait_until
from servemark.deployment import how_to_use

# hold_endpoint detects the end of its deployment within a tick; the server has 3 s to end; Snakemake takes a moment.
STOPPED_S = 60.0
# Pause between two calls of `servemark status`, each of which takes 0.7 s of CPU time.
STATUS_S = 1.0


@pytest.fixture
def only_a(checkout: Checkout) -> Checkout:
    checkout.keep("a")
    return checkout


def held_target(deployment: str) -> str:
    return f"results/{RUN}/serving/{deployment}/held.json"


def endpoint(checkout: Checkout, deployment: str = "a") -> Path:
    return checkout.results / "serving" / deployment


def attempt(checkout: Checkout, deployment: str = "a") -> Path:
    return sorted((endpoint(checkout, deployment) / "attempts").glob("*"))[-1]


def serve(checkout: Checkout, *targets: str, seconds: float = 180, **variables: str) -> Running:
    """Start serving and wait until an endpoint is ready."""
    before = len(checkout.progress())
    running = checkout.start("--", *(targets or ["serve"]), **variables)

    def ready() -> bool:
        assert running.process.poll() is None, running.text
        return any("READY" in line["text"] for line in checkout.progress()[before:])

    wait_until(ready, seconds, "an endpoint is ready")
    return running


def servemark(checkout: Checkout, *arguments: str, seconds: float = 180) -> subprocess.CompletedProcess[str]:
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("SLURM_", "SERVEMARK_"))}
    return subprocess.run(
        [sys.executable, "-m", "servemark.cli", *arguments],
        cwd=checkout.path, env=kept | {"PYTHONPATH": str(checkout.path / "workflow" / "lib")},
        capture_output=True, text=True, timeout=seconds,
    )  # fmt: skip


def living(checkout: Checkout) -> list[dict]:
    done = servemark(checkout, "status", "--json")
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def complete(url: str, key: str | None, count: int = 4, model: str = "tiny") -> httpx.Response:
    headers = {"Authorization": f"Bearer {key}"} if key else {}
    body = {"model": model, "prompt": "Hello", "max_tokens": count}
    return httpx.post(f"{url}/v1/completions", json=body, headers=headers, timeout=60, trust_env=False)


def assert_nothing_left(checkout: Checkout) -> None:
    checkout.assert_all_dead()
    serving = checkout.results / "serving"
    left = [path for name in ("api-key", "ray-token", how_to_use.NAME) for path in serving.rglob(name)]
    left += [path for name in ("cluster", "endpoint", "ready") for path in serving.glob(f"*/{name}.json")]
    assert left == []
    assert "No active deployment" in servemark(checkout, "status").stdout


def test_endpoint_is_used_listed_stopped_and_served_again(only_a: Checkout):
    only_a.config["models"]["tiny"]["served_name"] = name = "openai/tiny-20b"
    running = serve(only_a)
    folder = endpoint(only_a)
    key_file = (attempt(only_a) / "api-key").resolve()
    key = key_file.read_text()
    assert key_file.stat().st_mode & 0o777 == 0o600

    page = (folder / how_to_use.NAME).read_text()
    url = re.search(r"^Address +(\S+)/v1", page, re.MULTILINE)[1]
    assert str(key_file) in page and key not in page
    assert f"servemark stop a --run {RUN}" in page and re.search(r"^ssh -N -L 8000:127\.0\.0\.1:\d+ ", page, re.MULTILINE)
    said = [line["text"] for line in only_a.progress() if line["stage"] == "hold_endpoint"]
    assert url in said[0] and any(how_to_use.NAME in text for text in said) and not any(key in text for text in said)

    assert complete(url, key, model=name).json()["usage"]["completion_tokens"] == 4
    listed = httpx.get(f"{url}/v1/models", headers={"Authorization": f"Bearer {key}"}, timeout=60, trust_env=False).json()
    assert [one["id"] for one in listed["data"]] == [name] and page.count(f'"{name}"') == 2
    assert {complete(url, given).status_code for given in (None, "wrong")} == {401}
    curl = re.search(r"^curl .*?\n\n", page, re.MULTILINE | re.DOTALL)[0]
    printed = subprocess.run(["bash", "-c", curl], capture_output=True, text=True, timeout=120)
    assert json.loads(printed.stdout)["choices"][0]["message"]["content"], printed.stderr

    (shown,) = living(only_a)
    assert (shown["run"], shown["deployment"], shown["purpose"], shown["state"]) == (RUN, "a", "held", "ready")
    assert (shown["url"], shown["sure"], shown["job_id"], shown["left_s"]) == (url, True, None, None)
    table = servemark(only_a, "status").stdout
    assert re.search(rf"^{RUN} +a +serving +\S+ +- +0:\d\d:\d\d +-", table, re.MULTILINE) and f"{url}/v1" in table

    unknown = servemark(only_a, "stop", "b")
    assert unknown.returncode == 2 and f"a (run {RUN}, serving)" in unknown.stderr
    begin = time.monotonic()
    stopped = servemark(only_a, "stop", "a")
    assert stopped.returncode == 0 and re.search(r"a ended after \d", stopped.stdout), stopped
    done = running.wait(STOPPED_S)
    assert done.rc == 0 and time.monotonic() - begin < STOPPED_S, done.text
    held = json.loads((folder / "held.json").read_text())
    assert held["why"] == "stop_requested" and held["leftovers"] == []
    assert json.loads((folder / "status.json").read_text())["state"] == "ended"
    assert_nothing_left(only_a)

    again = serve(only_a)
    assert len(list((folder / "attempts").glob("*"))) == 2, "a second request serves again"
    assert (attempt(only_a) / "api-key").read_text() != key
    again.interrupt(signal.SIGINT, group=True)
    assert again.wait(120).rc not in (0, -signal.SIGINT)
    assert_nothing_left(only_a)
    assert not (folder / "held.json").exists()
    assert not list((only_a.results / "deployments" / "a").glob("attempts")), "measuring is not affected"


def test_died_server_is_a_failure_with_its_cause(only_a: Checkout):
    running = serve(only_a)
    server = json.loads((attempt(only_a) / "daemons" / "server.json").read_text())
    os.kill(server["pid"], signal.SIGKILL)
    done = running.wait(480)
    assert done.rc == 1
    assert "The server died while serving: server" in done.text and "ended by signal 9" in done.text, done.text
    assert "Traceback" not in done.text
    failure = json.loads((attempt(only_a) / "failure.json").read_text())
    assert (failure["stage"], failure["log"]) == ("hold_endpoint", server["log"])
    assert not (endpoint(only_a) / "held.json").exists()
    assert_nothing_left(only_a)

    ticket = servemark(only_a, "ticket", RUN, "-o", "ticket.tar.gz")
    assert ticket.returncode == 0, ticket.stderr
    with tarfile.open(only_a.path / "ticket.tar.gz") as tar:
        text = "\n".join(tar.extractfile(entry).read().decode() for entry in tar)
    for fact in (
        "serving/a, attempt 001",
        "FAILED in hold_endpoint",
        "ended by signal 9",
        "0.0.0+standin",
        "Starting to load model",
    ):
        assert fact in text, fact


def test_server_that_does_not_start_is_a_failure_and_leaves_nothing(only_a: Checkout):
    only_a.inject("exit_at_start")
    done = only_a.run("--", held_target("a"))
    assert done.rc == 1
    assert re.search(r"a +hold_endpoint +failed: The server did not start", done.text), done.text
    assert "what to do:" in done.text
    assert_nothing_left(only_a)


def test_killed_main_process_ends_the_endpoint_and_next_one_starts(only_a: Checkout):
    running = serve(only_a)
    running.interrupt(signal.SIGKILL)
    running.wait(120)
    only_a.assert_all_dead()
    assert "No active deployment" in servemark(only_a, "status").stdout
    again = serve(only_a)
    assert servemark(only_a, "stop", "a", "--run", RUN).returncode == 0
    assert again.wait(STOPPED_S).rc == 0
    assert_nothing_left(only_a)


def test_several_endpoints_on_one_machine_are_refused_with_targets(checkout: Checkout):
    for targets in (["serve"], [held_target("a"), held_target("b")]):
        done = checkout.run("--", *targets)
        assert done.rc == 2
        assert "one deployment at a time" in done.text and held_target("b") in done.text
    running = serve(checkout, held_target("b"))
    assert [(one["deployment"], one["purpose"]) for one in living(checkout)] == [("b", "held")]
    assert servemark(checkout, "stop", "b").returncode == 0
    assert running.wait(STOPPED_S).rc == 0
    assert_nothing_left(checkout)


def test_measured_deployment_is_listed_and_stopped(only_a: Checkout):
    # Slow enough that both commands end before the first point does, also on a busy machine.
    only_a.config["timeouts"]["point"] = 300.0
    running = only_a.start(STANDIN_TOKEN_S="2.0")
    only_a.wait_for_progress("chat-c1-r1: 6 requests")
    (shown,) = living(only_a)
    assert (shown["deployment"], shown["purpose"]) == ("a", "measured")
    assert shown["state"].startswith("measure: chat-c1-r1: 6 requests")
    assert servemark(only_a, "stop", "a").returncode == 0
    done = running.wait(480)
    assert done.rc == 1
    rejected = only_a.rejected()
    assert {name: record["failure"]["reason"] for name, record in rejected.items()} == {
        "a/chat-c1-r1.1": "stop_requested", "a/chat-c2-r1.1": "stop_requested",
    }  # fmt: skip
    only_a.assert_all_dead()


# test_runs_in_two_checkouts_do_not_disturb_each_other has a run that waits for the machine.
@pytest.mark.full
def test_deployment_that_waits_for_the_machine_can_be_stopped(checkouts):
    first, second = checkouts(), checkouts()
    for each in (first, second):
        each.keep("a")
    holding = serve(first)
    waiting = second.start("--", "serve")
    wait_until(lambda: [one for one in living(second) if "waiting for the machine" in one["state"]], 180, "it waits")
    assert "in use by deployment a" in living(second)[0]["state"]
    assert servemark(second, "stop", "a").returncode == 0
    assert waiting.wait(STOPPED_S).rc == 0, "stopped on request, although it never started"
    assert json.loads((endpoint(second) / "held.json").read_text())["why"] == "stop_requested"
    assert servemark(first, "stop", "a").returncode == 0
    assert holding.wait(STOPPED_S).rc == 0
    assert_nothing_left(first)


def test_requests_in_flight_are_counted_and_hanging_server_is_listed_and_stopped(only_a: Checkout):
    only_a.inject("none")
    running = serve(only_a, STANDIN_TOKEN_S="0.3")
    headers = {"Authorization": f"Bearer {(attempt(only_a) / 'api-key').read_text()}"}
    url = living(only_a)[0]["url"]
    body = {"model": "tiny", "prompt": "Hello", "max_tokens": 400, "stream": True}
    # It would take two minutes. The end of the block closes the connection.
    with httpx.stream("POST", f"{url}/v1/completions", json=body, headers=headers, timeout=60, trust_env=False):
        wait_until(lambda: living(only_a)[0]["running"] == 1, 100, "one runs", every=STATUS_S)
    wait_until(lambda: living(only_a)[0]["running"] == 0, 60, "none runs", every=STATUS_S)

    only_a.inject("hang")
    wait_until(lambda: living(only_a)[0]["state"] == "does not respond on /metrics", 180, "it is silent", every=STATUS_S)
    only_a.wait_for_progress("does not respond on /metrics", subject="a")
    assert servemark(only_a, "stop", "a").returncode == 0
    assert running.wait(STOPPED_S).rc == 0
    assert_nothing_left(only_a)


def test_copied_checkout_does_not_stop_the_originals_endpoint(only_a: Checkout):
    running = serve(only_a)
    (shown,) = living(only_a)
    copy = Checkout(only_a.path.with_name("copy"), only_a.runtime, only_a.config)
    copy_living(only_a.path, copy.path)
    assert living(copy) == []
    assert servemark(copy, "stop", "a").returncode == 2
    begun = copy.start("--", "serve")
    try:
        wait_until(lambda: any("waiting for the machine" in line["text"] for line in copy.progress()), 180, "it waits its turn")
        assert "is a copy" in begun.text
    finally:
        begun.interrupt(signal.SIGINT, group=True)
    begun.wait(120)
    assert running.process.poll() is None and living(only_a)[0]["url"] == shown["url"]
    key = (attempt(only_a) / "api-key").read_text()
    assert complete(shown["url"], key).status_code == 200
    assert servemark(only_a, "stop", "a").returncode == 0
    assert running.wait(STOPPED_S).rc == 0
    for checkout in (only_a, copy):
        assert_nothing_left(checkout)
