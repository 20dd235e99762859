"""95 % confidence intervals over repetitions, and the 95 % interval of the ratio of two deployments.

Both are Student's t on logarithms: rates and times are positive and vary by factors. An interval covers the geometric mean of the
repetitions, which is their median if the logarithms are symmetric. For a ratio, the two deployments may have different spreads (Welch,
Biometrika 34, 1947, 28-35; degrees of freedom after Satterthwaite, Biometrics Bulletin 2, 1946, 110-114).
"""

import math
from dataclasses import dataclass
from statistics import NormalDist
from typing import Any, Self

import numpy as np

LEVEL = 0.95
LEAST = 3
"""Repetitions of an interval. With two, Student's t needs 12.7 standard errors: two values do not show their own spread."""

_NODES, _WEIGHTS = np.polynomial.legendre.leggauss(64)
_CLOSE = 1e-13


def t_quantile(freedom: Any) -> np.ndarray:
    """Return how many standard errors lie on either side of the mean in an interval of ``LEVEL``, for degrees of freedom of 1 or more.

    The substitution t = sqrt(freedom) tan(angle) turns the distribution function of Student's t into an integral of cos^(freedom - 1)
    (Abramowitz and Stegun 26.7.1), which is computed by Gauss-Legendre quadrature. It is concave in the angle, so Newton's steps from
    the smaller quantile of the normal distribution never pass the solution. scipy has this function, but its wheel of 35 MB would join the
    workflow environment for it alone; a test compares with published quantiles.
    """
    freedom = np.asarray(freedom, dtype=np.float64)
    log_gamma = np.vectorize(math.lgamma, otypes=[np.float64])
    # The density of the angle on both sides of 0 is 2 * scale * cos^(freedom - 1).
    scale = np.exp(log_gamma((freedom + 1) / 2) - log_gamma(freedom / 2)) / math.sqrt(math.pi)
    angle = np.arctan(NormalDist().inv_cdf((1 + LEVEL) / 2) / np.sqrt(freedom))
    for _ in range(100):
        inside = np.cos(angle[..., None] / 2 * (1 + _NODES)) ** (freedom[..., None] - 1)
        missing = LEVEL - scale * angle * (inside @ _WEIGHTS)
        step = missing / (2 * scale * np.cos(angle) ** (freedom - 1))
        angle = angle + step
        if np.all(np.abs(step) < _CLOSE):
            break
    return np.asarray(np.sqrt(freedom) * np.tan(angle))


@dataclass(frozen=True)
class Interval:
    """The interval of a result, or of many at once in arrays.

    Attributes:
        low, high: its ends, in the unit of the result. NaN if there are fewer than ``LEAST`` repetitions, or one of them is not positive.
        repetitions: number of values behind it.
    """

    low: Any
    high: Any
    repetitions: Any

    @classmethod
    def of_logs(cls, mean: Any, deviation: Any, repetitions: Any) -> Self:
        """Return the intervals from mean and standard deviation (n - 1) of the logarithms of ``repetitions`` values."""
        mean, deviation, count = (np.asarray(values, dtype=np.float64) for values in (mean, deviation, repetitions))
        enough = np.where(count >= LEAST, count, np.nan)
        half = _quantiles(enough - 1) * deviation / np.sqrt(enough)
        return cls(np.exp(mean - half), np.exp(mean + half), repetitions)

    @classmethod
    def of(cls, values: Any) -> Self:
        """Return the interval of positive values; the last axis of an array holds the repetitions."""
        logs = np.log(np.asarray(values, dtype=np.float64))
        count = logs.shape[-1]
        deviation = logs.std(axis=-1, ddof=1) if count > 1 else np.full(logs.shape[:-1], np.nan)
        return cls.of_logs(logs.mean(axis=-1), deviation, np.full(logs.shape[:-1], count))

    def over(self, other: "Interval") -> "Interval":
        """Return the interval of this result divided by another one. ``repetitions`` is the smaller number of both."""
        (mean, variance), (base, variance_of_base) = self._logs(), other._logs()
        spreads = np.array([variance, variance_of_base])
        counts = np.array([self.repetitions, other.repetitions], dtype=np.float64)
        total = spreads.sum(axis=0)
        with np.errstate(invalid="ignore", divide="ignore"):
            freedom = total**2 / (spreads**2 / (counts - 1)).sum(axis=0)
        # Without any spread, the interval is a point, whatever the degrees of freedom.
        half = _quantiles(np.where(total == 0, 1.0, freedom)) * np.sqrt(total)
        difference = mean - base
        return Interval(np.exp(difference - half), np.exp(difference + half), np.minimum(self.repetitions, other.repetitions))

    def _logs(self) -> tuple[np.ndarray, np.ndarray]:
        """Return the mean of the logarithms and the square of its standard error."""
        low, high = np.log(np.asarray(self.low, np.float64)), np.log(np.asarray(self.high, np.float64))
        count = np.asarray(self.repetitions, dtype=np.float64)
        error = (high - low) / 2 / _quantiles(np.where(count >= LEAST, count, np.nan) - 1)
        return (low + high) / 2, error**2

    @property
    def excludes_1(self) -> Any:
        """Whether the interval of a ratio lies on one side of 1."""
        return (np.asarray(self.low) > 1) | (np.asarray(self.high) < 1)


def _quantiles(freedom: np.ndarray) -> np.ndarray:
    """Return ``t_quantile`` for each number, computed once for equal ones; NaN for NaN."""
    found, where = np.unique(freedom, return_inverse=True)
    quantiles = np.full(found.shape, np.nan)
    known = np.isfinite(found)
    quantiles[known] = t_quantile(found[known])
    return quantiles[where].reshape(np.shape(freedom))
