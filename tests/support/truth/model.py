"""The truth about a conversation, kept in plain Python beside the service, and what has to hold of the service by it.

The numbers are those of the design's invariants.
"""

from __future__ import annotations

import hashlib
import json
import math
import re
from collections import Counter
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final, NamedTuple
from uuid import UUID, uuid4

from sqlalchemy import text

from compaction.messages import has_thinking, is_request, message_facts, turn_facts
from compaction.payload.context_blocks import prepare
from compaction.pins.ledger import turn_entries
from compaction.policy import Policy, merge
from compaction.tokens import content_tokens
from store import hot_path
from store.conversations.context_blocks import new_blocks
from tests.support.messages_api import ThinkingLedger, alternates, problems
from tests.support.service.in_process import SMALL, Chat
from tests.support.service.stepped_workers import MAX_ATTEMPTS
from tests.support.stored_turns import stored_turn
from tests.support.truth.rows import RUNS, STEPS, attempted_wrongly, seqs, shrunk_wrongly

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from store.tables import AnyRow
    from tests.support.blocks import Message

_MARK: Final = re.compile(r"mark-\d+-")
_SNAPSHOTS: Final = "select * from snapshots where conversation_id = :c"
OVER: Final = "over the budget"


def marks(value: object) -> set[str]:
    """Return the marks in a text, a message, or anything made of them."""
    return set(_MARK.findall(json.dumps(value)))


def markings(value: object) -> str:
    """Return the first marks in anything, as text."""
    return ", ".join(sorted(marks(value))[:30]) or "nothing"


class Stored(NamedTuple):
    """A message as it was sent."""

    seq: int
    message: Message
    live: bool = True

    @property
    def text(self) -> str:
        """The content as the JSON text that was sent."""
        return json.dumps(self.message["content"], ensure_ascii=False)


@dataclass(frozen=True)
class Head:
    """What decides about a conversation's head."""

    version: int
    pending: int | None


@dataclass
class TrackedConversation:
    """A conversation as those who take part in it know it."""

    id: UUID
    policy: dict[str, Any]
    strict: bool
    """Everything sent is as the Messages API wants it, and what the model thought is signed for what it saw."""
    stored: list[Stored] = field(default_factory=list)
    next_seq: int = 0
    fixed_tokens: int = 0
    ledger: ThinkingLedger = field(default_factory=ThinkingLedger)
    sent: dict[str, tuple[bytes, hot_path.Appended]] = field(default_factory=dict)
    """Bodies and answers by idempotency key."""
    read: tuple[int, list[Message]] | None = None
    """Version and messages of the context that the next turn was made with, None for the one at its time."""
    versions: set[int] = field(default_factory=set)
    """Snapshots that were looked at."""
    restored: int | None = None
    """The head that a restore made and that nothing has given a reason to leave since."""

    @property
    def live(self) -> list[Stored]:
        """What was not replaced."""
        return [each for each in self.stored if each.live]

    @property
    def messages(self) -> list[Message]:
        """The messages that were not replaced."""
        return [each.message for each in self.stored if each.live]

    @property
    def replaced_marks(self) -> set[str]:
        """Marks of what was replaced, without those that what is live has too."""
        return marks([s.message for s in self.stored if not s.live]) - marks(self.messages)

    def cut(self, seq: int) -> list[Message]:
        """Return what is live before message `seq`."""
        return [each.message for each in self.live if each.seq < seq]

    def add(self, messages: Iterable[Message], *, replace_from: int | None = None) -> None:
        """Take down what was appended."""
        if replace_from is not None:
            self.stored = [each._replace(live=each.live and each.seq < replace_from) for each in self.stored]
        for message in messages:
            self.stored.append(Stored(self.next_seq, message))
            self.next_seq += 1
        self.read = None
        self.restored = None

    def fork(self, identifier: UUID, through: int) -> TrackedConversation:
        """Return the conversation that branches off after message `through`."""
        return TrackedConversation(
            identifier,
            self.policy,
            self.strict,
            [each for each in self.live if each.seq <= through],
            through + 1,
            self.fixed_tokens,
            self.ledger,
        )


class Usage(NamedTuple):
    """What a chat product reports of its model call."""

    input_tokens: int | None = None
    version: int | None = None


class Product(Chat):
    """A chat product that says everything a turn may carry."""

    quoted = staticmethod(markings)

    def begin_tracked(self, policy: Mapping[str, Any], *, strict: bool) -> TrackedConversation:
        """Begin a conversation and its truth."""
        merged = SMALL | dict(policy)
        return TrackedConversation(self.begin(policy), merged, strict)

    def policy_of(self, tracked: TrackedConversation) -> Policy:
        """Return the policy in force."""
        return merge(self.settings.policy, tracked.policy)

    def send(
        self,
        tracked: TrackedConversation,
        messages: Sequence[Message],
        usage: Usage,
        *,
        replace_from: int | None = None,
        context: Sequence[Mapping[str, str]] = (),
        key: str | None = None,
        body: bytes | None = None,
    ) -> tuple[hot_path.Appended, list[UUID]]:
        """Append a turn, or the `body` of one again; return the answer and the runs that were queued with it."""
        if body is None:
            parts: dict[str, Any] = {"messages": list(messages), "context": list(context)}
            if usage.input_tokens is not None:
                parts["usage"] = {"input_tokens": usage.input_tokens, "output_tokens": 7}
            if usage.version is not None:
                parts["snapshot_version"] = usage.version
            if replace_from is not None:
                parts["replace_from"] = replace_from
            body = json.dumps(parts, ensure_ascii=False).encode()
        turn = stored_turn(body)
        policy = self.policy_of(tracked)
        blocks = new_blocks(prepare(turn.context, policy), policy) if turn.context else None
        done = self._await(
            hot_path.append_turn(
                self._pool,
                tenant_id=self.tenant_id,
                conversation_id=tracked.id,
                request_id=uuid4(),
                contents=turn.contents,
                facts=turn.facts,
                usage=turn.usage,
                result_cap=merge(self.settings.policy).max_tool_result_chars,
                expected_seq=None,
                replace_from=turn.replace_from,
                idempotency_key=key,
                body_hash=hashlib.sha256(body).digest() if key else None,
                context=blocks.context if blocks else None,
                policy=merge(self.settings.policy),
                entries=turn_entries(turn.said),
            )
        )
        if key is not None and done.outcome == "appended":
            tracked.sent[key] = (body, done)
        return done, list(blocks.run_ids) if blocks else []

    def head_of(self, tracked: TrackedConversation) -> Head:
        """Return where the head is."""
        row = self.row(tracked.id)
        return Head(row.head_version, row.pending_version)

    def verify(self, tracked: TrackedConversation) -> None:
        """Check everything that has to hold of a conversation at any time."""
        state = self._read_state(tracked)
        _nothing_is_lost(tracked, state)
        _everything_is_covered(tracked, state)
        assert not shrunk_wrongly([row._asdict() for row in state.steps])
        assert {row.snapshot_version for row in state.steps if row.state == "committed"} <= tracked.versions
        _counters_are_a_recount(tracked, state)
        assert not attempted_wrongly([row._asdict() for row in state.runs], MAX_ATTEMPTS)
        if tracked.stored:
            _the_context_is_right(tracked, state, self.context(tracked.id))

    def _read_state(self, tracked: TrackedConversation) -> _State:
        with self.database.transaction(self.tenant_id) as connection:

            def ask(statement: str, **values: Any) -> Sequence[AnyRow]:
                return connection.execute(text(statement), {"c": tracked.id, **values}).all()

            (row,) = ask("select * from conversations where id = :c")
            new = ask(
                f"{_SNAPSHOTS} and version <> all(:seen) order by version",
                seen=list(tracked.versions),
            )
            return _State(
                row=row,
                messages=ask(
                    "select m.*, content::text as body from messages as m where conversation_id = :c order by seq"
                ),
                head=next(
                    iter(ask(f"{_SNAPSHOTS} and version = :v", v=row.head_version)),
                    None,
                ),
                new=new,
                runs=ask(f"{RUNS}:c"),
                named={
                    row.id
                    for row in ask(
                        "select id from runs where id = any(:ids)",
                        ids=[UUID(run) for snapshot in new for _, _, _, run in snapshot.coverage if run],
                    )
                },
                steps=ask(f"{STEPS}:c"),
                carried=ask(
                    "select coalesce(sum(outline_tokens), 0) as tokens from context_blocks"
                    " where conversation_id = :c and carried_until is null and superseded_at is null"
                )[0].tokens,
                shown=ask(
                    "select coalesce(sum(shown_tokens(tokens, view_tokens, result_chars, :cap)), 0) as tokens"
                    " from messages where conversation_id = :c and seq > :covers and superseded_at is null",
                    cap=row.result_cap,
                    covers=row.covers_through,
                )[0].tokens,
            )


class _State(NamedTuple):
    row: AnyRow
    messages: Sequence[AnyRow]
    head: AnyRow | None
    new: Sequence[AnyRow]
    runs: Sequence[AnyRow]
    named: set[UUID]
    """Runs that the new snapshots name and that exist."""
    steps: Sequence[AnyRow]
    carried: int
    shown: int


def _nothing_is_lost(tracked: TrackedConversation, state: _State) -> None:
    """1: every original byte for byte, what was replaced included."""
    stored = [(row.seq, row.role, row.body, row.superseded_at is None) for row in state.messages]
    assert stored == [(each.seq, each.message["role"], each.text, each.live) for each in tracked.stored]


def _everything_is_covered(tracked: TrackedConversation, state: _State) -> None:
    """2: every snapshot, when it is first seen, and the head always."""
    for snapshot in state.new:
        _covers_what_is_live(tracked, snapshot)
        covered, gone = seqs(snapshot._asdict()), seqs(snapshot._asdict(), {"summarized", "dropped"})
        names = {seq for seq in snapshot.seqs if seq >= 0}
        assert names.isdisjoint(gone)
        assert names <= set(covered)
        if tracked.strict:
            assert names | set(gone) == set(covered)
        for _, _, fate, run in snapshot.coverage:
            assert (run is None) == (fate == "kept")
            assert run is None or UUID(run) in state.named
        _holds_only_what_it_covers(tracked, snapshot)
        tracked.versions.add(snapshot.version)
    assert (state.head is None) == (state.row.head_version == 0)
    if state.head is not None:
        _covers_what_is_live(tracked, state.head)
    assert state.row.covers_through == (state.head.covers_through if state.head else -1)
    assert state.row.pending_version is None or state.row.pending_version in tracked.versions
    assert state.row.last_version >= max(tracked.versions, default=0)


def _holds_only_what_it_covers(tracked: TrackedConversation, snapshot: AnyRow) -> None:
    covered = marks([each.message for each in tracked.live if each.seq <= snapshot.covers_through])
    held = marks([snapshot.messages, snapshot.summary, snapshot.pins, snapshot.claims])
    assert held <= covered, sorted(held - covered)


def _covers_what_is_live(tracked: TrackedConversation, snapshot: AnyRow) -> None:
    assert seqs(snapshot._asdict()) == [each.seq for each in tracked.live if each.seq <= snapshot.covers_through]


def _counters_are_a_recount(tracked: TrackedConversation, state: _State) -> None:
    """9: what the conversation's row says, counted anew from the other tables."""
    row, head = state.row, state.head
    tail = [each for each in tracked.live if each.seq > row.covers_through]
    rows = {each.seq: each for each in state.messages}
    facts = [message_facts(each.message["role"], each.message["content"]) for each in tracked.live]
    last = turn_facts(facts[-1:]) if facts else None
    requests = [each.seq for each, about in zip(tracked.live, facts, strict=True) if about.is_request]
    expected = {
        "next_seq": tracked.next_seq,
        "context_tokens": (head.tokens if head else 0) + state.shown,
        "context_messages": (head.message_count if head else 0) + len(tail),
        "context_bytes": (head.bytes if head else 0) + sum(rows[each.seq].bytes for each in tail),
        "context_exchanges": (head.exchanges if head else 0)
        + sum(is_request(each.message["role"], each.message["content"]) for each in tail),
        "fixed_tokens": tracked.fixed_tokens + state.carried,
        "carried_tokens": state.carried,
        "last_request": max(requests, default=-1),
        "newest_result": max(
            (each.seq for each, about in zip(tracked.live, facts, strict=True) if about.result_chars), default=-1
        ),
        "open_calls": list(last.trailing_calls) if last else [],
        "in_loop": bool(last and last.ends_in_loop),
        "loop_has_thinking": any(
            has_thinking(each.message["role"], each.message["content"])
            for each in tracked.live
            if each.seq > max(requests, default=-1)
        ),
    }
    wrong = {name: (getattr(row, name), value) for name, value in expected.items() if getattr(row, name) != value}
    assert not wrong, wrong
    if head is not None:
        assert head.tokens == sum(content_tokens(message["content"]) for message in head.messages)
    assert row.measured_tokens is None or row.measured_tokens > 0


def _the_context_is_right(tracked: TrackedConversation, state: _State, context: dict[str, Any]) -> None:
    """3, 4 and 5."""
    served, warnings = context["messages"], " ".join(context["warnings"])
    assert context["last_seq"] == tracked.next_seq - 1
    assert tracked.replaced_marks.isdisjoint(marks(served))
    if not tracked.live:
        assert served == []
        return
    if served:
        whole = tracked.strict and alternates(tracked.messages)
        refused = problems(served, ledger=tracked.ledger if whole else None)
        assert not refused, (refused, warnings)
    newest = tracked.messages[-1]
    if tracked.strict:
        assert served[-1]["role"] == newest["role"]
        assert _said(newest) <= marks(served[-1])
    elif _speaks(newest):
        assert _said(newest) <= marks(served[-1:])
    policy = merge(tracked.policy)
    row, room = state.row, policy.total_token_budget - policy.reserved_output_tokens
    # What is carried over stands in payloads alone.
    fixed = row.fixed_tokens - row.carried_tokens
    weight = sum(content_tokens(message["content"]) for message in served) + fixed
    if OVER not in warnings:
        assert context["tokens"]["context"] <= room
        assert math.floor(weight * row.token_ratio) <= room + len(served)


def _said(message: Message) -> set[str]:
    """Return the marks of what has to be left of a newest message: all but thinking."""
    content = message["content"]
    if isinstance(content, str):
        return marks(content)
    return marks([block for block in content if block["type"] not in {"thinking", "redacted_thinking"}])


def _speaks(message: Message) -> bool:
    content = message["content"]
    return isinstance(content, str) or Counter(block["type"] for block in content).keys() == {"text"}
