"""Tokenizers from folders and from GGUF metadata."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import tokenizers
import transformers

from builder.errors import TokenizerError, WeightsError
from builder.weights import open_tokenizer
from builder.weights.gguf_tokenizer import PRE_TOKENIZERS
from tests.unit.tiny_models import BOS, CHAT_TEMPLATE, EOS, make_tiny_model
from tests.unit.weights.tiny_gguf import tokenizer_keys, write_gguf

TEXTS = [
    "the thing, then the end",
    "  spaced   out\n\n\tlines ",
    "3.14159 and 1000000",
    "naïve café 漢字 😀",
    f"{BOS}user\nhi{EOS}\n",
    "it's WE'LL x_1",
]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return make_tiny_model(tmp_path / "model")


def gguf_tokenizer(folder: Path, **metadata: Any) -> tokenizers.Tokenizer:
    write_gguf(folder / "model.gguf", folder, **metadata)
    return tokenizers.Tokenizer.from_str(open_tokenizer("model.gguf", folder).tokenizer_json)


def edit(path: Path, **changes: Any) -> None:
    path.write_text(json.dumps(json.loads(path.read_text(encoding="utf-8")) | changes), encoding="utf-8")


def test_a_folder_gives_tokenizer_template_and_all_end_tokens(folder: Path) -> None:
    edit(folder / "config.json", eos_token_id=259)
    files = open_tokenizer("model", folder.parent)
    assert files.chat_template == CHAT_TEMPLATE
    assert (files.bos_token, files.eos_token, files.bos_token_id) == (BOS, EOS, 256)
    assert files.eos_token_ids == (257, 258, 259)  # generation_config.json, config.json, tokenizer_config.json: each id once


def test_chat_template_jinja_wins_over_the_configuration(folder: Path) -> None:
    (folder / "chat_template.jinja").write_text("from the file")
    assert open_tokenizer(str(folder), folder).chat_template == "from the file"


def test_of_named_chat_templates_the_default_counts(folder: Path) -> None:
    named = [{"name": "tool_use", "template": "tools"}, {"name": "default", "template": "plain"}]
    edit(folder / "tokenizer_config.json", chat_template=named, eos_token={"content": EOS, "lstrip": False})
    files = open_tokenizer(str(folder), folder)
    assert (files.chat_template, files.eos_token) == ("plain", EOS)


def test_add_bos_token_is_obeyed_where_the_tokenizer_does_not_do_it(folder: Path) -> None:
    edit(folder / "tokenizer_config.json", add_bos_token=True)
    tokenizer = tokenizers.Tokenizer.from_str(open_tokenizer(str(folder), folder).tokenizer_json)
    assert tokenizer.encode("the").ids[0] == 256
    assert 256 not in tokenizer.encode("the", add_special_tokens=False).ids


def test_the_fingerprint_ignores_layout_but_not_content(folder: Path) -> None:
    before = open_tokenizer(str(folder), folder).fingerprint
    edit(folder / "tokenizer.json")  # written again without indentation
    assert open_tokenizer(str(folder), folder).fingerprint == before
    edit(folder / "tokenizer_config.json", chat_template="other")
    assert open_tokenizer(str(folder), folder).fingerprint != before


def test_a_missing_or_damaged_tokenizer_is_named(folder: Path) -> None:
    (folder / "tokenizer.json").write_text('{"version": "1.0"')
    with pytest.raises(TokenizerError, match=r"tokenizer\.json cannot be read"):
        open_tokenizer(str(folder), folder)
    (folder / "tokenizer.json").unlink()
    with pytest.raises(TokenizerError, match=r"no tokenizer\.json"):
        open_tokenizer(str(folder), folder)


def test_damaged_settings_are_named(folder: Path) -> None:
    (folder / "tokenizer_config.json").write_text("{")
    with pytest.raises(WeightsError, match=r"tokenizer_config\.json cannot be read"):
        open_tokenizer(str(folder), folder)


def test_a_gguf_tokenizer_gives_the_ids_of_the_one_it_was_made_from(folder: Path) -> None:
    ours, theirs = gguf_tokenizer(folder), transformers.AutoTokenizer.from_pretrained(folder)
    for text in TEXTS:
        assert ours.encode(text).ids == theirs(text).input_ids, text


def test_gguf_end_tokens_are_those_of_text_and_of_turn(folder: Path) -> None:
    write_gguf(folder / "model.gguf", folder, tokenizer__ggml__eot_token_id=258)
    files = open_tokenizer("model.gguf", folder)
    assert files.eos_token_ids == (257, 258)
    assert (files.bos_token, files.bos_token_id, files.chat_template) == (BOS, 256, CHAT_TEMPLATE)


def test_smollm_sets_every_digit_apart_and_gpt2_does_not(folder: Path) -> None:
    assert split(gguf_tokenizer(folder, tokenizer__ggml__pre="smollm"), "in 2024") == ["in", "Ġ", "2", "0", "2", "4"]
    assert split(gguf_tokenizer(folder, tokenizer__ggml__pre="gpt-2"), "in 2024") == ["in", "Ġ2024"]


def test_llama3_groups_digits_by_three_and_qwen2_does_not(folder: Path) -> None:
    assert split(gguf_tokenizer(folder, tokenizer__ggml__pre="llama-bpe"), "I'LL 12345") == ["I", "'LL", "Ġ", "123", "45"]
    assert split(gguf_tokenizer(folder, tokenizer__ggml__pre="qwen2"), "I'LL 12") == ["I", "'LL", "Ġ", "1", "2"]


def test_tekken_cuts_before_an_inner_capital(folder: Path) -> None:
    assert split(gguf_tokenizer(folder, tokenizer__ggml__pre="tekken"), "camelCase12") == ["camel", "Case", "1", "2"]


@pytest.mark.parametrize("pre", PRE_TOKENIZERS)
def test_every_pre_tokenizer_keeps_all_text(folder: Path, pre: str) -> None:
    tokenizer = gguf_tokenizer(folder, tokenizer__ggml__pre=pre)
    for text in TEXTS[:4]:
        assert tokenizer.decode(tokenizer.encode(text, add_special_tokens=False).ids) == text


def test_llama3_takes_a_word_that_is_a_token_without_merging_towards_it(folder: Path) -> None:
    tokens = [*tokenizer_keys(folder)["tokenizer.ggml.tokens"][:-1], "zz"]  # no merge leads to it
    llama3 = gguf_tokenizer(folder, tokenizer__ggml__pre="llama-bpe", tokenizer__ggml__tokens=tokens, tokenizer__ggml__add_bos_token=False)
    assert llama3.encode("zz").tokens == ["zz"]
    gpt2 = gguf_tokenizer(folder, tokenizer__ggml__pre="gpt-2", tokenizer__ggml__tokens=tokens)
    assert gpt2.encode("zz").tokens == ["z", "z"]


@pytest.mark.parametrize(("pre", "begins"), [("llama-bpe", True), ("tekken", True), ("smollm", False), ("qwen2", False)])
def test_without_a_flag_only_llama3_and_tekken_begin_with_bos(folder: Path, pre: str, begins: bool) -> None:
    tokenizer = gguf_tokenizer(folder, tokenizer__ggml__pre=pre, tokenizer__ggml__add_bos_token=None)
    assert (tokenizer.encode("a").ids[0] == 256) is begins


def test_llama3_begins_with_bos_unless_the_file_says_otherwise(folder: Path) -> None:
    assert gguf_tokenizer(folder, tokenizer__ggml__pre="llama-bpe", tokenizer__ggml__add_bos_token=True).encode("a").ids[0] == 256
    assert gguf_tokenizer(folder, tokenizer__ggml__pre="llama-bpe", tokenizer__ggml__add_bos_token=False).encode("a").ids[0] != 256


@pytest.mark.parametrize(
    ("metadata", "words"),
    [
        ({"tokenizer__ggml__pre": "default"}, "pre-tokenizer 'default' is not supported. Supported are gpt-2"),
        ({"tokenizer__ggml__model": "bert"}, "tokenizer model 'bert' is not supported. Supported are gpt2"),
        ({"tokenizer__ggml__bos_token_id": 320}, "bos_token_id 320 is outside the vocabulary of 320"),
        ({"tokenizer__ggml__merges": ["q zzz"]}, "do not fit together"),
        ({"tokenizer__ggml__merges": ["nospace"]}, "do not fit together"),
    ],
)
def test_a_gguf_tokenizer_that_cannot_be_rebuilt_is_refused(folder: Path, metadata: dict[str, Any], words: str) -> None:
    with pytest.raises(TokenizerError) as caught:
        gguf_tokenizer(folder, **metadata)
    assert words in str(caught.value)


BYTES = [f"<0x{byte:02X}>" for byte in range(256)]
SENTENCEPIECE = ["<unk>", "<s>", "</s>", *BYTES, "▁", "t", "h", "e", "n", "▁t", "he", "▁the", "en", "hen"]


def test_a_sentencepiece_tokenizer_merges_the_best_score_first(folder: Path) -> None:
    metadata = {
        "tokenizer__ggml__model": "llama",
        "tokenizer__ggml__merges": None,
        "tokenizer__ggml__tokens": SENTENCEPIECE,
        "tokenizer__ggml__scores": [0.0] * 264 + [-1.0, -2.0, -3.0, -4.0, -5.0],
        "tokenizer__ggml__token_type": [2, 3, 3] + [6] * 256 + [1] * 10,
        "tokenizer__ggml__bos_token_id": 1,
        "tokenizer__ggml__eos_token_id": 2,
        "tokenizer__ggml__unknown_token_id": 0,
        "tokenizer__ggml__add_bos_token": True,
    }
    tokenizer = gguf_tokenizer(folder, **metadata)
    assert tokenizer.encode("the then").tokens == ["<s>", "▁the", "▁the", "n"]  # "▁t" + "he" score better than "en"
    assert tokenizer.encode("é", add_special_tokens=False).tokens == ["▁", "<0xC3>", "<0xA9>"]
    assert tokenizer.decode(tokenizer.encode("the é then").ids) == "the é then"
    (folder / "tokenizer.json").unlink()  # transformers would prefer it
    theirs = transformers.AutoTokenizer.from_pretrained(folder, gguf_file="model.gguf")
    for text in ("the then", "hen  nth", "é then"):
        assert tokenizer.encode(text).ids == theirs(text).input_ids, text


def split(tokenizer: tokenizers.Tokenizer, text: str) -> list[str]:
    """How the text is cut before merging."""
    assert tokenizer.pre_tokenizer is not None
    return [piece for piece, _ in tokenizer.pre_tokenizer.pre_tokenize_str(text)]
