"""Confidence intervals: Student's t against published quantiles, and coverage and error rates by simulation."""

from __future__ import annotations

import numpy as np
import pytest

from servemark.measurement.intervals import LEAST, Interval, t_quantile

# Two-sided 95 % quantiles: NIST/SEMATECH e-Handbook of Statistical Methods, 1.3.6.7.2 (column 0.975).
PUBLISHED = {1: 12.706, 2: 4.303, 3: 3.182, 4: 2.776, 5: 2.571, 9: 2.262, 10: 2.228, 30: 2.042, 100: 1.984}
TRIALS = 20_000


def noise(kind: str, shape: tuple[int, ...], spread: float, seed: int = 20261125) -> np.ndarray:
    """Return positive values around 1 (geometric mean) whose logarithms have this standard deviation."""
    draws = np.random.default_rng(seed)
    if kind == "lognormal":
        return np.exp(spread * draws.standard_normal(shape))
    if kind == "normal":
        return np.maximum(1 + spread * draws.standard_normal(shape), 0.01)
    if kind == "heavy tails":
        return np.exp(spread * draws.standard_t(4, shape) / np.sqrt(2))
    # One repetition in ten is slow by three standard deviations.
    return np.exp(spread * draws.standard_normal(shape) - 3 * spread * (draws.random(shape) < 0.1))


@pytest.mark.parametrize("freedom", PUBLISHED)
def test_quantile_is_the_published_one(freedom):
    assert float(t_quantile(freedom)) == pytest.approx(PUBLISHED[freedom], abs=6e-4)


def test_quantiles_of_1_and_2_degrees_have_their_closed_form():
    # With p = 0.95: tan(pi p / 2), and sqrt(2) p / sqrt(1 - p^2).
    exact = [np.tan(0.475 * np.pi), np.sqrt(2) * 0.95 / np.sqrt(1 - 0.95**2)]
    np.testing.assert_allclose(t_quantile([1, 2]), exact, rtol=1e-12)


def test_quantile_falls_with_freedom_to_that_of_the_normal():
    found = t_quantile(np.geomspace(1, 1e6, 500))
    assert (np.diff(found) < 0).all() and found[-1] == pytest.approx(1.959964, abs=1e-5)


@pytest.mark.parametrize("count", [3, 5, 10])
@pytest.mark.parametrize("spread", [0.01, 0.03, 0.15])
def test_95_percent_of_the_intervals_contain_the_true_value(count, spread):
    # 0.01 to 0.03: GPUs; 0.15: a tiny model on two busy cores.
    found = Interval.of(noise("lognormal", (TRIALS, count), spread))
    assert np.mean((found.low < 1) & (found.high > 1)) == pytest.approx(0.95, abs=0.01)


@pytest.mark.parametrize("count", [3, 5, 10])
@pytest.mark.parametrize("kind", ["normal", "heavy tails"])
def test_coverage_holds_for_noise_that_is_not_lognormal(kind, count):
    values = noise(kind, (TRIALS, count), 0.1)
    true = np.exp(np.log(noise(kind, (2_000_000,), 0.1, seed=1)).mean())
    found = Interval.of(values)
    assert 0.93 <= np.mean((found.low < true) & (found.high > true)) <= 0.97


@pytest.mark.parametrize(
    ("kind", "rates"),
    [("lognormal", (0.03, 0.05)), ("normal", (0.03, 0.05)), ("heavy tails", (0.02, 0.04)), ("slow outliers", (0.02, 0.04))],
)
def test_identical_systems_are_rarely_called_different(kind, rates):
    one, other = (Interval.of(noise(kind, (TRIALS, 3), 0.1, seed)) for seed in (1, 2))
    assert rates[0] < np.mean(one.over(other).excludes_1) < rates[1]


@pytest.mark.parametrize("kind", ["lognormal", "heavy tails", "slow outliers"])
@pytest.mark.parametrize("seed", range(5))
def test_at_most_6_percent_of_1000_identical_pairs_differ(kind, seed):
    one, other = (Interval.of(noise(kind, (1_000, 3), 0.1, 2 * seed + side)) for side in (0, 1))
    assert np.mean(one.over(other).excludes_1) <= 0.06


def test_systems_with_unequal_spread_are_rarely_called_different():
    steady, noisy = (Interval.of(noise("lognormal", (TRIALS, 3), spread, 7 + at)) for at, spread in enumerate((0.01, 0.2)))
    assert np.mean(steady.over(noisy).excludes_1) < 0.06


def test_real_differences_are_found():
    # 20 % between systems whose repetitions vary by 3 %.
    one, other = (Interval.of(factor * noise("lognormal", (TRIALS, 3), 0.03, 11 + at)) for at, factor in enumerate((1.0, 1.2)))
    assert np.mean(one.over(other).excludes_1) > 0.98


def test_ratio_is_the_published_welch_test():
    # Worked by hand: means 0.1 and 0, variances 0.01 and 0.04 of the logarithms, 4 and 5 repetitions.
    one, other = Interval.of_logs(0.1, 0.1, 4), Interval.of_logs(0.0, 0.2, 5)
    variance = 0.01 / 4 + 0.04 / 5
    freedom = variance**2 / ((0.01 / 4) ** 2 / 3 + (0.04 / 5) ** 2 / 4)
    half = float(t_quantile(freedom)) * np.sqrt(variance)
    found = one.over(other)
    np.testing.assert_allclose([found.low, found.high], [np.exp(0.1 - half), np.exp(0.1 + half)], rtol=1e-12)


def test_fewer_than_three_repetitions_have_no_interval():
    for count in range(1, LEAST):
        found = Interval.of([100.0, 110.0][:count])
        assert np.isnan(found.low) and np.isnan(found.high)
        ratio = Interval.of([50.0, 51.0, 52.0]).over(found)
        assert np.isnan(ratio.low) and not ratio.excludes_1 and ratio.repetitions == count


def test_equal_values_give_a_point():
    found = Interval.of([7.0, 7.0, 7.0])
    assert (found.low, found.high) == (pytest.approx(7.0), pytest.approx(7.0))
    ratio = found.over(Interval.of([14.0, 14.0, 14.0]))
    assert (ratio.low, ratio.high) == (pytest.approx(0.5), pytest.approx(0.5))
