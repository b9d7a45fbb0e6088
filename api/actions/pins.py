"""Pins: what has to stay in the context word for word, put into it and taken off at once."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import msgspec

from api.http.problems import ProblemError, invalid, not_found, or_not_found
from compaction.pins.pinned import message_text
from compaction.tokens import content_tokens
from store.conversations import conversations, messages, pins, repinning

if TYPE_CHECKING:
    from uuid import UUID

    from sqlalchemy import Connection

    from api.actions.caller import Caller
    from api.schema.pins import PinIn
    from compaction.policy import Policy
    from store.tables import AnyRow

MAXIMUM: Final = 100
"""Pins that a conversation may have."""


def pin(connection: Connection, tenant_id: UUID, conversation_id: UUID, caller: Caller, wanted: PinIn) -> AnyRow:
    """Pin a text and return its row, the one that is there if it was pinned before; raise the problem that it has."""
    # Locked before the insert, which takes a weaker lock: two that pin at once would wait for each other to raise it.
    row = or_not_found(conversations.get(connection, tenant_id, conversation_id, lock=True))
    policy = caller.principal.policy_for(row.policy, row.model)
    text = _text(connection, tenant_id, conversation_id, wanted, policy)
    if len(pins.page(connection, tenant_id, conversation_id)) >= MAXIMUM:
        raise ProblemError(409, "too_many_pins", f"A conversation has at most {MAXIMUM} pins.")
    pinned = pins.add(connection, tenant_id, conversation_id, wanted.seq, text, caller.request_id)
    left_out = repinning.repin(connection, tenant_id, conversation_id, policy=policy, request_id=caller.request_id)
    if str(pinned.id) in left_out:
        raise ProblemError(
            409, "pins_full", f"The pins have more than {policy.pinned_max_tokens:,} tokens (pinned_max_tokens)."
        )
    return pinned


def _text(connection: Connection, tenant_id: UUID, conversation_id: UUID, wanted: PinIn, policy: Policy) -> str:
    """Return the text to pin, as its message has it; raise the problem of what cannot be pinned."""
    message = messages.get(connection, tenant_id, conversation_id, wanted.seq)
    if message is None or message.superseded_at is not None:
        raise invalid("There is no message with this seq, or another has replaced it.", "/seq")
    whole = message_text(msgspec.json.decode(message.content))
    text = whole if wanted.text is None else wanted.text
    if not text.strip():
        raise invalid("This message has no text to pin.", "/seq")
    if text not in whole:
        raise invalid("This is no part of the message's text.", "/text")
    if content_tokens(text) > policy.pinned_max_tokens:
        raise invalid(
            f"A pin has at most {policy.pinned_max_tokens:,} tokens (pinned_max_tokens); pin a shorter span.", "/text"
        )
    return text


def remove_pin(connection: Connection, tenant_id: UUID, conversation_id: UUID, caller: Caller, pin_id: UUID) -> None:
    """Take a pin off; raise the problem that there is no such one."""
    row = conversations.get(connection, tenant_id, conversation_id, lock=True)
    if row is None or not pins.remove(connection, tenant_id, conversation_id, pin_id):
        raise not_found()
    repinning.repin(
        connection,
        tenant_id,
        conversation_id,
        policy=caller.principal.policy_for(row.policy, row.model),
        request_id=caller.request_id,
    )
