"""Ask the user at a terminal, or take the defaults."""

from collections.abc import Callable, Sequence
from typing import Protocol, TypeVar

from servemark.errors import ConfigError

T = TypeVar("T")


class Asker(Protocol):
    """Answers the questions of ``servemark init``."""

    def choose(self, question: str, options: Sequence[tuple[T, str]], other: Callable[[str], T] | None = None) -> T:
        """Return the value of one of the options ``(value, label)``; the first is the default. ``other`` reads any other text."""
        ...


class Defaults:
    """Take each default (``--yes``)."""

    def choose(self, question: str, options: Sequence[tuple[T, str]], other: Callable[[str], T] | None = None) -> T:  # noqa: ARG002
        """Return the first option."""
        return options[0][0]


class Terminal:
    """Ask at the terminal. ``read`` and ``say`` are ``input`` and ``print`` there."""

    def __init__(self, read: Callable[[str], str] = input, say: Callable[[str], None] = print):
        self._read, self._say = read, say

    def choose(self, question: str, options: Sequence[tuple[T, str]], other: Callable[[str], T] | None = None) -> T:
        """Ask until the answer is Enter, a number of the list, or a text that ``other`` accepts.

        Raises:
            ConfigError: the input has ended.
        """
        if len(options) == 1 and other is None:
            return options[0][0]
        self._say(f"\n{question}")
        for number, (_, label) in enumerate(options, 1):
            self._say(f"  {number}  {label}{'  [Enter]' if number == 1 else ''}")
        while True:
            try:
                answer = self._read("> ").strip()
            except EOFError:
                raise ConfigError("The input ended before all questions had an answer. Nothing was written.",
                                  do="Answer the questions, or add --yes to take the defaults.") from None  # fmt: skip
            if not answer:
                return options[0][0]
            if answer.isdecimal() and 1 <= int(answer) <= len(options):
                return options[int(answer) - 1][0]
            if other is None or answer.isdecimal():
                self._say(f"Type a number from 1 to {len(options)}, or press Enter for 1.")
                continue
            try:
                return other(answer)
            except ConfigError as error:
                self._say(error.message())
