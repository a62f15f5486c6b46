"""From the text of a request to token ids: raw prompts and chats, each refused with a reason when it cannot be served."""

from __future__ import annotations

import json
from typing import Any

from builder.errors import RequestError
from builder.spec.pipeline import PipelineSpec
from builder.text import Tokenizer

# No token of a known vocabulary covers more bytes; longer text is refused before it costs seconds of tokenizing.
MOST_BYTES_PER_TOKEN = 256


def prompt_ids(tokenizer: Tokenizer, text: bytes | None, messages: bytes | None, spec: PipelineSpec) -> list[int]:
    """Token ids of either `text` or `messages` (JSON list of {role, content}), at most as many as the pipeline allows.

    RequestError: none or both given, not UTF-8, empty, too long, not a chat.
    """
    most = spec.engine.longest_text
    if (text is None) == (messages is None):
        what = "a request needs either text_input or messages" + (", but has both" if text is not None else "")
        raise RequestError(what, where="text_input")
    if messages is not None:
        prompt = tokenizer.chat_prompt(_read_messages(_utf8(messages, "messages", most)))
        ids = tokenizer.encode(prompt, add_special_tokens=False)  # the template writes them itself
    else:
        prompt = _utf8(text or b"", "text_input", most)
        ids = tokenizer.encode(prompt, add_special_tokens=True)
    if not prompt or not ids:
        raise RequestError("the prompt is empty", where="text_input" if messages is None else "messages", mend="Send at least one token")
    if len(ids) > spec.longest_prompt:
        limit = "serving.max_prompt_tokens" if spec.serving.max_prompt_tokens else "engine.max_seq_len less one for the answer"
        what = f"the prompt has {len(ids)} tokens, but at most {spec.longest_prompt} fit ({limit})"
        raise RequestError(what, where="text_input" if messages is None else "messages", mend="Shorten the prompt")
    return ids


def _utf8(data: bytes, field: str, longest: int) -> str:
    most = longest * MOST_BYTES_PER_TOKEN
    if len(data) > most:
        raise RequestError(
            f"the prompt has {len(data)} bytes, more than {longest} tokens can cover", where=field, mend="Shorten the prompt"
        )
    try:
        return data.decode("utf-8")
    except UnicodeDecodeError as error:
        raise RequestError(f"not valid UTF-8 at byte {error.start}", where=field) from None


def _read_messages(text: str) -> list[dict[str, Any]]:
    try:
        messages = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise RequestError(
            f"not JSON ({error})", where="messages", mend='Send a list such as [{"role": "user", "content": "..."}]'
        ) from None
    if not isinstance(messages, list) or not messages:
        raise RequestError("must be a JSON list of at least one message", where="messages")
    for index, message in enumerate(messages):
        if not isinstance(message, dict) or not all(isinstance(message.get(key), str) for key in ("role", "content")):
            raise RequestError("must have the texts `role` and `content`", where=f"messages[{index}]")
    return messages
