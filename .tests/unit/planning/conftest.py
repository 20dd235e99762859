"""A planner of one deployment of a small model."""

from __future__ import annotations

import pytest

from builders.deployed import HARDWARE
from builders.planning import CHECK, point
from servemark.config.model import Deployment
from servemark.planning.plan_deployment import DeploymentSpec, plan
from servemark.records import Plan
from servemark.weights import builtin, manifest


@pytest.fixture(scope="module")
def tiny(tmp_path_factory):
    directory = tmp_path_factory.mktemp("tiny")
    builtin.make("tiny-dense", directory)
    return manifest.build("tiny", "builtin:tiny-dense", directory)


@pytest.fixture
def planned(tiny):
    def run(hardware=HARDWARE, trust=False, points=None, check=CHECK, cluster=None, model=tiny, **changes) -> Plan:
        values = {
            "model": "tiny",
            "environment": "cpu",
            "options": {"max-model-len": 512},
            "variables": {"VLLM_CPU_KVCACHE_SPACE": "1"},
        }
        more = {"inherited": changes.pop("inherited", {}), "contents": changes.pop("contents", {})}
        more["served_name"] = changes.pop("served_name", None)
        more["longest_rows"] = changes.pop("longest_rows", {})
        spec = DeploymentSpec(
            deployment=Deployment.model_validate(values | changes),
            points=points or [point(1), point(2)],
            trust_remote_code=trust,
            cluster=cluster,
            **more,
        )
        return plan("plain", spec, hardware, check, model)

    return run
