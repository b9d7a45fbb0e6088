"""Turns as they were stored before the API refused what the Messages API would: broken content, below the door."""

from __future__ import annotations

import msgspec

from actions.input.turn_bodies import Turn, usage_of
from actions.types.core import TurnIn
from compaction.messages import message_facts, turn_facts
from compaction.shapes.usage import read_usage
from compaction.text.outline import ContextBlock


def stored_turn(body: bytes) -> Turn:
    """Return the turn in a body, whatever its messages are made of."""
    turn = msgspec.json.decode(body, type=TurnIn)
    contents = [bytes(message.content).decode() for message in turn.messages]
    said = tuple((m.role, msgspec.json.decode(text)) for m, text in zip(turn.messages, contents, strict=True))
    facts = [message_facts(role, content) for role, content in said]
    return Turn(
        contents,
        turn_facts(facts),
        usage_of(read_usage("messages", turn.usage), turn.snapshot_version),
        turn.expected_next_seq,
        turn.replace_from,
        None,
        tuple(ContextBlock(block.source, block.title, block.text) for block in turn.context),
        said=said,
        times=tuple(turn.created_at) if isinstance(turn.created_at, list) else (),
    )
