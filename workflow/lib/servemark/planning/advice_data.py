"""Read ``advice.yaml``: every measured number that servemark uses, and the sentences of a plan's warnings."""

import datetime
from pathlib import Path

from servemark.files.yaml_data import read_yaml
from servemark.records import Strict


class Number(Strict):
    """One measured number: ``value`` in ``unit``, and its source."""

    value: float
    unit: str
    hardware: str
    software: str
    source: str
    date: datetime.date

    def __str__(self) -> str:
        return f"{self.value:,g} {self.unit}"


class Data(Strict):
    """The whole file: numbers by name, and sentences by the code of their condition in ``advice.CONDITIONS``."""

    numbers: dict[str, Number]
    sentences: dict[str, str]


_data = Data.model_validate(read_yaml(Path(__file__).with_name("advice.yaml")))
NUMBERS, SENTENCES = _data.numbers, _data.sentences


def measured(name: str) -> float:
    """Return the value of a measured number of ``advice.yaml``."""
    return NUMBERS[name].value
