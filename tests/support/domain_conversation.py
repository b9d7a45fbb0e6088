"""A conversation as the store keeps it, in memory: the domain's steps chained as a worker chains them.

The counters follow `append_turn`, `move_head` and `read_context` of migrations/sql, so that the tests of the domain can
tell when the database would serve the context without parsing it.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from itertools import count
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import msgspec

from compaction.coverage import Coverage
from compaction.messages import THINKING, MessageFacts, message_facts, turn_facts
from compaction.shorten.tool_results import cut_tool_results
from compaction.shorten.trimming import drop_oldest
from compaction.steps.snapshot import NewSnapshot, Original, Snapshot, Working, build, context_json, load_view, settle
from compaction.steps.stored_view import NOTHING, StoredView
from compaction.summary import zone as summaries

if TYPE_CHECKING:
    from collections.abc import Sequence

    from compaction.policy import Policy
    from compaction.view import View
    from tests.support.blocks import Message
    from tests.support.messages_api import ThinkingLedger

SUMMARY_TEXT: Final = "The user looks for work. Acme Robotics scored 8/10."


def without_thinking(message: Message) -> Message:
    content = message["content"]
    if isinstance(content, str):
        return message
    return message | {"content": [block for block in content if block["type"] not in THINKING]}


class Stored(NamedTuple):
    """A snapshot as the database has it: nothing but text and numbers."""

    messages: str
    seqs: tuple[int, ...]
    covers_through: int
    coverage: Any
    summary: str | None
    prefix_hash: bytes
    tokens: int
    exchanges: int


@dataclass
class Conversation:
    policy: Policy
    ledger: ThinkingLedger | None = None
    originals: list[Original] = field(default_factory=list)
    facts: list[MessageFacts] = field(default_factory=list)
    versions: list[Stored] = field(default_factory=list)
    """Version 1 is the first; a head of 0 is no snapshot."""
    head: int = 0
    runs: list[str] = field(default_factory=list)
    open_calls: tuple[str, ...] = ()
    broken_through: int = -1
    strip_thinking_through: int = -1
    _run: count[int] = field(default_factory=lambda: count(1))
    _built: Working = field(init=False)
    _built_from: tuple[int, ...] = ()
    made: View = ()
    """What the last step made of the view."""
    knows: bool = True
    """Whether it goes by what is stored besides the messages: their tokens, what a snapshot counts, what was broken."""

    # The store's part

    def append(self, turn: Sequence[Message]) -> None:
        # Thinking is signed for the context that the client read before it asked the model.
        turn = [self._signed(message) for message in turn]
        facts = turn_facts([message_facts(message["role"], message["content"]) for message in turn])
        begins = len(self.originals)
        for message, known in zip(turn, facts.messages, strict=True):
            content = json.dumps(message["content"], ensure_ascii=False)
            self.originals.append(
                Original(len(self.originals), message["role"], content, known.tokens if self.knows else None)
            )
        self.facts += facts.messages
        starts_well = begins > 0 or turn[0]["role"] == "user"
        if not (facts.sound and self.open_calls == facts.leading_results and starts_well):
            self.broken_through = len(self.originals) - 1
        self.open_calls = facts.trailing_calls

    def _signed(self, message: Message) -> Message:
        if self.ledger is None or message["role"] != "assistant":
            return message
        served = self.served()
        if not served or served[-1]["role"] == "assistant":
            # Nobody can have got thinking here: the model was not asked.
            return without_thinking(message)
        return self.ledger.signed([*served, message])[-1]

    @property
    def snapshot(self) -> Snapshot:
        if not self.head:
            return Snapshot()
        row = self.versions[self.head - 1]
        messages = load_view(row.messages, row.seqs)
        return Snapshot(
            version=self.head,
            covers_through=row.covers_through,
            messages=messages,
            summary=row.summary,
            coverage=msgspec.convert(row.coverage, Coverage),
            prefix_hash=row.prefix_hash,
            stored=StoredView(messages, row.messages, row.tokens, row.exchanges) if self.knows else NOTHING,
        )

    @property
    def covers_through(self) -> int:
        return self.versions[self.head - 1].covers_through if self.head else -1

    @property
    def tail(self) -> list[Original]:
        return self.originals[self.covers_through + 1 :]

    @property
    def is_plain(self) -> bool:
        """Whether the database would serve the stored text as it is."""
        tail = list(zip(self.tail, self.facts[self.covers_through + 1 :], strict=True))
        return self.broken_through <= self.covers_through and all(
            all(chars <= self.policy.max_tool_result_chars for chars in facts.result_chars)
            and (not facts.has_thinking or row.seq > self.strip_thinking_through)
            for row, facts in tail
        )

    def commit(self, new: NewSnapshot) -> None:
        self.versions.append(
            Stored(
                new.messages_json,
                new.seqs,
                new.covers_through,
                json.loads(msgspec.json.encode(new.coverage)),
                new.summary,
                new.prefix_hash,
                new.tokens,
                new.exchanges,
            )
        )
        self.move_head(len(self.versions))

    def move_head(self, version: int) -> None:
        self.head = version
        self.strip_thinking_through = len(self.originals) - 1

    # The reader's part

    def working(self) -> Working:
        stripped = self.strip_thinking_through
        key = (self.head, len(self.versions), len(self.originals), stripped)
        if key != self._built_from:
            self._built_from = key
            self._built = build(
                self.snapshot,
                self.tail,
                self.policy,
                strip_thinking_through=stripped,
                broken_through=self.broken_through if self.knows else None,
            )
        return self._built

    @property
    def estimated_tokens(self) -> int:
        """The counter that a check reads; exact while nothing in the tail is capped, stripped or repaired."""
        head = self.versions[self.head - 1].tokens if self.head else 0
        return head + sum(facts.tokens for facts in self.facts[self.covers_through + 1 :])

    def messages(self) -> list[Message]:
        return [message.as_message() for message in self.working().view]

    def plain_messages(self) -> list[Message]:
        texts = [f'{{"role":"{row.role}","content":{row.content}}}' for row in self.tail]
        head = self.versions[self.head - 1].messages if self.head else None
        served: list[Message] = json.loads(context_json(head, ",".join(texts) or None))
        return served

    def served(self) -> list[Message]:
        return self.plain_messages() if self.is_plain else self.messages()

    # The worker's part: each returns what it would write, None for nothing to do

    def cut(self) -> NewSnapshot | None:
        working = self.working()
        cut = cut_tool_results(
            working.view, self.policy.tool_result_retention_chars, working.handles, whole=working.whole
        )
        if not cut.results:
            return None
        truncated = [working.view[index].seq for index in cut.indices]
        self.made = cut.view
        return settle(working, cut.view, run_id=self._new_run(), truncated=truncated)

    def summarize(self, text: str = SUMMARY_TEXT) -> NewSnapshot | None:
        working = self.working()
        zone = summaries.find_zone(working.view, self.policy.protected_tail_messages)
        if zone is None:
            return None
        view = summaries.rebuild(working.view, zone, text, previous=working.snapshot.summary)
        self.made = view
        return settle(working, view, run_id=self._new_run(), removed="summarized", summary=text)

    def drop(self) -> NewSnapshot | None:
        working = self.working()
        limit = self.policy.max_conversation_messages
        trim = drop_oldest(
            working.view, lambda count, _: count <= limit, carries_summary=working.snapshot.summary is not None
        )
        if not trim.dropped:
            return None
        truncated = [working.view[index].seq for index in trim.cut]
        self.made = trim.view
        return settle(working, trim.view, run_id=self._new_run(), truncated=truncated)

    def _new_run(self) -> str:
        self.runs.append(f"run-{next(self._run)}")
        return self.runs[-1]
