"""Problems of a configuration as text: place, key, fault, value found and allowed values."""

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from pydantic import BaseModel, ValidationError

from servemark.config.checks import CHECK_PATTERN, METRIC_PATTERN, Check
from servemark.config.cluster import CONSTRAINT_PATTERN, MODULE_PATTERN, SCRATCH_PATTERN, WORD_PATTERN, Site, SmallJobs
from servemark.config.container import Container
from servemark.config.field_types import NAME_PATTERN, OPTION_PATTERN, RUN_PATTERN, SERVED_PATTERN, VARIABLE_PATTERN, nearest
from servemark.config.model import Config, Deployment, Environment, Model, Sweep, Timeouts
from servemark.config.positions import MISSING, Source, find, value_at
from servemark.config.prices import Prices
from servemark.config.reserved import SERVE_OPTIONS, kebab, meant, refusal
from servemark.config.search import FORMS, CountRange, CountSearch
from servemark.config.slo import Limits, Slo
from servemark.config.topology import AskedTopology
from servemark.config.workload import CHOICES, KINDS, LENGTH_FORMS, Load, PrefixGroups
from servemark.errors import ConfigError
from servemark.measurement.thresholds import Verdict
from servemark.records import DatasetSource
from snakemake_executor_plugin_slurm_guarded.secret_names import looks_secret

Loc = tuple[Any, ...]

_PATTERNS = {
    NAME_PATTERN: "lower-case letters, digits, dots and dashes, with a letter or digit first",
    RUN_PATTERN: "lower-case letters, digits, dots, dashes and underscores, with a letter or digit first",
    SERVED_PATTERN: "such as openai/gpt-oss-120b: letters, digits, and . _ - : within parts that a slash separates",
    CHECK_PATTERN: "letters, digits, dots, dashes and underscores, with a letter or digit first",
    METRIC_PATTERN: "without spaces",
    VARIABLE_PATTERN: "upper-case letters, digits and underscores",
    OPTION_PATTERN: "letters, digits and dashes",
    WORD_PATTERN: "one word",
    CONSTRAINT_PATTERN: "features of nodes, with & or | between them and no spaces",
    SCRATCH_PATTERN: "a folder of the node, such as `/tmp` or `$VARIABLE/...`",
    MODULE_PATTERN: "the name of a module, such as brics/nccl or cuda/12.6",
    r"^(deployments|workloads)\.[a-z0-9][a-z0-9.-]*$": "`deployments.NAME` or `workloads.NAME`",
    r"^[^/\s]+/[^/\s]+$": "`deployment/point`, both may contain * and ?",
    r"^\S{1,8}$": "at most 8 characters without spaces",
}
# Of a longer message, the terminal would not show the first lines.
_SHOWN_CHOICES = 20
_SHOWN_PROBLEMS = 50


@dataclass(frozen=True)
class Problem:
    """One fault at one place. ``hide``: show no value; ``given``: the spelling to compare with ``allowed``, to suggest a close one."""

    loc: Loc
    text: str
    allowed: tuple[str, ...] = ()
    hide: bool = False
    given: str | None = None


def from_pydantic(error: ValidationError, data: Any) -> list[Problem]:
    """Return the problems of one failed validation of ``data``."""
    return [
        _translate(item, data, rooted=error.title == Config.__name__)
        for item in error.errors(include_url=False)
        # Both follow from another listed error: pydantic counts only the valid items.
        if item["type"] != "default_factory_not_called" and not (item["type"] == "too_short" and item["input"])
    ]


def _translate(item: Any, data: Any, rooted: bool) -> Problem:
    kind, context, found = item["type"], item.get("ctx", {}), item["input"]
    loc: Loc = tuple(part for part in item["loc"] if part not in (*FORMS, *LENGTH_FORMS))
    home = _HOMES.get(_pattern(loc[:-1]))
    if rooted and loc[:1] == ("workloads",) and len(loc) > 2 and loc[2] in KINDS:
        # pydantic inserts the dataset between a workload's name and its key.
        workload, loc = KINDS[loc[2]], loc[:2] + loc[3:]
        home = workload if len(loc) == 3 else _HOMES.get(_pattern(loc[:-1]))
    if loc and loc[-1] == "[key]":  # YAML reads the key `no` as false, and pydantic reports it as 0.
        loc = (*loc[:-2], found)
    if isinstance(loc[-1] if loc else None, int) and not isinstance(value_at(data, loc[:-1]), list | tuple | dict):
        loc = loc[:-1]  # a single value in place of a list
    if kind == "refused":
        given = found if isinstance(found, str) else None
        return Problem((*loc, *context["at"]), context["text"], tuple(context["allowed"]), context["hide"], given)
    if kind == "extra_forbidden":
        return _unknown_key(loc, home)
    if kind == "union_tag_not_found":
        keys = [key for key in found if isinstance(key, str)]
        if "dataset" not in keys and (close := nearest("dataset", keys)):
            return Problem((*loc, close), "is an unknown key", ("dataset",), given=close)
        return Problem((*loc, "dataset"), "is missing", CHOICES)
    if kind == "union_tag_invalid":
        if str(context["tag"]).endswith(".jsonl"):
            return Problem((*loc, "dataset"), f"is the name of a file: write {{file: {context['tag']}}}")
        return Problem((*loc, "dataset"), "is not one of the choices", CHOICES, given=context["tag"])
    if kind == "literal_error":
        allowed = tuple(re.findall(r"'([^']+)'", context["expected"]))
        return Problem(
            loc, "is not one of the choices", allowed, given=next((word for word in meant(str(found)) if word in allowed), str(found))
        )
    if kind == "string_pattern_mismatch":
        return Problem(loc, f"must match {context['pattern']} ({_PATTERNS[context['pattern']]})")
    if kind == "int_type" and found == "recorded" and loc[-1:] == ("output_tokens",):
        return Problem(loc, "`recorded` is only for datasets whose rows have a length: {file: ...}, {sharegpt: ...} and {hf: ...}")
    if kind in _MAPPING and isinstance(found, str) and _pattern(loc) == ("environments", "NAME", "container"):
        return Problem(loc, "must be a mapping: write {image: docker://NAME:TAG} or {image: /path/of/image.sif}")
    if found is None and kind != "missing":
        return Problem(loc, "is empty: fill it in or remove the key")
    # Else pydantic's text, such as "Input should be a valid integer".
    text = _WORDS.get(kind, re.sub(r"^\w+ should", "must", item["msg"]))
    return Problem(loc, text + _hint(kind, found))


_MAPPING = ("model_type", "model_attributes_type", "dict_type")
_WORDS = {
    "missing": "is missing",
    **dict.fromkeys(_MAPPING, "must be a mapping, in indented lines below the key"),
    "tuple_type": "must be a list",
    "too_short": "must not be empty",
    "bool_type": "must be true or false",
    "invalid_key": "must be text",
}


def _hint(kind: str, found: Any) -> str:
    if kind in ("string_type", "invalid_key") and not isinstance(found, dict | list):
        return ": put it in quotes"
    if kind in ("int_type", "float_type") and isinstance(found, str) and re.fullmatch(r"[\d.]+e[+-]?\d+", found.lower()):
        return "; YAML reads 1e3 and 1e-3 as text, so write 1000 or 0.001"
    if kind in ("int_type", "float_type") and isinstance(found, str) and re.fullmatch(r"[\d.]+ ?[kKM]", found):
        return "; write the whole number, such as 4096"
    if kind in ("int_type", "float_type") and isinstance(found, str) and re.fullmatch(r"[\d.]+ ?[A-Za-z]+", found):
        return "; write a number without a unit, in the unit of the key"
    return ", without quotes" if kind in ("int_type", "float_type", "bool_type") and isinstance(found, str) else ""


_HOMES: dict[Loc, type[BaseModel]] = {
    (): Config,
    ("models", "NAME"): Model,
    ("environments", "NAME"): Environment,
    ("environments", "NAME", "container"): Container,
    ("deployments", "NAME"): Deployment,
    ("deployments", "NAME", "topology"): AskedTopology,
    ("deployments", "NAME", "checks", "NAME"): Check,
    ("workloads", "NAME"): KINDS["random"],
    ("workloads", "NAME", "dataset"): DatasetSource,
    ("workloads", "NAME", "dataset", "prefix"): PrefixGroups,
    ("verdict",): Verdict,
    ("timeouts",): Timeouts,
    ("prices",): Prices,
    ("slo",): Slo,
    **{("slo", latency): Limits for latency in Slo.model_fields},
    ("workloads", "NAME", "slo"): Slo,
    **{("workloads", "NAME", "slo", latency): Limits for latency in Slo.model_fields},
    **{("workloads", "NAME", load): CountSearch for load in ("concurrency", "request_rate")},
    **{("workloads", "NAME", load, "search"): CountRange for load in ("concurrency", "request_rate")},
    ("cluster",): Site,
    ("cluster", "small_jobs"): SmallJobs,
    ("sweeps", "NAME"): Sweep,
}
"""The type of each mapping with fixed keys by its place; for workloads one of the kinds."""


_DATASETS = {
    "random": "`dataset: random`",
    "staged": "a dataset {file: ...}, {sharegpt: ...} or {hf: ...}",
    "prefix": "a dataset {prefix: ...}",
}


def _pattern(loc: Loc) -> Loc:
    """Return the place with NAME in place of a name that the user chose, or of a number in a list."""
    if loc[:1] == ("deployments",) and loc[2:3] == ("checks",) and len(loc) > 3:
        return ("deployments", "NAME", "checks", "NAME", *loc[4:])
    return (loc[0], "NAME", *loc[2:]) if len(loc) > 1 and loc[0] in {home[0] for home in _HOMES if home[1:2] == ("NAME",)} else loc


def _place(way: Loc) -> str:
    if way[:1] == ("cluster",):
        return "in the cluster file, config/clusters/NAME.yaml"
    return f"under {'.'.join(way)}" if way else "at the top level"


def _unknown_key(loc: Loc, home: type[BaseModel] | None) -> Problem:
    key = str(loc[-1])
    if home in KINDS.values() and (others := [tag for tag, kind in KINDS.items() if key in kind.model_fields]):
        return Problem(loc, f"is only for workloads with {' or '.join(_DATASETS[tag] for tag in others)}")
    allowed = tuple(field.alias or name for name, field in home.model_fields.items()) if home else ()
    keys = meant(key)
    if known := next((one for one in (*keys, key) if "." not in one and nearest(one, allowed)), None):
        return Problem(loc, "is an unknown key", allowed, given=known)
    text = "is an unknown key"
    elsewhere = [(one, way) for one in keys for way, model in _HOMES.items() if one in model.model_fields]
    why = refusal(kebab(key), SERVE_OPTIONS)
    if elsewhere:
        one, way = elsewhere[0]
        text += f"; it belongs {_place(way)}" if one == key else f"; it is `{one}` {_place(way)}"
    elif keys[0].startswith("options."):
        text += f"; it is `{keys[0].removeprefix('options.')}` under deployments.NAME.options"
    elif home is Model and key == "revision":
        text += "; write it after an @ in `source`: hf:ORG/NAME@REVISION"
    elif home is Deployment:
        text += f"; {why or 'write options of `vllm serve` under `options`'}"
    elif home and issubclass(home, Load):
        text += "; write options of `vllm bench serve` under `client_options`"
    return Problem(loc, text, allowed)


def _shown(value: Any) -> str:
    """Return a short text of a value, without the content of mappings and lists, which could be secret."""
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
    """Return the text, cut to ``length`` characters."""
    return text if len(text) <= length else text[: length - 3] + "..."


def dotted(loc: Iterable[Any]) -> str:
    """Return ``('workloads', 'chat', 'concurrency', 1)`` as ``workloads.chat.concurrency[1]``."""
    names = (part if isinstance(part, int) else shortened(str(part), 100) for part in loc)
    text = "".join(f"[{name}]" if isinstance(name, int) else f".{name if name.isprintable() else repr(name)}" for name in names)
    return text.removeprefix(".") or "the configuration"


def describe(problem: Problem, data: Any, at: Loc = ()) -> str:
    """Return one problem as text: key below ``at``, fault, closest spelling, value found, allowed values."""
    text = f"{dotted(problem.loc[len(at) :])}: {problem.text}"
    if close := nearest(problem.given, problem.allowed) if problem.given else None:
        text += f"; did you mean `{close}`?"
    value = value_at(data, problem.loc)
    if value is not MISSING:
        secret = problem.hide or any(looks_secret(str(part)) for part in problem.loc)
        text += f"\n      found: {'(not shown)' if secret else _shown(value)}"
    if problem.allowed:
        more = len(problem.allowed) - _SHOWN_CHOICES
        text += f"\n      allowed: {', '.join(problem.allowed[:_SHOWN_CHOICES])}{f' and {more} more' if more > 0 else ''}"
    return text


def config_error(problems: Sequence[Problem], data: Any, sources: Sequence[Source]) -> ConfigError:
    """Return one error with all problems, in the order of the files; problems of the command line come last."""
    entries: list[tuple[tuple[int, int], str]] = []
    for problem in problems:
        place = find(sources, data, problem.loc)
        where = f"{sources[place[0]].path}:{place[1]}" if place else "--config"
        at = sources[place[0]].at if place else ()
        entries.append((place or (len(sources), 0), f"  {where}: {describe(problem, data, at)}"))
    for index, source in enumerate(sources):
        twice = "line {} of the same mapping has this key too; remove one"
        entries += [((index, line), f"  {source.path}:{line}: {key}: {twice.format(first)}") for line, first, key in source.duplicates]
    lines = list(dict.fromkeys(text for _, text in sorted(entries, key=lambda entry: entry[0])))
    head = "The configuration has a problem" if len(lines) == 1 else f"The configuration has {len(lines)} problems"
    if len(lines) > _SHOWN_PROBLEMS:
        lines[_SHOWN_PROBLEMS:] = [f"  ... and {len(lines) - _SHOWN_PROBLEMS} more"]
    return ConfigError(
        "\n".join([f"{head}. servemark started nothing.", *lines]),
        do="Correct the listed keys and run the command again. docs/reference/configuration.md explains every key.",
    )
