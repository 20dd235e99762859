"""``topology: auto`` on the stand-in: chosen once, in plan and report, and the same in every rerun."""

from __future__ import annotations

import json

from integration.harness import Checkout


def configure(checkout: Checkout, **workload) -> None:
    checkout.keep("a")
    checkout.config["deployments"]["a"]["topology"] = "auto"
    checkout.config["workloads"]["chat"] |= workload


def test_choice_is_made_once_and_survives_reruns(fresh: Checkout):
    configure(fresh)
    kept = fresh.results / "topologies.json"
    looking = fresh.run("-n")
    assert looking.rc == 0 and not kept.exists(), looking.text
    first = fresh.run()
    assert first.rc == 0, first.text
    choice = json.loads(kept.read_text())["deployments"]["a"]
    plan = fresh.record("deployments/a/plan.json")
    assert plan["choice"] == choice and plan["topology"]["tensor_parallel"] == 1
    assert choice["why"] in fresh.report()
    assert "topologies.json" in fresh.archived()
    assert json.loads((fresh.results / "config.json").read_text())["deployments"]["a"]["topology"]["nodes"] == 1
    assert fresh.foretold() == set()

    # A choice of other hardware: it counts, not the ranking of today.
    kept.write_text(json.dumps({**json.loads(kept.read_text()), "deployments": {"a": choice | {"topology": {"tensor_parallel": 2}}}}))
    again = fresh.run("--until", "plan_deployment")
    assert again.rc == 0, again.text
    assert fresh.record("deployments/a/plan.json")["topology"]["tensor_parallel"] == 2

    kept.unlink()
    anew = fresh.run("--until", "plan_deployment")
    assert anew.rc == 0, anew.text
    after = fresh.record("deployments/a/plan.json")
    assert json.loads(kept.read_text())["deployments"]["a"] == choice and after["topology"] == plan["topology"]
    # Its measurements are still in the ledger, and the new plan shows them next to the choice.
    assert len(after["measured"]) == 1 and plan["measured"] == []


def test_model_without_a_shape_is_refused_before_anything_starts(fresh: Checkout):
    configure(fresh)
    model = fresh.path / "odd"
    model.mkdir()
    (model / "config.json").write_text(json.dumps({"model_type": "unheard-of"}))
    (model / "tokenizer.json").write_text("{}")
    fresh.config["models"]["tiny"] = {"source": str(model), "load_format": "dummy"}
    done = fresh.run()
    assert done.rc == 2 and "topology" in done.text and not (fresh.results / "hardware.json").exists(), done.text
