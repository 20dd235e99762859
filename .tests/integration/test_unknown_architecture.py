"""A model of a type that planning cannot size is planned with what is known, served and measured (stand-in)."""

from __future__ import annotations

import json
from pathlib import Path

from servemark.weights import builtin


def make_unknown(folder: Path) -> Path:
    """Write a built-in model whose config.json has a kind of attention that planning does not know."""
    builtin.make("tiny-dense", folder)
    config = json.loads((folder / "config.json").read_text())
    unknown = {"model_type": "of-tomorrow", "architectures": ["OfTomorrowForCausalLM"], "attn_type_list": [1, 0]}
    (folder / "config.json").write_text(json.dumps(config | unknown))
    return folder


def test_unknown_architecture_is_served_without_an_estimate(checkout, tmp_path):
    checkout.keep("a")
    checkout.config["models"] = {"odd": {"source": str(make_unknown(tmp_path / "odd"))}}
    checkout.config["deployments"]["a"]["model"] = "odd"
    done = checkout.run()
    assert done.rc == 0, done.text
    plan = checkout.record("deployments/a/plan.json")
    estimate = plan["estimate"]
    assert [estimate[name] for name in ("kv_bytes_per_token", "kv_cache_gib", "kv_cache_tokens", "max_concurrency")] == [None] * 4
    assert estimate["weights_gib"] > 0
    (warning,) = [text for text in plan["warnings"] if text.startswith("KV cache not estimated: unknown attention")]
    assert checkout.record("models/odd/manifest.json")["parameters"] == 852_864
    assert warning.split(".")[0] in done.text + checkout.report()
    assert {row["verdict"] for row in checkout.rows().values()} <= {"VALID", "SUSPECT"} and len(checkout.rows()) == 2
    assert checkout.record("deployments/a/stopped.json")["failure"] is None


def test_unknown_architecture_with_random_weights_is_planned(checkout, tmp_path):
    checkout.keep("a")
    checkout.config["models"] = {"odd": {"source": str(make_unknown(tmp_path / "odd")), "load_format": "dummy"}}
    checkout.config["deployments"]["a"]["model"] = "odd"
    done = checkout.run("--until", "confirm_plans")
    assert done.rc == 0, done.text
    assert checkout.record("models/odd/manifest.json")["parameters"] is None
    assert checkout.record("deployments/a/plan.json")["estimate"]["weights_gib"] is None
