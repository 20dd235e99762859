"""A server with random weights gets the plugin of vLLM; other servers do not."""

from __future__ import annotations

import ast
import configparser
import hashlib
import os

from servemark.launch import command_lines, random_weights

RANDOM = {"load-format": random_weights.LOAD_FORMAT}


def test_folder_of_plugin_is_before_that_of_the_middleware():
    closed = command_lines.key_environment({"PYTHONPATH": "/own"})
    path = random_weights.environment(RANDOM, closed)["PYTHONPATH"].split(os.pathsep)
    assert path == [str(random_weights.FOLDER), str(command_lines.MIDDLEWARE_FOLDER), "/own"]


def test_plugin_is_added_to_a_list_of_allowed_plugins():
    assert random_weights.environment(RANDOM, {"VLLM_PLUGINS": "site"})["VLLM_PLUGINS"] == f"site,{random_weights.LOAD_FORMAT}"


def test_server_with_checkpoint_gets_no_plugin():
    assert random_weights.environment({}, {"PYTHONPATH": "/own"}) == {}


def test_entry_point_is_a_general_plugin_of_vllm():
    (file,) = random_weights.FOLDER.glob("*.dist-info/entry_points.txt")
    points = configparser.ConfigParser()
    points.read(file)
    module, _, function = points["vllm.general_plugins"][random_weights.LOAD_FORMAT].partition(":")
    source = (random_weights.FOLDER / f"{module}.py").read_text()
    assert f"def {function}(" in source
    assert f'LOAD_FORMAT = "{random_weights.LOAD_FORMAT}"' in source


def code(source: str) -> str:
    """Return the sha256 of a module's syntax tree without docstrings, comments and layout."""
    tree = ast.parse(source)
    for node in ast.walk(tree):
        if isinstance(node, (ast.Module, ast.FunctionDef, ast.ClassDef)) and ast.get_docstring(node) is not None:
            del node.body[0]
    return hashlib.sha256(ast.unparse(tree).encode()).hexdigest()


def test_change_of_the_code_needs_a_decision_about_the_version():
    """The format's name is part of the ledger key, so other random numbers need another version.

    If the changed code draws the same numbers, write the new digest here. Otherwise raise the version first.
    """
    (source,) = random_weights.FOLDER.glob("*.py")
    known = {"servemark_random_2": "5724c73380df83841edec89510aadb6c358cb3c715110d68f529c17c3b571edf"}
    assert code(source.read_text()) == known[random_weights.LOAD_FORMAT]
    assert code('def f():\n    "Words."\n    return 1  # why\n') == code("def f():\n    return 1\n")
    assert code("def f():\n    return 1\n") != code("def f():\n    return 2\n")
