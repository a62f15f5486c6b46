"""The demo: three prompts decoded plainly and speculatively through Triton, and what the difference was worth."""
