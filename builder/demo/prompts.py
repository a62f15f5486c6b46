"""What the demo asks: facts, code, and a rewrite, where the answer repeats much of the prompt and n-gram drafts do best."""

from __future__ import annotations

from dataclasses import dataclass

PARAGRAPH = (
    "The old lighthouse stands at the end of the harbour wall. Every evening the keeper climbs the narrow stairs, cleans the glass "
    "and lights the lamp. Ships that come in from the north see its light first, long before they see the town."
)


@dataclass(frozen=True)
class Prompt:
    name: str
    text: str


PROMPTS = (
    Prompt("facts", "Explain what photosynthesis is and why it matters for life on Earth."),
    Prompt("code", "Write a Python function that returns the first n Fibonacci numbers, and show how to call it."),
    Prompt("rewrite", f"Rewrite this paragraph in the past tense, changing nothing else:\n\n{PARAGRAPH}"),
)
