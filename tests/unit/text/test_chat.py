"""Chat templates as Hugging Face renders them."""

from __future__ import annotations

import datetime
import json
from pathlib import Path
from typing import Any

import pytest
import transformers

from builder.errors import RequestError, TokenizerError
from builder.text.chat import ChatTemplate
from tests.unit.tiny_models import make_tiny_model

USER = {"role": "user", "content": "Say <b>hi</b> & 'bye'"}
TEMPLATES = {
    "trimmed blocks": "{% for m in messages %}\n  {% if m.role == 'user' %}\n[{{ m.content }}]\n  {% endif %}\n{% endfor %}{{ eos_token }}",
    "tojson": "{{ messages | tojson }} {{ messages[0] | tojson(indent=2) }}",
    "loop controls": "{% for m in messages %}{% if loop.index > 1 %}{% break %}{% endif %}{{ m.content }}{% endfor %}",
    "generation": "{% for m in messages %}{% generation %}{{ m.content }}{{ bos_token }}{% endgeneration %}{% endfor %}",
    "namespace": "{% set ns = namespace(n=0) %}{% for m in messages %}{% set ns.n = ns.n + 1 %}{% endfor %}{{ ns.n }}{{ tools is none }}",
    "prompt": "{% if add_generation_prompt %}<assistant>{% endif %}{{ missing }}{{ messages[0].content.strip().title() }}",
}


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory: pytest.TempPathFactory) -> Any:
    return transformers.AutoTokenizer.from_pretrained(make_tiny_model(tmp_path_factory.mktemp("tiny")))


@pytest.mark.parametrize("template", TEMPLATES.values(), ids=TEMPLATES.keys())
def test_templates_render_as_in_transformers(tokenizer: Any, template: str) -> None:
    messages = [USER, {"role": "assistant", "content": "Grüße"}, USER]
    expected = tokenizer.apply_chat_template(messages, chat_template=template, tokenize=False, add_generation_prompt=True)
    assert ChatTemplate(template, tokenizer.bos_token, tokenizer.eos_token).render(messages) == expected


def test_the_date_is_todays() -> None:
    assert ChatTemplate("{{ strftime_now('%Y') }}", None, None).render([USER]) == str(datetime.datetime.now().year)


def test_what_the_template_refuses_is_the_requests_fault() -> None:
    template = ChatTemplate("{{ raise_exception('roles must alternate') }}", None, None)
    with pytest.raises(RequestError, match="roles must alternate"):
        template.render([USER])


@pytest.mark.parametrize(
    "template",
    [
        "{{ messages[0].content.nothing.more }}",
        "{{ 1 // 0 }}",
        "{{ ''.__class__.__mro__[1].__subclasses__() }}",  # the way out of an unguarded jinja
        "{{ messages.append(1) }}",
    ],
)
def test_what_the_template_does_wrong_is_the_templates_fault(template: str) -> None:
    with pytest.raises(TokenizerError, match="the chat template fails"):
        ChatTemplate(template, None, None).render([USER])


def test_a_template_that_is_not_jinja_is_refused_with_its_line() -> None:
    with pytest.raises(TokenizerError, match="chat_template:2: the chat template is not valid"):
        ChatTemplate("{{ 1 }}\n{% if %}", None, None)


@pytest.mark.parametrize(
    ("messages", "words"),
    [
        ([], "there are no messages"),
        (["hi"], r"messages\[0\]: a message is str"),
        ([USER, {"content": "x"}], r"messages\[1\]: a message has no role"),
        ([{"role": "user"}], "content of a message is not a string"),
        ([{"role": "user", "content": [{"type": "text", "text": "x"}]}], "content of a message is not a string"),
    ],
)
def test_malformed_messages_are_refused_by_place(messages: list[Any], words: str) -> None:
    with pytest.raises(RequestError, match=words):
        ChatTemplate("{{ messages }}", None, None).render(messages)


def test_keys_without_a_value_are_left_out() -> None:
    template = ChatTemplate("{{ messages[0] | tojson }}", None, None)
    assert json.loads(template.render([USER | {"tool_calls": None}])) == USER


def test_the_tiny_models_template_is_chatml(tmp_path: Path) -> None:
    settings = json.loads((make_tiny_model(tmp_path) / "tokenizer_config.json").read_text())
    rendered = ChatTemplate(settings["chat_template"], None, None).render([{"role": "user", "content": "hi"}])
    assert rendered == "<|im_start|>user\nhi<|im_end|>\n<|im_start|>assistant\n"
