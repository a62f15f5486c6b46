"""`engine.tensorrt_llm`: the version, how the models are split over GPUs, and settings beyond what builder writes itself."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from builder.spec.section import Section

Setting = bool | int | float | str
Settings = dict[Annotated[str, Field(pattern=r"^[a-z][a-z0-9_]*$")], Setting]
VERSION_PATTERN = r"^[0-9]+\.[0-9]+(\.[0-9]+)?(rc[0-9]+)?$"


class TrtModel(Section):
    """One of the two models, target or draft."""

    tensor_parallel: int = Field(default=1, ge=1, le=64, description="GPUs that share each layer. Must divide the attention heads.")
    pipeline_parallel: int = Field(default=1, ge=1, le=64, description="Groups of layers on GPUs of their own.")
    gpus: list[Annotated[int, Field(ge=0, le=1023)]] | None = Field(
        default=None, description="Numbers of the GPUs it runs on, counted through all nodes; null: the first ones."
    )
    flags: Settings = Field(
        default_factory=dict,
        description="trtllm-engine: more flags of trtllm-build, or other values than builder's. Names of the version only.",
    )
    parameters: Settings = Field(
        default_factory=dict,
        description="trtllm-engine: more parameters of Triton's tensorrtllm backend, or other values. Names of the version only.",
    )

    @property
    def world_size(self) -> int:
        """MPI ranks of this model."""
        return self.tensor_parallel * self.pipeline_parallel

    @property
    def devices(self) -> tuple[int, ...]:
        return tuple(self.gpus) if self.gpus is not None else tuple(range(self.world_size))


class TensorRtLlm(Section):
    """TensorRT-LLM. Its names change between versions: each is checked against the table of the one named here."""

    version: str = Field(default="1.2.1", pattern=VERSION_PATTERN, description="Version of TensorRT-LLM on the GPU host, such as 1.2.1.")
    triton: str | None = Field(
        default=None,
        pattern=r"^[0-9]{2}\.[0-9]{2}$",
        description="Release of the Triton container that serves, such as 25.12; null: the one that belongs to the version.",
    )
    launch: Literal["leader", "orchestrator"] = Field(
        default="leader",
        description="trtllm-engine: leader starts one server process for each rank by mpirun; orchestrator lets one server start the "
        "ranks, on one node, each model with its own number.",
    )
    draft_logits: bool = Field(
        default=False,
        description="trtllm-engine: the draft hands its probabilities to the target, which sampled requests are judged with. "
        "false: a drafted token is kept where it is what the target itself chose.",
    )
    logits_dtype: Literal["float32", "float16"] = Field(
        default="float32", description="trtllm-engine: number format of logits, both models."
    )
    plain_instance: bool = Field(
        default=True,
        description="trtllm-llmapi: load the target a second time without a draft, for requests with speculation off and the kill switch. "
        "false saves the memory of its weights and cache; then speculation cannot be switched off while serving.",
    )
    arguments: Settings = Field(
        default_factory=dict,
        description="trtllm-llmapi: more arguments of LLM(), or other values than builder's. Names of the version only; "
        "those of a section with its name before, such as kv_cache_config__free_gpu_memory_fraction.",
    )
    target: TrtModel = Field(default_factory=TrtModel, description="How the target is split and built.")
    draft: TrtModel = Field(default_factory=TrtModel, description="How the draft is split and built.")

    def model(self, role: Literal["target", "draft"]) -> TrtModel:
        return self.target if role == "target" else self.draft
