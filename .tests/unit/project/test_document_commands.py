"""Every command of README.md, the tutorials and the how-to pages is run by a test, or its block names the hardware that it needs."""

from __future__ import annotations

import ast
import os
import subprocess

import pytest

from builders.document_commands import PAGES, RUN_BY, RUN_HERE, commands
from builders.paths import ROOT

ALL = [command for page in PAGES for command in commands(page)]


def test_every_command_is_run_by_a_test_or_names_its_hardware():
    unknown = [f"{one.place}: {one.text}" for one in ALL if not one.hardware and one.text not in {*RUN_BY, *RUN_HERE}]
    assert unknown == [], "add them to RUN_HERE or RUN_BY in .tests/builders/document_commands.py"
    assert len(ALL) > 40


def test_no_command_of_the_tables_has_left_the_pages():
    assert {*RUN_BY, *RUN_HERE} - {one.text for one in ALL} == set()


@pytest.mark.parametrize("command", RUN_BY)
def test_named_test_exists_and_contains_the_command(command):
    by = RUN_BY[command]
    file, _, name = by.runner.partition("::")
    if name:
        names = {node.name for node in ast.walk(ast.parse((ROOT / file).read_text())) if isinstance(node, ast.FunctionDef)}
        assert name in names
    assert by.words in (ROOT / (by.file or file)).read_text()


def test_make_demo_runs_the_default_configuration_on_this_machine():
    # Below another make, make also prints the folder that it enters and leaves.
    environment = {name: value for name, value in os.environ.items() if not name.startswith("MAKE") and name != "MFLAGS"}
    recipe = subprocess.run(
        ["make", "--dry-run", "demo", "VENV=.venv"], cwd=ROOT, env=environment, capture_output=True, text=True, check=True
    ).stdout
    assert recipe.splitlines()[-2:] == [".venv/bin/python -m servemark.run.demo", ".venv/bin/snakemake --profile profiles/local"]


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("Run:\n\n    make x   # why\n    make y\n", [("make x", False), ("make y", False)]),
        ("1. Run:\n\n        make x\n\n    | a | b |\n", [("make x", False)]),
        ("```bash\nmake x\n```\n\n```yaml\nrun: x\n```\n", [("make x", False)]),
        ("*Needs two nodes with GPUs.*\n\n    make x\n\nThen:\n\n    make y\n", [("make x", True), ("make y", False)]),
        ("- a list\n    that goes on\n", []),
        ("    results/demo/report.html   the report\n", []),
        ("    ok           cache: room\n", []),
    ],
)
def test_blocks_are_read_as_a_reader_does(text, found):
    assert [(one.text, one.hardware) for one in commands(PAGES[0], text)] == found
