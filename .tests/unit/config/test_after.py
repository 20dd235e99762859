"""``publish``: a text, split into words, or a list."""

from __future__ import annotations

import pytest
from pydantic import TypeAdapter, ValidationError

from servemark.config.after import Command

COMMAND: TypeAdapter[tuple[str, ...]] = TypeAdapter(Command)


def test_text_and_list_give_the_same_words():
    assert COMMAND.validate_python("cp {archive} 'my disk'") == COMMAND.validate_python(["cp", "{archive}", "my disk"])


@pytest.mark.parametrize("value", [5, True, {"run": "cp"}, "cp 'open"])
def test_other_values_are_refused_with_our_own_words(value):
    with pytest.raises(ValidationError) as refused:
        COMMAND.validate_python(value)
    assert [error["type"] for error in refused.value.errors()] == ["refused"]
