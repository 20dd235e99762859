"""A checkout with real vLLM and Ray on the nodes of a sandbox, and queries about its deployment."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import psutil
import yaml
from sandbox import Sandbox
from scheduled_checkout import ScheduledCheckout

from integration import harness

NODES = ("node1", "node2")
# Kinds of processes, by the beginning of a word of the command line; vLLM and Ray rename their processes.
KINDS = {
    "gcs_server": "gcs",
    "raylet": "raylet",
    "ray::RayWorkerProc": "worker",
    "ray::": "Ray agent",
    "VLLM::EngineCore": "engine",
    "VLLM::Worker": "worker",
    "vllm.entrypoints.cli.main": "server",
}


def tiny(options: dict[str, Any] | None = None, **topology: Any) -> dict[str, Any]:
    """Return a deployment of the tiny model. Pipeline stages on CPU do not start in eager mode."""
    eager = topology.get("pipeline_parallel", 1) == 1
    return {
        "model": "tiny",
        "environment": "cpu",
        "topology": topology,
        "options": {
            "max-model-len": 512,
            "dtype": "bfloat16",
            **({"enforce-eager": True} if eager else {}),
            **(options or {}),
        },
        "variables": {"VLLM_CPU_KVCACHE_SPACE": "1"},
    }


def standin_config(prefix: Path, cache: Path) -> dict[str, Any]:
    """Return a configuration of two deployments on the stand-in, each on its own node."""
    config = harness.basic_config(prefix, cache)
    config["timeouts"] |= {"cluster": 60.0, "start": 90.0}
    return config


class RealCheckout(ScheduledCheckout):
    """A checkout with real deployments and the cluster file of ``make slurm-sandbox``."""

    def __init__(self, cluster: Sandbox, path: Path, config: dict[str, Any]):
        super().__init__(cluster, path, config)
        self.site = yaml.safe_load(cluster.cluster_file.read_text())

    def kinds(self, node: str) -> dict[str, list[psutil.Process]]:
        """Return the processes of deployments on a node, by kind."""
        found: dict[str, list[psutil.Process]] = {}
        for where, process in self.of_ours():
            if where != node:
                continue
            try:
                words = process.cmdline()
            except psutil.Error:
                continue
            # The command lines of srun and servemark.supervisor.remote hold the command that they start.
            if any("servemark." in word or word == "srun" for word in words):
                continue
            for beginning, kind in KINDS.items():
                if any(word.rpartition("/")[2].startswith(beginning) for word in words[:3]) and "bench" not in words:
                    found.setdefault(kind, []).append(process)
                    break
        return found

    def failure(self, deployment: str) -> dict[str, Any] | None:
        """Return why the deployment's last start failed, from the record of stop_deployment."""
        failure: dict[str, Any] | None = self.record(f"deployments/{deployment}/stopped.json")["failure"]
        return failure

    def log(self, deployment: str, name: str) -> str:
        """Return a log of the latest attempt."""
        return (self.attempts(deployment)[-1] / name).read_text(errors="replace")

    def facts(self, deployment: str, name: str) -> dict[str, Any]:
        """Return a record of a deployment."""
        record: dict[str, Any] = json.loads((self.results / "deployments" / deployment / name).read_text())
        return record
