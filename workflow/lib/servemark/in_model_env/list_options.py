"""List the options of ``vllm serve`` and ``vllm bench serve`` as JSON, from the parsers of the vLLM whose interpreter runs this script.

usage: python list_options.py OUTPUT

Each option is one object, as in ``servemark.records.Argument``. vLLM 0.32.0 states types and choices in its parsers, bounds and the keys of
JSON values in its configuration classes.
"""

import argparse
import dataclasses
import json
import runpy
import sys
import types
import typing
from typing import Any

COMMANDS = {"serve_arguments": ["serve"], "client_arguments": ["bench", "serve"]}
_BOUNDS = {"ge": "least", "gt": "above", "le": "most", "lt": "below"}


class _Caught(Exception):
    """Carries the parser that vLLM made."""


def parser_of(command: list[str]) -> argparse.ArgumentParser:
    """Return the parser of a command. vLLM's own main function makes it, and stops before it parses.

    vLLM needs a device to make its parser (vllm/config/device.py, "Failed to infer device type"). The options are the same for all devices
    (0.32.0: the same names in the CUDA build without a GPU and in the CPU build).
    """
    from vllm.platforms import current_platform

    if not current_platform.device_type:
        type(current_platform).device_type = "cpu"

    def stop(parser: argparse.ArgumentParser, *_: Any, **__: Any) -> None:
        raise _Caught(parser)

    original, given = argparse.ArgumentParser.parse_known_args, sys.argv
    sys.argv = ["vllm", *command]
    argparse.ArgumentParser.parse_known_args = stop  # type: ignore[method-assign,assignment]
    try:
        runpy.run_module("vllm.entrypoints.cli.main", run_name="__main__")
    except _Caught as caught:
        parser: argparse.ArgumentParser = caught.args[0]
    else:
        raise SystemExit(f"vllm {' '.join(command)} made no parser")
    finally:
        argparse.ArgumentParser.parse_known_args, sys.argv = original, given  # type: ignore[method-assign]
    for word in command:
        parser = next(action for action in parser._actions if isinstance(action, argparse._SubParsersAction)).choices[word]
    return parser


def arguments(command: list[str]) -> list[dict[str, Any]]:
    """Return every option of a command, sorted by name."""
    parser = parser_of(command)
    found = [
        described(action, _fields(_configuration(group.title)))
        for group in parser._action_groups
        for action in group._group_actions
        if any(name.startswith("--") for name in action.option_strings) and not isinstance(action, argparse._HelpAction)
    ]
    return sorted(found, key=lambda argument: str(argument["names"]))


def described(action: argparse.Action, fields: dict[str, Any]) -> dict[str, Any]:
    """Return one option. ``fields``: those of the configuration class to which vLLM passes the value."""
    kind, none, config = _kind(action)
    choices = [choice for choice in action.choices or () if choice is not None]
    known = _quantisations() if action.dest == "quantization" else []
    found = {
        "names": [name[2:] for name in action.option_strings if name.startswith("--")],
        "kind": kind,
        "count": "one" if action.nargs in (None, 0) else "optional" if action.nargs == "?" else "any" if action.nargs == "*" else "many",
        "none": none or (action.choices is not None and None in action.choices),
        "choices": [str(choice) for choice in sorted(choices or known, key=str)],
        # A type that only parses JSON does not name the class that takes the object: SpeculativeConfig for speculative_config.
        "keys": _keys(config) or (_keys(_configuration(_camel(action.dest)), nested=False) if kind == "json" else {}),
    }
    # Without what an Argument has by default.
    found = {name: value for name, value in found.items() if value is not False and value not in ("one", [], {})}
    return found | _bounds(fields.get(action.dest))


def _kind(action: argparse.Action) -> tuple[str, bool, Any]:
    """Return the kind of an option's value, whether it may be ``None``, and the class of a JSON object if the parser names it."""
    if isinstance(action, argparse.BooleanOptionalAction):
        return "switch", False, None
    if action.nargs == 0:
        return "flag", False, None
    return _type(action.type) if type(action) is argparse._StoreAction else ("any", False, None)


def _type(function: Any) -> tuple[str, bool, Any]:
    """Return the kind of the values that a type of argparse accepts; names as of vllm/engine/arg_utils.py and utils/argparse_utils.py."""
    plain = {None: "text", str: "text", int: "integer", float: "number", json.loads: "json"}
    if function in plain:
        return plain[function], False, None
    name = getattr(function, "__name__", "")
    if name in ("_optional_type", "_parse_type"):
        kind, none, config = _type(function.__closure__[0].cell_contents)
        return kind, none or name == "_optional_type", config
    if name == "parse_dataclass":
        return "json", False, (function.__defaults__ or (None,))[0]
    named = {"human_readable_int": "size", "human_readable_int_or_auto": "size_or_auto", "union_dict_and_str": "json_or_text"}
    return named.get(name, "any"), False, None


def _camel(name: str) -> str:
    return "".join(part.capitalize() for part in name.split("_"))


def _configuration(name: str | None) -> Any:
    """Return vLLM's configuration class of this name, or None. The groups of ``vllm serve`` have the names of classes."""
    try:
        import vllm.config
    except ImportError:
        return None
    found = getattr(vllm.config, name or "", None)
    return found if isinstance(found, type) and dataclasses.is_dataclass(found) else None


def _fields(config: Any) -> dict[str, Any]:
    return dict(getattr(config, "__pydantic_fields__", {}))


def _bounds(field: Any) -> dict[str, float]:
    """Return the bounds that a field of pydantic states."""
    limits = getattr(field, "metadata", ())
    return {ours: float(getattr(limit, theirs)) for limit in limits for theirs, ours in _BOUNDS.items() if hasattr(limit, theirs)}


def _keys(config: Any, before: str = "", *, nested: bool = True) -> dict[str, list[str]]:
    """Return the keys of a JSON object, those inside with a dot, each with its choices (if it has any); {} if other keys may be right."""
    if config is None or _converts(config) or not _refuses_others(config):
        return {}
    found: dict[str, list[str]] = {}
    for name, field in _fields(config).items():
        if getattr(field, "init", True) is False:
            continue
        hints = _hints(field.annotation)
        only = hints[0] if len(hints) == 1 else None
        literal = typing.get_origin(only) is typing.Literal and name not in _converted(config)
        found[before + name] = sorted(map(str, typing.get_args(only))) if literal else []
        if nested and dataclasses.is_dataclass(only) and name not in _converted(config):
            found |= _keys(only, f"{before}{name}.")
    return found


def _converted(config: Any) -> set[str]:
    """Return the fields whose values a class changes before it compares them with their types."""
    validators = getattr(getattr(config, "__pydantic_decorators__", None), "field_validators", {})
    return {name for validator in validators.values() if validator.info.mode != "after" for name in validator.info.fields}


def _hints(annotation: Any) -> list[Any]:
    """Return the alternatives of an annotation, without None."""
    if typing.get_origin(annotation) is typing.Annotated:
        return _hints(typing.get_args(annotation)[0])
    if typing.get_origin(annotation) in (typing.Union, types.UnionType):
        return [hint for one in typing.get_args(annotation) for hint in _hints(one)]
    return [] if annotation is type(None) else [annotation]


def _refuses_others(config: Any) -> bool:
    return dict(getattr(config, "__pydantic_config__", {})).get("extra") == "forbid"


def _converts(config: Any) -> bool:
    """Return whether a class changes the keys of an object before it compares them with its fields."""
    validators = getattr(getattr(config, "__pydantic_decorators__", None), "model_validators", {})
    return any(validator.info.mode in ("before", "wrap") for validator in validators.values())


def _quantisations() -> list[str]:
    """Return the methods that vLLM knows. The parser accepts any text, and the engine exits (vllm/config/model.py, 0.32.0)."""
    try:
        from vllm.model_executor.layers.quantization import QUANTIZATION_METHODS
    except ImportError:
        return []
    return list(QUANTIZATION_METHODS)


if __name__ == "__main__":
    listed = {name: arguments(command) for name, command in COMMANDS.items()}
    rows = {name: ",\n".join(json.dumps(one) for one in every) for name, every in listed.items()}
    with open(sys.argv[1], "w") as stream:
        stream.write("{" + ",\n".join(f'"{name}": [\n{every}\n]' for name, every in rows.items()) + "}\n")
