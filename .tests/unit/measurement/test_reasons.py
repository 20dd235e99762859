"""Each code that the library emits has one row in the table of reasons."""

from __future__ import annotations

import ast
import re

import pytest

from builders.paths import LIBRARY, ROOT
from servemark import diagnosis
from servemark.cli import reference
from servemark.errors import ServemarkError
from servemark.files import storage
from servemark.measurement import reasons, silence, stalls
from servemark.measurement.reasons import TABLE
from servemark.weights import hub_refusals
from snakemake_executor_plugin_slurm_guarded import reasons as slurm_reasons
from snakemake_executor_plugin_slurm_guarded.states import Meaning

OF_LOGS = {row.reason for row in diagnosis.catalogue()}
VERDICTS = {code for code, row in TABLE.items() if row.severities}


CODE = re.compile(r"[a-z]+(_[a-z0-9]+)+")
# Functions that take a code as a positional argument.
TAKE_A_CODE = {"reason", "refused", "_refused", "_demand", "_broken", "RawError", "_Bad"}
ROOTS = (LIBRARY / "servemark", ROOT / "plugins" / "snakemake-executor-plugin-slurm-guarded" / "src")


def emitted() -> dict[str, str]:
    """Return each literal code that the library and the executor emit, with its place."""
    found = {}
    for path in sorted(path for root in ROOTS for path in root.rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text())):
            given: list[ast.expr] = []
            if isinstance(node, ast.Call):
                given += [word.value for word in node.keywords if word.arg in ("reason", "code")]
                if getattr(node.func, "attr", getattr(node.func, "id", "")) in TAKE_A_CODE:
                    given += node.args
            if isinstance(node, ast.Assign) and getattr(node.targets[0], "id", "") in ("reason", "default_reason"):
                given.append(node.value)
            for text in (part for value in given for part in ast.walk(value)):
                if isinstance(text, ast.Constant) and isinstance(text.value, str) and CODE.fullmatch(text.value):
                    found[text.value] = f"{path.name}:{node.lineno}"
    return found | dict.fromkeys(hub_refusals.TEXTS, "hub_refusals.py") | dict.fromkeys(storage.REASONS.values(), "storage.py")


def test_each_emitted_code_has_a_row():
    found = emitted()
    assert {"server_died", "too_short", "port_taken", "bad_config"} <= found.keys()
    assert {code: place for code, place in found.items() if code not in TABLE and code not in OF_LOGS} == {}


def test_each_end_of_a_slurm_job_has_a_row():
    words = [*Meaning.FAILURE.value.split(), slurm_reasons.LOST, slurm_reasons.STUCK]
    assert len(words) > 10 and {f"slurm_{word.lower()}" for word in words} <= TABLE.keys()


def errors() -> list[type[ServemarkError]]:
    """Return every error class of the library that is imported here."""
    known, waiting = [], [ServemarkError]
    while waiting:
        known.append(waiting.pop())
        waiting += known[-1].__subclasses__()
    return known


def test_each_error_class_has_a_code_with_a_row():
    assert {one.default_reason for one in errors()} <= TABLE.keys() | OF_LOGS


def test_each_verdict_reason_is_emitted_and_has_a_remedy():
    # A code of one word cannot be told from other texts.
    single = {silence.INTERRUPTED, stalls.STALLED, "preempted", "throttled"}
    assert VERDICTS - emitted().keys() == {code for code in VERDICTS if not CODE.fullmatch(code)} == single
    assert [code for code in VERDICTS if not TABLE[code].remedy] == []


@pytest.mark.parametrize("code", sorted(VERDICTS))
def test_reason_has_a_severity_of_the_table(code: str):
    usual, *others = TABLE[code].severities
    assert reasons.reason(code, "x").severity == usual
    for severity in ("SUSPECT", "INVALID"):
        if severity in (usual, *others):
            assert reasons.reason(code, "x", severity).severity == severity
        else:
            with pytest.raises(ValueError, match=code):
                reasons.reason(code, "x", severity)


def test_an_unknown_code_has_the_general_remedy():
    assert reasons.remedy("no_such_reason") == reasons.DEFAULT_REMEDY


def test_reference_page_has_every_code():
    text = reference.reason_codes()
    assert [code for code in TABLE.keys() | OF_LOGS if f"| `{code}` |" not in text] == []
