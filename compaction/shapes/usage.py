"""What the `usage` of each shape says that a call took, in the counts that everything else goes by.

The Messages API counts what was read from and written to a cache beside its `input_tokens`; Chat Completions and
Responses count it in. What a model thought is a part of what it wrote, and so are audio and images of what was read.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any, Final, NamedTuple

import msgspec
from msgspec import Meta, Struct

if TYPE_CHECKING:
    from collections.abc import Mapping

    from compaction.shapes.inner import Shape

TokenCount = Annotated[int, Meta(ge=0, le=100_000_000)]
"""Tokens that one call may be said to have; more would be no model's."""


class TokenUsage(NamedTuple):
    """Tokens of one call; None where its usage does not say."""

    input: int | None = None
    """The whole prompt, from the cache or not."""
    output: int | None = None
    """Everything that was written, `reasoning` included."""
    cache_read: int | None = None
    """Those of the input that came from a cache; 0 where the usage says that none did."""
    cache_written: int | None = None
    """Those of the input that were written to one."""
    reasoning: int = 0
    """Those of the output that the model thought, and that no later call reads where they are not sent back."""


class UsageError(ValueError):
    """A usage that cannot be one; `path` leads to the value."""

    def __init__(self, detail: str, path: tuple[str, ...]) -> None:
        super().__init__(detail)
        self.path = path


class _Messages(Struct):
    input_tokens: TokenCount | None = None
    output_tokens: TokenCount | None = None
    cache_read_input_tokens: TokenCount | None = None
    cache_creation_input_tokens: TokenCount | None = None

    def tokens(self) -> TokenUsage:
        read, written = self.cache_read_input_tokens, self.cache_creation_input_tokens
        cached = (read or 0) + (written or 0)
        if self.input_tokens is None and not cached:
            return TokenUsage(output=self.output_tokens)
        return TokenUsage((self.input_tokens or 0) + cached, self.output_tokens, read, written)


class _InputDetails(Struct):
    """`audio_tokens`, `image_tokens` and `text_tokens` divide the same total, and are left out."""

    cached_tokens: TokenCount | None = None
    cache_write_tokens: TokenCount | None = None
    cache_creation_tokens: TokenCount | None = None
    """As LiteLLM calls the same, for Claude."""


class _OutputDetails(Struct):
    reasoning_tokens: TokenCount | None = None


class _Chat(Struct):
    prompt_tokens: TokenCount | None = None
    completion_tokens: TokenCount | None = None
    total_tokens: TokenCount | None = None
    prompt_tokens_details: _InputDetails | None = None
    completion_tokens_details: _OutputDetails | None = None
    prompt_cache_hit_tokens: TokenCount | None = None
    """DeepSeek's name for what is cached."""
    cached_tokens: TokenCount | None = None
    """Moonshot's."""

    def tokens(self) -> TokenUsage:
        read = (self.prompt_tokens_details or _InputDetails()).cached_tokens
        read = self.prompt_cache_hit_tokens if read is None else read
        read = self.cached_tokens if read is None else read
        return _counted_in(
            (self.prompt_tokens, self.completion_tokens, self.total_tokens),
            read,
            _written_tokens(self.prompt_tokens_details),
            _reasoning_tokens(self.completion_tokens_details),
        )


class _Responses(Struct):
    input_tokens: TokenCount | None = None
    output_tokens: TokenCount | None = None
    total_tokens: TokenCount | None = None
    input_tokens_details: _InputDetails | None = None
    output_tokens_details: _OutputDetails | None = None

    def tokens(self) -> TokenUsage:
        return _counted_in(
            (self.input_tokens, self.output_tokens, self.total_tokens),
            (self.input_tokens_details or _InputDetails()).cached_tokens,
            _written_tokens(self.input_tokens_details),
            _reasoning_tokens(self.output_tokens_details),
        )


_KINDS: Final[Mapping[Shape, type[_Messages | _Chat | _Responses]]] = {
    "messages": _Messages,
    "chat": _Chat,
    "responses": _Responses,
}


def read_usage(shape: Shape, usage: Any) -> TokenUsage:
    """Return the tokens that a provider's own `usage` object tells, by its shape; no object tells nothing.

    `usage` is decoded JSON, or an object with its names as attributes. What it holds besides is ignored. Raises
    UsageError for what is no usage: another type, a count that is negative, or larger than any model's.
    """
    if usage is None:
        return TokenUsage()
    try:
        return msgspec.convert(usage, _KINDS[shape], from_attributes=True).tokens()
    except msgspec.ValidationError as error:
        detail, _, place = str(error).partition(" - at `$")
        raise UsageError(detail, tuple(filter(None, place.rstrip("`").split(".")))) from None


def read_usages(shape: Shape, usage: Any) -> list[TokenUsage]:
    """Return the tokens that a turn's `usage` tells of each call, the last call last; one object is that of one call.

    Raises UsageError.
    """
    if not isinstance(usage, list):
        return [read_usage(shape, usage)]
    counted = []
    for index, each in enumerate(usage):
        try:
            counted.append(read_usage(shape, each))
        except UsageError as error:
            raise UsageError(str(error), (str(index), *error.path)) from None
    return counted or [TokenUsage()]


def _written_tokens(details: _InputDetails | None) -> int | None:
    if details is None:
        return None
    return details.cache_creation_tokens if details.cache_write_tokens is None else details.cache_write_tokens


def _reasoning_tokens(details: _OutputDetails | None) -> int:
    return (details.reasoning_tokens if details else 0) or 0


def _counted_in(
    counts: tuple[int | None, int | None, int | None], read: int | None, written: int | None, reasoning: int
) -> TokenUsage:
    """Return counts whose details are parts of the whole, and no larger than that, whatever a server says."""
    prompt, output, total = counts
    if prompt is not None and output is not None and total == prompt + output + reasoning:
        # Grok, and Gemini behind Chat Completions: what was thought stands beside what was written.
        output += reasoning
    whole = prompt or 0
    read = None if read is None else min(read, whole)
    written = None if written is None else min(written, whole - (read or 0))
    return TokenUsage(prompt, output, read, written, min(reasoning, output or 0))
