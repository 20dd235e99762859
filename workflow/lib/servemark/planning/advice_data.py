"""Read ``advice.yaml``: every measured number that servemark uses, and the sentences of a plan's warnings.

The file is validated when planning is imported. Its first lines explain the fields.
"""

from __future__ import annotations

import datetime
from pathlib import Path
from typing import Any

import yaml

from servemark.records import Strict

_Loader: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)


class Number(Strict):
    """One measured number: ``value`` in ``unit``, and where it comes from."""

    value: float
    unit: str
    hardware: str
    software: str
    source: str
    date: datetime.date

    def __str__(self) -> str:
        return f"{self.value:,g} {self.unit}"


class Data(Strict):
    """The whole file: numbers by name, sentences by the code of their condition (``advice.CONDITIONS``)."""

    numbers: dict[str, Number]
    sentences: dict[str, str]


_data = Data.model_validate(
    yaml.load(Path(__file__).with_name("advice.yaml").read_text(encoding="utf-8"), Loader=_Loader)  # noqa: S506
)
NUMBERS, SENTENCES = _data.numbers, _data.sentences


def measured(name: str) -> float:
    """Return the value of a measured number of ``advice.yaml``."""
    return NUMBERS[name].value
