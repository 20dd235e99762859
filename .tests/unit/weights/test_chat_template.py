"""Chat templates: where a server finds one, and what it makes of a conversation."""

from __future__ import annotations

import json

import pytest

from servemark.weights import builtin, chat_template

ASKED = [{"role": "system", "content": "Be <brief>."}, {"role": "user", "content": "Why?"}]


def config(folder, **values) -> None:
    (folder / "tokenizer_config.json").write_text(json.dumps(values))


def test_builtin_model_renders_as_its_template_states(tmp_path):
    builtin.make("tiny-dense", tmp_path)
    found = chat_template.read(tmp_path, {})
    assert found.render(ASKED) == ("<|im_start|>system\nBe <brief>.<|im_end|>\n<|im_start|>user\nWhy?<|im_end|>\n<|im_start|>assistant\n")
    assert chat_template.fault(tmp_path, {}) is None


def test_option_comes_before_the_files_of_the_model(tmp_path):
    named = [{"name": "tool_use", "template": "b"}, {"name": "default", "template": "c"}]
    config(tmp_path, chat_template=named)
    assert chat_template.find(tmp_path, {}) == "c"
    (tmp_path / "chat_template.jinja").write_text("d")
    assert chat_template.find(tmp_path, {}) == "d"
    own = tmp_path / "own.jinja"
    own.write_text("e")
    assert chat_template.find(tmp_path, {"chat-template": str(own)}) == "e"
    assert chat_template.find(tmp_path, {"chat-template": "{{ messages }}" * 500}) == "{{ messages }}" * 500
    assert chat_template.find(tmp_path, {"chat-template": "no-such-file"}) is None


def test_model_without_template_has_a_fault_unless_code_builds_its_prompts(tmp_path):
    assert chat_template.fault(tmp_path, {})
    config(tmp_path, bos_token="<s>")
    assert chat_template.fault(tmp_path, {}) and chat_template.read(tmp_path, {}) is None
    assert chat_template.fault(tmp_path, {"chat-template": "{{ messages }}"}) is None
    assert chat_template.fault(tmp_path, {"tokenizer-mode": "mistral"}) is None
    (tmp_path / "tekken.json").write_text("{}")
    assert chat_template.fault(tmp_path, {}) is None
    assert chat_template.fault(tmp_path, {"tokenizer-mode": "hf"})


def test_template_gets_special_tokens_arguments_and_filters(tmp_path):
    config(
        tmp_path,
        bos_token={"content": "<s>"},
        chat_template="{{ bos_token }}{% generation %}{{ messages[0] | tojson }}{% endgeneration %}{{ enable_thinking }}"
        "{% for m in messages %}{% if loop.index == 2 %}{% break %}{% endif %}{% endfor %}",
    )
    found = chat_template.read(tmp_path, {"default-chat-template-kwargs": '{"enable_thinking": false}'})
    assert found.render(ASKED) == '<s>{"role": "system", "content": "Be <brief>."}False'
    assert found.digest != chat_template.read(tmp_path, {}).digest


def test_template_that_needs_more_is_not_used(tmp_path):
    for text in ("{{ tools[0].name }}", "{% bad %}"):
        config(tmp_path, chat_template=text)
        assert chat_template.read(tmp_path, {}) is None and chat_template.fault(tmp_path, {}) is None


def test_refusal_of_a_template_has_its_words(tmp_path):
    config(tmp_path, chat_template="{{ raise_exception('roles must alternate') }}")
    with pytest.raises(chat_template.Refused, match="roles must alternate"):
        chat_template.read(tmp_path, {}).render(ASKED)


def test_row_that_a_template_cannot_render_is_refused_with_its_error(tmp_path):
    text = "{% for one in messages %}{% if one.role == 'tool' %}{{ one.tool_call_id[-9:] }}{% endif %}{{ one.content }}{% endfor %}"
    template = chat_template.read(tmp_path, {"chat-template": text})
    assert template and template.render(chat_template.user("x")) == "x"
    with pytest.raises(chat_template.Refused, match="Undefined"):
        template.render([*chat_template.user("x"), {"role": "tool", "content": "y"}])
