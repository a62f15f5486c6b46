"""Checkpoints for TensorRT-LLM, made on a CPU, and the scripts that finish them on a GPU host."""
