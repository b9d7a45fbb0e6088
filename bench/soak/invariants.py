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

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from uuid import UUID

    import psycopg

    from bench.soak.truth import Breaches, Sent, Told, Turn

CALLS_OF_A_LOST_ATTEMPT: Final = 8
"""Calls that an attempt can have made without having written them down: four for a question, and one question again."""
OVER: Final = "over the budget"

_MESSAGES: Final = (
    "select seq, role, content::text as content, superseded_at is not null as superseded"
    " from messages where conversation_id = %s order by seq"
)
_CONVERSATION: Final = (
    "select c.*, s.tokens as head_tokens, s.message_count as head_messages, s.bytes as head_bytes,"
    " (select coalesce(sum(shown_tokens(m.tokens, m.view_tokens, m.result_chars, c.result_cap)), 0)::int"
    "  from messages as m where m.conversation_id = c.id and m.seq > c.covers_through and m.superseded_at is null)"
    " as tail_tokens,"
    " (select count(*)::int from messages as m"
    "  where m.conversation_id = c.id and m.seq > c.covers_through and m.superseded_at is null) as tail_messages,"
    " (select coalesce(sum(m.bytes), 0)::bigint from messages as m"
    "  where m.conversation_id = c.id and m.seq > c.covers_through and m.superseded_at is null) as tail_bytes"
    " from conversations as c left join snapshots as s on s.conversation_id = c.id and s.version = c.head_version"
    " where c.id = %s"
)
_SNAPSHOTS: Final = (
    "select version, covers_through, coverage, seqs from snapshots"
    " where conversation_id = %s and (version = %s or version <> all(%s)) order by version"
)
_RUNS: Final = "select id, state, attempts, trigger, policy, block_id from runs where conversation_id = %s"
_STEPS: Final = (
    "select s.run_id, s.name, s.state, s.reason, s.snapshot_version, s.tokens_before, s.tokens_after, r.trigger,"
    " (r.policy ->> 'min_savings_tokens')::int as least"
    " from run_steps as s join runs as r on r.id = s.run_id where r.conversation_id = %s and r.block_id is null"
)


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

    def check(self, told: Told) -> None:
        """Check everything about one conversation. Raises psycopg.Error when the database is away."""
        acknowledged = [turn for turn in told.all_turns() if turn.first_seq is not None]
        with self._connection.transaction():
            self._connection.execute("set transaction isolation level repeatable read, read only")
            rows = [
                Row(row["seq"], row["role"], digest(row["content"]), row["superseded"])
                for row in self._all(_MESSAGES, told.uuid)
            ]
            (conversation,) = self._all(_CONVERSATION, told.uuid)
            seen = sorted(told.versions)
            snapshots = self._all(_SNAPSHOTS, told.uuid, conversation["head_version"], seen)
            runs = self._all(_RUNS, told.uuid)
            steps = self._all(_STEPS, told.uuid)
        self._note("nothing lost", told, stored_wrongly(told, rows, acknowledged, told.all_turns()))
        self._note("covered without gaps", told, covered_wrongly(rows, conversation, snapshots))
        self._note("the head is consistent", told, counted_wrongly(rows, conversation))
        self._note("attempts are bounded", told, attempted_wrongly(runs))
        self._note("shrinking", told, shrunk_wrongly(steps))
        told.versions |= {row["version"] for row in snapshots}
        self.checked += 1

    def _all(self, statement: str, *values: UUID | int | list[int]) -> list[dict[str, Any]]:
        return self._connection.execute(statement, values).fetchall()

    def _note(self, invariant: str, told: Told, found: Sequence[str]) -> None:
        for detail in found:
            self._breaches.add(invariant, told.id, detail)


def stored_wrongly(told: Told, rows: Sequence[Row], acknowledged: Sequence[Turn], every: Sequence[Turn]) -> list[str]:
    """1, 8: every acknowledged turn once, byte for byte, in its place; others whole or not at all; nothing else.

    `acknowledged` is what was known before the rows were read, `every` what had been sent after.
    """
    found: list[str] = []
    if [row.seq for row in rows] != [*(base.seq for base in told.base), *_following(told, rows)]:
        found.append(f"seqs have gaps: {_ranges([row.seq for row in rows])}")
    places: defaultdict[bytes, list[Row]] = defaultdict(list)
    for row in rows:
        places[row.digest].append(row)
    for base in told.base:
        found += _misplaced(base.message, base.seq, places)
    stored: list[tuple[int, Turn]] = []
    known = {id(turn) for turn in acknowledged}
    for turn in every:
        first = turn.first_seq if id(turn) in known else None
        here = places.get(turn.messages[0].digest)
        if first is None and not here:
            found += [
                f"half a turn: {message.mark} is stored, what was sent before it is not"
                for message in turn.messages
                if message.digest in places
            ]
            continue
        begin = first if first is not None else here[0].seq if here else -1
        for place, message in enumerate(turn.messages):
            found += _misplaced(message, begin + place, places)
        stored.append((begin, turn))
    ours = {message.digest for turn in every for message in turn.messages} | {base.message.digest for base in told.base}
    found += [f"message {row.seq} is none that was sent" for row in rows if row.digest not in ours]
    return found + _disordered(stored) + _superseded_wrongly(rows, stored)


def covered_wrongly(
    rows: Sequence[Row], conversation: Mapping[str, Any], snapshots: Sequence[Mapping[str, Any]]
) -> list[str]:
    """2: a snapshot accounts for every message that it covers, once; the head for exactly those that are live."""
    found: list[str] = []
    stored = {row.seq for row in rows}
    superseded = {row.seq for row in rows if row.superseded}
    for snapshot in snapshots:
        name, covers = f"snapshot {snapshot['version']}", snapshot["covers_through"]
        seqs = [seq for first, last, _, _ in snapshot["coverage"] for seq in range(first, last + 1)]
        if seqs != sorted(set(seqs)) or not stored.issuperset(seqs):
            found.append(f"{name} covers {_ranges(seqs)}")
        missing = {seq for seq in stored if seq <= covers} - set(seqs)
        if missing - superseded:
            found.append(f"{name} leaves out {_ranges(sorted(missing - superseded))} of 0..{covers}")
        gone = {
            seq
            for first, last, fate, _ in snapshot["coverage"]
            if fate in {"summarized", "dropped"}
            for seq in range(first, last + 1)
        }
        if not gone.isdisjoint(snapshot["seqs"]):
            found.append(f"{name} shows what it says is gone")
        if snapshot["version"] == conversation["head_version"] and superseded.intersection(seqs):
            found.append(
                f"{name}, the head, covers what was replaced: {_ranges(sorted(superseded.intersection(seqs)))}"
            )
    versions = {snapshot["version"] for snapshot in snapshots}
    if conversation["head_version"] and conversation["head_version"] not in versions:
        found.append(f"the head is version {conversation['head_version']}, which is not there")
    return found


def counted_wrongly(rows: Sequence[Row], conversation: Mapping[str, Any]) -> list[str]:
    """Hold the counters of a conversation against a recount."""
    expected = {
        "next_seq": rows[-1].seq + 1 if rows else conversation["next_seq"],
        "context_tokens": (conversation["head_tokens"] or 0) + conversation["tail_tokens"],
        "context_messages": (conversation["head_messages"] or 0) + conversation["tail_messages"],
        "context_bytes": (conversation["head_bytes"] or 0) + conversation["tail_bytes"],
    }
    return [
        f"{name} is {conversation[name]}, counted anew {value}"
        for name, value in expected.items()
        if conversation[name] != value
    ]


def attempted_wrongly(runs: Sequence[Mapping[str, Any]]) -> list[str]:
    """No run is tried more often than it may be, and one at a time is active."""
    found = [f"run {run['id']} has {run['attempts']} attempts" for run in runs if run["attempts"] > MAX_ATTEMPTS]
    active = [run["id"] for run in runs if run["state"] in {"queued", "running"} and run["block_id"] is None]
    return found + ([f"{len(active)} runs are active"] if len(active) > 1 else [])


def shrunk_wrongly(steps: Sequence[Mapping[str, Any]]) -> list[str]:
    """6, 7: what was committed is smaller by what is worth it, what was not changed nothing and says why.

    An emergency may save less, and what has to be summarized after it, or repeated for a pin, may even grow.
    """
    found: list[str] = []
    for step in steps:
        name = f"step {step['name']} of run {step['run_id']}"
        if step["state"] != "committed":
            if step["snapshot_version"] is not None or not step["reason"]:
                found.append(f"{name} was {step['state']}, with snapshot {step['snapshot_version']} and no reason")
        elif step["name"] not in {"pin", "overflow"} and step["trigger"] != "overflow":
            saved = step["tokens_before"] - step["tokens_after"]
            if saved < max(1, step["least"]):
                found.append(f"{name} saved {saved} tokens, the least is {step['least']}")
    return found


def check_context(
    told: Told, context: Mapping[str, Any], *, known: int, live: Sequence[Base] | None, breaches: Breaches
) -> None:
    """3, 4, 5: a context is fresh, valid and within the budget.

    `known` is the next seq that was known before it was read; `live` is what the context is made from, where nobody
    else writes to the conversation.
    """
    served, through, warnings = context["messages"], context["last_seq"], " ".join(context["warnings"])
    if through < known - 1:
        breaches.add("fresh", told.id, f"the context ends with {through}, {known - 1} was acknowledged before")
    if live is not None and through != (live[-1].seq if live else -1):
        breaches.add("fresh", told.id, f"the context ends with {through}, {live[-1].seq if live else -1} is the newest")
    if served:
        for problem in problems(served):
            breaches.add("valid", told.id, f"{problem}; warnings: {warnings}")
    if live:
        newest = live[-1].message
        if newest.speaks and newest.mark not in marks(served[-1:]):
            breaches.add("fresh", told.id, f"the newest message, {newest.mark}, is not the context's last")
        replaced = {message.mark for turn in told.all_turns() for message in turn.messages}
        replaced |= {base.message.mark for base in told.base}
        shown = marks(served) & (replaced - {row.message.mark for row in live})
        if shown:
            breaches.add("fresh", told.id, f"the context shows what was replaced: {sorted(shown)}")
    tokens = context["tokens"]
    if tokens["context"] > tokens["budget"] and OVER not in warnings:
        breaches.add("bounded", told.id, f"{tokens['context']} tokens, the budget is {tokens['budget']}: {warnings}")


def check_originals(told: Told, page: bytes, breaches: Breaches) -> None:
    """1: originals come back byte for byte."""
    sent = {message.digest: message.role for turn in told.all_turns() for message in turn.messages}
    sent |= {base.message.digest: base.message.role for base in told.base}
    for item in msgspec.json.decode(page, type=_Page).data:
        if sent.get(digest(str(item.content, "utf-8"))) != item.role:
            breaches.add("nothing lost", told.id, f"original {item.seq} is not what was sent")


class _Page(msgspec.Struct):
    data: list[StoredMessage]


def unpaid_for(calls: int, recorded: int, lost_attempts: int) -> str | None:
    """Say what is wrong with the calls of a family of conversations: more were made than steps and lost attempts tell.

    `recorded` are the calls that steps wrote down, `lost_attempts` those that ended without a step.
    """
    most = recorded + CALLS_OF_A_LOST_ATTEMPT * lost_attempts
    return f"{calls} calls, {recorded} written down, {lost_attempts} attempts lost" if calls > most else None


def _following(told: Told, rows: Sequence[Row]) -> Sequence[int]:
    first = told.base[-1].seq + 1 if told.base else 0
    return range(first, first + max(0, len(rows) - len(told.base)))


def _misplaced(message: Sent, seq: int, places: Mapping[bytes, Sequence[Row]]) -> list[str]:
    here = places.get(message.digest, ())
    if [(row.seq, row.role) for row in here] == [(seq, message.role)]:
        return []
    stored = [f"{row.seq} ({row.role})" for row in here]
    return [f"{message.mark} ({message.role}) should stand at {seq} and is at {', '.join(stored) or 'no place'}"]


def _disordered(stored: Sequence[tuple[int, Turn]]) -> list[str]:
    """3: what was sent after an answer stands after what was answered."""
    found: list[str] = []
    earliest = math.inf
    for first, turn in sorted(stored, key=lambda pair: pair[0], reverse=True):
        if earliest < turn.sent_at:
            found.append(f"the turn at {first} was sent after one that stands behind it had been acknowledged")
        if turn.acknowledged_at is not None:
            earliest = min(earliest, turn.acknowledged_at)
    return found


def _superseded_wrongly(rows: Sequence[Row], stored: Sequence[tuple[int, Turn]]) -> list[str]:
    edits = [(first, turn.replace_from) for first, turn in stored if turn.replace_from is not None]
    wrong = [row.seq for row in rows if row.superseded != any(replaced <= row.seq < first for first, replaced in edits)]
    return [f"replaced or not, wrongly: {_ranges(wrong)}"] if wrong else []


def _ranges(seqs: Sequence[int]) -> str:
    told: list[str] = []
    begin = last = None
    for seq in [*seqs, None]:
        if last is not None and seq == last + 1:
            last = seq
            continue
        if begin is not None:
            told.append(f"{begin}" if begin == last else f"{begin}..{last}")
        begin = last = seq
    return ", ".join(told[:20]) or "nothing"
