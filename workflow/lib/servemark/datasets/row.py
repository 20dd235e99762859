"""One row of a dataset, and what keeps it from being sent."""

import json
from dataclasses import dataclass
from typing import Any

MOST_TOKENS = 10**7
LONGEST_LINE = 64 * 2**20
"""Bytes of a line. A longer one is a file of another kind."""


ROLES = ("system", "developer", "user", "assistant", "tool")
"""Roles of a message (vllm/entrypoints/chat_utils.py, 0.32.0)."""


@dataclass(frozen=True)
class Row:
    """One request: a prompt, or the messages of a conversation.

    ``output_tokens`` and ``response``: the length of the output, or its text; None if the source does not state it. ``timestamp``: of the
    arrival, in seconds; None if it is not used.
    """

    prompt: str = ""
    output_tokens: int | None = None
    messages: tuple[dict[str, str], ...] = ()
    response: str | None = None
    timestamp: float | None = None

    def content(self) -> dict[str, object]:
        """Return the row as the keys of a staged file."""
        content: dict[str, object] = {"messages": self.messages} if self.messages else {"prompt": self.prompt}
        known = {"output_tokens": self.output_tokens, "timestamp": self.timestamp}
        return content | {name: value for name, value in known.items() if value is not None}

    @property
    def bytes(self) -> int:
        """The bytes of the prompt, or of all messages, in UTF-8."""
        return sum(len(text.encode()) for text in (self.prompt, *(message["content"] for message in self.messages)))


@dataclass(frozen=True)
class Fault:
    """Why a row cannot be used. ``place``: `line 3` or `entry 3`, counted from 1."""

    place: str
    text: str


def text_fault(text: Any, name: str, *, empty: bool = False) -> str | None:
    """Return why a text cannot be sent. ``name``: for the message; ``empty``: it may be empty."""
    if not isinstance(text, str):
        return f"{name} must be text, not {type(text).__name__}"
    if not text.strip() and not empty:
        return f"{name} is empty"
    # JSON can write half of a pair, which no request can send.
    return f"{name} contains an unpaired surrogate" if any("\ud800" <= letter <= "\udfff" for letter in text) else None


def messages_fault(messages: Any) -> str | None:
    """Return why the messages of a conversation cannot be sent."""
    if not isinstance(messages, list) or not messages:
        return '`messages` must be a list such as [{"role": "user", "content": "..."}]'
    for number, message in enumerate(messages, 1):
        name = f"message {number}"
        if not isinstance(message, dict) or not {"role", "content"} <= message.keys():
            return f"{name} needs `role` and `content`"
        if message["role"] not in ROLES:
            return f"{name} has the role {json.dumps(message['role']):.40}; allowed: {', '.join(ROLES)}"
        # A system message, or an assistant's that only called tools, may be empty.
        if text := text_fault(message["content"], f"the content of {name}", empty=message["role"] != "user"):
            return text
    return "ends with a message of the assistant, so there is nothing to respond to" if messages[-1]["role"] == "assistant" else None


def sendable(text: str) -> str:
    """Return a text without halves of pairs, of which no tokenizer makes tokens."""
    return text.encode("utf-8", "ignore").decode()
