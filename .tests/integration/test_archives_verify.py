"""Archives of honest runs have no contradiction, whatever was changed, resumed or taken from the ledger between two runs."""

from __future__ import annotations

import shutil
from collections.abc import Callable

import pytest

from integration.harness import RUN, Checkout
from servemark import verification


def verified(checkout: Checkout) -> tuple[str, ...]:
    """Run to the end, verify the archive and return what could not be checked."""
    done = checkout.run()
    assert done.rc == 0, done.text
    result = verification.verify(checkout.results / "archive" / f"{RUN}.tar.zst")
    assert result.wrong == ()
    return result.not_checked


# Other tests verify the archive of a run after each kind of change: accuracy, exports, restarts, remeasured points.
@pytest.mark.full
def test_archives_of_changed_and_resumed_runs_verify(checkouts: Callable[[], Checkout]):
    checkout = checkouts()
    deployments, chat = checkout.config["deployments"], checkout.config["workloads"]["chat"]
    chat |= {"repetitions": 2, "clients": 2, "concurrency": [2], "requests": 12}
    deployments["b"] |= {"topology": {"data_parallel": 2}, "options": {"max-model-len": 256, "no-enable-prefix-caching": True}}
    assert verified(checkout) == ()
    # Another option, and thresholds that judge the other deployment's stored points again.
    checkout.config["verdict"]["min_requests_per_slot"] = 1.0
    deployments["a"]["options"] = {"max-model-len": 384}
    assert verified(checkout) == ()
    # The option back: the points come from the ledger, and the latest attempt had the other option. One more load: others are newer.
    deployments["a"]["options"] = {"max-model-len": 512}
    chat["concurrency"] = [2, 4]
    assert verified(checkout) == ()
    # Other names for what was measured, and two deployments with one ledger key.
    deployments["renamed"] = deployments.pop("a")
    deployments["twin"] = deployments["renamed"]
    checkout.config["workloads"]["talk"] = checkout.config["workloads"].pop("chat")
    assert verified(checkout) == ()
    # Without its attempts, a run keeps its results.
    for attempts in checkout.results.glob("deployments/*/attempts"):
        shutil.rmtree(attempts)
    (checkout.results / "deployments/renamed/points/talk-c2-r1.json").unlink()
    assert any("talk-c2-r1" in text for text in verified(checkout))


def test_archive_of_run_with_another_runs_measurements_verifies(checkouts: Callable[[], Checkout]):
    checkout = checkouts()
    checkout.keep("a")
    checkout.config["share_ledger"] = True
    checkout.config["cache"] = str(checkout.path / "cache")
    assert verified(checkout) == ()
    checkout.config["run"] = "second"
    done = checkout.run()
    assert done.rc == 0, done.text
    result = verification.verify(checkout.path / "results" / "second" / "archive" / "second.tar.zst")
    assert result.wrong == () and len(result.not_checked) == 2
    assert all(f"results/{RUN}/deployments" in text for text in result.not_checked)
