"""Field types of the configuration: what one value may be, and the words that refuse it."""

from __future__ import annotations

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
from servemark.config.reserved import CLIENT_OPTIONS, SERVE_OPTIONS, kebab, refusal, shortened
from servemark.environments import lockfiles
from servemark.files import folder_name
from servemark.records.base import MOST, Count
from servemark.records.load_point import PREFIX
from servemark.variables import table
from servemark.weights import hub_source
from snakemake_executor_plugin_slurm_guarded.secret_names import looks_secret

NAME_PATTERN = r"^[a-z0-9][a-z0-9.-]*$"
RUN_PATTERN = r"^[a-z0-9][a-z0-9._-]*$"
VARIABLE_PATTERN = r"^[A-Z_][A-Z0-9_]*$"
OPTION_PATTERN = r"^[A-Za-z][A-Za-z0-9_-]*(\.[A-Za-z0-9_-]+)*$"
# Names become parts of file names, which have 255 bytes: run, deployment and point together must fit.
NAME_LENGTH = 80
# Processes of the client: each takes about a core.
MAX_CLIENTS = 1024
# PATH_MAX of Linux, without the NUL at the end.
LONGEST_PATH = 4095
LOCKS = (lockfiles.AUTO, *lockfiles.NAMES)


def refuse(text: str, *, allowed: Collection[str] = (), hide: bool = False, at: tuple[str, ...] = ()) -> PydanticCustomError:
    """Return the error of one value. ``hide``: keep it out of the message; ``at``: the key at fault when a whole mapping is checked."""
    # The text travels as context: pydantic would take braces in it for placeholders.
    context = {"text": text, "allowed": sorted(allowed), "hide": hide, "at": at}
    return PydanticCustomError("refused", "{text}", context)


def nearest(word: str, known: Collection[str]) -> str | None:
    """Return the known spelling closest to ``word``, if any is close; case, dashes and underscores count for nothing."""
    spelled = {name.replace("_", "-").lower(): name for name in known}
    close = difflib.get_close_matches(word.replace("_", "-").lower(), list(spelled), n=1)
    return spelled[close[0]] if close else None


def _option_name(table: dict[str, str]) -> Callable[[str], str]:
    def check(name: str) -> str:
        plain = name.lstrip("-")
        if plain != name and plain and check(plain):
            raise refuse(f"options are written without dashes in front; did you mean `{plain}`?")
        if not re.fullmatch(OPTION_PATTERN, name):
            raise refuse("is not the name of an option: letters, digits and dashes")
        if why := refusal(kebab(name), table):
            raise refuse(f"is set by servemark: {why}", hide=True)
        if table is CLIENT_OPTIONS and (whole := shortened(kebab(name))):
            raise refuse(f"is a beginning of `{whole}`, for which vLLM would take it; write options out", hide=True)
        return kebab(name)

    return check


def _option_value(value: Any) -> Any:
    if isinstance(value, dict):
        raise refuse("options take a value or a list; write a mapping as JSON in single quotes, '{\"key\": 1}'")
    for item in value if isinstance(value, list) else [value]:
        if not (item is None or isinstance(item, str | bool | int | float)):
            raise refuse("must be text, a number, true, false, null or a list of these; put dates in quotes")
    return list(value) if isinstance(value, list) else value


def _as_written(options: Any) -> Any:
    """Check options under the names as written, so that messages name their lines: spellings, length of prompts, CUDA graphs."""
    if not isinstance(options, dict):
        return options
    names = [name for name in options if isinstance(name, str)]
    written = {kebab(name): name for name in names}
    if twice := sorted({kebab(name) for name in names if written[kebab(name)] != name}):
        raise refuse(f"the same option is written twice, with dashes and with underscores: {', '.join(twice)}")
    prefix = options[written[PREFIX]] if PREFIX in written else None
    if prefix is not None and (isinstance(prefix, bool) or not re.fullmatch(r"[0-9]+", str(prefix))):
        raise refuse("must be a whole number of at least 0: tokens", at=(written[PREFIX],))
    if found := cuda_graphs.refusal({name: options[spelling] for name, spelling in written.items()}):
        raise refuse(found[1], at=(written[found[0]],))
    return options


def _variable_name(name: str) -> str:
    if looks_secret(name):
        raise refuse(
            "looks like a secret, and secrets never live in the configuration; export it in the shell that starts "
            "snakemake, or keep it in a file with mode 0600 that the program reads (HF_TOKEN and the keys of vLLM, OpenAI and "
            "Ray are not handed on: the server runs offline, with a key of its own)",
            hide=True,
        )
    return name


def _variable_value(value: Any) -> str:
    if isinstance(value, bool):
        raise refuse('true and false are ambiguous in an environment variable; write "1", "0" or "true" in quotes')
    if value is None:
        raise refuse('is empty; write "" for an empty variable')
    if not isinstance(value, str | int | float):
        raise refuse("must be text or a number")
    return str(value)


def _allowed(variables: dict[str, str]) -> dict[str, str]:
    if refused := {name: why for name, value in variables.items() if (why := table.refusal(name, value))}:
        # A mapping that is checked as a whole has one error: it names all of them.
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


def _path(value: Any) -> Path:
    if not isinstance(value, str | Path) or not str(value).strip():
        raise refuse("must be a path")
    if "$" in str(value):
        raise refuse(
            "variables are not expanded here; write the path out, or let the shell do it on the command line, as in "
            "--config cache=$SCRATCH/cache"
        )
    if found := folder_name.fault(os.fsencode(value)):
        raise refuse(f"this path {found}; name another one")
    if len(os.fsencode(value)) > LONGEST_PATH:
        raise refuse(f"has more than {LONGEST_PATH} bytes, which no path may have")
    path = os.path.expanduser(value)
    if path.startswith("~"):
        raise refuse(f"the home folder of {path.split('/')[0]} is not known on this machine; write the path out")
    return Path(path)


def _source(value: str) -> str:
    builtins = ("builtin:tiny-dense", "builtin:tiny-moe")
    allowed = (*builtins, "hf:ORG/NAME@REVISION", "a local directory such as ./models/NAME")
    if value in builtins or hub_source.parse(value):
        return value
    if value.startswith(hub_source.PREFIX):
        raise refuse("a model of the hub is written hf:ORG/NAME or hf:ORG/NAME@REVISION (a branch, a tag or a commit)")
    if re.match(r"[a-z]+:", value) or "/" not in value:
        raise refuse("is no known source; a directory is written with a slash, ./NAME", allowed=allowed)
    path = _path(value)
    if re.fullmatch(r"[\w-][\w.-]*/[\w.-]+", value) and not os.path.isdir(path):
        raise refuse(f"there is no such directory; a model of the hub is written `hf:{value}`")
    return str(path)


def _not_there_yet(value: Any) -> None:
    if value is not None:
        raise refuse("containers are not there yet; use `lock: auto` or `prefix: DIR`")


def _lock(value: str) -> str:
    if value not in LOCKS:
        raise refuse("is no known lock file", allowed=LOCKS)
    return value


def reference(room: str) -> AfterValidator:
    """Return a name of another section, checked when the names are given as validation context ``{room: names}``."""

    def check(name: str, info: ValidationInfo) -> str:
        known = (info.context or {}).get(room)
        if known is not None and name not in known:
            raise refuse(f"there is no such name under `{room}`", allowed=known)
        return name

    return AfterValidator(check)


def label(value: Any) -> str:
    """Return a value as the name of a load point has it: 0.5 -> "0.5", 2.0 -> "2", six decimals at most."""
    return f"{value:.6f}".rstrip("0").rstrip(".") if isinstance(value, float) else str(value)


def distinct(values: tuple[Any, ...] | None) -> tuple[Any, ...] | None:
    """Refuse a value that stands twice: two points of one deployment would have the same name."""
    counts = Counter(map(label, values or ()))
    if twice := ", ".join(sorted(name for name, count in counts.items() if count > 1)):
        raise refuse(f"holds {twice} twice, so two points of one deployment would have the same name")
    return values


def _listed(value: Any) -> Any:
    return value if isinstance(value, list | tuple) or value is None else [value]


def one_or_more(item: dict[str, Any]) -> tuple[Any, ...]:
    """Return validators of a field that takes one value, a list of distinct ones, or nothing; the list's order is kept."""
    return BeforeValidator(_listed), AfterValidator(distinct), _one_or_list(item, {"type": "null"})


def _one_or_list(item: dict[str, Any], *others: dict[str, Any]) -> WithJsonSchema:
    return WithJsonSchema({"anyOf": [item, {"type": "array", "items": item, "minItems": 1}, *others]})


def _accepted(value: Any) -> Any:
    if isinstance(value, bool):
        return ["*/*"] if value else []
    return value


def _run_text(value: Any) -> Any:
    # `--config run=2024` arrives as a number, and the command line offers no way to quote it.
    return str(value) if isinstance(value, int) and not isinstance(value, bool) else value


_SCALARS = ["boolean", "integer", "number", "string", "null"]
_VALUE_SCHEMA = {"type": [*_SCALARS, "array"], "items": {"type": _SCALARS}}

Name = Annotated[str, Field(pattern=NAME_PATTERN, max_length=NAME_LENGTH)]
RunName = Annotated[str, Field(pattern=RUN_PATTERN, max_length=NAME_LENGTH), BeforeValidator(_run_text)]
Flag = Annotated[bool, Field(strict=True)]
Amount = Annotated[int, Field(strict=True, ge=0)]
Seconds = Annotated[float, Field(strict=True, gt=0, le=MOST, allow_inf_nan=False)]
# The lower bound keeps a rate's six decimals in a point's name; both bounds catch a unit mistaken.
Rate = Annotated[float, Field(strict=True, ge=0.001, le=100_000, allow_inf_nan=False)]
Counts = Annotated[tuple[Count, ...], Field(min_length=1)]
RequestCounts = Annotated[
    tuple[Count, ...], Field(min_length=1), BeforeValidator(_listed), _one_or_list({"type": "integer", "minimum": 1, "maximum": MOST})
]
Rates = Annotated[tuple[Rate, ...], Field(min_length=1)]
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
Lock = Annotated[str, AfterValidator(_lock), WithJsonSchema({"enum": list(LOCKS)})]
NotThereYet = Annotated[None, PlainValidator(_not_there_yet), WithJsonSchema({"type": "null"})]
# deployment/point, each half a shell pattern
PointPattern = Annotated[str, Field(pattern=r"^[^/\s]+/[^/\s]+$")]
Accepted = Annotated[
    tuple[PointPattern, ...],
    BeforeValidator(_accepted),
    WithJsonSchema({"anyOf": [{"type": "boolean"}, {"type": "array", "items": {"type": "string"}}]}),
]
