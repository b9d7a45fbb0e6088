"""Originals of what a view shows cut: a summarizer reads results as they came, regardless of what the view shows."""

from __future__ import annotations

from operator import attrgetter
from typing import TYPE_CHECKING, Any

from compaction.coverage import find_span
from compaction.messages import acceptable, blocks
from compaction.tokens import json_text
from compaction.view import WRITTEN, View, ViewMessage, map_blocks

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
        stored: dict[str, Any] = {}
        for block in _results(ViewMessage(message.role, contents[message.seq])):
            # Of several results of one call the view shows the first.
            stored.setdefault(str(block.get("tool_use_id")), block.get("content", ""))

        def restored(block: dict[str, Any]) -> dict[str, Any]:
            if block.get("type") != "tool_result" or block.get("tool_use_id") not in stored:
                return block
            return {**block, "content": stored[block["tool_use_id"]]}

        return map_blocks(message, restored)

    return tuple(map(whole, zone))


def with_unplaced(zone: Sequence[ViewMessage], view: Sequence[ViewMessage], unrepaired: Sequence[ViewMessage]) -> View:
    """Return `zone` with the tool results that repair found no call for, each where it was stored.

    A result may come after its call was summarized, or be a second one of it: no view has a place for it, and whoever
    summarizes what is around it is the last to read it. `view` is what the zone is of, `unrepaired` what of that was
    repaired, as it was before.
    """
    seqs = [message.seq for message in zone if message.seq != WRITTEN]
    if not seqs or not unrepaired:
        return tuple(zone)
    following = next((message.seq for message in view if message.seq > seqs[-1]), None)
    shown = {json_text(block) for message in view for block in _results(message)}
    unplaced: dict[int, list[dict[str, Any]]] = {}
    for message in unrepaired:
        taken = (acceptable(message.role, block) for block in _results(message))
        own = [block for block in taken if block is not None and json_text(block) not in shown]
        if own and (following is None or message.seq < following):
            unplaced[message.seq] = own
    whole = [
        message.with_content([*unplaced.pop(message.seq), *map(dict, blocks(message.content))])
        if message.seq in unplaced
        else message
        for message in zone
    ]
    whole += [ViewMessage("user", own, seq) for seq, own in unplaced.items()]
    return tuple(sorted(whole, key=attrgetter("seq")))


def _results(message: ViewMessage) -> list[Mapping[str, Any]]:
    return [block for block in blocks(message.content) if block.get("type") == "tool_result"]
