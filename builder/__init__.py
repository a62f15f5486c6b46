"""Tandem: declarative LLM serving on Triton with speculative decoding."""

__version__ = "0.1.0"
