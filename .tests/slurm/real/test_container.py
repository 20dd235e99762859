"""Ray over two nodes in a container: charliecloud on real Slurm, with the image of builders/container_image.py."""

from __future__ import annotations

import time
from pathlib import Path

import pytest
from real_checkout import NODES, RealCheckout
from sandbox import Sandbox
from test_topologies import ESSENTIAL, Seen, assert_over_nodes

from builders import container_image
from servemark import verification

pytestmark = [pytest.mark.full, pytest.mark.timeout(1800)]


def test_ray_over_two_nodes_in_a_container(real_checkouts, site: Sandbox):
    """Every process of the deployment is in the image, on both nodes."""
    container_image.require(container_image.why_unavailable())
    checkout: RealCheckout = real_checkouts()
    image = container_image.built()
    # The sandbox's cluster file sets VLLM_RPC_BASE_PATH, a folder of the site.
    container = {"image": str(image), "runtime": "charliecloud", "binds": [str(site.folder)]}
    checkout.config["environments"] = {"cpu": {"container": container}}
    deployment, wanted = ESSENTIAL["ray-tp2"]
    # The image has no C++ compiler for torch.compile. The embedding of several ranks calls it also with `enforce-eager`
    # (vocab_parallel_embedding.py, 0.32.0).
    variables = deployment["variables"] | {"TORCHDYNAMO_DISABLE": "1"}
    checkout.config["deployments"] = {"ray-tp2": deployment | {"variables": variables}}
    seen, inside = Seen(checkout, {"ray-tp2": wanted}), set()
    running = checkout.start()
    deadline = time.monotonic() + 1200
    while running.process.poll() is None and time.monotonic() < deadline:
        seen()
        for node in NODES:
            for kind, processes in checkout.kinds(node).items():
                if any(Path(f"/proc/{process.pid}/root/opt/env").exists() for process in processes):
                    inside.add((node, kind))
        time.sleep(1.0)
    done = running.wait(5)
    assert done.rc == 0, done.text
    assert checkout.rows()["ray-tp2", "chat-c4-r1"]["verdict"] in ("VALID", "SUSPECT")
    assert not seen.lacks("ray-tp2"), (seen.lacks("ray-tp2"), seen.kinds)
    assert {(node, kind) for node in NODES for kind in wanted[node]} <= inside, inside
    assert_over_nodes(checkout, "ray-tp2", deployment["topology"])
    assert [verification.verify(path).wrong for path in checkout.results.glob("archive/*.tar.zst")] == [()]
    checkout.assert_nothing_left()
