"""Streaming text as a pure function of tokens: what new tokens add to the text that came before."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from builder.text.tokenizer import Tokenizer

# How many tokens of context `delta` looks at, so how many a caller must pass (all, when there are fewer). Three can hold the
# first bytes of an unfinished character, one each; the fourth tells the start of a text from its middle.
CONTEXT_TOKENS = 4


def delta(tokenizer: Tokenizer, context_ids: Sequence[int], new_ids: Sequence[int], final: bool) -> str:
    """The text that `new_ids` add after `context_ids` (prompt included), the last CONTEXT_TOKENS of which suffice.

    An unfinished UTF-8 character at the end is held back, to come with the tokens that finish it, or as U+FFFD when they do
    not or when `final`. Invalid bytes become U+FFFD as in `bytes.decode(errors="replace")`. However a sequence is cut into
    chunks, the parts joined are the same text. Special tokens have no text and end an unfinished character.
    """
    pieces = tokenizer.pieces
    context = list(context_ids[-CONTEXT_TOKENS:])
    # A sentencepiece-like tokenizer writes a space before the first word of a text; only there it is dropped. Special tokens
    # may come first, but not more than the window shows: else the answer would depend on how much context was passed.
    at_start = pieces.strips_space and len(context) < CONTEXT_TOKENS and not any(pieces[i] for i in context)
    pending = _pending(b"".join(_since_break([pieces[i] for i in context])))
    text = []
    for place, token_id in enumerate(new_ids, start=len(context)):
        piece = pieces[token_id]
        if not piece:
            text.append(pending.decode(errors="replace"))
            pending = b""
            continue
        if at_start and place < CONTEXT_TOKENS:
            piece = piece.removeprefix(b" ")
        at_start = False
        pending += piece
    held = b"" if final else _pending(pending)
    text.append(pending[: len(pending) - len(held)].decode(errors="replace"))
    return "".join(text)


def _since_break(pieces: list[bytes]) -> list[bytes]:
    """The pieces after the last token without text."""
    for place in range(len(pieces) - 1, -1, -1):
        if not pieces[place]:
            return pieces[place + 1 :]
    return pieces


def _pending(data: bytes) -> bytes:
    """The unfinished UTF-8 character at the end of `data`, at most 3 bytes; empty when there is none.

    A tail is unfinished when more bytes could make it a character: decoding it strictly fails for want of bytes only.
    """
    for start in range(max(0, len(data) - 3), len(data)):
        tail = data[start:]
        if tail[0] < 0xC2:  # ASCII, a continuation byte, or a byte that starts no character
            continue
        try:
            tail.decode()
        except UnicodeDecodeError as error:
            if error.start == 0 and error.reason == "unexpected end of data":
                return tail
    return b""
