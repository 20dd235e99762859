"""What is wrong with a configuration, in words: where, which key, what was found, what is allowed."""

from __future__ import annotations

import re
import typing
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from pydantic import BaseModel, ValidationError

from servemark.config import aliases
from servemark.config.cluster import (
    CONSTRAINT_PATTERN,
    MODULE_PATTERN,
    WORD_PATTERN,
    Site,
)
from servemark.config.field_types import NAME_PATTERN, OPTION_PATTERN, RUN_PATTERN, VARIABLE_PATTERN, nearest
from servemark.config.model import Config, Deployment
from servemark.config.positions import Source, find, is_missing, value_at
from servemark.config.reserved import SERVE_OPTIONS, kebab, refusal
from servemark.config.workload import KINDS, Load, Workload
from servemark.errors import ConfigError
from snakemake_executor_plugin_slurm_guarded.secret_names import looks_secret

Loc = tuple[Any, ...]

_PATTERNS = {
    NAME_PATTERN: "lower-case letters, digits, dots and dashes, with a letter or digit first",
    RUN_PATTERN: "lower-case letters, digits, dots, dashes and underscores, with a letter or digit first",
    VARIABLE_PATTERN: "upper-case letters, digits and underscores",
    OPTION_PATTERN: "letters, digits and dashes",
    WORD_PATTERN: "one word",
    CONSTRAINT_PATTERN: "features of nodes, joined by & or |, without spaces",
    MODULE_PATTERN: "the name of a module, such as brics/nccl or cuda/12.6",
    r"^(deployments|workloads)\.[a-z0-9][a-z0-9.-]*$": "`deployments.NAME` or `workloads.NAME`",
    r"^[^/\s]+/[^/\s]+$": "`deployment/point`, each half may hold * and ?",
}
# Enough to act on; a longer message scrolls its own head away.
_SHOWN_CHOICES = 20
_SHOWN_PROBLEMS = 50


@dataclass(frozen=True)
class Problem:
    """One fault at one place."""

    loc: Loc
    text: str
    allowed: tuple[str, ...] = ()
    hide: bool = False
    """do not show the value"""
    given: str | None = None
    """the spelling to compare with ``allowed``, when a close one should be offered"""


def from_pydantic(error: ValidationError, data: Any) -> list[Problem]:
    """Return the problems of one failed validation of ``data``."""
    return [
        _translate(item, data, rooted=error.title == Config.__name__)
        for item in error.errors(include_url=False)
        # Both follow from another error, which is listed: pydantic counts only the items that are right.
        if item["type"] != "default_factory_not_called" and not (item["type"] == "too_short" and item["input"])
    ]


def _translate(item: Any, data: Any, rooted: bool) -> Problem:
    kind, context = item["type"], item.get("ctx", {})
    loc: Loc = tuple(item["loc"])
    home = model_at(loc[:-1])
    if rooted and loc[:1] == ("workloads",) and len(loc) > 2 and loc[2] in KINDS:
        # pydantic puts the dataset between a workload's name and its key
        loc, home = loc[:2] + loc[3:], KINDS[loc[2]]
    if loc and loc[-1] == "[key]":  # pydantic gives the key `no`, false to YAML, as 0
        loc = (*loc[:-2], item["input"])
    if isinstance(loc[-1] if loc else None, int) and not isinstance(value_at(data, loc[:-1]), list | tuple | dict):
        loc = loc[:-1]  # a single value where a list may stand
    found = item["input"]
    if kind == "refused":
        given = found if isinstance(found, str) else None
        loc = (*loc, *context["at"])
        return Problem(loc, context["text"], tuple(context["allowed"]), context["hide"], given)
    if kind == "extra_forbidden":
        return _unknown_key(loc, home)
    if kind == "union_tag_not_found":
        close = nearest("dataset", [key for key in found if isinstance(key, str)])
        if close:
            return Problem((*loc, close), "is an unknown key", ("dataset",), given=close)
        return Problem((*loc, "dataset"), "is missing", tuple(KINDS))
    if kind == "union_tag_invalid":
        return Problem((*loc, "dataset"), "is not one of the choices", tuple(KINDS), given=context["tag"])
    if kind == "literal_error":
        allowed = tuple(re.findall(r"'([^']+)'", context["expected"]))
        return Problem(loc, "is not one of the choices", allowed, given=str(found))
    if kind == "string_pattern_mismatch":
        pattern = context["pattern"]
        return Problem(loc, f"must match {pattern} ({_PATTERNS[pattern]})")
    if kind in _WORDS:
        return Problem(loc, _WORDS[kind].format_map(context) + _hint(kind, found))
    return Problem(loc, item["msg"])


_WORDS = {
    "missing": "is missing",
    "string_type": "must be text",
    "int_type": "must be a whole number",
    "int_from_float": "must be a whole number",
    "float_type": "must be a number",
    "finite_number": "must be a finite number",
    "bool_type": "must be true or false",
    "greater_than": "must be greater than {gt}",
    "greater_than_equal": "must be at least {ge}",
    "less_than_equal": "must be at most {le}",
    "string_too_long": "must have at most {max_length} characters",
    "too_short": "must not be empty",
    **dict.fromkeys(("model_type", "model_attributes_type"), "must be a mapping of keys, indented below it"),
    "dict_type": "must be a mapping of names, indented below it",
    "tuple_type": "must be a list",
    "invalid_key": "must be text",
}


def _hint(kind: str, found: Any) -> str:
    if found is None and kind != "missing":
        return "; it is empty: fill it in or remove the key"
    if kind in ("string_type", "invalid_key") and not isinstance(found, dict | list):
        return ": put it in quotes"
    if kind in ("int_type", "float_type") and isinstance(found, str) and re.fullmatch(r"[\d.]+e[+-]?\d+", found.lower()):
        return "; YAML takes 1e3 and 1e-3 for text, write 1000 or 0.001"
    if kind in ("int_type", "float_type", "bool_type") and isinstance(found, str):
        return ", without quotes"
    return ""


def model_at(loc: Sequence[Any]) -> type[BaseModel] | None:
    """Return the type that stands at ``loc`` of a configuration, or None where there is no mapping of fixed keys."""
    here: Any = Config
    for part in loc:
        if isinstance(here, type) and issubclass(here, BaseModel):
            field = here.model_fields.get(part)
            here = field.annotation if field else None
            if here == Site | None:
                here = Site
        elif typing.get_origin(here) in (dict, tuple):
            here = typing.get_args(here)[1 if typing.get_origin(here) is dict else 0]
        if here == Workload:
            here = next(iter(KINDS.values()))  # of any kind, for hints
    return here if isinstance(here, type) and issubclass(here, BaseModel) else None


# In words, the way to each mapping of fixed keys.
_HOMES = {
    "at the top level": Config,
    **{
        f"under {'.'.join(loc)}": model_at(loc)
        for loc in (
            ("models", "NAME"),
            ("environments", "NAME"),
            ("deployments", "NAME"),
            ("deployments", "NAME", "topology"),
            ("workloads", "NAME"),
            ("verdict",),
            ("timeouts",),
        )
    },
    "in the cluster's file, config/clusters/NAME.yaml": Site,
}


def _unknown_key(loc: Loc, home: type[BaseModel] | None) -> Problem:
    key = str(loc[-1])
    allowed = tuple(home.model_fields) if home else ()
    keys = aliases.meant(key)
    if known := next((one for one in (*keys, key) if nearest(one, allowed)), None):
        return Problem(loc, "is an unknown key", allowed, given=known)
    text = "is an unknown key"
    elsewhere = [(one, place) for one in keys for place, model in _HOMES.items() if model and one in model.model_fields]
    if elsewhere:
        one, place = elsewhere[0]
        text += f"; it belongs {place}" if one == key else f"; it is `{one}` {place}"
    elif keys[0].startswith("options."):
        text += f"; it is `{keys[0].removeprefix('options.')}` under deployments.NAME.options"
    elif home is Deployment and not refusal(kebab(key), SERVE_OPTIONS):
        text += "; options of `vllm serve` stand under `options`"
    elif home is Deployment:
        text += f"; {refusal(kebab(key), SERVE_OPTIONS)}"
    elif home and issubclass(home, Load):
        text += "; options of `vllm bench serve` stand under `client_options`"
    return Problem(loc, text, allowed)


def _shown(value: Any) -> str:
    """Return a value, short; what lies inside mappings and lists is left out, for it could hold a secret."""
    if isinstance(value, dict):
        return f"a mapping of {len(value)} key{'s' * (len(value) != 1)}"
    if isinstance(value, list | tuple):
        if all(isinstance(item, int | float) for item in value):
            return shortened(str(list(value)))
        return f"a list of {len(value)}"
    if value is None or isinstance(value, bool):
        return {None: "nothing", True: "true", False: "false"}[value]
    if isinstance(value, int) and value.bit_length() > 64:
        return f"a number of {value.bit_length()} bits"
    return shortened(repr(value) if isinstance(value, str) else str(value))


def shortened(text: str, length: int = 60) -> str:
    """At most ``length`` characters of a text from the configuration."""
    return text if len(text) <= length else text[: length - 3] + "..."


def dotted(loc: Iterable[Any]) -> str:
    """``('workloads', 'chat', 'concurrency', 1)`` -> ``workloads.chat.concurrency[1]``."""
    text = "".join(f"[{part}]" if isinstance(part, int) else f".{_key(str(part))}" for part in loc)
    return text.removeprefix(".") or "the configuration"


def _key(name: str) -> str:
    # Names have up to 80 characters.
    name = shortened(name, 100)
    return name if name.isprintable() else repr(name)


def describe(problem: Problem, data: Any, at: Loc = ()) -> str:
    """Return one problem as text without its place: key, fault, closest spelling, what was found, what is allowed.

    Args:
        at: the part of the place that goes without saying.
    """
    text = f"{dotted(problem.loc[len(at) :])}: {problem.text}"
    close = nearest(problem.given, problem.allowed) if problem.given else None
    if close:
        text += f"; did you mean `{close}`?"
    value = value_at(data, problem.loc)
    if not is_missing(value):
        secret = problem.hide or any(looks_secret(str(part)) for part in problem.loc)
        text += f"\n      found: {'(not shown)' if secret else _shown(value)}"
    if problem.allowed:
        more = len(problem.allowed) - _SHOWN_CHOICES
        text += f"\n      allowed: {', '.join(problem.allowed[:_SHOWN_CHOICES])}{f' and {more} more' if more > 0 else ''}"
    return text


def config_error(problems: Sequence[Problem], data: Any, sources: Sequence[Source]) -> ConfigError:
    """Return all problems in one error, in the order of the files; those from the command line come last."""
    entries: list[tuple[tuple[int, int], str]] = []
    for problem in problems:
        place = find(sources, data, problem.loc)
        where = f"{sources[place[0]].path}:{place[1]}" if place else "--config"
        at = sources[place[0]].at if place else ()
        entries.append((place or (len(sources), 0), f"  {where}: {describe(problem, data, at)}"))
    for index, source in enumerate(sources):
        for line, first, key in source.duplicates:
            text = f"  {source.path}:{line}: {key}: this key is already in line {first} of the same mapping; remove one"
            entries.append(((index, line), text))
    lines = list(dict.fromkeys(text for _, text in sorted(entries, key=lambda entry: entry[0])))
    head = "The configuration has a problem" if len(lines) == 1 else f"The configuration has {len(lines)} problems"
    if len(lines) > _SHOWN_PROBLEMS:
        lines[_SHOWN_PROBLEMS:] = [f"  ... and {len(lines) - _SHOWN_PROBLEMS} more"]
    return ConfigError(
        "\n".join([f"{head}; nothing was started.", *lines]),
        do="Correct what is listed and run again; config/README.md explains every key.",
    )
