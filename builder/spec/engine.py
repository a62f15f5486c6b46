"""`engine`: the compiled engine, its limits and its KV cache."""

from __future__ import annotations

from typing import Annotated, Literal, Self

from pydantic import Field, model_validator

from builder.spec.gpu import Gpu
from builder.spec.section import Section, conflict
from builder.spec.sizes import ByteSize
from builder.spec.tensorrt_llm import TensorRtLlm

Core = Annotated[int, Field(ge=0, le=8191)]
Backend = Literal["torch_aot", "trtllm-engine", "trtllm-llmapi"]
Device = Literal["cpu", "cuda"]
InstructionSet = Literal["auto", "amx", "avx512", "avx2", "generic"]
SMALLEST_CACHE = 1 << 20  # bytes; below this a unit was mistaken
CONTEXTS = 16  # that one text may run through under attention_sink


class KvCache(Section):
    """Paged cache of keys and values."""

    memory: ByteSize = Field(
        default="1GiB",
        validate_default=True,
        ge=SMALLEST_CACHE,
        description="Memory for all keys and values, target and draft together: a number with a unit, such as 1GiB.",
    )
    block_size: Literal[16, 32, 64, 128] = Field(
        default=16,
        description="Positions in a block. Smaller wastes less at the end of a sequence and costs more bookkeeping.",
    )
    prefix_caching: bool = Field(
        default=True,
        description="Keep the keys and values of ended requests while memory lasts: a prompt that begins with the same tokens, "
        "such as a shared system prompt, skips that part of its prefill. The answers are the same.",
    )
    prefix_isolation: Literal["none", "tenant"] = Field(
        default="none",
        description="Who shares cached prefixes. tenant: only requests of one tenant, so that nobody learns from the time of a first "
        "token what another tenant has asked; all tenants outside chargeback.tenants count as one. none: everybody.",
    )
    eviction: Literal["recompute", "attention_sink"] = Field(
        default="recompute",
        description="What gives way when room runs out. recompute: an answer ends where engine.max_seq_len is full, and one that must wait "
        "for memory is computed again; tokens never change. attention_sink: a conversation that fills the context forgets its middle, "
        "keeps its first block and its latest tokens, and goes on; the answer is then not that of the whole text, and decode_stats "
        "has evicted_tokens.",
    )


class Engine(Section):
    """Where and how the models run. These limits belong to the server; requests cannot raise them."""

    backend: Backend | Literal["auto"] = Field(
        default="torch_aot",
        description="torch_aot: compiled PyTorch engine, no GPU needed. trtllm-engine: TensorRT-LLM 1.2 engines behind Triton's "
        "tensorrtllm backend. trtllm-llmapi: TensorRT-LLM 1.2 and newer through its LLM class. "
        "auto: trtllm-llmapi where a GPU is named, else torch_aot.",
    )
    gpu: Gpu | None = Field(default=None, description="GPUs that serve, for the trtllm backends; null: none.")
    tensorrt_llm: TensorRtLlm | None = Field(default=None, description="Settings of the trtllm backends; null: the defaults.")
    device: Device = Field(
        default="cpu",
        description="Where torch_aot runs. cpu: in kernels compiled for it. cuda: on the first GPU of torch, in its own kernels, "
        "for a GPU host without TensorRT-LLM. The trtllm backends run on engine.gpu.",
    )
    instruction_set: InstructionSet = Field(
        default="auto",
        description="CPU instructions the kernels may use. auto: the best the machine has. Name one to serve on machines older than this.",
    )
    threads: int | None = Field(default=None, ge=1, le=1024, description="Compute threads; null means one for each core.")
    affinity: Literal["none", "auto"] | Annotated[list[Core], Field(min_length=1)] = Field(
        default="none",
        description="Cores that compute threads are tied to. none: the system moves them. auto: one core for each thread. Or a list of "
        "core numbers; without `threads`, one thread for each.",
    )
    numa: Literal["none", "auto"] | Annotated[int, Field(ge=0, le=1023)] = Field(
        default="none",
        description="Memory node to compute on and to keep weights and caches in. none: all nodes. auto: the node with most cores for this "
        "process. Or a node's number. A machine with one node is not changed by it.",
    )
    max_batch_size: int = Field(default=16, ge=1, le=1024, description="Sequences decoded at once; more requests wait.")
    max_seq_len: int = Field(default=2048, ge=16, le=1 << 20, description="Longest prompt and answer together, in tokens.")
    max_num_tokens: int = Field(
        default=512,
        ge=1,
        le=1 << 16,
        description="Rows of one target pass: prompt pieces, plain rows and checked drafts together. "
        "Larger reads long prompts faster and makes running answers wait longer.",
    )
    policy: Literal["fcfs", "priority", "fair"] = Field(
        default="fcfs",
        description="Who of those that wait is started first, and who gives way last when the KV cache is full. fcfs: who came first. "
        "priority: the most urgent, where 10 s of waiting make up for one step of priority. fair: the tenant that was served the fewest "
        "tokens for its share.",
    )
    kv_cache: KvCache = Field(default_factory=KvCache, description="Paged cache of keys and values.")

    @model_validator(mode="after")
    def _limits_agree(self) -> Self:
        if self.max_num_tokens < self.max_batch_size:
            raise conflict(
                "max_num_tokens",
                f"engine.max_num_tokens is {self.max_num_tokens}, less than max_batch_size {self.max_batch_size}, "
                "but every running sequence needs a row in each pass",
                f"Set max_num_tokens to at least {self.max_batch_size}",
            )
        if self.kv_cache.block_size > self.max_seq_len:
            raise conflict(
                "kv_cache.block_size",
                f"engine.kv_cache.block_size {self.kv_cache.block_size} is larger than max_seq_len {self.max_seq_len}",
                "Choose a smaller block_size",
            )
        return self

    @model_validator(mode="after")
    def _eviction_agrees(self) -> Self:
        if self.kv_cache.eviction == "attention_sink":
            where, fewest = "kv_cache.eviction", 4 * self.kv_cache.block_size
            if self.chosen_backend != "torch_aot":
                raise conflict(where, f"attention_sink is not there with engine.backend {self.backend}", "Leave eviction out")
            if self.max_seq_len < fewest:
                what = f"attention_sink needs engine.max_seq_len of at least four blocks, {fewest} tokens, and it is {self.max_seq_len}"
                raise conflict(where, what, "Raise engine.max_seq_len, or leave eviction out")
        return self

    @property
    def longest_text(self) -> int:
        """Prompt and answer together, tokens; under attention_sink a bound that keeps one request from running for ever."""
        return self.max_seq_len * (CONTEXTS if self.kv_cache.eviction == "attention_sink" else 1)

    @model_validator(mode="after")
    def _backend_agrees(self) -> Self:
        if self.chosen_backend == "torch_aot":
            if key := next((key for key in ("gpu", "tensorrt_llm") if getattr(self, key) is not None), None):
                what = f"engine.{key} is for the trtllm backends, and engine.backend is {self.backend}"
                mend = "Set backend to trtllm-engine or trtllm-llmapi, or leave it out: torch_aot goes by engine.device"
                raise conflict(key, what, mend)
        elif self.device == "cuda":
            what = f"engine.device is for torch_aot, and engine.backend is {self.backend}"
            raise conflict("device", what, "Leave device out, or set backend to torch_aot")
        elif self.gpu is None:
            raise conflict(
                "backend", f"engine.backend {self.backend} needs engine.gpu", "Name the GPUs that serve: gpu: {name: H100, count: 1}"
            )
        return self

    @property
    def chosen_backend(self) -> Backend:
        """The backend that `auto` stands for."""
        if self.backend != "auto":
            return self.backend
        return "torch_aot" if self.gpu is None else "trtllm-llmapi"

    @property
    def trt(self) -> TensorRtLlm:
        """Settings of the trtllm backends, the defaults where none are given."""
        return self.tensorrt_llm or TensorRtLlm()
