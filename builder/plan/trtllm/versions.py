"""Names that each line of TensorRT-LLM knows. Strict: a name of another version is fatal at load, so it is refused here.

Read in the documentation and sources of those releases; none was imported here. A line not listed is not supported: its
names are not known. To add one, add its entry and run the tests.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass


def _names(text: str) -> frozenset[str]:
    return frozenset(text.split())


BUILD_FLAGS = _names(
    """
    checkpoint_dir output_dir max_batch_size max_input_len max_seq_len max_num_tokens opt_num_tokens max_beam_width
    kv_cache_type gemm_plugin gpt_attention_plugin use_paged_context_fmha workers logits_dtype speculative_decoding_mode
    max_draft_len gather_context_logits gather_generation_logits remove_input_padding context_fmha multiple_profiles
    profiling_verbosity log_level
    """
)
BACKEND_PARAMETERS = _names(
    """
    gpt_model_type gpt_model_path max_tokens_in_paged_kv_cache batch_scheduler_policy kv_cache_free_gpu_mem_fraction
    enable_kv_cache_reuse exclude_input_in_output participant_ids gpu_device_ids speculative_decoding_fast_logits
    decoding_mode cancellation_check_period_ms max_beam_width max_attention_window_size kv_cache_host_memory_bytes
    enable_chunked_context normalize_log_probs stats_check_period_ms executor_worker_path
    """
)


@dataclass(frozen=True)
class EngineLine:
    """A line with trtllm-build. `triton` is the container release whose TensorRT is `tensorrt`: engines load in no other."""

    tensorrt: str
    triton: str
    build_flags: frozenset[str] = BUILD_FLAGS
    backend_parameters: frozenset[str] = BACKEND_PARAMETERS


_COMMON_ARGUMENTS = _names(
    """
    model tokenizer dtype tensor_parallel_size pipeline_parallel_size max_batch_size max_seq_len max_num_tokens
    enable_chunked_prefill disable_overlap_scheduler kv_cache_config speculative_config cuda_graph_config backend
    trust_remote_code skip_tokenizer_init max_beam_width return_perf_metrics
    """
)
_CACHE = _names("enable_block_reuse free_gpu_memory_fraction max_tokens tokens_per_block host_cache_size dtype")
_DRAFT_TARGET = _names("decoding_type max_draft_len speculative_model draft_len_schedule max_concurrency")
_NGRAM = _names("decoding_type max_draft_len max_matching_ngram_size draft_len_schedule max_concurrency")
_OLD_AUTO_OFF = frozenset({"acceptance_window", "acceptance_length_threshold"})
_NEW_AUTO_OFF = frozenset({"acceptance_rate_window_size", "acceptance_rate_threshold"})


@dataclass(frozen=True)
class LlmApiLine:
    """A line of the LLM class: arguments by section ("" is the top level); `draft_target` is the tag of two-model speculation."""

    draft_target: str
    two_models: bool  # draft and target run as two models, which the overlap scheduler must not interleave
    sections: Mapping[str, frozenset[str]]
    speculative: Mapping[str, frozenset[str]]  # keys of speculative_config by decoding_type


ENGINE_LINES: dict[str, EngineLine] = {"1.2": EngineLine(tensorrt="10.14.1.48", triton="25.12")}

LLMAPI_LINES: dict[str, LlmApiLine] = {
    "1.2": LlmApiLine(
        draft_target="DraftTarget",
        two_models=True,
        sections={"": _COMMON_ARGUMENTS, "kv_cache_config": _CACHE},
        speculative={"DraftTarget": _DRAFT_TARGET | _OLD_AUTO_OFF, "NGram": _NGRAM | _OLD_AUTO_OFF},
    ),
    "1.3": LlmApiLine(
        draft_target="Draft_Target",
        two_models=False,
        sections={"": _COMMON_ARGUMENTS | {"model_kwargs"}, "kv_cache_config": _CACHE},
        speculative={"Draft_Target": _DRAFT_TARGET | _NEW_AUTO_OFF, "NGram": _NGRAM | _NEW_AUTO_OFF},
    ),
}


def line_of(version: str) -> str:
    """ "1.2" of "1.2.1" and "1.2.0rc3": names change between lines, not within one."""
    return ".".join(version.split("rc")[0].split(".")[:2])
