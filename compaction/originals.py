"""Originals of what a view shows cut: a summarizer reads results as they came, regardless of what the view shows."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from compaction.coverage import find_span
from compaction.messages import blocks
from compaction.view import View, ViewMessage, map_blocks

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from compaction.coverage import Coverage


def cut_in(zone: Sequence[ViewMessage], coverage: Coverage) -> tuple[int, ...]:
    """Return the seqs of messages in `zone` whose tool results were cut."""
    return tuple(
        message.seq
        for message in zone
        if (span := find_span(coverage, message.seq)) is not None and span.fate == "truncated"
    )


def with_originals(zone: Sequence[ViewMessage], contents: Mapping[int, Any]) -> View:
    """Return `zone` with the tool results of messages in `contents` (original content by seq) as they came.

    Everything else of a message stays as the view has it: what was repaired in it is not undone.
    """

    def whole(message: ViewMessage) -> ViewMessage:
        if message.seq not in contents:
            return message
        stored = {
            block.get("tool_use_id"): block.get("content", "")
            for block in blocks(contents[message.seq])
            if block.get("type") == "tool_result"
        }

        def restored(block: dict[str, Any]) -> dict[str, Any]:
            if block.get("type") != "tool_result" or block.get("tool_use_id") not in stored:
                return block
            return {**block, "content": stored[block["tool_use_id"]]}

        return map_blocks(message, restored)

    return tuple(map(whole, zone))
