"""Refusals before anything is started: a faulty configuration, a second run in the same checkout."""

from __future__ import annotations

import signal
import subprocess

import pytest
import yaml

from integration.harness import SNAKEMAKE, Checkout


@pytest.mark.parametrize(
    ("place", "wrong", "right"),
    [
        ((), "deploymnets", "deployments"),
        (("workloads", "chat"), "concurency", "concurrency"),
        (("timeouts",), "no_progres", "no_progress"),
    ],
)
def test_misspelt_key_is_refused_with_line_and_suggestion(fresh: Checkout, place: tuple[str, ...], wrong: str, right: str):
    section = fresh.config
    for key in place:
        section = section[key]
    section[wrong] = section.pop(right)
    lines = yaml.safe_dump(fresh.config, sort_keys=False).splitlines()
    number = next(n for n, line in enumerate(lines, 1) if f"{wrong}:" in line)

    done = fresh.run()

    assert done.rc == 2, done.text
    assert f"my.yaml:{number}" in done.text and wrong in done.text and f"{right}" in done.text
    assert "did you mean" in done.text
    assert "Traceback" not in done.text
    assert not fresh.results.exists() and fresh.processes() == []
    assert not (fresh.path / ".snakemake" / "servemark-owner.json").exists()


HOSTILE: dict[str, tuple[bytes | None, str]] = {
    "missing": (None, "hostile.yaml "),
    "latin": (b"run: demo\ncache: \xe9\n", "hostile.yaml:2: "),
    "deep": (b"run: " + b"[" * 5000 + b"]" * 5000, "hostile.yaml:1:"),
    "own": (b"verdict: &a {x: *a}\n", "hostile.yaml:1:"),
    "bomb": (
        b"a0: &a0 {x: 1}\n"
        + b"".join(b"a%d: &a%d {%s}\n" % (n, n, b", ".join(b"k%d: *a%d" % (k, n - 1) for k in range(9))) for n in range(1, 30)),
        "hostile.yaml:",
    ),
    "digits": (b"run: demo\ncache: 1" + b"0" * 5000, "hostile.yaml:2:"),
    "list": (b"- a\n", "hostile.yaml:1: "),
    "empty": (b"", "hostile.yaml:1: "),
    "repetitions": (b"workloads:\n  chat:\n    repetitions: 1000000000\n", "hostile.yaml:3: workloads.chat.repetitions: "),
    "model": (b"models:\n  tiny:\n    source: ./model\n", "hostile.yaml:3: models.tiny.source: "),
}  # fmt: skip


@pytest.mark.parametrize("name", HOSTILE)
def test_hostile_file_is_refused_before_snakemake_reads_it(fresh: Checkout, name: str):
    content, expected = HOSTILE[name]
    if content is not None:
        (fresh.path / "hostile.yaml").write_bytes(content)
    (fresh.path / "model").mkdir()
    (fresh.path / "model" / "config.json").write_text('{"a":' * 3000)

    # The second --configfile overrides the first; Snakemake merges them.
    files = ["my.yaml", "hostile.yaml"] if name in ("repetitions", "model") else ["hostile.yaml"]
    done = fresh.run("--configfile", *files, *(["-n"] if name == "deep" else []))

    assert done.rc == 2, done.text[:2000]
    assert expected in done.text and "Traceback" not in done.text, done.text[:2000]
    assert not fresh.results.exists() and fresh.processes() == []


def test_hostile_default_configuration_is_refused(fresh: Checkout):
    (fresh.path / "config" / "config.yaml").write_text("run: " + "[" * 5000)
    done = subprocess.run([SNAKEMAKE, "--profile", "profiles/local"], cwd=fresh.path, capture_output=True, text=True, timeout=120)
    assert done.returncode == 2 and "config.yaml:1:" in done.stderr and "Traceback" not in done.stderr, done.stderr


def test_finished_run_does_not_need_its_deleted_model(measured: Checkout):
    """Writing a report again needs neither model nor environment."""
    measured.config["models"]["tiny"]["source"] = str(measured.path / "gone")
    done = measured.run("-n")
    assert done.rc == 0, done.text
    assert "do not match the configuration" not in done.text, "no record is outdated"


def test_second_run_is_refused_with_pid_of_the_first(checkout: Checkout):
    checkout.keep("a")
    first = checkout.start(STANDIN_TOKEN_S="0.1")
    checkout.wait_for_progress("chat-c1-r1: 6 requests")

    second = checkout.run()
    looking = checkout.run("-n")

    assert second.rc == 2 and str(first.process.pid) in second.text and "Traceback" not in second.text, second.text
    assert second.seconds < 100
    assert looking.rc == 0, looking.text
    done = first.wait(480)
    assert done.rc == 0, done.text
    assert {row["verdict"] for row in checkout.rows().values()} <= {"VALID", "SUSPECT"}
    checkout.assert_all_dead()


def test_next_run_removes_lock_of_killed_one_and_reports_it(checkout: Checkout):
    checkout.keep("a")
    killed = checkout.start(STANDIN_START_S="60")
    checkout.wait_for_progress("waiting for vLLM")
    killed.interrupt(signal.SIGKILL)
    assert killed.wait(120).rc == -signal.SIGKILL
    checkout.assert_all_dead()
    assert list((checkout.path / ".snakemake/locks").iterdir()), "Snakemake's own lock is still there"

    again = checkout.run()

    assert again.rc == 0, again.text
    assert f"process {killed.process.pid}" in again.text and "removed its lock" in again.text
    assert {row["verdict"] for row in checkout.rows().values()} <= {"VALID", "SUSPECT"}
    assert list((checkout.path / ".snakemake/locks").glob("*")) == []
    checkout.assert_all_dead()
    assert checkout.secrets() == []


def test_runs_in_two_checkouts_do_not_disturb_each_other(checkouts):
    """With the same run, deployment and attempt names on one machine, a run must end only its own leftovers."""
    one, other = checkouts(), checkouts()
    for checkout in (one, other):
        checkout.keep("a")
    other.inject("exit_at_start")
    assert other.run().rc == 1
    other.inject("none")
    one.inject("none")
    one.config["timeouts"] |= {"point": 600.0, "no_progress": 600.0}
    first = one.start(STANDIN_TOKEN_S="0.1")
    one.wait_for_progress("chat-c1-r1: 6 requests")
    # Until the second run waits, however long it takes to start.
    one.inject("hang")

    second = other.start()
    other.wait_for_progress("waiting for the machine, in use by deployment a")
    one.inject("none")
    done, waited = first.wait(480), second.wait(480)

    assert done.rc == 0, done.text
    assert one.rejected() == {} and len(one.attempts("a")) == 1
    assert waited.rc == 0, waited.text
    assert one.daemon("a")["ended_at"] <= other.daemon("a")["started_at"]


def test_dry_run_set_in_a_profile_writes_nothing(fresh: Checkout):
    (fresh.path / "looking").mkdir()
    (fresh.path / "looking" / "config.yaml").write_text("dry-run: true\ncores: 2\n")
    done = fresh.run("--profile", "looking", profile=False)
    assert done.rc == 0 and "dry-run" in done.text, done.text
    assert not fresh.results.exists()
    assert not (fresh.path / ".snakemake" / "servemark-owner.json").exists()
