"""What has to hold of every conversation at any time, whatever goes wrong; see docs/architecture.md for the words."""

from __future__ import annotations

import math
from collections import defaultdict
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import msgspec

from bench.soak.installation import MAX_ATTEMPTS
from bench.soak.speech import marks
from bench.soak.truth import Base, digest
from cli.client.types import StoredMessage
from tests.support.messages_api import problems
from tests.support.truth.rows import (
    CONVERSATION,
    RUNS,
    SNAPSHOTS,
    STEPS,
    attempted_wrongly,
    counted_wrongly,
    covered_wrongly,
    ranges,
    shrunk_wrongly,
)

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from uuid import UUID

    import psycopg

    from bench.soak.truth import Breaches, KnownConversation, Sent, Turn

CALLS_OF_A_LOST_ATTEMPT: Final = 8
"""Calls that an attempt can have made without having written them down: four for a question, and one question again."""
OVER: Final = "over the budget"

_MESSAGES: Final = (
    "select seq, role, content::text as content, superseded_at is not null as superseded"
    " from messages where conversation_id = %s order by seq"
)
_NEW_SNAPSHOTS: Final = f"{SNAPSHOTS}%s and (version = %s or version <> all(%s)) order by version"


class Row(NamedTuple):
    """A stored message."""

    seq: int
    role: str
    digest: bytes
    superseded: bool


class Checker:
    """Looks at conversations in the database, each time in one transaction that sees one moment."""

    def __init__(self, connection: psycopg.Connection[dict[str, Any]], breaches: Breaches) -> None:
        self._connection = connection
        self._breaches = breaches
        self.checked = 0

    def check(self, conversation: KnownConversation) -> None:
        """Check everything about one conversation. Raises psycopg.Error when the database is away."""
        acknowledged = [turn for turn in conversation.all_turns() if turn.first_seq is not None]
        with self._connection.transaction():
            self._connection.execute("set transaction isolation level repeatable read, read only")
            rows = [
                Row(row["seq"], row["role"], digest(row["content"]), row["superseded"])
                for row in self._all(_MESSAGES, conversation.uuid)
            ]
            (conversation_row,) = self._all(f"{CONVERSATION}%s", conversation.uuid)
            head, seen = conversation_row["head_version"], sorted(conversation.versions)
            snapshots = self._all(_NEW_SNAPSHOTS, conversation.uuid, head, seen)
            runs = self._all(f"{RUNS}%s", conversation.uuid)
            steps = self._all(f"{STEPS}%s", conversation.uuid)
        stored, superseded = {row.seq for row in rows}, {row.seq for row in rows if row.superseded}
        self._note(
            "nothing lost", conversation, stored_wrongly(conversation, rows, acknowledged, conversation.all_turns())
        )
        self._note("covered without gaps", conversation, covered_wrongly(stored, superseded, head, snapshots))
        self._note("the head is consistent", conversation, counted_wrongly(conversation_row, max(stored, default=None)))
        self._note("attempts are bounded", conversation, attempted_wrongly(runs, MAX_ATTEMPTS))
        self._note("shrinking", conversation, shrunk_wrongly(steps))
        conversation.versions |= {row["version"] for row in snapshots}
        self.checked += 1

    def _all(self, statement: str, *values: UUID | int | list[int]) -> list[dict[str, Any]]:
        return self._connection.execute(statement, values).fetchall()

    def _note(self, invariant: str, conversation: KnownConversation, details: Sequence[str]) -> None:
        for detail in details:
            self._breaches.add(invariant, conversation.id, detail)


def stored_wrongly(
    conversation: KnownConversation, rows: Sequence[Row], acknowledged: Sequence[Turn], every: Sequence[Turn]
) -> list[str]:
    """1, 8: every acknowledged turn once, byte for byte, in its place; others whole or not at all; nothing else.

    `acknowledged` is what was known before the rows were read, `every` what had been sent after.
    """
    wrong: list[str] = []
    if [row.seq for row in rows] != [*(base.seq for base in conversation.base), *_following(conversation, rows)]:
        wrong.append(f"seqs have gaps: {ranges([row.seq for row in rows])}")
    places: defaultdict[bytes, list[Row]] = defaultdict(list)
    for row in rows:
        places[row.digest].append(row)
    for base in conversation.base:
        wrong += _misplaced(base.message, base.seq, places)
    stored: list[tuple[int, Turn]] = []
    known = {id(turn) for turn in acknowledged}
    for turn in every:
        first = turn.first_seq if id(turn) in known else None
        here = places.get(turn.messages[0].digest)
        if first is None and not here:
            wrong += [
                f"half a turn: {message.mark} is stored, what was sent before it is not"
                for message in turn.messages
                if message.digest in places
            ]
            continue
        begin = first if first is not None else here[0].seq if here else -1
        for place, message in enumerate(turn.messages):
            wrong += _misplaced(message, begin + place, places)
        stored.append((begin, turn))
    ours = {message.digest for turn in every for message in turn.messages} | {
        base.message.digest for base in conversation.base
    }
    wrong += [f"message {row.seq} is none that was sent" for row in rows if row.digest not in ours]
    return wrong + _disordered(stored) + _superseded_wrongly(rows, stored)


def check_context(
    conversation: KnownConversation,
    context: Mapping[str, Any],
    *,
    known: int,
    live: Sequence[Base] | None,
    breaches: Breaches,
) -> None:
    """3, 4, 5: a context is fresh, valid and within the budget.

    `known` is the next seq that was known before it was read; `live` is what the context is made from, where nobody
    else writes to the conversation.
    """
    served, through, warnings = context["messages"], context["last_seq"], " ".join(context["warnings"])
    if through < known - 1:
        breaches.add("fresh", conversation.id, f"the context ends with {through}, {known - 1} was acknowledged before")
    if live is not None and through != (live[-1].seq if live else -1):
        breaches.add(
            "fresh", conversation.id, f"the context ends with {through}, {live[-1].seq if live else -1} is the newest"
        )
    if served:
        for problem in problems(served):
            breaches.add("valid", conversation.id, f"{problem}; warnings: {warnings}")
    if live:
        newest = live[-1].message
        if newest.speaks and newest.mark not in marks(served[-1:]):
            breaches.add("fresh", conversation.id, f"the newest message, {newest.mark}, is not the context's last")
        replaced = {message.mark for turn in conversation.all_turns() for message in turn.messages}
        replaced |= {base.message.mark for base in conversation.base}
        stale = marks(served) & (replaced - {row.message.mark for row in live})
        if stale:
            breaches.add("fresh", conversation.id, f"the context shows what was replaced: {sorted(stale)}")
    tokens = context["tokens"]
    if tokens["context"] > tokens["budget"] and OVER not in warnings:
        breaches.add(
            "bounded", conversation.id, f"{tokens['context']} tokens, the budget is {tokens['budget']}: {warnings}"
        )


def check_originals(conversation: KnownConversation, page: bytes, breaches: Breaches) -> None:
    """1: originals come back byte for byte."""
    sent = {message.digest: message.role for turn in conversation.all_turns() for message in turn.messages}
    sent |= {base.message.digest: base.message.role for base in conversation.base}
    for item in msgspec.json.decode(page, type=_Page).data:
        if sent.get(digest(str(item.content, "utf-8"))) != item.role:
            breaches.add("nothing lost", conversation.id, f"original {item.seq} is not what was sent")


class _Page(msgspec.Struct):
    data: list[StoredMessage]


def unpaid_for(calls: int, recorded: int, lost_attempts: int) -> str | None:
    """Say what is wrong with the calls of a family of conversations: more were made than steps and lost attempts tell.

    `recorded` are the calls that steps wrote down, `lost_attempts` those that ended without a step.
    """
    most = recorded + CALLS_OF_A_LOST_ATTEMPT * lost_attempts
    return f"{calls} calls, {recorded} written down, {lost_attempts} attempts lost" if calls > most else None


def _following(conversation: KnownConversation, rows: Sequence[Row]) -> Sequence[int]:
    first = conversation.base[-1].seq + 1 if conversation.base else 0
    return range(first, first + max(0, len(rows) - len(conversation.base)))


def _misplaced(message: Sent, seq: int, places: Mapping[bytes, Sequence[Row]]) -> list[str]:
    here = places.get(message.digest, ())
    if [(row.seq, row.role) for row in here] == [(seq, message.role)]:
        return []
    stored = [f"{row.seq} ({row.role})" for row in here]
    return [f"{message.mark} ({message.role}) should stand at {seq} and is at {', '.join(stored) or 'no place'}"]


def _disordered(stored: Sequence[tuple[int, Turn]]) -> list[str]:
    """3: what was sent after an answer stands after what was answered."""
    wrong: list[str] = []
    earliest = math.inf
    for first, turn in sorted(stored, key=lambda pair: pair[0], reverse=True):
        if earliest < turn.sent_at:
            wrong.append(f"the turn at {first} was sent after one that stands behind it had been acknowledged")
        if turn.acknowledged_at is not None:
            earliest = min(earliest, turn.acknowledged_at)
    return wrong


def _superseded_wrongly(rows: Sequence[Row], stored: Sequence[tuple[int, Turn]]) -> list[str]:
    edits = [(first, turn.replace_from) for first, turn in stored if turn.replace_from is not None]
    wrong = [row.seq for row in rows if row.superseded != any(replaced <= row.seq < first for first, replaced in edits)]
    return [f"replaced or not, wrongly: {ranges(wrong)}"] if wrong else []
