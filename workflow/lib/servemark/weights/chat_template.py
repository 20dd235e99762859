"""The chat template of a model: where servers find it, and what it makes of a conversation.

Source: vllm/renderers/hf.py, ``resolve_chat_template``, and transformers/utils/chat_template_utils.py, ``_compile_jinja_template`` (vLLM
0.32.0, transformers 5). The option ``chat-template`` comes first, then the model's own files.
"""

import hashlib
import json
import re
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any, NoReturn

OPTION = "chat-template"
REMEDY = "Set the option `chat-template: FILE` of the deployment, or `api: completions` in the workload."
"""What to do where a model has no template."""
_OWN_CODE = {"tekken.json", "tokenizer.model.v3", "tokenizer.model.v7"}
"""Tokenizers of Mistral. vLLM builds their prompts in code (vllm/tokenizers/mistral.py), without a template."""
_SPECIAL_TOKENS = ("bos_token", "eos_token", "unk_token", "pad_token")
_GENERATION = re.compile(r"{%-?\s*(?:end)?generation\s*-?%}")
"""Marks for training in a template; they print nothing."""

Message = Mapping[str, str]
"""A message with ``role`` and ``content``."""


@dataclass(frozen=True)
class ChatTemplate:
    """``render`` makes the text that the server tokenizes, and raises :class:`Refused`. ``digest``: of all that decides the text."""

    render: Callable[[Sequence[Message]], str]
    digest: str


class Refused(Exception):
    """The template refuses a conversation, for example because its roles do not alternate. The text is the template's."""


def user(prompt: str) -> list[Message]:
    """Return the conversation that a prompt is on the chat route: one message of a user."""
    return [{"role": "user", "content": prompt}]


def needs_none(model: Path, options: Mapping[str, Any]) -> bool:
    """Return whether the server builds prompts in code: a tokenizer of Mistral, or a mode of the tokenizer that names one."""
    mode = str(options.get("tokenizer-mode") or "auto")
    return mode not in ("auto", "hf", "slow") or (mode == "auto" and any((model / name).is_file() for name in _OWN_CODE))


def fault(model: Path, options: Mapping[str, Any]) -> str | None:
    """Return why a server of the model refuses requests on the chat route; None if it accepts them."""
    if needs_none(model, options) or find(model, options) is not None:
        return None
    return f"the model has no chat template ({model}: chat_template.jinja, tokenizer_config.json), and the deployment sets none"


def find(model: Path, options: Mapping[str, Any]) -> str | None:
    """Return the text of the template that a server uses; None: there is none, or its file cannot be read.

    Args:
        model: the model's folder.
        options: the server's, in kebab case.
    """
    given = options.get(OPTION)
    if given is not None:
        with suppress(OSError, ValueError):  # too long for a name of a file: the text itself
            return Path(str(given)).read_text(encoding="utf-8")
        return str(given) if re.search(r"[{}\n]", str(given)) else None
    with suppress(OSError, ValueError):
        return (model / "chat_template.jinja").read_text(encoding="utf-8")
    for name in ("chat_template.json", "tokenizer_config.json"):
        found = _object(model / name).get("chat_template")
        if isinstance(found, list):
            named = {one.get("name"): one.get("template") for one in found if isinstance(one, dict)}
            found = named.get("default") or next(iter(named.values()), None)
        if isinstance(found, str):
            return found
    return None


def read(model: Path, options: Mapping[str, Any]) -> ChatTemplate | None:
    """Return the template that a server uses; None if there is none, or if it needs more than servemark gives it, for example tools.

    Args:
        model, options: as of :func:`find`.
    """
    text = find(model, options)
    if text is None:
        return None
    from jinja2 import TemplateError
    from jinja2.ext import loopcontrols
    from jinja2.sandbox import ImmutableSandboxedEnvironment

    def refuse(why: str) -> NoReturn:
        raise Refused(why)

    environment = ImmutableSandboxedEnvironment(trim_blocks=True, lstrip_blocks=True, extensions=[loopcontrols])
    environment.filters["tojson"] = lambda value, **how: json.dumps(value, **{"ensure_ascii": False} | how)
    environment.globals |= {"raise_exception": refuse, "strftime_now": lambda form: datetime.now().astimezone().strftime(form)}
    config = _object(model / "tokenizer_config.json")
    tokens = {name: _token(config.get(name)) for name in _SPECIAL_TOKENS if config.get(name)}
    always = {"tools": None, "documents": None, "add_generation_prompt": True} | tokens | _arguments(options)

    faults = (TemplateError, TypeError, ValueError, KeyError, AttributeError, IndexError)

    def made(messages: Sequence[Message]) -> str:
        return template.render(messages=[dict(message) for message in messages], **always)

    def render(messages: Sequence[Message]) -> str:
        try:
            return made(messages)
        except faults as error:
            raise Refused(f"{type(error).__name__}: {error}") from None

    try:
        template = environment.from_string(_GENERATION.sub("", text))
        made(user("x"))
    except Refused:
        pass
    except faults:
        return None
    return ChatTemplate(render, hashlib.sha256(json.dumps([text, always], default=str).encode()).hexdigest())


def _arguments(options: Mapping[str, Any]) -> dict[str, Any]:
    """Return the option ``default-chat-template-kwargs`` as an object."""
    given = options.get("default-chat-template-kwargs")
    with suppress(ValueError):
        given = json.loads(given) if isinstance(given, str) else given
    return dict(given) if isinstance(given, Mapping) else {}


def _token(value: Any) -> str:
    return str(value.get("content", "")) if isinstance(value, dict) else str(value)


def _object(path: Path) -> dict[str, Any]:
    with suppress(OSError, ValueError):
        if isinstance(data := json.loads(path.read_text(encoding="utf-8")), dict):
            return data
    return {}
