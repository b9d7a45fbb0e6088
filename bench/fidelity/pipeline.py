"""Compaction of a recorded conversation with the product's own code: what a worker computes, without its database."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import msgspec

from compaction.claims.citations import add_citations
from compaction.messages import blocks
from compaction.pieces import newest
from compaction.pins.left_out import with_note
from compaction.pins.pinned import message_text, pin, without_pins
from compaction.recall.ranges import missing_ranges_note
from compaction.shorten.tool_results import cut_tool_results
from compaction.shorten.trimming import drop_oldest
from compaction.steps.ladder import saves_enough
from compaction.steps.snapshot import Original, Snapshot, build, left_out, load_view, settle
from compaction.summary.zone import around, find_zone, rebuild
from compaction.view import view_tokens
from worker.claims.proving import proved
from worker.summarizers.base import SummaryRequest

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from compaction.pins.pinned import Pin
    from compaction.policy import Policy
    from compaction.steps.snapshot import NewSnapshot, Working
    from compaction.summary.zone import Zone
    from compaction.view import View, ViewMessage
    from worker.summarizers.base import Summarizer, Summary

Message = dict[str, Any]

PINS_MAX_TOKENS: Final = 2_000
"""Tokens that pins may take."""


class Memory:
    """A conversation as the service would hold it: its originals and the newest snapshot."""

    def __init__(self, messages: Sequence[Message] = (), *, in_pieces: bool = False) -> None:
        self.originals: list[Original] = []
        self.snapshot = Snapshot()
        self._framed: tuple[Pin, ...] = ()
        self._in_pieces = in_pieces
        self.append(messages)

    def append(self, messages: Sequence[Message]) -> None:
        """Store messages."""
        for message in messages:
            content = msgspec.json.encode(message["content"]).decode()
            self.originals.append(Original(len(self.originals), message["role"], content))

    def working(self, policy: Policy) -> Working:
        """Return what a compaction starts from."""
        tail = self.originals[self.snapshot.covers_through + 1 :]
        return build(self.snapshot, tail, policy, in_pieces=self._in_pieces)

    def context(self, policy: Policy) -> list[Message]:
        """Return the messages that a model would be sent."""
        return [message.as_message() for message in self.view(policy)]

    def view(self, policy: Policy) -> View:
        """Return the same as a view."""
        return self.working(policy).view

    def recalling_view(self, policy: Policy) -> View:
        """Return the view with the names by which what it does not show can be had back, as recall handles are."""
        working = self.working(policy)
        text, claims = self.snapshot.summary, self.snapshot.claims
        view = working.view
        if text is not None and claims:
            cited = add_citations(text, claims)
            view = tuple(_replaced(message, text, cited) for message in view)
        left = missing_ranges_note(left_out(working, view), {})
        return with_note(view, left) if left else view

    def cut_tool_results(self, policy: Policy) -> bool:
        """Cut older tool results; return whether any was."""
        working = self.working(policy)
        cut = cut_tool_results(working.view, policy.tool_result_retention_chars)
        if cut.results:
            self._keep(settle(working, cut.view, run_id="", truncated=[working.view[at].seq for at in cut.indices]))
        return bool(cut.results)

    def summarize(self, policy: Policy, summarizer: Summarizer, pins: Sequence[Pin] = ()) -> Summary | None:
        """Put a summary in the place of everything between the first message and the protected tail.

        `pins` are all that hold. Return the summary; None where the zone is too small or nothing would be saved.
        Raises SummaryError.
        """
        working = self.working(policy)
        bare = without_pins(working.view, self._framed)
        zone = self._zone(bare, policy)
        if zone is None:
            return None
        previous = self.snapshot.summary
        replaced = bare[zone.start : zone.stop]
        before, tail = around(bare, zone, previous)
        request = SummaryRequest(
            replaced,
            previous,
            policy,
            other_texts=tuple(message_text(message.content) for message in before),
            tail=tail,
            claims=self.snapshot.claims,
            in_pieces=self._in_pieces,
        )
        summary = proved(summarizer.summarize(request), request)
        pinned = pin(rebuild(bare, zone, summary.text, previous=previous), pins, max_tokens=PINS_MAX_TOKENS)
        if not saves_enough(view_tokens(working.view), view_tokens(pinned.view), policy):
            return None
        settled = settle(
            working, pinned.view, run_id="", removed="summarized", summary=summary.text, claims=summary.claims
        )
        self._keep(settled)
        self._framed = pinned.framed
        return summary

    def drop(self, policy: Policy) -> None:
        """Drop the oldest exchanges down to the messages that the policy leaves where no summary could be made."""
        working = self.working(policy)
        trim = drop_oldest(
            working.view,
            lambda count, _: count <= policy.max_conversation_messages,
            carries_summary=self.snapshot.summary is not None,
            in_pieces=self._in_pieces,
        )
        if trim.dropped:
            self._keep(settle(working, trim.view, run_id="", truncated=[working.view[at].seq for at in trim.cut]))

    def around_summary(self, policy: Policy) -> View | None:
        """Return the context with a summary of no characters; None where there is no zone to summarize."""
        working = self.working(policy)
        zone = self._zone(working.view, policy)
        return None if zone is None else rebuild(working.view, zone, "", previous=self.snapshot.summary)

    def _zone(self, view: View, policy: Policy) -> Zone | None:
        tail = newest(view, policy.protected_tail_messages, in_pieces=self._in_pieces)
        return find_zone(view, tail, in_pieces=self._in_pieces)

    def _keep(self, new: NewSnapshot) -> None:
        self.snapshot = Snapshot(
            version=self.snapshot.version + 1,
            covers_through=new.covers_through,
            messages=load_view(new.messages_json, new.seqs),
            summary=new.summary,
            coverage=new.coverage,
            prefix_hash=new.prefix_hash,
            claims=new.claims,
        )


def _replaced(message: ViewMessage, text: str, by: str) -> ViewMessage:
    """Return a message with a text in it replaced, itself where it has none."""
    parts = [dict(block) for block in blocks(message.content)]
    if not any(_has(part, text) for part in parts):
        return message
    return message.with_content(
        [{**part, "text": part["text"].replace(text, by)} if _has(part, text) else part for part in parts]
    )


def _has(block: Mapping[str, Any], text: str) -> bool:
    return block.get("type") == "text" and text in str(block.get("text"))
