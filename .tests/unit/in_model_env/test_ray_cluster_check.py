"""The check of the Ray cluster: one sentence for each node that is missing, unexpected, or has other devices."""

from __future__ import annotations

import json
import subprocess

import pytest

from builders.standin_ray import put_ray
from servemark.environments.build import IN_MODEL_ENV
from servemark.in_model_env import ray_cluster_check

EXPECTED = [
    {"name": "node1", "address": "10.0.0.1", "devices": 4},
    {"name": "node2", "address": "10.0.0.2", "devices": 2},
]


def alive(**devices: int | None):
    """Return Ray's nodes by the last number of their address; None for a node without the resource."""
    return [
        {
            "NodeManagerAddress": f"10.0.0.{name[1:]}",
            "Resources": {"CPU": 8.0} | ({} if count is None else {"GPU": float(count)}),
        }
        for name, count in devices.items()
    ]


@pytest.mark.parametrize(
    ("there", "named"),
    [
        (alive(n1=4, n2=2), []),
        (alive(n2=2, n1=4), []),
        (alive(n1=4), [("node2", "10.0.0.2", " 2 ", "(there are 10.0.0.1)")]),
        ([], [("node1", "10.0.0.1", " 4 ", "none"), ("node2", "10.0.0.2", " 2 ", "none")]),
        (alive(n1=3, n2=2), [("node1", "10.0.0.1", " 4 ", " 3.")]),
        (alive(n1=4, n2=None), [("node2", "10.0.0.2", " 2 ", " 0.")]),
        (alive(n1=4, n2=2, n7=8), [("10.0.0.7",)]),
        (alive(n1=4, n7=2), [("node2", "10.0.0.2", " 2 ", "(there are 10.0.0.1, 10.0.0.7)"), ("10.0.0.7",)]),
    ],
)
def test_each_difference_names_node_expected_and_found(there, named):
    for sentence, parts in zip(ray_cluster_check.compare(EXPECTED, there), named, strict=True):
        assert all(part in sentence for part in parts), sentence


def test_missing_nodes_are_written_at_the_deadline(standin_copy, tmp_path):
    dead = {"Alive": False, "NodeManagerAddress": "10.0.0.2", "DeathReasonMessage": "the raylet died"}
    put_ray(standin_copy, nodes=f"[{dead!r}]")
    output = tmp_path / "nodes.json"
    argv = [
        standin_copy.python,
        str(IN_MODEL_ENV / "ray_cluster_check.py"),
        "127.0.0.1:1",
        json.dumps(EXPECTED),
        "0.2",
        str(output),
    ]
    done = subprocess.run(argv, capture_output=True, text=True, timeout=120)
    missing = ray_cluster_check.compare(EXPECTED, [])
    assert len(missing) == 2 and (done.returncode, done.stdout.splitlines()) == (1, missing)
    found = json.loads(output.read_text())
    assert found["missing"] == missing
    assert found["state"] == {
        "total": {"CPU": 4.0, "GPU": 2.0},
        "free": {"CPU": 4.0},
        "waiting": ["{'GPU': 8.0}, {'GPU': 1.0}"],
        "failed": ["10.0.0.2: the raylet died"],
    }


def test_loopback_matches_the_address_that_ray_reports():
    expected = [{"name": "vm", "address": "127.0.0.1", "devices": 2}]
    alive = [{"NodeManagerAddress": "192.0.2.2", "Resources": {"GPU": 2.0}}]
    assert ray_cluster_check.compare(expected, alive) == []
    assert "with 1" in ray_cluster_check.compare(expected, [alive[0] | {"Resources": {"GPU": 1.0}}])[0]


def test_address_must_match_between_machines():
    expected = [{"name": "n1", "address": "10.0.0.1", "devices": 1}]
    assert len(ray_cluster_check.compare(expected, [{"NodeManagerAddress": "10.0.0.9", "Resources": {"GPU": 1.0}}])) == 2


@pytest.mark.parametrize(
    ("raised", "said"),
    [("ConnectionError()", "ConnectionError"), ("RuntimeError('no node info\\nfound')", "no node info")],
)
def test_head_that_refuses_drivers_is_retried_until_the_deadline(standin_copy, tmp_path, raised, said):
    """Ray 2.54's own words, and none, while the head's raylet has not joined."""
    put_ray(standin_copy, connects=f"raise {raised}")
    output = tmp_path / "nodes.json"
    argv = [
        standin_copy.python,
        str(IN_MODEL_ENV / "ray_cluster_check.py"),
        "127.0.0.1:1",
        json.dumps(EXPECTED),
        "1.0",
        str(output),
    ]
    assert subprocess.run(argv, capture_output=True, timeout=120).returncode == 1
    (missing,) = json.loads(output.read_text())["missing"]
    assert "127.0.0.1:1" in missing and missing.endswith(f": {said}")
