"""``servemark init`` on a real Slurm: what it writes is accepted by ``servemark check`` and planned by Snakemake."""

from __future__ import annotations

import sys

import yaml
from scheduled_checkout import ScheduledCheckout

from integration.harness import SNAKEMAKE


def servemark(checkout: ScheduledCheckout, *arguments: str, node: str = "login"):
    env = {"PYTHONPATH": str(checkout.path / "workflow" / "lib"), "HF_HOME": str(checkout.path / "huggingface")}
    return checkout.cluster.run([sys.executable, "-m", "servemark.cli", *arguments], node=node, cwd=checkout.path, env=env)


def cluster_file(checkout: ScheduledCheckout, name: str = "sandbox") -> dict:
    return yaml.safe_load((checkout.path / "config" / "clusters" / f"{name}.yaml").read_text())


def test_files_of_init_are_accepted_by_check_and_planned(fresh: ScheduledCheckout, queue_left_empty: None) -> None:
    made = servemark(fresh, "init", "--yes")
    assert made.returncode == 0, made.stderr
    written = cluster_file(fresh)
    assert {key: written[key] for key in ("account", "partition", "gpus_per_node", "max_minutes")} == {
        "account": "research",
        "partition": "batch",
        "gpus_per_node": 4,
        "max_minutes": 60,
    }
    assert "interface" not in written

    checked = servemark(fresh, "check", "my.yaml")
    assert checked.returncode == 0, checked.stdout + checked.stderr
    assert "Slurm would accept tp4, probe_hardware, check_environment" in checked.stdout
    assert "1 node(s) x 4 GPU(s)" in checked.stdout and "GPU-hours" in checked.stdout

    env = {"PYTHONPATH": str(fresh.path / "workflow" / "lib")}
    argv = [str(SNAKEMAKE), "--profile", "profiles/slurm", "--configfile", "my.yaml", "-n"]
    planned = fresh.cluster.run(argv, cwd=fresh.path, env=env)
    assert planned.returncode == 0 and "serve_model" in planned.stdout, planned.stderr
    assert fresh.queue() == []

    again = servemark(fresh, "init", "--yes")
    assert again.returncode == 2 and "my.yaml" in again.stderr


def test_check_reports_a_partition_that_slurm_refuses(fresh: ScheduledCheckout, queue_left_empty: None) -> None:
    assert servemark(fresh, "init", "--yes").returncode == 0
    path = fresh.path / "config" / "clusters" / "sandbox.yaml"
    path.write_text(path.read_text().replace("partition: batch", "partition: nowhere"))
    checked = servemark(fresh, "check", "my.yaml")
    problems = [line for line in checked.stdout.splitlines() if line.startswith("problem ")]
    assert checked.returncode == 2 and len(problems) == 1 and "partition" in problems[0], checked.stdout


def test_check_reports_limits_of_a_qos_that_slurm_would_not_refuse(fresh: ScheduledCheckout, queue_left_empty: None) -> None:
    """A QOS without DenyOnLimit: sbatch accepts the job, and Slurm never starts it."""
    cluster = fresh.cluster
    limits = ["MaxWall=00:05:00", "MaxSubmitJobsPerUser=2", "MaxTRESPerJob=gres/gpu=2"]
    cluster.run(["sacctmgr", "-iQ", "add", "qos", "tight", *limits], check=True)
    try:
        cluster.run(["sacctmgr", "-iQ", "modify", "account", "research", "set", "qos+=tight"], check=True)
        cluster.run(["sacctmgr", "-iQ", "modify", "user", "root", "set", "qos+=tight"], check=True)
        assert servemark(fresh, "init", "--yes").returncode == 0
        path = fresh.path / "config" / "clusters" / "sandbox.yaml"
        path.write_text(f"{path.read_text()}\nqos: tight\n")
        checked = servemark(fresh, "check", "my.yaml")
        problems = [line for line in checked.stdout.splitlines() if line.startswith("problem ")]
        assert checked.returncode == 2 and len(problems) == 1, checked.stdout + checked.stderr
        assert "(reason QOSMaxWallDurationPerJobLimit)" in problems[0] and "max_minutes" in problems[0]
        assert "(reason QOSMaxGRESPerJob)" in problems[0] and "gpus_per_node" in problems[0]
        # Slurm's own reasons for the same requests.
        seen = {}
        for flags in (["--time=30"], ["--time=2", "--gres=gpu:4"]):
            job = cluster.run(["sbatch", "--parsable", "--qos=tight", *flags, "--wrap", "true"], check=True, cwd="/tmp").stdout.strip()
            waits = ["squeue", "--noheader", f"--jobs={job}", "--format=%r"]
            cluster.wait(lambda: cluster.run(waits).stdout.strip() not in ("None", "Priority", ""), 20, "Slurm's reason")  # noqa: B023
            seen[flags[-1]] = cluster.run(waits).stdout.strip()
            cluster.run(["scancel", job], check=True)
        assert seen == {"--time=30": "QOSMaxWallDurationPerJobLimit", "--gres=gpu:4": "QOSMaxGRESPerJob"}
    finally:
        cluster.run(["sacctmgr", "-iQ", "delete", "qos", "tight"])


def test_interface_is_known_on_a_compute_node(fresh: ScheduledCheckout) -> None:
    made = servemark(fresh, "init", "--yes", "--cluster", "inside", node="node1")
    assert made.returncode == 0, made.stderr
    assert cluster_file(fresh, "inside")["interface"] in ("hsn0", "eth0")
