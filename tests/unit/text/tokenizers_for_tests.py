"""The two families of tokenizers, small: byte-level and sentencepiece-like."""

from __future__ import annotations

from tokenizers import AddedToken, decoders, models, normalizers
from tokenizers import Tokenizer as Backend

from builder.text import Tokenizer
from tests.unit.tiny_models import BOS, EOS, tiny_tokenizer

SPACE = "\u2581"
WORDS = [f"{SPACE}Hello", f"{SPACE}world", SPACE, "Hello", "é", "漢", "th", f"{SPACE}the", f"{SPACE}{SPACE}"]
SENTENCEPIECE_TOKENS = ["<unk>", "<s>", "</s>", *(f"<0x{byte:02X}>" for byte in range(256)), *WORDS]


def byte_level() -> Tokenizer:
    return Tokenizer(tiny_tokenizer(288).to_str(), None, BOS, EOS)


def sentencepiece_backend() -> Backend:
    vocab = {token: i for i, token in enumerate(SENTENCEPIECE_TOKENS)}
    backend = Backend(models.BPE(vocab=vocab, merges=[], unk_token="<unk>", fuse_unk=True, byte_fallback=True))
    backend.normalizer = normalizers.Sequence([normalizers.Prepend(SPACE), normalizers.Replace(" ", SPACE)])
    backend.decoder = decoders.Sequence([decoders.Replace(SPACE, " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)])
    backend.add_special_tokens([AddedToken(token, normalized=False, special=True) for token in ("<unk>", "<s>", "</s>")])
    return backend


def sentencepiece() -> Tokenizer:
    return Tokenizer(sentencepiece_backend().to_str(), None, "<s>", "</s>")


def ids_of(*tokens: str) -> list[int]:
    """Ids of sentencepiece tokens by name."""
    return [SENTENCEPIECE_TOKENS.index(token) for token in tokens]
