"""Types of the configuration's values, with the text that refuses a wrong one."""

import difflib
import os
import re
from collections import Counter
from collections.abc import Callable, Collection
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BeforeValidator, Field, PlainValidator, ValidationInfo, WithJsonSchema
from pydantic_core import PydanticCustomError

from servemark.config import cuda_graphs
from servemark.config.reserved import CLIENT_OPTIONS, SERVE_OPTIONS, abbreviated, kebab, refusal
from servemark.environments import lockfiles, own_lock
from servemark.files import folder_name
from servemark.records.base import MOST, Count
from servemark.records.load_point import PREFIX
from servemark.variables import table
from servemark.weights import hub_source
from snakemake_executor_plugin_slurm_guarded.secret_names import looks_secret

NAME_PATTERN = r"^[a-z0-9][a-z0-9.-]*$"
RUN_PATTERN = r"^[a-z0-9][a-z0-9._-]*$"
SERVED_PATTERN = r"^[A-Za-z0-9][A-Za-z0-9._:-]*(/[A-Za-z0-9][A-Za-z0-9._:-]*)*$"
VARIABLE_PATTERN = r"^[A-Z_][A-Z0-9_]*$"
OPTION_PATTERN = r"^[A-Za-z][A-Za-z0-9_-]*(\.[A-Za-z0-9_-]+)*$"
# A file name, at most 255 bytes, can contain the names of run, deployment and point.
NAME_LENGTH = 80
# Each process of the client takes about a core.
MAX_CLIENTS = 1024
# PATH_MAX of Linux, without the final NUL.
LONGEST_PATH = 4095
_HUB_NAME = re.compile(
    r"(?:(?:https?://)?(?:www\.)?(?:huggingface|hf)\.co/|(?:hf|huggingface):/{0,2})([\w.-]+/[\w.-]+)"
    r"(?:/(?:tree|blob|resolve)/([\w.-]+)(?:[/?]\S*)?|@([\w.-]+))?/?",
    re.IGNORECASE,
)
"""Frequent spellings of a model of the hub other than ``hf:ORG/NAME@REVISION``: the page's address, another prefix."""
LOCKS = (lockfiles.AUTO, *lockfiles.NAMES)


def refuse(text: str, *, allowed: Collection[str] = (), hide: bool = False, at: tuple[str, ...] = ()) -> PydanticCustomError:
    """Return the error for one value. ``hide``: leave the value out of the message; ``at``: the wrong key inside a mapping."""
    # As context, because pydantic would take braces in the text for placeholders.
    context = {"text": text, "allowed": sorted(allowed), "hide": hide, "at": at}
    return PydanticCustomError("refused", "{text}", context)


def nearest(word: str, known: Collection[str]) -> str | None:
    """Return the known name closest to ``word``, if any is close, whatever its case, dashes and underscores."""
    spelled = {name.replace("_", "-").lower(): name for name in known}
    close = difflib.get_close_matches(word.replace("_", "-").lower(), list(spelled), n=1)
    return spelled[close[0]] if close else None


def _option_name(table: dict[str, str]) -> Callable[[str], str]:
    def check(name: str) -> str:
        plain = name.lstrip("-")
        if plain != name and plain and check(plain):
            raise refuse(f"write options without leading dashes; did you mean `{plain}`?")
        if not re.fullmatch(OPTION_PATTERN, name):
            raise refuse("is not an option's name: write letters, digits and dashes")
        if why := refusal(kebab(name), table):
            raise refuse(f"is set by servemark: {why}", hide=True)
        if table is CLIENT_OPTIONS and (whole := abbreviated(kebab(name))):
            raise refuse(f"abbreviates `{whole}`; write the option's full name", hide=True)
        return kebab(name)

    return check


def _option_value(value: Any) -> Any:
    if isinstance(value, dict):
        raise refuse("an option is a value or a list; write a mapping as JSON in single quotes, '{\"key\": 1}'")
    for item in value if isinstance(value, list) else [value]:
        if not (item is None or isinstance(item, str | bool | int | float)):
            raise refuse("must be text, a number, true, false, null or a list of these; put dates in quotes")
    return list(value) if isinstance(value, list) else value


def _as_written(options: Any) -> Any:
    """Check options before their names change to kebab-case, so that messages have the lines: spellings, prefix length, CUDA graphs."""
    if not isinstance(options, dict):
        return options
    names = [name for name in options if isinstance(name, str)]
    written = {kebab(name): name for name in names}
    if twice := sorted({kebab(name) for name in names if written[kebab(name)] != name}):
        raise refuse(f"contains the same option twice, with dashes and with underscores: {', '.join(twice)}")
    prefix = options[written[PREFIX]] if PREFIX in written else None
    if prefix is not None and (isinstance(prefix, bool) or not re.fullmatch(r"[0-9]+", str(prefix))):
        raise refuse("must be a number of tokens, 0 or more", at=(written[PREFIX],))
    if found := cuda_graphs.refusal({name: options[spelling] for name, spelling in written.items()}):
        raise refuse(found[1], at=(written[found[0]],))
    return options


def _variable_name(name: str) -> str:
    if looks_secret(name):
        raise refuse(
            "looks like a secret, and a configuration must not hold secrets. Export it in the shell that starts snakemake, or keep it in "
            "a file with mode 0600 that the program reads. HF_TOKEN and the API keys of vLLM, OpenAI and Ray do not reach the server: "
            "it runs offline and has its own API key",
            hide=True,
        )
    return name


def _variable_value(value: Any) -> str:
    if isinstance(value, bool):
        raise refuse('is ambiguous as an environment variable; write "1", "0" or "true" in quotes')
    if value is None:
        raise refuse('is empty; write "" for an empty variable')
    if not isinstance(value, str | int | float):
        raise refuse("must be text or a number")
    return str(value)


def _allowed(variables: dict[str, str]) -> dict[str, str]:
    if refused := {name: why for name, value in variables.items() if (why := table.refusal(name, value))}:
        # pydantic takes one error for a whole mapping, so this one names all variables.
        first, *others = refused
        more = "".join(f". {name} is refused too: {refused[name]}" for name in others)
        raise refuse(f"is refused: {refused[first]}{more}", at=(first,))
    return variables


def _auto_or(least: int, most: int) -> tuple[Any, ...]:
    """Return the validator and the schema of ``auto`` or a whole number within bounds."""

    def check(value: Any) -> Any:
        if value == "auto" or (isinstance(value, int) and not isinstance(value, bool) and least <= value <= most):
            return value
        raise refuse(f"must be `auto` or a whole number from {least} to {most}")

    schema = {"anyOf": [{"const": "auto"}, {"type": "integer", "minimum": least, "maximum": most}]}
    return PlainValidator(check), WithJsonSchema(schema)


def _seconds(value: Any) -> float | None:
    if value is None:
        return None
    found = re.fullmatch(r"(\d+(?:\.\d+)?) ?(s|min|h)", value) if isinstance(value, str) else None
    seconds = float(found[1]) * {"s": 1, "min": 60, "h": 3600}[found[2]] if found else value
    if isinstance(seconds, bool) or not isinstance(seconds, int | float) or not 0 < seconds <= MOST:
        raise refuse("must be a time above 0: `300s`, `5min`, `1h`, or a number of seconds")
    return float(seconds)


def _path(value: Any) -> Path:
    if not isinstance(value, str | Path) or not str(value).strip():
        raise refuse("must be a path")
    if "$" in str(value):
        raise refuse(
            "contains a variable, which servemark does not expand here; write the full path, or let the shell expand it on the command "
            "line, as in --config cache=$SCRATCH/cache"
        )
    if found := folder_name.fault(os.fsencode(value)):
        raise refuse(f"this path {found}; name another one")
    if len(os.fsencode(value)) > LONGEST_PATH:
        raise refuse(f"has more than {LONGEST_PATH} bytes, the limit for a path")
    path = os.path.expanduser(value)
    if path.startswith("~"):
        raise refuse(f"this machine has no home folder for {path.split('/')[0]}; write the full path")
    return Path(path)


def _source(value: str) -> str:
    builtins = ("builtin:tiny-dense", "builtin:tiny-moe")
    allowed = (*builtins, "hf:ORG/NAME@REVISION", "a folder such as ./models/NAME")
    if value in builtins or hub_source.parse(value):
        return value
    if (named := _HUB_NAME.fullmatch(value)) and not os.path.isdir(value):
        revision = named[2] or named[3]
        meant = f"{hub_source.PREFIX}{named[1]}{f'@{revision}' if revision else ''}"
        if hub_source.parse(meant) and named[1].split("/")[0] not in ("datasets", "models", "spaces"):
            raise refuse(f"is an unknown source; for this model of the hub write `{meant}`")
    if value.startswith(hub_source.PREFIX):
        raise refuse("is not a model of the hub; write hf:ORG/NAME or hf:ORG/NAME@REVISION (a branch, a tag or a commit)")
    if re.match(r"[a-z]+:", value) or "/" not in value:
        raise refuse("is an unknown source; write a folder with a slash, ./NAME", allowed=allowed)
    path = _path(value)
    if re.fullmatch(r"[\w-][\w.-]*/[\w.-]+", value) and not os.path.isdir(path):
        raise refuse(f"there is no such folder; for a model of the hub write `hf:{value}`")
    return str(path)


def _lock_text(value: Any) -> Any:
    # A version of vLLM, such as 0.33, is a number in YAML. Quotes would not make it a lock file.
    return str(value) if isinstance(value, int | float) and not isinstance(value, bool) else value


def _lock(value: str) -> str:
    if own_lock.is_path(value):
        _path(value)
        return os.path.expanduser(value)
    if value not in LOCKS:
        raise refuse(
            "is an unknown lock file; a lock file pins the version of vLLM", allowed=(*LOCKS, "the path of your own, such as ./my.lock")
        )
    return value


def reference(room: str) -> AfterValidator:
    """Return a check that a name is one of the section ``room``, if the validation context has its names: ``{room: names}``."""

    def check(name: str, info: ValidationInfo) -> str:
        known = (info.context or {}).get(room)
        if known is not None and name not in known:
            raise refuse(f"there is no such name under `{room}`", allowed=known)
        return name

    return AfterValidator(check)


def label(value: Any) -> str:
    """Return a value as a part of a load point's name, with at most six decimals: 0.5 as "0.5", 2.0 as "2"."""
    return f"{value:.6f}".rstrip("0").rstrip(".") if isinstance(value, float) else str(value)


def distinct(values: tuple[Any, ...] | None) -> tuple[Any, ...] | None:
    """Refuse equal values: two points of one deployment would have the same name."""
    counts = Counter(map(label, values or ()))
    if twice := ", ".join(sorted(name for name, count in counts.items() if count > 1)):
        raise refuse(f"contains {twice} twice, so two points of one deployment would have the same name")
    return values


def listed(value: Any) -> Any:
    """Return a list of one value in place of the value; lists and None stay."""
    return value if isinstance(value, list | tuple) or value is None else [value]


def _one_or_more(item: dict[str, Any], *others: dict[str, Any]) -> tuple[Any, ...]:
    """Return the validator and the schema of a list that may be one value."""
    return BeforeValidator(listed), WithJsonSchema({"anyOf": [item, {"type": "array", "items": item, "minItems": 1}, *others]})


def _accepted(value: Any) -> Any:
    if isinstance(value, bool):
        return ["*/*"] if value else []
    return value


def _run_text(value: Any) -> Any:
    # `--config run=2024` gives a number, and quotes on the command line do not change that.
    return str(value) if isinstance(value, int) and not isinstance(value, bool) else value


_SCALARS = ["boolean", "integer", "number", "string", "null"]
_VALUE_SCHEMA = {"type": [*_SCALARS, "array"], "items": {"type": _SCALARS}}
_COUNT, _NULL = {"type": "integer", "minimum": 1, "maximum": MOST}, {"type": "null"}
_RATE = {"type": "number", "minimum": 0.001, "maximum": 100_000}

Name = Annotated[str, Field(pattern=NAME_PATTERN, max_length=NAME_LENGTH)]
RunName = Annotated[str, Field(pattern=RUN_PATTERN, max_length=NAME_LENGTH), BeforeValidator(_run_text)]
# Also within a URL, JSON and a shell's quotes. Names of the hub have one slash.
ServedName = Annotated[str, Field(pattern=SERVED_PATTERN, max_length=NAME_LENGTH)]
Flag = Annotated[bool, Field(strict=True)]
Amount = Annotated[int, Field(strict=True, ge=0)]
Seconds = Annotated[float, Field(strict=True, gt=0, le=MOST, allow_inf_nan=False)]
# The bounds catch a wrong unit. From the lower one on, six decimals in a point's name are enough.
Rate = Annotated[float, Field(strict=True, ge=0.001, le=100_000, allow_inf_nan=False)]
TimeSpan = Annotated[
    float | None,
    PlainValidator(_seconds),
    WithJsonSchema({"anyOf": [{"type": "number", "exclusiveMinimum": 0}, {"type": ["string", "null"]}]}),
]
Counts = Annotated[tuple[Count, ...], Field(min_length=1), *_one_or_more(_COUNT)]
Concurrency = Annotated[tuple[Count, ...] | None, Field(min_length=1), AfterValidator(distinct), *_one_or_more(_COUNT, _NULL)]
Rates = Annotated[tuple[Rate, ...] | None, Field(min_length=1), AfterValidator(distinct), *_one_or_more(_RATE, _NULL)]
OptionValue = Annotated[Any, PlainValidator(_option_value), WithJsonSchema(_VALUE_SCHEMA)]
ServeOption = Annotated[str, AfterValidator(_option_name(SERVE_OPTIONS))]
ClientOption = Annotated[str, AfterValidator(_option_name(CLIENT_OPTIONS))]
ServeOptions = Annotated[dict[ServeOption, OptionValue], BeforeValidator(_as_written)]
ClientOptions = Annotated[dict[ClientOption, OptionValue], BeforeValidator(_as_written)]
Variable = Annotated[str, Field(pattern=VARIABLE_PATTERN), AfterValidator(_variable_name)]
VariableValue = Annotated[str, PlainValidator(_variable_value), WithJsonSchema({"type": ["string", "number"]})]
Variables = Annotated[dict[Variable, VariableValue], AfterValidator(_allowed)]
Port = Annotated[int | Literal["auto"], *_auto_or(1024, 65535)]
Clients = Annotated[int | Literal["auto"], *_auto_or(1, MAX_CLIENTS)]
Warmups = Annotated[int | Literal["auto"], *_auto_or(0, MOST)]
Location = Annotated[Path, PlainValidator(_path), WithJsonSchema({"type": "string", "minLength": 1})]
Source = Annotated[str, AfterValidator(_source)]
Lock = Annotated[
    str,
    BeforeValidator(_lock_text),
    AfterValidator(_lock),
    WithJsonSchema({"anyOf": [{"enum": list(LOCKS)}, {"type": "string", "pattern": r"/|\.(lock|txt)$"}]}),
]
# deployment/point, each part a shell pattern
PointPattern = Annotated[str, Field(pattern=r"^[^/\s]+/[^/\s]+$")]
Accepted = Annotated[
    tuple[PointPattern, ...],
    BeforeValidator(_accepted),
    WithJsonSchema({"anyOf": [{"type": "boolean"}, {"type": "array", "items": {"type": "string"}}]}),
]
