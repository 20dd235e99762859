"""Repetitions divided among the starts of a deployment."""

from __future__ import annotations

import pytest

from servemark.config.expand import points
from servemark.config.load import load, validate
from servemark.config.restarts import deployment_of, starts
from servemark.errors import ConfigError
from servemark.measurement.key import point_parts
from unit.config.test_expand import WORKLOAD, data

CHAT = {"chat": {**WORKLOAD, "repetitions": 3}}
TWO = {name: {"model": "tiny", "environment": "cpu"} for name in ("a", "b")}


def config(**changes):
    return validate(data(workloads=CHAT, deployments=TWO, **changes))


def names(config, start):
    return [point.name for point in points(config, start)]


@pytest.mark.parametrize(
    ("order", "expected"),
    [("interleaved", ["a", "b", "a+1", "b+1"]), ("grouped", ["a", "a+1", "b", "b+1"])],
    ids=["interleaved", "grouped"],
)
def test_each_deployment_has_one_start_more_than_restarts(order, expected):
    assert list(starts(config(restarts=1, order=order))) == expected


def test_repetitions_are_divided_among_the_starts():
    found = config(restarts=1)
    assert names(found, "a") == ["chat-c1-r1", "chat-c4-r1", "chat-c1-r3", "chat-c4-r3"]
    assert names(found, "a+1") == ["chat-c1-r2", "chat-c4-r2"]
    assert [point.restart for point in points(found, "a+1")] == [1, 1]


def test_start_that_the_configuration_does_not_have_is_unknown():
    for name in ("a+2", "a+0", "a+01", "c"):
        with pytest.raises(KeyError):
            deployment_of(config(restarts=1), name)


def test_only_points_after_a_restart_have_another_ledger_key():
    (plain,) = (point for point in points(config(), "a") if point.name == "chat-c1-r2")
    (restarted,) = (point for point in points(config(restarts=1), "a+1") if point.name == "chat-c1-r2")
    assert point_parts(restarted) != point_parts(plain) and restarted.seed == plain.seed
    assert points(config(restarts=1), "a") == tuple(p for p in points(config(), "a") if p.repetition != 2)


def test_start_without_a_repetition_is_refused_at_its_line(tmp_path):
    text = "run: demo\nmodels: {tiny: {source: 'builtin:tiny-dense'}}\nenvironments: {cpu: {lock: cpu}}\nrestarts: 2\n"
    text += "deployments: {a: {model: tiny, environment: cpu}}\n"
    text += (
        "workloads: {chat: {dataset: random, input_tokens: 8, output_tokens: 8, requests: 8, concurrency: [1], repetitions: REPETITIONS}}\n"
    )
    path = tmp_path / "my.yaml"
    path.write_text(text.replace("REPETITIONS", "2"))
    with pytest.raises(ConfigError, match=r"my\.yaml:4"):
        load(path)
    path.write_text(text.replace("REPETITIONS", "3"))
    assert load(path).restarts == 2
