"""A model in a Hugging Face cache: its snapshot folder with links, then the same by its name on the hub, over the whole pipeline."""

from __future__ import annotations

from builders import hub_cache
from integration.harness import RUN, Checkout
from servemark import verification


def test_snapshot_with_links_is_measured_and_the_same_model_by_name(fresh: Checkout, tmp_path):
    snapshot = hub_cache.make(tmp_path / "hf" / "hub")
    (snapshot / "pytorch_model.bin").write_bytes(b"pickle")
    fresh.keep("a")
    fresh.config["models"]["tiny"] = {"source": str(snapshot), "served_name": hub_cache.REPOSITORY}
    first = fresh.run()
    assert first.rc == 0, first.text
    assert {row["verdict"] for row in fresh.rows().values()} <= {"VALID", "SUSPECT"} and len(fresh.rows()) == 2
    model = fresh.record("models/tiny/manifest.json")
    assert (model["path"], model["ignored"]) == (str(snapshot), ["pytorch_model.bin"])
    assert any("pytorch_model.bin" in line["text"] for line in fresh.progress())
    asked = fresh.points("a")["chat-c1-r1"]["client_argv"]
    assert asked[asked.index("--model") + 1] == hub_cache.REPOSITORY
    assert verification.verify(fresh.results / "archive" / f"{RUN}.tar.zst").wrong == ()
    measured = fresh.started_at("a")

    # Another source and another served name, and the same model: every point is in the ledger. The hub is not reachable here.
    fresh.config["models"]["tiny"] = {"source": f"hf:{hub_cache.REPOSITORY}@{hub_cache.COMMIT}"}
    again = fresh.run(HF_HOME=str(tmp_path / "hf"), HF_ENDPOINT="http://127.0.0.1:9")
    assert again.rc == 0, again.text
    named = fresh.record("models/tiny/manifest.json")
    assert (named["path"], named["digest"]) == (str(snapshot), model["digest"])
    assert named["source"] == f"hf:{hub_cache.REPOSITORY}@{hub_cache.COMMIT}"
    assert any(str(snapshot) in line["text"] and "found" in line["text"] for line in fresh.progress())
    assert fresh.record("deployments/a/plan.json")["served_name"] == "tiny"
    assert fresh.started_at("a") == measured and len(fresh.attempts("a")) == 1
    assert verification.verify(fresh.results / "archive" / f"{RUN}.tar.zst").wrong == ()
