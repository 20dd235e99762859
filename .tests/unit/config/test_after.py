"""``publish``: a text, split into words, or a list."""

from __future__ import annotations

import pytest
from pydantic import TypeAdapter, ValidationError

from servemark.config.after import Command, Exports

COMMAND: TypeAdapter[tuple[str, ...]] = TypeAdapter(Command)


def test_text_and_list_give_the_same_words():
    assert COMMAND.validate_python("cp {archive} 'my disk'") == COMMAND.validate_python(["cp", "{archive}", "my disk"])


@pytest.mark.parametrize(
    "value",
    [
        5, True, {"run": "cp"}, "cp 'open", "cp {file} /x", ["", "x"], " ' ' x", "cp {archive} /x\nrm /y",
        ["curl", "-H", "Authorization: Bearer abcdefghij0123456789", "{archive}"],
    ],
)  # fmt: skip
def test_other_values_are_refused_with_our_own_words(value):
    with pytest.raises(ValidationError) as refused:
        COMMAND.validate_python(value)
    assert [error["type"] for error in refused.value.errors()] == ["refused"]


def test_secret_in_a_command_is_not_printed():
    with pytest.raises(ValidationError) as refused:
        COMMAND.validate_python(["upload", "--token=hf_abcdefghijklmnopqrstuv0123"])
    (error,) = refused.value.errors()
    assert error["ctx"]["hide"] and "hf_" not in error["ctx"]["text"]


def test_export_is_listed_once():
    exports: TypeAdapter[tuple[str, ...]] = TypeAdapter(Exports)
    assert exports.validate_python(["inferencex", "llmd-br-0.2.1"]) == ("inferencex", "llmd-br-0.2.1")
    with pytest.raises(ValidationError):
        exports.validate_python(["inferencex", "inferencex"])
