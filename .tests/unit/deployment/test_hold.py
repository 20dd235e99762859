"""Serving an endpoint: request counts, messages, its end, and the main process before it."""

from __future__ import annotations

import ast
import json
import re
import shlex
import time
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import httpx
import pytest

from builders.deployed import stage_context
from builders.endpoint import FACTS, NAME, RUN
from servemark import supervisor
from servemark.deployment import attempts, hold, how_to_use
from servemark.deployment.hold import Holding, Usage
from servemark.deployment.watch import Load
from servemark.errors import ConfigError, StageFailed
from servemark.processes import identity as processes
from servemark.records import (
    Cluster,
    EndpointStatus,
    Failure,
    Node,
    Plan,
    Ready,
    ServerPlace,
    Stopped,
    Topology,
    write_atomically,
)
from servemark.run import serve
from servemark.supervisor import SupervisorSpec, SupervisorState


def answers(*given: Load | Exception):
    """A scrape that returns these results one after another."""
    left = list(given)

    def scrape() -> Load:
        answer = left.pop(0)
        if isinstance(answer, Exception):
            raise answer
        return answer

    return scrape


def load(finished: int, running: int = 0) -> Load:
    return Load(generated=0.0, open_requests=running, finished=finished)


def test_usage_counts_over_all_servers_since_first_reading():
    silent = httpx.ConnectError("no")
    usage = Usage(
        {
            "server-r0": answers(load(2), load(5, 1), load(6)),
            "server-r1": answers(silent, load(9, 2), silent),
        }
    )
    usage.read()
    assert (usage.finished, usage.running, usage.silent) == (0, 0, ("server-r1",))
    usage.read()
    assert (usage.finished, usage.running, usage.silent) == (3, 3, ())
    usage.read()
    assert (usage.finished, usage.running, usage.silent) == (4, 0, ("server-r1",))


def test_how_to_use_has_everything_that_a_user_needs():
    page = how_to_use.page(replace(FACTS, servers=("http://10.1.0.7:20004", "http://10.1.0.8:20004")))
    quoted = shlex.quote(str(FACTS.key_file))
    for fact in (
        "http://10.1.0.7:20003/v1",
        str(FACTS.key_file),
        f'OPENAI_API_KEY="$(cat {quoted})"',
        "ssh -N -L 8000:10.1.0.7:20003 alice@LOGIN",
        "http://localhost:8000/v1",
        f"servemark stop {NAME} --run {RUN}",
        "/shared/checkout",
        "node07",
        "2027-01-15",
        "http://10.1.0.7:20003/v1/models",
        "http://10.1.0.7:20004/metrics, http://10.1.0.8:20004/metrics",
    ):
        assert fact in page, fact


def test_how_to_use_on_one_machine_has_no_login_node_and_no_end():
    page = how_to_use.page(replace(FACTS, scheduled=False, ends_at=None, url="http://127.0.0.1:20003"))
    assert "LOGIN" not in page and "alice@node07" in page and "2027-01-15" not in page


def test_how_to_use_lists_what_the_key_does_not_protect():
    shown = how_to_use.page(replace(FACTS, exposed=("Ranks on 2 nodes exchange prompts without a key.",)))
    assert "Ranks on 2 nodes" in shown and "/shared/checkout/docs/security.md" in shown
    assert "HTTP" in shown and "HTTP" not in how_to_use.exposed(replace(FACTS, scheduled=False))


@pytest.mark.parametrize(
    ("chat", "route", "call", "printed"),
    [
        (False, "completions", "client.completions.create", "response.choices[0].text"),
        (True, "chat/completions", "client.chat.completions.create", "response.choices[0].message.content"),
    ],
)
def test_how_to_use_has_complete_examples_for_the_route_of_the_model(chat, route, call, printed):
    page = how_to_use.page(replace(FACTS, chat=chat))
    (curl,) = re.findall(r"^curl .*?\n\n", page, re.MULTILINE | re.DOTALL)
    words = shlex.split(curl.replace("@<(", "'@<(").replace(')") \\', ")\")' \\"))
    assert f"{FACTS.url}/v1/{route}" in words and json.loads(words[-1]).keys() == {
        "model",
        "max_tokens",
        "messages" if chat else "prompt",
    }
    code = page.partition(f"{how_to_use.PYTHON_BEGIN}\n")[2].partition(how_to_use.PYTHON_END)[0]
    calls = {ast.unparse(node.func): node for node in ast.walk(ast.parse(code)) if isinstance(node, ast.Call)}
    assert call in calls and ast.unparse(calls["print"].args[0]) == printed
    assert {ast.unparse(word.value) for word in ast.walk(ast.parse(code)) if isinstance(word, ast.keyword)} >= {
        repr(f"{FACTS.url}/v1"),
        f"Path({FACTS.key_file!r}).read_text().strip()",
        repr(FACTS.served_name),
    }


def test_no_command_puts_the_key_on_a_command_line():
    """A shell expands `-H "Authorization: Bearer $KEY"` before curl starts, and other users see curl's arguments."""
    page = how_to_use.page(FACTS)
    headers = [line for line in page.splitlines() if "Bearer" in line]
    assert headers and all("-H @<(echo " in line for line in headers)


# One deployment with a supervisor's files but no supervisor: the states are given.


class Place:
    """Files of a ready deployment below ``root``."""

    def __init__(self, root: Path, told, monkeypatch):
        self.folder = root / "results" / RUN / "serving" / NAME
        self.told = told
        self.model = root / "model"
        self.model.mkdir()
        self.attempt = attempts.new(self.folder)
        spec = SupervisorSpec(
            deployment=NAME,
            lifeline=str(processes.myself()),
            machine_lock=None,
            tokens=(),
            scratch=str(root / "scratch"),
            ends_at=1_800_000_030.0,
        )
        write_atomically(self.attempt / "supervisor-spec.json", spec.model_dump_json())
        self.key = attempts.secret(self.attempt, "api-key")
        self.stopped = 0
        monkeypatch.setattr(hold, "stop", self._stop)
        monkeypatch.setattr(hold, "scraper", lambda *_: lambda: load(0))
        monkeypatch.setattr(hold, "TICK_S", 0.0)

    def _stop(self, plan, folder, **_) -> Stopped:
        self.stopped += 1
        supervisor.remove_secrets(self.attempt)
        return Stopped(deployment=NAME, leftovers=("7 a process",))

    def says(self, state: str, why: str | None = None, alive: bool = True) -> None:
        identity = processes.myself() if alive else processes.Identity(1, 1)
        text = SupervisorState(state=state, identity=str(identity), deployment=NAME, why=why).model_dump_json()
        write_atomically(self.attempt / "supervisor.json", text)

    def holding(self, failure: Failure | None = None) -> Holding:
        node = Node(
            name="node07", host="node07", address="10.1.0.7", interface="hsn0", devices=1, cpu_count=1, memory_gib=1.0,
            shm_gib=1.0, python="3.11", vllm="0",
        )  # fmt: skip
        ready = Ready(
            deployment=NAME,
            failure=failure,
            attempt=str(self.attempt),
            url="http://10.1.0.7:20003",
            served_name="tiny",
            key_file=str(self.key),
            servers=(ServerPlace(replica="r0", daemon="server", node="node07", url="http://10.1.0.7:20003"),),
            ends_at="2027-01-15T08:00:30+00:00",
        )
        plan = Plan(
            deployment=NAME, model="tiny", environment="e", model_digest="m", environment_digest="e", served_name="tiny",
            topology=Topology(), options={}, variables={}, points=(), key_parts={},
        )  # fmt: skip
        cluster = Cluster(deployment=NAME, job_id="42", nodes=(node,))
        context = stage_context(self.folder, self.told, plan, manifest=SimpleNamespace(path=str(self.model)))
        return Holding(context, cluster, ready)

    @property
    def status(self) -> EndpointStatus:
        return EndpointStatus.read(self.folder / how_to_use.STATUS)


@pytest.fixture
def place(tmp_path, told, monkeypatch) -> Place:
    return Place(tmp_path, told, monkeypatch)


@pytest.mark.parametrize("why", ["stop_requested", "out_of_time"])
def test_endpoint_is_served_until_supervisor_ends(place, monkeypatch, why):
    place.says("running")
    seen = []
    (place.model / "chat_template.jinja").write_text("{{ messages }}")

    def a_beat_later(_: float) -> None:
        seen.append((place.status, (place.folder / how_to_use.NAME).read_text()))
        place.says("ending", why)

    monkeypatch.setattr(hold, "time", SimpleNamespace(monotonic=time.monotonic, sleep=a_beat_later))
    held = place.holding().run()
    ((status, page),) = seen
    assert "/v1/chat/completions" in page and "http://10.1.0.7:20003/metrics" in page
    assert (status.state, status.job_id, status.nodes) == ("held", "42", ("node07",))
    assert status.ends_at == "2027-01-15T08:00:00+00:00", "the supervisor ends it before the allocation's end"
    assert (held.why, held.leftovers, held.since is not None) == (why, ("7 a process",), True)
    assert (place.status.state, place.status.why) == ("ended", why)
    assert place.stopped == 1 and not place.key.exists() and not (place.folder / how_to_use.NAME).exists()
    assert place.told.words[0].startswith("READY  http://10.1.0.7:20003/v1")


def test_killed_supervisor_is_failure(place):
    place.says("running", alive=False)
    with pytest.raises(StageFailed) as caught:
        place.holding().run()
    assert caught.value.reason == "server_died"
    assert place.stopped == 1 and attempts.noted_failure(place.attempt).stage == "hold_endpoint"


@pytest.mark.parametrize(("reason", "well"), [("stop_requested", True), ("out_of_time", True), ("server_exited", False)])
def test_failed_start_is_error_unless_stopped_on_request(place, reason, well):
    failure = Failure(stage="await_ready", reason=reason, detail="It has ended.", quote=("ValueError: no",), remedy="Fix it.")
    holding = place.holding(failure)
    if well:
        held = holding.run()
        assert (held.why, held.since) == (reason, None)
    else:
        with pytest.raises(StageFailed) as caught:
            holding.run()
        assert (caught.value.reason, caught.value.what, caught.value.do) == (reason, failure.detail, failure.remedy)
        assert all(any(part in text for text in place.told.words) for part in (*failure.quote, failure.remedy))
    assert place.stopped == 1


def test_interruption_removes_how_to_use_and_records_the_end(place, monkeypatch):
    place.says("running")

    def interrupt(_: float) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(hold, "time", SimpleNamespace(monotonic=time.monotonic, sleep=interrupt))
    with pytest.raises(KeyboardInterrupt):
        place.holding().run()
    assert place.status.state == "ended" and not (place.folder / how_to_use.NAME).exists()


# The main process


ONE, OTHER = serve.target(RUN, "plain"), serve.target(RUN, "ray-tp2")
BOTH = ["plain", "ray-tp2"]


@pytest.mark.parametrize(
    ("deployments", "words", "refused"),
    [
        (BOTH, ["--cores", "2"], False),
        (BOTH, [ONE], False),
        (BOTH, [f"./{ONE}"], False),
        (["plain"], ["serve"], False),
        (BOTH, ["--configfile", "my.yaml", "--", "serve"], True),
        (BOTH, [ONE, OTHER], True),
        (BOTH, [ONE, serve.target("another-run", "ray-tp2")], False),
    ],
)
def test_one_machine_serves_one_deployment_at_a_time(deployments, words, refused):
    if not refused:
        serve.refuse_several(RUN, deployments, words)
        return
    with pytest.raises(ConfigError) as caught:
        serve.refuse_several(RUN, deployments, words)
    assert ONE in caught.value.do and OTHER in caught.value.do and caught.value.exit_code == 2


def test_new_run_removes_records_of_earlier_endpoints(tmp_path, monkeypatch):
    at_exit = []
    monkeypatch.setattr(serve.atexit, "register", lambda *call: at_exit.append(call))
    folder = tmp_path / RUN / "serving" / NAME
    attempt = attempts.new(folder)
    key = attempts.secret(attempt, "api-key")
    left = [folder / name for name in ("held.json", "status.json", "ready.json", how_to_use.NAME)]
    for path in left:
        path.touch()
    serve.begin(tmp_path / RUN, BOTH, ["serve"], scheduled=True)
    assert not any(path.exists() for path in (*left, key)) and attempt.exists()
    again = attempts.secret(attempt, "api-key")
    ((tidy, *arguments),) = at_exit
    tidy(*arguments)
    assert not again.exists()


def test_several_on_one_machine_end_the_process_with_code_2(tmp_path, capsys):
    with pytest.raises(SystemExit) as caught:
        serve.begin(tmp_path / RUN, BOTH, ["serve"], scheduled=False)
    assert caught.value.code == 2 and ONE in capsys.readouterr().err
