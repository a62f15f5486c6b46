"""Weights and tokenizers of a model, from a Hugging Face folder, a GGUF file or a file inside an installed package."""

from builder.weights.checkpoint import Checkpoint, open_checkpoint
from builder.weights.config import ModelConfig, RopeScaling
from builder.weights.layout import expected_tensors
from builder.weights.rope import inverse_frequencies
from builder.weights.tokenizer_files import TokenizerFiles, open_tokenizer

__all__ = [
    "Checkpoint",
    "ModelConfig",
    "RopeScaling",
    "TokenizerFiles",
    "expected_tensors",
    "inverse_frequencies",
    "open_checkpoint",
    "open_tokenizer",
]
