"""Names of the starts of a deployment: DEPLOYMENT, DEPLOYMENT+1 and so on. No configured name contains the mark.

The starts are independent of each other, and may run in any order or at the same time.
"""

from collections.abc import Iterable

MARK = "+"
MOST = 99
"""The most restarts of a configuration. Such a number may also come from an archive of someone else."""


def start_name(deployment: str, restart: int) -> str:
    """Return the name of a start; ``restart`` is its number, from 0."""
    return f"{deployment}{MARK}{restart}" if restart else deployment


def start_names(deployments: Iterable[str], restarts: int, *, interleaved: bool) -> list[str]:
    """Return the names of all starts; with ``interleaved``, first those of number 0 of all deployments."""
    pairs = [(number, at, name) for at, name in enumerate(deployments) for number in range(restarts + 1)]
    return [start_name(name, number) for number, _, name in (sorted(pairs) if interleaved else pairs)]


def configured(start: str) -> str:
    """Return the deployment's name in the configuration."""
    return start.partition(MARK)[0]


def restart_of(start: str) -> int:
    """Return the number of a start, from 0.

    Raises:
        ValueError: the part after the mark is not a number.
    """
    return int(start.partition(MARK)[2] or 0)
