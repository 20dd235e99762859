"""A search on the stand-in, whose capacity is known: trials, result, report, archive, and an interrupted search that continues."""

from __future__ import annotations

import signal
import subprocess
import sys
from dataclasses import replace

from integration.harness import RUN, Checkout
from servemark import verification
from servemark.records import Search
from servemark.report import gather
from servemark.verification import searches

CAPACITY, PACE_MS = 2, 60
# The stand-in needs 60 ms for a token of up to 2 requests, and 240 ms at 8 requests: the boundary is at 6. A load is decided by its first
# trial only below 180/1.25 = 144 ms, so that a busy machine may add 84 ms at the concurrency 1 and 24 ms at 4.
SERVER = {"STANDIN_CAPACITY": str(CAPACITY), "STANDIN_TOKEN_S": str(PACE_MS / 1000)}
# At a request rate, requests in flight vary: more of them than on average must not reach the target.
PACED_SERVER = {"STANDIN_CAPACITY": "4", "STANDIN_TOKEN_S": "0.08"}
TRUTH, TARGET_MS, TRIALS = 6, 180, 10


def ask(checkout: Checkout) -> None:
    checkout.keep("a")
    chat = {"dataset": "random", "input_tokens": 8, "output_tokens": 4, "requests": 12, "warmups": 1}
    chat["concurrency"] = {"search": {"from": 1, "to": 16, "trials": TRIALS}}
    checkout.config["workloads"] = {"chat": chat}
    checkout.config["slo"] = {"tpot_ms": {"p50": TARGET_MS}}


def search(checkout: Checkout, workload: str = "chat") -> Search:
    return Search.read(Search.path(checkout.results / "deployments" / "a", workload))


def test_search_finds_the_boundary_and_continues_after_a_kill(checkout: Checkout):
    ask(checkout)
    running = checkout.start(**SERVER)
    checkout.wait_for_progress("chat-c4-r1: ")
    running.interrupt(signal.SIGKILL)
    running.wait(120)
    checkout.assert_all_dead()
    before = checkout.started_at("a")
    assert {"chat-c1-r1", "chat-c16-r1"} <= set(before) and not (checkout.results / "report.html").exists()

    done = checkout.run(**SERVER)
    assert done.rc == 0, done.text
    found = search(checkout)
    # A busy machine may repeat a load, but it does not change the order of the loads.
    assert list(dict.fromkeys(trial.value for trial in found.trials))[:3] == [1, 16, 4] and len(found.trials) <= TRIALS, found
    assert found.meets is not None and found.misses is not None and found.meets <= TRUTH < found.misses + 1
    after = checkout.started_at("a")
    assert {name: after[name] for name in before} == before, "the trials of the killed run come from the ledger"
    names = [trial.point.load.name for trial in found.trials]
    assert {name for _, name in checkout.rows()} == set(names)
    assert f"meets at {found.meets:g}" in checkout.report()
    archived = checkout.archived()
    assert "deployments/a/searches/chat/search.json" in archived
    assert {f"deployments/a/points/{name}.json" for name in names} <= set(archived)
    verified = verification.verify(checkout.results / "archive" / f"{RUN}.tar.zst")
    assert verified.wrong == () and verified.measurements == len(names)

    run = gather.read(checkout.results)
    assert list(searches.check(run)) == []
    for other in ({"meets": found.misses}, {"trials": found.trials[:-1]}, {"targets": {"tpot_ms": {"p50": 2.0 * TARGET_MS}}}):
        changed = replace(run, searches={"a": [found.model_copy(update=other)]})
        assert list(searches.check(changed)) != [], other

    # Nothing runs again; without the file of a trial the search is made from the ledger.
    assert checkout.foretold() == set()
    (checkout.results / "deployments" / "a" / "points" / f"{names[-1]}.json").unlink()
    again = checkout.run(**SERVER)
    assert again.rc == 0, again.text
    assert search(checkout) == found and len(checkout.attempts("a")) == 2, "no server was started"

    # A trial that is set aside is measured again; the others come from the ledger.
    command = [sys.executable, "-m", "servemark.cli", "remeasure", RUN, "a/chat-c16-r1"]
    assert subprocess.run(command, cwd=checkout.path, timeout=180).returncode == 0
    again = checkout.run(**SERVER)
    assert again.rc == 0, again.text
    last = checkout.started_at("a")
    assert last["chat-c16-r1"] > after["chat-c16-r1"] and last["chat-c1-r1"] == after["chat-c1-r1"]


def test_failure_in_a_trial_is_a_gap_and_overload_is_a_miss(checkout: Checkout):
    ask(checkout)
    chat = checkout.config["workloads"]["chat"]
    listed = {**chat, "concurrency": [2], "requests": 6}
    rate = {"search": {"from": 5, "to": 200, "trials": 5}}
    paced = {name: value for name, value in chat.items() if name != "concurrency"} | {"request_rate": rate, "requests": 20}
    checkout.config["workloads"] = {"paced": paced, "chat": chat, "listed": listed}
    checkout.inject("none")
    running = checkout.start(**PACED_SERVER)
    checkout.wait_for_progress("paced-q200-r1: ")
    checkout.inject("die_after:1")
    done = running.wait(480)
    assert done.rc == 1, done.text
    # The listed point comes first. The server died in a trial of the first search, so both searches ended with a gap.
    assert ("a", "listed-c2-r1") in checkout.rows()
    died, skipped = sorted(checkout.rejected(), reverse=True)
    assert died.startswith("a/paced-q") and skipped == "a/chat-c1-r1.1"
    assert search(checkout, "paced").ended == search(checkout).ended == "invalid"

    checkout.inject("fail_requests:2")
    done = checkout.run(**PACED_SERVER)
    assert done.rc == 0, done.text
    found = search(checkout, "paced")
    decisions = {trial.value: trial.decision for trial in found.trials}
    assert (decisions[5], decisions[200], found.meets, found.asked.variable) == ("meets", "misses", 5, "request_rate")
    overloaded = {trial.point.load.name for trial in found.trials if trial.verdict == "INVALID"}
    assert (search(checkout).ended, search(checkout).misses) == ("from_misses", 1)
    assert overloaded and {hole["point"] for hole in checkout.record("check.json")["holes"]} == overloaded | {"chat-c1-r1"}
    assert "misses at 1" in (checkout.results / "summary.txt").read_text()
    assert verification.verify(checkout.results / "archive" / f"{RUN}.tar.zst").wrong == ()

    # Other targets: the search and what depends on it, and no plan.
    assert checkout.foretold() == set()
    checkout.config["slo"] = {"tpot_ms": {"p50": 2 * TARGET_MS}}
    jobs = checkout.foretold()
    assert "search/a" in jobs and not any(job.startswith("plan_deployment") for job in jobs)


def test_search_without_targets_is_refused(checkout: Checkout):
    ask(checkout)
    del checkout.config["slo"]
    done = checkout.run()
    assert done.rc == 2 and "workloads.chat.concurrency" in done.text, done.text
