"""Text to tokens and back: tokenizer, chat template, streaming detokenizer, stop strings."""

from builder.text.detokenizer import CONTEXT_TOKENS, delta
from builder.text.stop import StopMatcher
from builder.text.tokenizer import Tokenizer

__all__ = ["CONTEXT_TOKENS", "StopMatcher", "Tokenizer", "delta"]
