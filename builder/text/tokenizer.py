"""Tokenizer of a model: text to ids, ids to text, messages to a prompt. No torch and no transformers: it runs in the server."""

from __future__ import annotations

from collections.abc import Sequence

import tokenizers

from builder.errors import RequestError, TokenizerError
from builder.text.chat import ChatTemplate, Message
from builder.text.detokenizer import delta
from builder.text.pieces import Pieces


class Tokenizer:
    """`tokenizer_json` is the content of Hugging Face's tokenizer.json; the special tokens are for the chat template."""

    def __init__(
        self, tokenizer_json: str, chat_template: str | None = None, bos_token: str | None = None, eos_token: str | None = None
    ) -> None:
        """Raises TokenizerError when the tokenizer or the template cannot be used."""
        try:
            self._tokenizer = tokenizers.Tokenizer.from_str(tokenizer_json)
        except Exception as error:  # the tokenizers package raises bare Exception
            raise TokenizerError(f"the tokenizer cannot be read ({error})", where="tokenizer.json", mend="Build again") from error
        # Limits saved with a tokenizer are those of its training batches: a prompt must never be cut or padded silently.
        self._tokenizer.no_truncation()
        self._tokenizer.no_padding()
        self.pieces = Pieces(self._tokenizer)
        self._chat = None if chat_template is None else ChatTemplate(chat_template, bos_token, eos_token)

    @property
    def vocab_size(self) -> int:
        """Number of tokens, added ones included; a model's vocabulary may be padded beyond it."""
        return self._tokenizer.get_vocab_size()

    @property
    def chats(self) -> bool:
        """Whether the model has a chat template."""
        return self._chat is not None

    def encode(self, text: str, add_special_tokens: bool) -> list[int]:
        """Ids of `text`; special tokens written in it are recognised. Raises RequestError when it is not valid Unicode."""
        try:
            return self._tokenizer.encode(text, add_special_tokens=add_special_tokens).ids
        except (TypeError, UnicodeEncodeError) as error:  # an unpaired surrogate
            raise RequestError("the text is not valid Unicode", where="text_input", mend="Send valid UTF-8") from error

    def decode(self, ids: Sequence[int]) -> str:
        """Text of `ids` from the start of a text, without special tokens."""
        return delta(self, (), ids, final=True)

    def chat_prompt(self, messages: Sequence[Message]) -> str:
        """The prompt that asks for the assistant's next message; encode it without adding special tokens.

        Raises RequestError when the model has no chat template or refuses the messages, TokenizerError when the template fails.
        """
        if self._chat is None:
            raise RequestError("the model has no chat template", where="messages", mend="Send the prompt as text")
        return self._chat.render(messages)
