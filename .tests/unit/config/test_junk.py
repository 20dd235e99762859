"""Any value at any place of a configuration is accepted, or refused with its place."""

from __future__ import annotations

import pytest
import yaml

from builders.config_text import BASE
from servemark.config.load import validate
from servemark.config.model import Config
from servemark.errors import ConfigError


def _places(node, path=()):
    yield path
    for key, inner in node.items() if isinstance(node, dict) else enumerate(node) if isinstance(node, list) else ():
        yield from _places(inner, (*path, key))


JUNK = [
    None,
    True,
    -1,
    0,
    1,
    2.5,
    float("nan"),
    "",
    "x",
    "a/b",
    "../..",
    "\0",
    "{x}",
    [],
    [None],
    {},
    {"x": {"y": []}},
    {1: 2},
]


@pytest.mark.parametrize("place", [place for place in _places(yaml.safe_load(BASE)) if place], ids=str)
@pytest.mark.parametrize("junk", JUNK, ids=repr)
def test_junk_is_accepted_or_refused_at_its_place(tmp_path, monkeypatch, place, junk):
    monkeypatch.chdir(tmp_path)
    data = yaml.safe_load(BASE)
    inner = data
    for part in place[:-1]:
        inner = inner[part]
    inner[place[-1]] = junk
    try:
        outcome = validate(data)
    except ConfigError as error:
        outcome = error
    if isinstance(outcome, ConfigError):
        assert str(place[0]) in str(outcome) or "under `" in str(outcome)
    else:
        assert isinstance(outcome, Config)
