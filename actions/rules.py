"""Rules: what has to stay in the context word for word, put into it and taken off at once, and the ledger of it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final
from uuid import UUID

import msgspec
from sqlalchemy.util import await_only

from actions.errors import ConflictError, InvalidError, NotFoundError, or_not_found
from actions.types.pins import PinOut, ProposalOut, RuleOut, pin_out
from compaction.credentials.masking import mask_text
from compaction.pins.agreement import disagreements, disagreements_of, proposals
from compaction.pins.pinned import IN_LEDGER, Pin, message_text
from compaction.pins.serving import reading_bytes
from compaction.tokens import content_tokens
from runtime import ids
from runtime.threads import run_aside
from store.conversations import conversations, messages, pins, repinning
from store.conversations.names import speaker_in

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from sqlalchemy import Connection

    from actions.caller import Caller
    from actions.types.pins import PinIn, RuleChange
    from compaction.pins.agreement import Disagreement
    from compaction.policy import Policy
    from store.tables import AnyRow

MAXIMUM: Final = 100
"""Pins that a conversation may have."""


def pin(connection: Connection, tenant_id: UUID, conversation_id: UUID, caller: Caller, wanted: PinIn) -> PinOut:
    """Pin a text and return it, the one that is there if it was pinned before; raise the problem that it has."""
    # Locked before the insert, which takes a weaker lock: two that pin at once would wait for each other to raise it.
    row = or_not_found(conversations.get(connection, tenant_id, conversation_id, lock=True))
    policy = caller.principal.policy_for(row.policy, row.model)
    text = _text(connection, tenant_id, conversation_id, wanted, policy)
    there = pins.page(connection, tenant_id, conversation_id)
    if len(there) >= MAXIMUM and not any((each.seq, each.text) == (wanted.seq, text) for each in there):
        raise ConflictError("too_many_pins", f"A conversation has at most {MAXIMUM} pins.")
    pinned = pins.add(connection, tenant_id, conversation_id, wanted.seq, text, caller.request_id)
    left_out = repinning.repin(connection, tenant_id, conversation_id, policy=policy, request_id=caller.request_id)
    if str(pinned.id) in left_out:
        raise ConflictError(
            "pins_full", f"The pins have more than {policy.pinned_max_tokens:,} tokens (pinned_max_tokens)."
        )
    return pin_out(pinned, shown_text(pinned, policy))


def _text(connection: Connection, tenant_id: UUID, conversation_id: UUID, wanted: PinIn, policy: Policy) -> str:
    """Return the text to pin, as its message has it; raise the problem of what cannot be pinned."""
    message = messages.get(connection, tenant_id, conversation_id, wanted.seq)
    if message is None or message.superseded_at is not None:
        raise InvalidError("There is no message with this seq, or another has replaced it.", "/seq")
    whole = message_text(msgspec.json.decode(message.content))
    text = whole if wanted.text is None else wanted.text
    if not text.strip():
        raise InvalidError("This message has no text to pin.", "/seq")
    if text not in whole:
        raise InvalidError("This is no part of the message's text.", "/text")
    if content_tokens(text) > policy.pinned_max_tokens:
        raise InvalidError(
            f"A pin has at most {policy.pinned_max_tokens:,} tokens (pinned_max_tokens); pin a shorter span.", "/text"
        )
    return text


def remove_pin(connection: Connection, tenant_id: UUID, conversation_id: UUID, caller: Caller, pin_id: UUID) -> None:
    """Take a pin off; raise the problem that there is no such one."""
    row = conversations.get(connection, tenant_id, conversation_id, lock=True)
    if row is None or not pins.remove(connection, tenant_id, conversation_id, pin_id):
        raise NotFoundError
    repinning.repin(
        connection,
        tenant_id,
        conversation_id,
        policy=caller.principal.policy_for(row.policy, row.model),
        request_id=caller.request_id,
    )


class Ledger:
    """Every entry of a conversation's ledger, and how those in force stand to each other."""

    def __init__(self, rows: Sequence[AnyRow], policy: Policy) -> None:
        self._policy = policy
        self.rules: Mapping[UUID, AnyRow] = {row.id: row for row in rows if row.source in IN_LEDGER}
        in_force = [row for row in rows if row.withdrawn_at is None]
        self._in_force = [
            Pin(row.id.hex, row.seq, row.text, IN_LEDGER[row.source]) for row in in_force if row.source in IN_LEDGER
        ]
        asked = [Pin(row.id.hex, row.seq, row.text) for row in in_force if row.source not in IN_LEDGER]
        self._meant = proposals(self._in_force, asked)

    def asked_about(self, rule_id: UUID, *, alone: bool) -> list[UUID]:
        """Return the entries that may ask to forget a rule; `alone` leaves out what means others too."""
        by = self._meant.get(rule_id.hex)
        others = [each for other, each in self._meant.items() if other != rule_id.hex]
        return [] if by is None or (alone and by in others) else [UUID(by.id)]

    def every(self) -> list[RuleOut]:
        """Return the rules as clients see them."""
        related: dict[str, list[Disagreement]] = {}
        for pair in disagreements(self._in_force):
            for name in pair[:2]:
                related.setdefault(name, []).append(pair)
        return [self._out(rule_id, related.get(rule_id.hex, ())) for rule_id in self.rules]

    def out(self, rule_id: UUID) -> RuleOut:
        """Return one rule as clients see it."""
        return self._out(rule_id, disagreements_of(rule_id.hex, self._in_force))

    def _out(self, rule_id: UUID, apart: Iterable[Disagreement]) -> RuleOut:
        row, name = self.rules[rule_id], rule_id.hex
        related = [(f"rule_{one.newer if one.older == name else one.older}", one.kind) for one in apart]
        by = self._meant.get(name)
        return RuleOut(
            id=ids.external("rule", rule_id),
            text=shown_text(row, self._policy),
            seq=row.seq,
            source=row.source,
            speaker=speaker_in(row),
            since=row.created_at,
            withdrawn_at=row.withdrawn_at,
            request_id=ids.external("req", row.request_id) if row.request_id else None,
            duplicates=[other for other, kind in related if kind == "duplicate"],
            conflicts=[other for other, kind in related if kind == "conflict"],
            proposal=ProposalOut(by.seq, shown_text(by, self._policy)) if by else None,
        )


def shown_text(entry: AnyRow | Pin, policy: Policy) -> str:
    """Return the text of a pin or a rule as a frame shows it: credentials are masked, unless the policy keeps them."""
    return str(entry.text) if policy.secrets == "keep" else mask_text(entry.text, entry.seq)


def pins_of(
    connection: Connection, tenant_id: UUID, conversation_id: UUID, caller: Caller
) -> tuple[Sequence[AnyRow], Policy]:
    """Return a conversation's pins and its policy; raise the problem that there is no such conversation."""
    row = or_not_found(conversations.get(connection, tenant_id, conversation_id))
    return pins.page(connection, tenant_id, conversation_id), caller.principal.policy_for(row.policy, row.model)


def ledger_of(
    connection: Connection, tenant_id: UUID, conversation_id: UUID, caller: Caller
) -> tuple[Sequence[AnyRow], Policy]:
    """Return a conversation's ledger and its policy; raise the problem that there is no such conversation."""
    row = or_not_found(conversations.get(connection, tenant_id, conversation_id))
    return pins.ledger(connection, tenant_id, conversation_id), caller.principal.policy_for(row.policy, row.model)


async def list_rules(rows: Sequence[AnyRow], policy: Policy) -> list[RuleOut]:
    """Return all rules of a ledger there ever were."""
    return await run_aside(_size(rows), lambda: Ledger(rows, policy).every())


async def change_rule(caller: Caller, conversation_id: UUID, rule_id: UUID, wanted: RuleChange) -> RuleOut:
    """Withdraw a rule, or put it in force again, and settle what users said of it; raise the problem that it has."""
    rows, policy = await caller.run_and_wake(_change, conversation_id, caller, rule_id, wanted)
    return await run_aside(_size(rows), lambda: Ledger(rows, policy).out(rule_id))


def _size(rows: Sequence[AnyRow]) -> int:
    return reading_bytes(row.text for row in rows)


def _change(
    connection: Connection, tenant_id: UUID, conversation_id: UUID, caller: Caller, rule_id: UUID, wanted: RuleChange
) -> tuple[Sequence[AnyRow], Policy]:
    """Change a rule and return the ledger as it is then, and the policy."""
    row = or_not_found(conversations.get(connection, tenant_id, conversation_id, lock=True))
    policy = caller.principal.policy_for(row.policy, row.model)
    rows = pins.ledger(connection, tenant_id, conversation_id)
    ledger = await_only(run_aside(_size(rows), Ledger, rows, policy))
    if rule_id not in ledger.rules:
        raise NotFoundError
    rule = ledger.rules[rule_id]
    if rule.superseded_at is not None:
        raise InvalidError("The message that this rule is of has been replaced.", "/in_force")
    settled = ledger.asked_about(rule_id, alone=not wanted.in_force)
    pins.settle(connection, tenant_id, conversation_id, settled if wanted.in_force else [*settled, rule_id])
    if wanted.in_force and rule.withdrawn_at is not None:
        pins.reinstate(connection, tenant_id, conversation_id, rule_id)
    left_out = repinning.repin(connection, tenant_id, conversation_id, policy=policy, request_id=caller.request_id)
    if wanted.in_force and str(rule_id) in left_out:
        raise ConflictError(
            "pins_full", f"The rules have more than {policy.pinned_max_tokens:,} tokens (pinned_max_tokens)."
        )
    return pins.ledger(connection, tenant_id, conversation_id), policy
