"""Options of vLLM compared with the parsers of a version: unknown names, values that the parser or the engine refuses.

``in_model_env/list_options.py`` lists the options of an environment. :data:`BOUNDS` adds limits that neither parser nor class states.
"""

import difflib
import json
import os
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from servemark.records import Argument

BOUNDS: dict[str, tuple[float, float | None]] = {
    # A socket takes these ports; vLLM passes them on unchecked (entrypoints/openai/cli_args.py, 0.32.0).
    "grpc-port": (1, 65535),
    "data-parallel-supervisor-port": (1, 65535),
    # -1 and auto leave the length to vLLM. A length of 0 holds no request (config/model.py, 0.32.0: `ge=-1`).
    "max-model-len": (1, None),
    "kv-cache-memory-bytes": (1, None),
    "num-gpu-blocks-override": (1, None),
    # `assert burstiness > 0` (benchmarks/serve.py, 0.32.0); the bound is the smallest number above 0.
    "burstiness": (5e-324, None),
}
"""Smallest and largest value of options, next to the bounds that vLLM's configuration classes state."""
_ON = {"true", "yes", "on", "1", "enable", "enabled"}
_OFF = {"false", "no", "off", "0", "disable", "disabled"}
_SIZE = re.compile(r"\s*(?:[+-]?\d+|\d+(?:\.\d+)?[kmgt]|\d+[KMGT])\s*")
_UNITS = {unit: base**power for base, units in ((1000, "kmgt"), (1024, "KMGT")) for power, unit in enumerate(units, 1)}
# A number with a unit outside of quotes, which vLLM expands in the JSON of a configuration class (engine/arg_utils.py, 0.32.0).
_UNIT_IN_JSON = re.compile(r'("(?:[^"\\]|\\.)*")|\b(\d+)(?:\.\d+)?[kKmMgGtT]\b')
_TEMPLATE = re.compile(r"[{}\n]")
"""Characters of a chat template that is given as text, not as a file (renderers/chat_utils.py, 0.32.0)."""


@dataclass(frozen=True)
class Fault:
    """One refused option: its name as given, the fault, the allowed values with the closest one first, and the value's spelling."""

    option: str
    text: str
    allowed: tuple[str, ...] = ()
    given: str | None = None

    def sentence(self) -> str:
        """Return the fault with its suggestion and at most 20 allowed values."""
        close = f"; did you mean {self.allowed[0]}?" if self.given and _close(self.given, self.allowed) else ""
        more = f" and {len(self.allowed) - 20} more" if len(self.allowed) > 20 else ""
        allowed = f" Allowed: {', '.join(self.allowed[:20])}{more}." if self.allowed else ""
        return f"{self.text}{close or '.'}{allowed}"


def faults(
    options: Mapping[str, Any], known: Mapping[str, Argument], version: str, hidden: Callable[[str], bool] = lambda _: False
) -> Iterator[Fault]:
    """Yield the faults of options (kebab case).

    Args:
        known: every option of the command (:func:`by_name`); empty: nothing is known, so nothing is refused.
        version: of vLLM, for messages.
        hidden: returns whether a name is never suggested, because servemark sets that option.
    """
    for option, value in options.items() if known else ():
        head, _, inner = option.partition(".")
        argument = known.get(head) or (known.get(head.removeprefix("no-")) if head.startswith("no-") else None)
        if argument is None:
            near = tuple(name for name in difflib.get_close_matches(head, sorted(known), n=6) if not hidden(name))[:3]
            yield Fault(option, f"vLLM {version} has no such option", near, head)
        elif inner:
            yield from _of_key(option, inner, value, argument, version)
        elif found := _of_value(head, value, argument, version):
            yield Fault(option, *found)


def by_name(arguments: Iterable[Argument]) -> dict[str, Argument]:
    """Return options by each of their names."""
    return {name: argument for argument in arguments for name in argument.names}


def missing_file(options: Mapping[str, Any]) -> Fault | None:
    """Return the fault of a chat template that is neither a file nor the text of a template."""
    value = options.get("chat-template")
    if not isinstance(value, str) or _TEMPLATE.search(value) or os.path.isfile(value) or re.match(r"[a-z0-9]+://", value):
        return None
    return Fault("chat-template", "there is no such file, and it is not the text of a template")


_Found = tuple[str, tuple[str, ...], str | None]


def _of_key(option: str, inner: str, value: Any, argument: Argument, version: str) -> Iterator[Fault]:
    """Yield the faults of an option with a dot, which sets one key of a JSON object."""
    if argument.kind not in ("json", "json_or_text", "any"):
        yield Fault(option, f"vLLM {version} takes no keys for {argument.names[0]}")
    elif found := _of_object({inner.removesuffix("+"): value} if value is not None else {}, argument):
        yield Fault(option, *found)


def _of_value(name: str, value: Any, argument: Argument, version: str) -> _Found | None:
    """Return the fault of an option's whole value, the allowed values and the spelling to compare with them; None if it has none."""
    what = f"vLLM {version}"
    if value is None or (argument.kind == "any" and not argument.choices):
        return None
    if argument.kind in ("switch", "flag"):
        return _of_switch(name, value, argument, what)
    if value is True:
        return None if argument.count in ("optional", "any") else ("needs a value, and `true` is none", argument.choices, None)
    if value is False:
        return f"is no switch: {what} has no option no-{name}. Leave it out", (), None
    if isinstance(value, list | tuple):
        if argument.count not in ("many", "any"):
            return f"takes one value in {what}, not a list", (), None
        if not value and argument.count == "many":
            return "needs a value, and the list is empty", (), None
    values = value if isinstance(value, list | tuple) else [value]
    return next(filter(None, (_of_one(name, one, argument, what) for one in values)), None)


def _of_switch(name: str, value: Any, argument: Argument, what: str) -> _Found | None:
    if not isinstance(value, bool):
        word = str(value).lower()
        meant = "true" if word in _ON else "false" if word in _OFF else None
        hint = f"write {meant}, without quotes" if meant else "write true or false, without quotes"
        return f"is a switch in {what}: {hint}", (), None
    if value is False and (name.startswith("no-") or f"no-{name}" not in argument.names):
        return f"cannot be false: {what} has no option no-{name}. Leave it out", (), None
    return None


def _of_one(name: str, value: Any, argument: Argument, what: str) -> _Found | None:
    text = str(value)
    if argument.none and text in ("", "None"):
        return None
    if argument.kind in ("json", "json_or_text"):
        return _of_json(text, argument)
    if text.startswith("-") and not re.fullmatch(r"-\d+|-\d*\.\d+", text):
        return f"begins with a dash, and {what} reads it as an option", argument.choices, None
    if argument.choices:
        # A type that this list does not know may convert the text first, as `cutlass-mla` to `cutlass_mla`.
        same = _folded if argument.kind == "any" else str
        if same(text) in map(same, argument.choices):
            return None
        near = _close(text, argument.choices)
        return f"is not one of the values of {what}", (*near, *(one for one in argument.choices if one not in near)), text
    number = _number(text, argument.kind)
    if isinstance(number, str):
        return number, (), None
    return None if number is None else _out_of_bounds(name, number, argument, what)


def _number(text: str, kind: str) -> float | str | None:
    """Return a number, None for a value without bounds, or the fault."""
    try:
        if kind == "integer":
            return int(text)
        if kind == "number":
            return float(text)
    except ValueError:
        return f"is not a {'whole ' if kind == 'integer' else ''}number"
    if kind == "size_or_auto" and text.strip().lower() in ("auto", "-1"):
        return None
    if kind in ("size", "size_or_auto"):
        if not _SIZE.fullmatch(text):
            return "is not a number of vLLM: write a whole number, 16k (16,000), 16K (16,384) or 25.6k"
        word = text.strip()
        return float(word[:-1]) * _UNITS[word[-1]] if word[-1] in _UNITS else int(word)
    return None


def _out_of_bounds(name: str, number: float, argument: Argument, what: str) -> _Found | None:
    least, most = BOUNDS.get(name, (None, None))
    least, most = argument.least if least is None else least, argument.most if most is None else most
    within = (least is None or number >= least) and (argument.above is None or number > argument.above)
    if within and (most is None or number <= most) and (argument.below is None or number < argument.below):
        return None
    limits = (
        (argument.above, "above"),
        (None if argument.above is not None else least, "at least"),
        (most, "at most"),
        (argument.below, "below"),
    )
    words = " and ".join(f"{word} {'0' if limit < 1e-300 else f'{limit:g}'}" for limit, word in limits if limit is not None)
    return f"must be {words} for {what}", (), None


def _of_json(text: str, argument: Argument) -> _Found | None:
    if argument.kind == "json_or_text" and not re.fullmatch(r"(?s)\s*{.*}\s*", text):
        return None
    try:
        value = json.loads(_UNIT_IN_JSON.sub(lambda found: found[1] or found[2], text))
    except (ValueError, RecursionError) as error:
        where = f": {error.msg} at character {error.pos + 1}" if isinstance(error, json.JSONDecodeError) else ""
        return f"is not JSON{where}. Write it in single quotes, such as '{{\"key\": 1}}'", (), None
    if not argument.keys:
        return None
    return _of_object(value, argument) if isinstance(value, dict) else ("must be a JSON object, such as '{\"key\": 1}'", (), None)


def _of_object(value: Mapping[str, Any], argument: Argument, before: str = "") -> _Found | None:
    """Return the fault of a JSON object's keys and of values from a list. Objects whose keys the parser does not name are not checked."""
    known = [key.removeprefix(before) for key in argument.keys if key.startswith(before)]
    for key, inner in value.items() if known else ():
        first, _, rest = key.partition(".")
        if first not in known:
            names = tuple(name for name in known if "." not in name)
            near = _close(first, names)
            return f"has no key {before}{first}", (*near, *(name for name in names if name not in near)), first
        choices = argument.keys[before + first]
        if rest or isinstance(inner, dict):
            if found := _of_object({rest: inner} if rest else inner, argument, f"{before}{first}."):
                return found
        elif choices and isinstance(inner, str) and inner not in choices:
            near = _close(inner, choices)
            return f"has a wrong value for its key {before}{first}", (*near, *(one for one in choices if one not in near)), inner
    return None


def _folded(text: str) -> str:
    return text.lower().replace("-", "_")


def _close(word: str, known: Sequence[str]) -> tuple[str, ...]:
    """Return the known value closest to ``word``, whatever its case, dashes and underscores; () if none is close."""
    folded = {_folded(one): one for one in known}
    return tuple(folded[one] for one in difflib.get_close_matches(_folded(word), list(folded), n=1))
