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
    "request_too_large",
    "request too large",
    "entity too large",
    "payload too large",
    "body too large",
    "body is too large",
    "payload size exceeds the limit",
    "total message size",
    "contextwindowexceedederror",
    "model_max_prompt_tokens_exceeded",
    "current length is",
    "too much media",
    "too many images",
    "maximum number of images",
    "images, exceeding the maximum",
    "may be provided in one",
    "image exceeds",
    "image dimensions exceed",
)
"""What Anthropic, OpenAI, Gemini, llama.cpp, servers that speak as these do, and proxies say of a request that is too
large. The service reads it again: what is not about the history is the model's own error.

The TypeScript client's `refusals.ts` has the same list.
"""


def is_too_long(error: Exception) -> bool:
    """Tell whether a model refused a prompt as too long, by the words of its error."""
    text = str(error).lower()
    return any(words in text for words in TOO_LONG)
