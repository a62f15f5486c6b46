"""Chat templates, rendered in jinja's sandbox as Hugging Face renders them."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any

import jinja2
from jinja2 import nodes
from jinja2.ext import Extension, loopcontrols
from jinja2.parser import Parser
from jinja2.sandbox import ImmutableSandboxedEnvironment

from builder.errors import RequestError, TokenizerError

Message = Mapping[str, Any]


class _Refusal(jinja2.TemplateError):
    """The template called raise_exception: the messages are not what the model was trained on."""


class _Generation(Extension):
    """`{% generation %}` marks the assistant's part for training; here its body is rendered as it is."""

    tags = {"generation"}  # noqa: RUF012 - jinja's own declaration

    def parse(self, parser: Parser) -> nodes.Node | list[nodes.Node]:
        next(parser.stream)
        return parser.parse_statements(("name:endgeneration",), drop_needle=True)


class ChatTemplate:
    """A compiled chat template. The template comes with the weights, so it is untrusted and runs in the immutable sandbox."""

    def __init__(self, template: str, bos_token: str | None, eos_token: str | None) -> None:
        """Raises TokenizerError when the template is not valid jinja."""
        environment = ImmutableSandboxedEnvironment(trim_blocks=True, lstrip_blocks=True, extensions=[_Generation, loopcontrols])
        environment.filters["tojson"] = _tojson
        environment.globals.update(raise_exception=_raise_exception, strftime_now=_strftime_now)
        try:
            self._template = environment.from_string(template)
        except jinja2.TemplateSyntaxError as error:
            where = f"chat_template:{error.lineno}"
            raise TokenizerError(f"the chat template is not valid ({error.message})", where=where, mend="Mend the template") from error
        self._tokens = {name: token for name, token in (("bos_token", bos_token), ("eos_token", eos_token)) if token is not None}

    def render(self, messages: Sequence[Message]) -> str:
        """The prompt up to where the assistant speaks.

        Raises RequestError when the messages are malformed or the template refuses them, TokenizerError when the template fails.
        """
        chat = [_checked(message, place) for place, message in enumerate(messages)]
        if not chat:
            raise RequestError("there are no messages", where="messages", mend='Send at least {"role": "user", "content": "..."}')
        try:
            return self._template.render(messages=chat, tools=None, documents=None, add_generation_prompt=True, **self._tokens)
        except _Refusal as error:
            raise RequestError(f"the chat template refuses the messages ({error})", where="messages", mend="Change them") from error
        except Exception as error:  # untrusted code: whatever it raises is its failure
            raise TokenizerError(
                f"the chat template fails ({type(error).__name__}: {error})", where="chat_template", mend="Mend it, or send a raw prompt"
            ) from error


def _checked(message: object, place: int) -> dict[str, Any]:
    where = f"messages[{place}]"
    if not isinstance(message, Mapping):
        raise RequestError(f"a message is {type(message).__name__}, not an object", where=where, mend="Send role and content")
    if not isinstance(message.get("role"), str):
        raise RequestError("a message has no role", where=where, mend="Set role to system, user or assistant")
    if not isinstance(message.get("content"), str):
        raise RequestError("the content of a message is not a string", where=where, mend="Send the text as one string")
    return {key: value for key, value in message.items() if value is not None}


def _tojson(
    value: Any, ensure_ascii: bool = False, indent: int | None = None, separators: tuple[str, str] | None = None, sort_keys: bool = False
) -> str:
    """Hugging Face's filter: unlike jinja's own it leaves HTML characters alone."""
    return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)


def _raise_exception(message: str) -> None:
    raise _Refusal(message)


def _strftime_now(form: str) -> str:
    return datetime.now().strftime(form)  # local time, as Hugging Face has it
