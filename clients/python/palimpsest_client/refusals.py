"""What the models' APIs say when a prompt is too long."""

from __future__ import annotations

from typing import Final

TOO_LONG: Final = (
    "prompt is too long",
    "input is too long",
    "is too long to fit into the model",
    "exceed context limit",
    "context_length_exceeded",
    "maximum context length",
    "maximum model length",
    "maximum prompt length",
    "maximum allowed length",
    "input tokens exceeds maximum length",
    "prompt exceeds max length",
    "reduce the length of the messages",
    "model's context length",
    "context length exceeded",
    "exceeds context length",
    "context window",
    "context size",
    "maximum number of tokens allowed",
    "input token count is",
    "prompt token count of",
    "range of input length",
    "tokens in the prompt cannot exceed",
    "length of prompt_tokens",
    "`inputs` tokens + `max_new_tokens` must be",
    "`inputs` must have less than",
    "when context the overflows",
    "tokens exceed the configured limit",
    "exceeded model token limit",
)
"""What Anthropic, OpenAI, Gemini, llama.cpp and servers that speak as these do say of a prompt that is too long.

The TypeScript client's `refusals.ts` has the same list.
"""


def is_too_long(error: Exception) -> bool:
    """Tell whether a model refused a prompt as too long, by the words of its error."""
    text = str(error).lower()
    return any(words in text for words in TOO_LONG)
