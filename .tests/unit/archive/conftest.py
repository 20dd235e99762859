"""Published archives for the tests of this folder."""

import contextlib

import pytest

from builders.published import archive
from servemark.verification.unpack import unpacked


@pytest.fixture
def unpack():
    """Return a function that unpacks a published archive and returns its folder."""
    with contextlib.ExitStack() as stack:
        yield lambda name: stack.enter_context(unpacked(archive(name))).folder
