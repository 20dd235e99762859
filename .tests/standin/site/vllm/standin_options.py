"""The stand-in's parsers of all options, as vLLM 0.32.0 has them: only for the list of options; server and client parse their own few."""

import argparse
import json
from pathlib import Path

COMMANDS = {"serve": "serve_arguments", "bench": "client_arguments"}


def optional_type(return_type):
    def _optional_type(text):
        return None if text in ("", "None") else return_type(text)

    return _optional_type


def human_readable_int(text):
    return int(text)


def human_readable_int_or_auto(text):
    return int(text)


def union_dict_and_str(text):
    return text


TYPES = {
    "text": str,
    "integer": int,
    "number": float,
    "json": json.loads,
    "size": human_readable_int,
    "size_or_auto": human_readable_int_or_auto,
    "json_or_text": union_dict_and_str,
    "any": lambda text: text,
}
COUNTS = {"optional": "?", "many": "+", "any": "*"}


def add(parser, names, kind="any", count="one", none=False, choices=None, **_):
    flags = [f"--{name}" for name in names]
    if kind == "switch":
        parser.add_argument(*(name for name in flags if not name.startswith("--no-")), action=argparse.BooleanOptionalAction)
    elif kind == "flag":
        parser.add_argument(*flags, action="store_true")
    else:
        kind = optional_type(TYPES[kind]) if none else TYPES[kind]
        parser.add_argument(*flags, type=kind, nargs=COUNTS.get(count), choices=choices)


def main(argv):
    """Parse all options of a command, as vLLM's main function does."""
    parser = argparse.ArgumentParser(prog="vllm")
    command = parser.add_subparsers(dest="command").add_parser(argv[0])
    if argv[0] == "bench":
        command = command.add_subparsers(dest="bench_type").add_parser("serve")
    listed = json.loads(Path(__file__).with_name("standin_options.json").read_text())
    for one in listed[COMMANDS[argv[0]]]:
        add(command, **one)
    return parser.parse_args(argv)
