"""Values of a config.json by the names that model types give them."""

from collections.abc import Mapping
from typing import Any


class Unsized(Exception):
    """Planning cannot size the model; the text is the reason."""


def first(config: Mapping[str, Any], *names: str) -> int | None:
    """Return the value of the first of ``names`` that is a whole number above zero."""
    return next((value for value in map(config.get, names) if type(value) is int and 0 < value < 2**31), None)


def stated(config: Mapping[str, Any], *names: str) -> int:
    """Return the value of the first of ``names`` that is a whole number above zero; raise Unsized if there is none."""
    if (value := first(config, *names)) is None:
        listed = " or ".join(repr(name) for name in names)
        raise Unsized(f"config.json states no whole number above 0 for {listed}")
    return value
