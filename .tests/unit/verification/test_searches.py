"""Archives with a load search: checked with per-request results (``verify``) and without them (``compare``)."""

from __future__ import annotations

from dataclasses import replace

import pytest

from builders.archived_run import wrong
from builders.searched_run import searched
from servemark.cli import main as cli
from servemark.records import Search
from servemark.report import gather
from servemark.verification import searches as check
from servemark.verification.records import opened

WORKLOAD = "timelines"
"""The name of a folder in every attempt, which ``opened`` skips."""


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    return searched(tmp_path_factory.mktemp("searched"), WORKLOAD)


@pytest.fixture(scope="module")
def with_requests(run):
    return gather.read(run.folder)


@pytest.fixture(scope="module")
def without_requests(run):
    return opened(run.path)[0]


def problems(found, change):
    """Return what ``searches.check`` finds after a change of the search on ``plain``."""
    (search,) = found.searches["plain"]
    data = search.model_dump(mode="json")
    change(data)
    changed = replace(found, searches={**found.searches, "plain": [Search.model_validate(data)]})
    return list(check.check(changed))


def test_archive_with_a_search_is_verified_and_compared(run, without_requests):
    found = {name: of[0] for name, of in without_requests.searches.items()}
    assert {name: (one.meets, one.misses, one.ended) for name, one in found.items()} == {
        "plain": (2, 4, "trials_used"), "ray-tp2": (1, 2, "narrow"), "broken": (None, None, "invalid"),
    }  # fmt: skip
    assert wrong(run.path) == []
    assert cli.main(["compare", str(run.path), str(run.folder), "--gate", "throughput:-5%"]) == 0


@pytest.mark.parametrize(
    "change",
    [
        lambda data: data.update(meets=3.0),
        lambda data: data["trials"].pop(),
        lambda data: data["trials"].reverse(),
        lambda data: data["trials"][0].update(met=False),
        lambda data: data["trials"][0].update(ratio=None, met=None),
        lambda data: data["targets"]["e2el_ms"].update(p50=600.0),
    ],
)
def test_search_that_contradicts_itself_is_found_without_requests(with_requests, without_requests, change):
    assert problems(without_requests, change) != []
    assert problems(with_requests, change) != []


def test_another_latency_of_a_trial_is_found_with_requests_only(with_requests, without_requests):
    def change(data):
        data["trials"][0].update(ratio=0.2)

    assert problems(without_requests, change) == []
    assert len(problems(with_requests, change)) == 1
