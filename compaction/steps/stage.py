"""The stage: a conversation as the next step of a run finds it."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import takewhile
from typing import TYPE_CHECKING, Final

from compaction.claims.citations import strip_citations
from compaction.frames.wordings import in_english
from compaction.media.shedding import load_of_view
from compaction.messages import has_tool_results
from compaction.pieces import count_messages, newest
from compaction.pins.left_out import with_note
from compaction.pins.pinned import IN_LEDGER, Pin, PinnedView, masked_pins, pin, with_left_out, with_pins
from compaction.recall.ranges import missing_ranges_note
from compaction.steps.ladder import Load
from compaction.steps.snapshot import Snapshot, build, left_out, load_view, serialized_bytes
from compaction.steps.stored_view import StoredView
from compaction.summary.zone import is_signed_alone
from compaction.view import WRITTEN, View, view_tokens

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from datetime import date

    from compaction.media.limits import MediaLoad
    from compaction.policy import Policy
    from compaction.steps.snapshot import NewSnapshot, Working
    from compaction.view import ViewMessage

_SOME_NOTE: Final = "[1 message is stored but not shown: recall m0]"


@dataclass(frozen=True)
class Stage:
    """A working view and what is known of it besides.

    `fixed_tokens` are those of system prompt, tools and carried context, `measured` is the API's count carried forward,
    `bytes` the size of the context serialized.
    """

    working: Working
    token_ratio: float = 1.0
    fixed_tokens: int = 0
    measured: int | None = None
    bytes: int = 0
    is_counted: bool = True
    """Whether the API counted anything since the last request."""
    days: Mapping[int, date] = field(default_factory=dict)
    """Of the messages that are shown, and the first that is not, by seq, in UTC; only for the notes of handles."""

    @property
    def view(self) -> View:
        """The messages."""
        return self.working.view

    @cached_property
    def tokens(self) -> int:
        """Estimated tokens of the messages, pins in a frame included, corrected by what the API counted."""
        working = self.working
        return self.estimate(with_pins(working.view, working.snapshot.pins, working.language, working.frame_code))

    @cached_property
    def media(self) -> MediaLoad:
        """What the view has of images and files."""
        return load_of_view(self.view)

    def pinned(self, view: View, policy: Policy, *, room: int | None = None, read_through: int = WRITTEN) -> PinnedView:
        """Return a view of this conversation with the pins that it does not show in a frame.

        With `recall_handles` it says as well by what name what is not shown can be had back. All of it takes at most
        `room` estimated tokens, where that is given. `read_through` is the newest seq that the view's summary was made
        from.
        """
        most = policy.pinned_max_tokens if room is None else min(policy.pinned_max_tokens, room)
        language, code = self.working.language, self.working.frame_code
        pinned = pin(view, masked_pins(self.working.pins, policy), max_tokens=most, language=language, code=code)
        if not policy.recall_handles or not view:
            return pinned
        # What it is in is not the tail's any more, whatever it says.
        covered = max([read_through, *(pin.seq for pin in pinned.framed)])
        spans = left_out(self.working, with_note(pinned.view, _SOME_NOTE), covered)
        noted = with_left_out(
            pinned, missing_ranges_note(spans, self.days, language), spans[-1].last if spans else WRITTEN
        )
        return noted if room is None or view_tokens(noted.view) - view_tokens(view) <= room else pinned

    def estimate(self, view: View) -> int:
        """Return the estimated tokens of a view of this conversation."""
        return round(self.working.snapshot.stored.tokens_of(view) * self.token_ratio)

    def shared(self, view: View) -> int:
        """Return the estimated tokens of the messages that this conversation and another view of it begin with."""
        alike = takewhile(lambda pair: pair[0] == pair[1], zip(self.view, view, strict=False))
        return self.estimate(tuple(message for message, _ in alike))

    @property
    def carries_summary(self) -> bool:
        """Whether the first message carries a summary."""
        return self.working.snapshot.summary is not None

    @property
    def previous_summary(self) -> str | None:
        """The summary that a new one replaces, in English, without references; one that the API signed stays."""
        snapshot = self.working.snapshot
        if snapshot.summary is None or is_signed_alone(self.view):
            return None
        summary = in_english(snapshot.summary)
        return summary if snapshot.claims is None else strip_citations(summary)

    @property
    def withdrawn(self) -> tuple[Pin, ...]:
        """The rules that were withdrawn, those left out that are in force in the same words again."""
        standing = {pin.text for pin in self.working.pins}
        gone = sorted((seq, text) for seq, text in self.working.withdrawn if text not in standing)
        return tuple(Pin("", seq, text, "standing_instruction") for seq, text in gone)

    def count(self, view: Sequence[ViewMessage]) -> int:
        """Return how many messages a view of this conversation has, as policies count them."""
        return count_messages(view, in_pieces=self.working.in_pieces)

    def protected_tail(self, policy: Policy) -> int:
        """Return how many stored messages a summary leaves alone at the end."""
        return newest(self.view, policy.protected_tail_messages, in_pieces=self.working.in_pieces)

    @property
    def newest_result(self) -> int:
        """Seq of the newest tool-result message, -1 for none."""
        return next((m.seq for m in reversed(self.view) if has_tool_results(m.role, m.content)), WRITTEN)

    @property
    def load(self) -> Load:
        """What the ladder decides from; holds do not bind a run that has begun."""
        return Load(
            self.tokens + self.fixed_input,
            self.measured,
            is_counted=self.is_counted,
            bytes=self.bytes,
            media=self.media,
        )

    def load_of(self, view: View) -> Load:
        """Return what the ladder would decide from with `view` in force: nothing counted it yet; bytes at most."""
        return Load(self.estimate(view) + self.fixed_input, None, bytes=self.bytes, media=load_of_view(view))

    @property
    def fixed_input(self) -> int:
        """Tokens of the input that no step can make fewer, corrected by what the API counted."""
        return round(self.fixed_tokens * self.token_ratio)

    def after(self, new: NewSnapshot, policy: Policy) -> Stage:
        """Return the stage that a commit of `new` would leave, if nothing else happened."""
        before = self.working
        messages = load_view(new.messages_json, new.seqs)
        snapshot = Snapshot(
            version=before.snapshot.version + 1,
            covers_through=new.covers_through,
            messages=messages,
            summary=new.summary,
            coverage=new.coverage,
            prefix_hash=new.prefix_hash,
            pins=new.pins,
            claims=new.claims,
            stored=StoredView(messages, new.messages_json, new.tokens, new.exchanges),
        )
        tail = [row for row in before.tail if row.seq > new.covers_through]
        pinned = [each for each in before.pins if each.source in IN_LEDGER.values()]
        working = build(
            snapshot,
            tail,
            policy,
            strip_thinking_through=before.last_seq,
            pinned=pinned,
            withdrawn=before.withdrawn,
            broken_through=before.broken_through,
            in_pieces=before.in_pieces,
            names=before.names,
            frame_code=before.frame_code,
        )
        return replace(self, working=working, measured=None, bytes=sum(map(serialized_bytes, working.view)))
