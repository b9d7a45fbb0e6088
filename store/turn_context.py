"""What a turn brings beside its messages, as the database takes it: without the driver that the hot path needs."""

from __future__ import annotations

from typing import NamedTuple


class TurnContext(NamedTuple):
    """The context of a turn; see the database function add_context_blocks."""

    blocks: str | None
    """The blocks as JSON text."""
    carried_max_tokens: int | None
    """Tokens of blocks that are carried over, as outlines."""
    policy: str | None
    """The policy of the runs that summarize them, as JSON text."""
