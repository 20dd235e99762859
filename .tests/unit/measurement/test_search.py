"""The search for the highest load that meets its targets, on trials of a simulated server with a known capacity."""

from __future__ import annotations

import math
import random
from dataclasses import replace

import pytest

from builders import report_data
from servemark.measurement import search
from servemark.measurement.search import CLEAR, REPEATS, Outcome
from servemark.records import Failure, PlannedSearch, Reason

SEEDS = range(20)
NOISE = 0.05


def asked(variable="concurrency", low=1, high=512, trials=12):
    return PlannedSearch(workload="chat", variable=variable, low=low, high=high, trials=trials)


def valid(load, ratio):
    return Outcome(load, "VALID", ratio)


def simulate(search_of, measure):
    """Return the last state of a search and its outcomes. ``measure`` is a simulated measurement of one load."""
    found = []
    while following := search.state(search_of, found).following:
        found.append(measure(following[0]))
    return search.state(search_of, found), found


def simulated_server(capacity, seed=0, noise=0.0, suspect=0.0, steepness=1.0):
    """Return the simulated measurement of a server whose latency is at its limit at ``capacity``, with noise between measurements."""
    draw = random.Random(seed)

    def measure(load):
        ratio = (load / capacity) ** steepness * math.exp(draw.gauss(0.0, noise))
        verdict = "SUSPECT" if draw.random() < suspect else "VALID"
        return Outcome(load, verdict, ratio, verdict)

    return measure


@pytest.mark.parametrize("steepness", [0.5, 1.0, 3.0])
@pytest.mark.parametrize(("variable", "low", "high"), [("concurrency", 1, 512), ("request_rate", 0.5, 100.0)])
def test_bracket_contains_the_capacity_of_a_simulated_server_in_20_of_20_seeds(variable, low, high, steepness):
    for seed in SEEDS:
        capacity = math.exp(random.Random(seed).uniform(math.log(2 * low), math.log(high / 2)))
        server = simulated_server(capacity, seed, NOISE, suspect=0.05, steepness=steepness)
        state, trials = simulate(asked(variable, low, high, 16), server)
        assert state.meets is None or state.meets <= capacity, seed
        assert state.misses is None or capacity < state.misses, seed
        assert len(trials) <= 16 and (state.meets, state.misses) != (None, None)


def test_bracket_without_noise_has_the_width_that_the_trials_allow():
    state, trials = simulate(asked(trials=20), simulated_server(100.5, steepness=40.0))
    assert (state.meets, state.misses, state.ended) == (100, 101, "narrow") and len(trials) < 20
    state, trials = simulate(asked(trials=6), simulated_server(100.5, steepness=40.0))
    assert [one.load for one in trials] == [1, 512, 23, 109, 50, 74]
    assert (state.meets, state.misses, state.ended) == (74, 109, "trials_used")


def test_ends_of_the_range_give_a_bracket_of_one_side():
    state, trials = simulate(asked(low=8), simulated_server(2.0))
    assert (state.meets, state.misses, state.ended, len(trials)) == (None, 8, "from_misses", 1)
    state, trials = simulate(asked(high=64), simulated_server(900.0))
    assert (state.meets, state.misses, state.ended, len(trials)) == (64, None, "to_meets", 2)


def test_load_near_the_boundary_is_measured_again_and_never_one_of_its_ends():
    state, trials = simulate(asked(low=1, high=16, trials=10), simulated_server(4.0, noise=NOISE))
    assert [one.load for one in trials][:5] == [1, 16, 4, 4, 4]
    assert state.meets is not None and state.misses is not None and state.meets < 4 < state.misses


def test_few_trials_decide_only_far_from_the_limit():
    assert search.decision([valid(4, 1 / CLEAR - 0.01)]) == "meets" and search.decision([valid(4, CLEAR + 0.01)]) == "misses"
    near = [valid(4, 1.10), valid(4, 1.12), valid(4, 1.11)]
    assert search.decision(near[:1]) is search.decision(near[:2]) is None
    assert search.decision(near) == "misses"
    assert search.decision([valid(4, 0.90), valid(4, 0.91), valid(4, 0.89)]) == "meets"
    assert search.decision([valid(4, 0.95), valid(4, 1.05), valid(4, 1.01)]) == "open"


def test_suspect_trial_is_repeated_and_decides_nothing():
    suspect = Outcome(4, "SUSPECT", 3.0, "SUSPECT")
    assert search.decision([suspect]) is None and search.decision([suspect, valid(4, 3.0)]) == "misses"
    near = [valid(4, 0.90), valid(4, 0.91), valid(4, 0.89)]
    assert search.decision([suspect, *near[:2]]) is None and search.decision([suspect, *near]) == "meets"
    assert search.decision([suspect] * REPEATS) == search.decision([*near[:2], *[suspect] * REPEATS]) == "open"
    state, trials = simulate(asked(trials=9), lambda load: Outcome(load, "SUSPECT", 0.1, "SUSPECT"))
    assert (state.meets, state.misses) == (None, None)
    assert [one.load for one in trials][: 2 * REPEATS] == [1] * REPEATS + [512] * REPEATS


def test_most_trials_of_one_load():
    most = 0
    for seed in range(200):
        _, trials = simulate(asked(trials=24), simulated_server(20.0, seed, NOISE, suspect=0.5))
        most = max(most, *(sum(one.load == load for one in trials) for load in {one.load for one in trials}))
    assert most == search.MOST_OF_ONE_LOAD == 5


def test_too_few_requests_leave_a_load_open_without_repetition():
    assert search.decision([valid(4, None)]) == "open"


def test_invalid_trial_ends_the_search_and_overload_is_a_miss():
    state, trials = simulate(asked(), lambda load: Outcome(load, "INVALID" if load == 512 else "VALID", 0.1))
    assert (state.ended, state.meets, state.misses, len(trials)) == ("invalid", 1, None, 2)
    failed = Reason(code="requests_failed", severity="INVALID", detail="")
    crashed = Failure(stage="measure", reason="server_died", detail="")
    broken = report_data.invalid()
    overloaded = broken.model_copy(update={"reasons": (failed,), "failure": None})
    assert Outcome.of(overloaded, 512, None) == Outcome(512, "VALID", math.inf)
    assert Outcome.of(overloaded.model_copy(update={"failure": crashed}), 512, None).verdict == "INVALID"
    died = Reason(code="server_died", severity="INVALID", detail="")
    assert Outcome.of(overloaded.model_copy(update={"reasons": (failed, died)}), 512, None).verdict == "INVALID"
    assert search.decision([Outcome(512, "VALID", math.inf)]) == "misses"


def test_interrupted_search_continues_with_the_same_loads():
    _, trials = simulate(asked(), simulated_server(77.0, seed=3, noise=NOISE))
    for count, one in enumerate(trials):
        following = search.state(asked(), trials[:count]).following
        assert following == (one.load, 1 + sum(other.load == one.load for other in trials[:count]))


def test_record_has_the_bracket_after_each_trial():
    ratios = {8: 0.5, 64: 4.0, 23: 1.5}
    trials = [trial(load, ratio) for load, ratio in ratios.items()]
    found = search.traced("a", asked(low=8, high=64, trials=3), {"ttft_ms": {"p95": 500.0}}, trials, search.outcomes(trials, 0.1))
    assert [(one.value, one.met, one.decision, one.meets, one.misses) for one in found.trials] == [
        (8, True, "meets", 8, None), (64, False, "misses", 8, 64), (23, False, "misses", 8, 23),
    ]  # fmt: skip
    assert (found.meets, found.misses, found.ended) == (8, 23, "trials_used")
    assert search.words(found) == "meets at 8, misses at 23"


def test_result_names_loads_inside_the_bracket_that_are_not_decided():
    trials = [trial(8, 0.5), trial(64, 4.0), trial(23, 0.9, 1), trial(23, 1.01, 2)]
    found = search.traced("a", asked(low=8, high=64, trials=4), {"ttft_ms": {"p95": 500.0}}, trials, search.outcomes(trials, 0.1))
    assert (found.meets, found.misses, found.ended) == (8, 64, "trials_used")
    part = "not decided at 23 (1 of 2 VALID trials met the targets)"
    assert search.words(found) == f"meets at 8, misses at 64, {part}"
    assert search.words(found.model_copy(update={"meets": None})).endswith(part)
    assert search.words(found.model_copy(update={"misses": 23.0})) == "meets at 8, misses at 23"


@pytest.mark.parametrize("change", [{"verdict": "SUSPECT"}, {"verdict": "INVALID"}, {"met": None, "decision": "open"}])
def test_result_counts_only_trials_that_could_decide(change):
    trials = [trial(8, 0.5), trial(64, 4.0), trial(23, 0.9, 1), trial(23, 1.01, 2)]
    found = search.traced("a", asked(low=8, high=64, trials=4), {"ttft_ms": {"p95": 500.0}}, trials, search.outcomes(trials, 0.1))
    *others, last = found.trials
    assert "(1 of 1 VALID" in search.words(found.model_copy(update={"trials": (*others, last.model_copy(update=change))}))
    none = tuple(one.model_copy(update=change if one.value == 23 else {}) for one in found.trials)
    assert "23" not in search.words(found.model_copy(update={"trials": none}))


def test_undecided_search_states_how_many_trials_are_suspect():
    trials = [trial(8, 0.9, number, output) for number, output in ((1, 100.0), (2, 200.0), (3, 300.0))]
    found = search.traced("a", asked(low=8, high=64, trials=3), {"ttft_ms": {"p95": 500.0}}, trials, search.outcomes(trials, 0.1))
    # Each trial is VALID alone, but they differ too much.
    assert search.undecided(found) and "3 of 3 trials are SUSPECT" in search.words(found)
    alone = search.traced("a", asked(low=8, high=64, trials=3), {}, trials, search.outcomes(trials, 0.1), compared=False)
    assert {one.verdict for one in alone.trials} == {"VALID"}
    assert not search.undecided(found.model_copy(update={"misses": 64.0}))


def test_trials_of_a_load_that_differ_too_much_are_suspect():
    trials = [trial(8, 0.9, number, output) for number, output in ((1, 100.0), (2, 200.0), (3, 300.0))]
    assert {one.verdict for one in search.outcomes(trials, 0.1)} == {"SUSPECT"}
    assert {one.verdict for one in search.outcomes(trials, None)} == {"VALID"}


def test_suspect_first_trial_does_not_hide_what_the_next_one_decides():
    # As on GPUs, where the first trial after a start waited for kernels that the server compiled.
    slow = trial(32, 0.97, output=77.0)
    slow = replace(slow, record=slow.record.model_copy(update={"verdict": "SUSPECT"}))
    trials = [slow, trial(32, 0.47, 2)]
    assert search.decision(search.outcomes(trials, 0.1)) == "meets"
    assert search.decision(search.outcomes(trials, 0.1, archive_format=5)) is None


def test_suspect_first_trial_leaves_three_valid_ones():
    slow = trial(8, 2.0, 1, output=50.0)
    slow = replace(slow, record=slow.record.model_copy(update={"verdict": "SUSPECT"}))
    differing = [slow, trial(8, 0.9, 2, 100.0), trial(8, 0.9, 3, 120.0)]
    assert [one.verdict for one in search.outcomes(differing, 0.1)] == ["SUSPECT"] * 3
    assert search.decision(search.outcomes(differing, 0.1)) is None, "both VALID trials differ, so a third one decides"
    third = [*differing, trial(8, 0.89, 4, 110.0)]
    assert search.decision(search.outcomes(third, 0.1)) == "meets"
    # In archives before format 6, the three trials were all.
    assert search.decision(search.outcomes(differing, 0.5)) is None
    assert search.decision(search.outcomes(differing, 0.5, archive_format=5)) == "open"


def trial(load, ratio, repetition=1, output=100.0):
    record = report_data.measurement("a", load, repetition=repetition, output=output)
    (point,) = report_data.plan("a", (record,)).points
    return search.Trial(point, record, ratio)


def test_record_of_a_search_follows_from_its_own_trials():
    ratios = {1: 0.5, 512: math.inf, 23: None}
    loads = list(ratios)
    trials = [trial(load, ratio) for load, ratio in ratios.items()]
    found = search.traced("a", asked(trials=3), {}, trials, search.outcomes(trials, 0.1))
    assert [(one.ratio, one.met) for one in found.trials] == [(0.5, True), (None, False), (None, None)]
    again = [search.Trial.stated(one, known.record) for one, known in zip(found.trials, trials, strict=True)]
    assert [one.ratio for one in again] == [ratios[load] for load in loads]
    assert search.traced("a", asked(trials=3), {}, again, search.outcomes(again, 0.1)) == found
