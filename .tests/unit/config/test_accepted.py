"""Patterns of `accept_invalid`: those that fit something of the run, and those that fit nothing."""

from __future__ import annotations

import pytest
import yaml

from builders.config_text import BASE
from servemark.config.load import validate
from servemark.errors import ConfigError

CHECKED = {"checks": {"gsm8k": {"limit": 10, "min": 0.5}}}
SEARCH = {"concurrency": {"search": {"from": 1, "to": 8}}, "requests": 200, "slo": {"ttft_ms": {"p50": 500}}}
SWEEP = [{"over": "deployments.plain", "grid": {"topology.tensor_parallel": [1, 2]}}]


@pytest.mark.parametrize(
    ("pattern", "change", "fits"),
    [
        ("plain/chat-c4-*", {}, True),
        ("plain/chat-c8-*", {}, False),
        ("plan/*", {}, False),
        ("*/*", {}, True),
        ("plain/gsm8k", {"deployment": CHECKED}, True),
        ("plain/gms8k", {"deployment": CHECKED}, False),
        ("plain/chat-c5-*", {"workload": SEARCH}, True),
        ("p*/c*", {"workload": SEARCH}, True),
        ("plain/caht-*", {"workload": SEARCH}, False),
        ("other/chat-*", {"workload": SEARCH}, False),
        ("plain/*", {"sweeps": SWEEP}, False),
        ("plain-*/*", {"sweeps": SWEEP}, True),
        ("plain+1/chat-c1-*", {"restarts": 1}, True),
        ("plain+1/chat-c1-*", {}, False),
    ],
)
def test_pattern_that_fits_nothing_is_refused_before_the_run(tmp_path, monkeypatch, pattern, change, fits):
    monkeypatch.chdir(tmp_path)
    data = yaml.safe_load(BASE)
    data["deployments"]["plain"] |= change.get("deployment", {})
    data["workloads"]["chat"] |= change.get("workload", {})
    data |= {name: value for name, value in change.items() if name in ("sweeps", "restarts")}
    if "restarts" in change:
        data["workloads"]["chat"]["repetitions"] = 2
    data["accept_invalid"] = [pattern]
    if fits:
        assert validate(data).accept_invalid == (pattern,)
        return
    with pytest.raises(ConfigError) as refused:
        validate(data)
    assert "accept_invalid[0]" in str(refused.value) and refused.value.exit_code == 2
