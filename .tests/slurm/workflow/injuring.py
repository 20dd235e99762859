"""Shared steps of the fault tests: one deployment that can hang, an occupied cluster, and the rerun that completes the run."""

from __future__ import annotations

from fault_table import Injury
from sandbox import Sandbox
from scheduled_checkout import ScheduledCheckout

from integration.harness import Finished, Running

# From a job's end to the run's end: the executor queries every few seconds, KillWait is 5 s, and the machine is busy.
END_S = 60.0


def begin(checkout: ScheduledCheckout, *arguments: str, **variables: str) -> Running:
    """Start a run of one deployment whose server can be made to hang."""
    checkout.keep("a")
    checkout.inject("none")
    checkout.config["timeouts"] |= {"no_progress": 150.0, "point": 200.0}
    # A second for the second point, in which it must begin to hang. The stand-in's variable for its pace does not reach a job.
    checkout.config["workloads"]["chat"]["output_tokens"] = 150
    return checkout.start(*arguments, **variables)


def measuring(checkout: ScheduledCheckout, *arguments: str, **variables: str) -> tuple[Running, dict[str, str], dict[str, str]]:
    """Start the run and wait until the server hangs in the second point; return run, job and the time of the first point."""
    running = begin(checkout, *arguments, **variables)
    job = checkout.measuring()
    before = checkout.started_at("a")
    assert set(before) == {"chat-c1-r1"}
    return running, job, before


def assert_completed(checkout: ScheduledCheckout, injury: Injury, before: dict[str, str]) -> Finished:
    """Assert that a plain rerun completes and measures no point twice."""
    checkout.hang(False)
    done = checkout.run()
    injury.completed_by(done)
    after = checkout.started_at("a")
    assert set(after) == {"chat-c1-r1", "chat-c2-r1"} and {name: after[name] for name in before} == before
    assert {row["verdict"] for row in checkout.rows().values()} <= {"VALID", "SUSPECT"}
    checkout.assert_nothing_left()
    return done


def occupy(cluster: Sandbox, partition: str, seconds: int, nodes: int = 2) -> str:
    """Submit a job of another user that occupies whole nodes; return its id."""
    argv = [
        "sbatch",
        "--parsable",
        f"--partition={partition}",
        f"--nodes={nodes}",
        "--exclusive",
        "--time=10",
        "--output=/dev/null",
    ]
    return cluster.run([*argv, f"--wrap=sleep {seconds}"], check=True).stdout.strip()
