"""The tokenizer of a GGUF file, rebuilt with the tokenizers package from its tokens, merges and pre-tokenizer name.

transformers' own conversion keeps GPT-2's split for pre-tokenizers it does not know (SmolLM's among them), so it is not used.
"""

from __future__ import annotations

from typing import Any

from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors

from builder.errors import TokenizerError
from builder.weights.gguf_file import GgufFile

_LLAMA3 = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
_QWEN2 = _LLAMA3.replace(r"\p{N}{1,3}", r"\p{N}")
_TEKKEN = (
    r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+"
    r"|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*"
    r"|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
_SPLITS = {"llama3": _LLAMA3, "qwen2": _QWEN2, "tekken": _TEKKEN}
# tokenizer.ggml.pre -> how text is cut before merging. `digits` is GPT-2's split after each digit has been set apart.
PRE_TOKENIZERS = {
    **dict.fromkeys(("gpt-2", "gpt2", "mpt", "olmo", "jais"), "gpt2"),
    **dict.fromkeys(("smollm", "starcoder", "refact", "command-r", "codeshell", "exaone"), "digits"),
    **dict.fromkeys(("llama-bpe", "llama3", "llama-v3"), "llama3"),
    **dict.fromkeys(("qwen2", "deepseek-r1-qwen"), "qwen2"),
    "tekken": "tekken",
}
_CONTROL, _USER_DEFINED = 3, 4  # tokenizer.ggml.token_type
_SPACE = "\u2581"  # sentencepiece's visible space
_MEND = "Use a Hugging Face folder of the same model, which has its own tokenizer.json"


def build_gguf_tokenizer(file: GgufFile) -> Tokenizer:
    """A byte-level BPE (`gpt2`) or sentencepiece BPE (`llama`) tokenizer. Raises TokenizerError for others, naming what is supported."""
    kind = file.require("tokenizer.ggml.model")
    tokens: list[str] = file.require("tokenizer.ggml.tokens")
    try:
        if kind == "gpt2":
            tokenizer = _byte_level(file, tokens)
        elif kind == "llama":
            tokenizer = _sentencepiece(file, tokens)
        else:
            raise TokenizerError(
                f"the tokenizer model {kind!r} is not supported",
                where=str(file.path),
                mend="Supported are gpt2 (byte-level BPE) and llama (sentencepiece)",
            )
        _add_special_tokens(tokenizer, tokens, file.get("tokenizer.ggml.token_type") or [])
    except TokenizerError:
        raise
    except Exception as error:  # the tokenizers package raises bare Exception, for a merge of unknown tokens among others
        raise TokenizerError(f"the tokenizer's tables do not fit together ({error})", where=str(file.path), mend=_MEND) from error
    if tokenizer.get_vocab_size() != len(tokens):
        raise TokenizerError(f"the vocabulary has {len(tokens)} tokens, not all different", where=str(file.path), mend=_MEND)
    bos, bos_id = gguf_token(file, "bos"), file.get("tokenizer.ggml.bos_token_id")
    if bos is not None and gguf_adds_bos(file):
        prepend_bos(tokenizer, bos, bos_id)
    return tokenizer


def gguf_token(file: GgufFile, name: str) -> str | None:
    """The text of the special token whose id is under tokenizer.ggml.{name}_token_id; None when there is none."""
    token_id: int | None = file.get(f"tokenizer.ggml.{name}_token_id")
    if token_id is None:
        return None
    tokens: list[str] = file.require("tokenizer.ggml.tokens")
    if not 0 <= token_id < len(tokens):
        raise TokenizerError(f"{name}_token_id {token_id} is outside the vocabulary of {len(tokens)}", where=str(file.path), mend=_MEND)
    return tokens[token_id]


def gguf_adds_bos(file: GgufFile) -> bool:
    """The file's own flag; without one llama.cpp's defaults: sentencepiece, Llama 3 and Tekken begin with BOS, the others do not."""
    default = file.get("tokenizer.ggml.model") == "llama" or PRE_TOKENIZERS.get(file.get("tokenizer.ggml.pre", "")) in {"llama3", "tekken"}
    return bool(file.get("tokenizer.ggml.add_bos_token", default))


def prepend_bos(tokenizer: Tokenizer, bos: str, bos_id: int) -> None:
    """Let `encode` put BOS before every text (when special tokens are asked for)."""
    tokenizer.post_processor = processors.TemplateProcessing(
        single=[bos, "$A"], pair=[bos, "$A", bos, "$B"], special_tokens=[(bos, bos_id)]
    )


def _byte_level(file: GgufFile, tokens: list[str]) -> Tokenizer:
    name = file.get("tokenizer.ggml.pre", "")
    split = PRE_TOKENIZERS.get(name)
    if split is None:
        raise TokenizerError(
            f"the pre-tokenizer {name!r} is not supported", where=str(file.path), mend=f"Supported are {', '.join(PRE_TOKENIZERS)}"
        )
    merges = [_pair(merge) for merge in file.require("tokenizer.ggml.merges")]
    # Llama 3 and Tekken take a word that is a token as it is, without merging towards it.
    model = models.BPE(vocab=_vocabulary(tokens), merges=merges, ignore_merges=split in {"llama3", "tekken"})
    tokenizer = Tokenizer(model)
    byte_level = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=split not in _SPLITS)
    first: Any = None
    if split in _SPLITS:
        first = pre_tokenizers.Split(Regex(_SPLITS[split]), behavior="isolated")
    elif split == "digits":
        first = pre_tokenizers.Digits(individual_digits=True)
    tokenizer.pre_tokenizer = byte_level if first is None else pre_tokenizers.Sequence([first, byte_level])
    if split == "qwen2":
        tokenizer.normalizer = normalizers.NFC()
    tokenizer.decoder = decoders.ByteLevel()
    return tokenizer


def _sentencepiece(file: GgufFile, tokens: list[str]) -> Tokenizer:
    vocabulary = _vocabulary(tokens)
    merges = _merges_from_scores(vocabulary, file.require("tokenizer.ggml.scores"))
    unknown = gguf_token(file, "unknown")
    model = models.BPE(vocab=vocabulary, merges=merges, unk_token=unknown, fuse_unk=True, byte_fallback=True)
    tokenizer = Tokenizer(model)
    prefix = bool(file.get("tokenizer.ggml.add_space_prefix", True))
    spaces: list[Any] = [normalizers.Replace(" ", _SPACE)]
    tokenizer.normalizer = normalizers.Sequence([normalizers.Prepend(_SPACE), *spaces] if prefix else spaces)
    steps: list[Any] = [decoders.Replace(_SPACE, " "), decoders.ByteFallback(), decoders.Fuse()]
    tokenizer.decoder = decoders.Sequence([*steps, decoders.Strip(" ", 1, 0)] if prefix else steps)
    return tokenizer


def _merges_from_scores(vocabulary: dict[str, int], scores: list[float]) -> list[tuple[str, str]]:
    """Sentencepiece merges the pair whose union scores best: every split of a token into two tokens is a merge, best score first."""
    merges = []
    for token, index in vocabulary.items():
        halves = ((token[:cut], token[cut:]) for cut in range(1, len(token)))
        merges += [(-scores[index], index, left, right) for left, right in halves if left in vocabulary and right in vocabulary]
    merges.sort(key=lambda merge: merge[:2])
    return [(left, right) for _, _, left, right in merges]


def _add_special_tokens(tokenizer: Tokenizer, tokens: list[str], kinds: list[int]) -> None:
    """Control tokens never appear in text; user-defined tokens do, but are never cut. Both keep their ids."""
    for token, kind in zip(tokens, kinds, strict=False):
        if kind == _CONTROL:
            tokenizer.add_special_tokens([AddedToken(token, normalized=False, special=True)])
        elif kind == _USER_DEFINED:
            tokenizer.add_tokens([AddedToken(token, normalized=False, special=False)])


def _vocabulary(tokens: list[str]) -> dict[str, int]:
    return {token: index for index, token in enumerate(tokens)}


def _pair(merge: str) -> tuple[str, str]:
    cut = merge.index(" ", 1)  # a token may itself begin with a space
    return merge[:cut], merge[cut + 1 :]
