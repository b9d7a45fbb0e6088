"""A context as it is stored: the head snapshot, the tail, and the facts that decide how they are shown."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NamedTuple

import msgspec

if TYPE_CHECKING:
    from collections.abc import Sequence


class ContextShapes(msgspec.Struct, frozen=True):
    """What the served shape depends on, and the rules in force."""

    shape: str = "messages"
    """That of the conversation's first turn."""
    is_whole: bool = True
    """Whether all of the tail came in the shape that is served."""
    other_model_through: int = -1
    """The seq up to which another model answered than the present one."""
    rules: tuple[tuple[str, int, str, str], ...] = ()
    """Entries of the ledger in force, in the order of their messages: hexadecimal id, seq, text and source."""


MESSAGES_ALONE: Final = ContextShapes()


class StoredContext(NamedTuple):
    """The result of the database function `read_context`, which explains each field."""

    etag: str
    not_modified: bool
    plain: bool
    head: str | None
    head_seqs: Sequence[int] | None
    tail: str | None
    head_version: int
    covers_through: int
    last_seq: int
    context_tokens: int
    measured_input_tokens: int | None
    result_cap: int
    strip_thinking_through: int
    pending_version: int | None
    policy: str
    fixed_tokens: int
    factor: float
    """What estimated tokens are multiplied by to agree with what the API counted."""
    exchanges: int
    has_summary: bool | None
    gap: bool
    model: str | None
    left_out: str | None
    """Seqs of messages that were dropped without a summary, as people read them."""
    context_bytes: int
    """Bytes of the whole context as it is stored, read or not."""
    requested_output: int | None
    """Tokens of output that the newest request asks for at most."""
    withheld: bool | None
    sent: str | None = None
    """What came in the shape that is served: of a plain context its messages, to be joined, else an array of
    [seq, message]; None for the Messages API's."""
    shapes: ContextShapes = MESSAGES_ALONE
    frame_code: str = ""
    """Of the conversation's frames, see `compaction.frames.codes`."""
