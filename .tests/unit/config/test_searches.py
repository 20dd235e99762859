"""The keys of a search, what is refused, and the load points of its trials."""

from __future__ import annotations

import json

import pytest

from builders.config_text import BASE, failure, write
from servemark.cli import check
from servemark.config.expand import expand, points
from servemark.config.load import load
from servemark.config.resolved import read_resolved
from servemark.config.searches import ends, most_points, searches, trial

SLO = "slo: {ttft_ms: {p95: 500}}\n"
SEARCH = "{search: {from: 2, to: 64, trials: 8}}"


def text(concurrency=SEARCH, more="", slo=SLO, requests=100):
    changed = BASE.replace("concurrency: [1, 4]", f"concurrency: {concurrency}{more}").replace("requests: 32", f"requests: {requests}")
    return changed + slo


def read(folder, *arguments, **changes):
    return expand(load(write(folder, text(*arguments, **changes))))


def test_search_is_planned_and_has_no_points(tmp_path):
    config = read(tmp_path)
    assert points(config, "plain") == ()
    (found,) = searches(config, "plain")
    assert (found.workload, found.variable, found.low, found.high, found.trials) == ("chat", "concurrency", 2, 64, 8)
    assert most_points(config, "plain") == 8
    assert [point.concurrency for point in ends(config, "plain")] == [2, 64]


def test_trial_is_the_point_of_a_workload_with_this_load(tmp_path):
    listed = points(read(tmp_path, "[16]", "\n    repetitions: 2"), "plain")
    config = read(tmp_path)
    assert [trial(config, "plain", "chat", 16, number) for number in (1, 2)] == list(listed)


def test_trial_has_enough_requests_for_its_slots(tmp_path):
    config = read(tmp_path)
    assert [trial(config, "plain", "chat", load, 1).requests for load in (2, 20, 64)] == [100, 100, 320]
    timed = read(tmp_path, more="\n    duration: 60s", requests=500)
    assert trial(timed, "plain", "chat", 64, 1).requests == 500


def test_rate_is_searched_with_a_duration(tmp_path):
    rate = BASE.replace("    requests: 32\n", "").replace(
        "concurrency: [1, 4]", "request_rate: {search: {from: 1.5, to: 8}}\n    duration: 60s"
    )
    config = expand(load(write(tmp_path, rate + SLO)))
    (found,) = searches(config, "plain")
    assert (found.variable, found.low, found.trials) == ("request_rate", 1.5, 12)
    point = trial(config, "plain", "chat", 2.5, 1)
    assert (point.name, point.request_rate, point.requests, point.concurrency) == ("chat-q2.5-r1", 2.5, 150, None)


def test_resolved_configuration_is_read_again(tmp_path):
    config = read(tmp_path)
    path = tmp_path / "config.json"
    path.write_text(json.dumps(config.model_dump(mode="json")))
    assert read_resolved(path).workloads == config.workloads


def test_sweep_keeps_the_search(tmp_path):
    config = read(tmp_path, slo=SLO + "sweeps:\n- over: workloads.chat\n  grid: {output_tokens: [16, 32]}\n")
    assert [one.workload for one in searches(config, "plain")] == ["chat-output-tokens-16", "chat-output-tokens-32"]


@pytest.mark.parametrize(
    ("changes", "place"),
    [
        ({"slo": ""}, "workloads.chat.concurrency"),
        ({"concurrency": "{search: {from: 64, to: 2}}"}, "workloads.chat.concurrency.search.from"),
        ({"concurrency": "{search: {from: 0, to: 2}}"}, "workloads.chat.concurrency.search.from"),
        ({"concurrency": "{search: {from: 1}}"}, "workloads.chat.concurrency.search.to"),
        ({"concurrency": "{search: {from: 1, to: 4, trials: 2}}"}, "workloads.chat.concurrency.search.trials"),
        ({"concurrency": "{search: {from: 1, to: 4, trails: 9}}"}, "did you mean `trials`?"),
        ({"concurrency": "{search: {form: 1, to: 4}}"}, "did you mean `from`?"),
        ({"more": "\n    request_rate: 3"}, "workloads.chat.concurrency"),
        ({"more": "\n    repetitions: 3"}, "workloads.chat.repetitions"),
        ({"more": "\n    clients: 3"}, "workloads.chat.clients"),
        ({"requests": "[100, 200]"}, "workloads.chat.requests"),
        ({"requests": 71}, "workloads.chat.requests"),
        ({"slo": "restarts: 1\n" + SLO}, "restarts"),
        ({"slo": "verdict: {min_requests_per_slot: 6.0}\n" + SLO}, "workloads.chat.requests"),
        ({"more": "\n    duration: 60s"}, "workloads.chat.requests"),
        ({"more": "\n    duration: 60s", "requests": 500, "slo": "timeouts: {point: 50}\n" + SLO}, "workloads.chat.duration"),
    ],
)
def test_what_cannot_be_searched_is_refused(tmp_path, changes, place):
    found = failure(write(tmp_path, text(**changes)))
    assert place in found and "<search>" not in found, found


def test_check_states_the_most_trials(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(check, "findings", lambda config: [])
    check.check(write(tmp_path, text()))
    assert "0 load points and 1 search with at most 8 trials" in capsys.readouterr().out
