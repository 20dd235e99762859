"""Endpoints on a real Slurm: each in its own job, listed and stopped from the login node, ended with its allocation."""

from __future__ import annotations

import json
import re
import shutil
import sys
import tarfile

import pytest
from scheduled_checkout import GONE_S, ScheduledCheckout

from integration.harness import RUN, Running, wait_until
from servemark.deployment import how_to_use


def servemark(checkout: ScheduledCheckout, *arguments: str):
    """Run the command ``servemark`` on the login node, which sees neither the nodes' processes nor their networks."""
    env = {"PYTHONPATH": str(checkout.path / "workflow" / "lib")}
    return checkout.cluster.run([sys.executable, "-m", "servemark.cli", *arguments], cwd=checkout.path, env=env)


def living(checkout: ScheduledCheckout) -> dict[str, dict]:
    return {one["deployment"]: one for one in json.loads(servemark(checkout, "status", "--json").stdout)}


def serve(checkout: ScheduledCheckout, *names: str, **variables: str) -> Running:
    running = checkout.start("--", "serve", **variables)
    for name in names:
        checkout.wait_for_progress("READY", subject=name, seconds=120)
    return running


def serve_again(checkout: ScheduledCheckout) -> Running:
    running = checkout.start("--", "serve")
    wait_until(lambda: [one for one in living(checkout).values() if one["state"] == "ready"], 120, "it is held again")
    return running


def assert_nothing_left(checkout: ScheduledCheckout) -> None:
    checkout.assert_nothing_left()
    serving = checkout.results / "serving"
    names = ("api-key", "ray-token", how_to_use.NAME, "cluster.json", "endpoint.json", "ready.json")
    assert [str(path) for name in names for path in serving.rglob(name)] == []
    for spec in serving.glob("*/attempts/*/supervisor-spec.json"):
        place = json.loads(spec.read_text())["scratch"]
        assert [n for n in checkout.cluster.nodes if (checkout.cluster.folder / "nodes" / n / place[1:]).exists()] == []
    assert "No active deployment" in servemark(checkout, "status").stdout


def test_endpoints_are_listed_and_stopped_from_the_login_node(checkout: ScheduledCheckout) -> None:
    checkout.site["max_minutes"] = 30
    running = serve(checkout, "a", "b")
    assert "cannot reach" not in running.text
    found = living(checkout)
    states = {name: (one["purpose"], one["state"], one["sure"]) for name, one in found.items()}
    assert states == dict.fromkeys(("a", "b"), ("held", "ready", True))
    jobs = {one["job_id"] for one in found.values()}
    assert len(jobs) == 2 and jobs == {job["job_id"] for job in checkout.queue()}
    assert all(1500 < one["left_s"] < 1800 for one in found.values())
    pages = {name: (checkout.results / "serving" / name / how_to_use.NAME).read_text() for name in found}
    for name, one in found.items():
        address, port = re.fullmatch(r"http://([\d.]+):(\d+)", one["url"]).groups()
        assert f"ssh -N -L 8000:{address}:{port} " in pages[name] and "@LOGIN" in pages[name]
        code = pages[name].partition("curl --noproxy")[2].partition("\n\n")[0]
        asked = checkout.cluster.run(["bash", "-c", f"curl --noproxy{code}"], node=one["nodes"][0])
        assert json.loads(asked.stdout)["choices"][0]["message"]["content"], asked.stderr

    stopped = servemark(checkout, "stop", "a")
    assert stopped.returncode == 0 and "a ended after" in stopped.stdout, stopped
    wait_until(lambda: len(checkout.queue()) == 1, GONE_S, "a's job is over")
    assert set(living(checkout)) == {"b"}, "the other endpoint stays up"
    assert servemark(checkout, "stop", "b", "--run", RUN).returncode == 0
    assert running.wait(60).rc == 0, running.text
    held = [json.loads((checkout.results / "serving" / name / "held.json").read_text())["why"] for name in ("a", "b")]
    assert held == ["stop_requested"] * 2
    assert_nothing_left(checkout)


def test_unreachable_address_is_printed_with_an_ssh_tunnel(checkout: ScheduledCheckout) -> None:
    """The nodes' eth0 is not connected to the login node; ssh would use their other network."""
    checkout.keep("a")
    checkout.site["interface"] = "eth0"
    nodes = checkout.cluster.nodes
    listen = "import socket, time; s = socket.create_server(('', 22)); time.sleep(300)"
    sshds = [checkout.cluster.popen([sys.executable, "-c", listen], node=node) for node in nodes]
    try:
        running = serve(checkout, "a")
        (one,) = living(checkout).values()
        address = one["url"].removeprefix("http://")
        assert address.startswith("10.78.0."), "in the configured network"
        tunnel = f"ssh -N -L 8000:{address} {one['nodes'][0]}"
        wait_until(lambda: f"cannot reach {address}" in running.text and tunnel in running.text, 20, running.text)
        page = checkout.results / "serving" / "a" / how_to_use.NAME
        wait_until(lambda: tunnel in page.read_text(), 10, "the page has it too")
        assert "ssh -N -J " in page.read_text()
    finally:
        for sshd in sshds:
            sshd.kill()
            sshd.wait()
    assert servemark(checkout, "stop", "a").returncode == 0
    assert running.wait(60).rc == 0, running.text
    assert_nothing_left(checkout)


def test_job_ended_by_slurm_is_not_listed_as_alive(checkout: ScheduledCheckout) -> None:
    checkout.keep("a")
    running = serve(checkout, "a")
    (job,) = checkout.queue()
    checkout.cluster.run(["scancel", job["job_id"]])
    wait_until(lambda: not checkout.queue(), GONE_S, "the job is gone")
    assert living(checkout) == {}
    assert running.wait(60).rc == 1
    checkout.assert_nothing_left()
    ticket = servemark(checkout, "ticket", RUN, "-o", "ticket.tar.gz")
    assert ticket.returncode == 0, ticket.stderr
    with tarfile.open(checkout.path / "ticket.tar.gz") as tar:
        text = "\n".join(tar.extractfile(entry).read().decode() for entry in tar)
    for fact in ("sinfo", f'"job": "{job["job_id"]}"', "CANCELLED", "interface", "serving/a, attempt 001"):
        assert fact in text, fact

    assert_nothing_left(checkout)
    again = serve_again(checkout)
    assert servemark(checkout, "stop", "a").returncode == 0
    assert again.wait(60).rc == 0, again.text
    assert_nothing_left(checkout)


def test_endpoint_ends_normally_with_its_allocation(checkout: ScheduledCheckout) -> None:
    checkout.keep("a")
    checkout.site["max_minutes"] = 2
    running = serve(checkout, "a")
    assert 0 < living(checkout)["a"]["left_s"] < 90
    assert running.wait(180).rc == 0, running.text
    assert json.loads((checkout.results / "serving" / "a" / "held.json").read_text())["why"] == "out_of_time"
    assert_nothing_left(checkout)


# test_copied_checkout_does_not_stop_the_originals_endpoint is the same without Slurm.
@pytest.mark.full
def test_copied_checkout_cancels_no_job_of_the_original(checkout: ScheduledCheckout) -> None:
    checkout.keep("a")
    running = serve(checkout, "a")
    (job,) = checkout.queue()
    copy = ScheduledCheckout(checkout.cluster, checkout.path.with_name("copy"), checkout.config)
    shutil.copytree(checkout.path, copy.path)
    assert living(copy) == {}
    assert servemark(copy, "stop", "a").returncode == 2
    begun = [copy.run("--until", "stage_weights") for _ in range(2)]
    assert [done.rc for done in begun] == [0, 0], begun[0].text
    told = [done.text.count(f"scancel {job['job_id']}") for done in begun]
    assert told == [1, 0] and "Another run is using" not in begun[0].text
    assert [one["job_id"] for one in checkout.queue()] == [job["job_id"]] and living(checkout)["a"]["state"] == "ready"
    assert servemark(checkout, "stop", "a").returncode == 0
    assert running.wait(60).rc == 0, running.text
    assert_nothing_left(checkout)
