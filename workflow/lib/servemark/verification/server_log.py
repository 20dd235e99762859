"""Compare what vLLM printed into a server's log with the records of a run."""

import ast
import contextlib
import re
from collections.abc import Iterator, Mapping
from typing import Any

from servemark.launch.command_lines import option_arguments
from servemark.records import DaemonState, Measurement
from servemark.report.gather import RunRecords
from servemark.verification.facts import arguments, words

_LOG_HEAD = 1 << 20
"""Bytes of a server's log that are searched. vLLM prints version and arguments in its first lines."""
_VERSION = re.compile(r"(?:█  version |LLM engine \(v)([0-9][^\s)]*)")
_ARGUMENTS = re.compile(r"non-default args: (\{.*\})")
_ENGINE = re.compile(r"LLM engine \(v[^)]*\) with config: (.*)")
_OBJECT = re.compile(r"<\w+(?:\.\w+)*: ('[^']*'|-?\d+)>")
"""How Python prints a member of an enumeration, such as `<DynamicShapesType.BACKED: 'backed'>`."""
_WORD = re.compile(r"[\w.-]+")


def check(found: RunRecords, what: str, record: Measurement, place: str, server: DaemonState) -> Iterator[str]:
    """Compare the version and the arguments that vLLM prints with the record of the environment and the ledger key."""
    name = f"{place}/{server.name}.log"
    try:
        with (found.folder / name).open("rb") as stream:
            text = stream.read(_LOG_HEAD).decode("utf-8", errors="replace")
    except OSError:
        return
    parts = record.key_parts["deployment"]
    for check in found.checks.values():
        if check.digest == parts["environment"]:
            for version in sorted(set(_VERSION.findall(text))):
                if public(version) != public(check.vllm):
                    yield f"{what}: vLLM: environments/{check.name}/check.json states {check.vllm}, {name} states {version}."
    options = arguments(option_arguments(parts["options"]))
    for printed in _ARGUMENTS.findall(text):
        yield from _compare_printed(what, name, options, read(printed))
    for config in _ENGINE.findall(text):
        dtype = options.get("dtype", [""])[0]
        used = re.search(r"\bdtype=(?:torch\.)?(\w+)", config)
        if used and {"half": "float16", "float": "float32"}.get(dtype, dtype) not in ("", "auto", used[1]):
            yield f"{what}: options: dtype: key_parts of the record states {dtype}, {name} states {used[1]}."


def public(version: str | None) -> str | None:
    """Return a version without the part that names its build, as in 0.32.0+cpu."""
    return version and version.partition("+")[0]


def _compare_printed(what: str, name: str, options: Mapping[str, list[str]], printed: Mapping[str, Any]) -> Iterator[str]:
    """Compare the arguments that vLLM prints, which are those that differ from its defaults.

    Only words and whole numbers are compared: vLLM prints other values in another form than the command line.
    """
    for option, values in options.items():
        value = printed.get(option.replace("-", "_"))
        numbers = all(type(one) is int for one in (value if isinstance(value, list) else [value]))
        listed = [str(one) for one in (value if isinstance(value, list) else [value])]
        alike = all(text.isdecimal() for text in values) if numbers else isinstance(value, str) and _WORD.fullmatch(value + "".join(values))
        if values and alike and listed != values:
            yield f"{what}: options: {option}: key_parts of the record states {words(values)}, {name} states {words(value)}."


def read(printed: str) -> dict[str, Any]:
    """Return the arguments in a mapping that vLLM printed with Python's ``repr``, without those whose values Python cannot read back.

    An option that vLLM stores as an object, such as `compilation-config`, is printed with members of enumerations or as a call.
    """
    try:
        tree = ast.parse(_OBJECT.sub(r"\1", printed), mode="eval").body
    except SyntaxError:
        return {}
    found = {}
    for name, value in zip(tree.keys, tree.values, strict=True) if isinstance(tree, ast.Dict) else ():
        with contextlib.suppress(ValueError):
            found[ast.literal_eval(name)] = ast.literal_eval(value)  # type: ignore[arg-type] # None in `{**other}`, which raises ValueError
    return found
