"""Stop strings, at the grain of tokens: which tokens may leave, and where the text is cut."""

from __future__ import annotations

from collections.abc import Sequence

from builder.text.detokenizer import CONTEXT_TOKENS, delta
from builder.text.stop import StopMatcher
from builder.text.tokenizer import Tokenizer


class StopScanner:
    """Follows the text of an answer token by token. Characters are counted from the start of the answer."""

    def __init__(self, stops: Sequence[str], tokenizer: Tokenizer) -> None:
        self._matcher = StopMatcher(stops)
        self._tokenizer = tokenizer
        self._length = 0  # characters of all tokens pushed
        self._shown = 0  # of them, those no stop string can begin in
        self._sent = 0  # of them, those whose tokens have left
        self._ends: list[int] = []  # of each token that has not left: where its text ends

    def push(self, token_ids: Sequence[int], token: int) -> int:
        """Take the token that follows token_ids. Returns how many of the newest tokens must wait, it included."""
        text = delta(self._tokenizer, token_ids[-CONTEXT_TOKENS:], (token,), False)
        self._length += len(text)
        self._shown += len(self._matcher.push(text))
        self._ends.append(self._length)
        return sum(end > self._shown for end in self._ends)

    @property
    def stopped(self) -> bool:
        return self._matcher.stopped

    @property
    def limit(self) -> int:
        """Characters to keep of the text of the tokens that have not left; -1, all, while no stop string is complete."""
        return self._shown - self._sent if self.stopped else -1

    def sent(self, count: int) -> None:
        """The oldest `count` tokens have left."""
        if count:
            self._sent = self._ends[count - 1]
            del self._ends[:count]
