"""The history of a context: the view that the stored head and tail make, and the facts that fitting it needs."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import msgspec

from compaction.messages import is_request
from compaction.payload.assembly import History
from compaction.pins.pinned import IN_LEDGER, Pin, masked_pins
from compaction.pins.serving import with_speakers
from compaction.shorten.fitting import count_exchanges
from compaction.shorten.trimming import exchanges, last_answer, rounds
from compaction.steps.snapshot import Original, Snapshot, build, load_view
from compaction.summary.zone import opening_length
from compaction.text.names import name_in
from compaction.view import WRITTEN

if TYPE_CHECKING:
    from collections.abc import Sequence

    from compaction.payload.stored_context import StoredContext
    from compaction.policy import Policy
    from compaction.steps.snapshot import Working
    from compaction.view import View

_content: Final = msgspec.json.Decoder().decode
_sent: Final = msgspec.json.Decoder(list[tuple[int, msgspec.Raw]]).decode
_rows: Final = msgspec.json.Decoder(list[tuple[int, str, msgspec.Raw]]).decode


def rules_in_force(stored: StoredContext) -> tuple[Pin, ...]:
    """Return the rules in force, under the ids that clients see."""
    return tuple(
        Pin(f"rule_{entry}", seq, text, IN_LEDGER[source])
        for entry, seq, text, source in stored.shapes.rules
        if source in IN_LEDGER
    )


def describe_history(stored: StoredContext, working: Working, policy: Policy) -> History:
    """Return what is known of the history besides its view. What repair left out of a view that is whole was none."""
    return History(
        stored.exchanges if stored.gap else count_exchanges(working.view),
        stored.factor,
        carries_summary=bool(stored.has_summary),
        lacks_rounds=stored.gap and _has_skipped_rounds(working.view),
        unread=_list_unread(stored, working) if stored.gap else (),
        handles=working.handles,
        rules=masked_pins(with_speakers(rules_in_force(stored), working.view, _find_speakers(stored)), policy),
        is_part=stored.gap,
        frame_code=working.frame_code,
    )


def _find_speakers(stored: StoredContext) -> dict[int, str]:
    """Return who wrote the messages that rules are of, by seq, as far as what was read says so."""
    if not stored.shapes.rules or stored.sent is None or stored.plain:
        return {}
    stating = {seq for _, seq, _, _ in stored.shapes.rules}
    named = ((seq, name_in(bytes(message).decode())) for seq, message in _sent(stored.sent) if seq in stating)
    return {seq: name for seq, name in named if name}


def _list_unread(stored: StoredContext, working: Working) -> list[int]:
    """Return the seqs between which the view has a gap."""
    read = {row.seq for row in working.tail}.union(message.seq for message in working.snapshot.messages)
    seqs = (*(stored.head_seqs or ()), *range(stored.covers_through + 1, stored.last_seq + 1))
    return [seq for seq in seqs if seq not in read and seq != WRITTEN]


def _has_skipped_rounds(view: View) -> bool:
    """Return whether what follows the request that was answered last is not what was stored next to it."""
    answer = last_answer(view)
    request = next(
        (index for index in reversed(range(answer)) if is_request(view[index].role, view[index].content)), -1
    )
    return request >= 0 and view[request + 1].seq != view[request].seq + 1


def build_history(stored: StoredContext, policy: Policy) -> Working:
    """Return the view of what was read."""
    messages = load_view(stored.head, stored.head_seqs or ()) if stored.head else ()
    tail = [Original(seq, role, bytes(content).decode()) for seq, role, content in _rows(stored.tail or "[]")]
    if stored.gap:
        messages = _keep_before_gap(messages, tail, has_summary=bool(stored.has_summary))
    snapshot = Snapshot(
        version=stored.head_version,
        covers_through=stored.covers_through,
        messages=messages,
        summary="" if stored.has_summary else None,
    )
    # What was thought with more before it was signed for that.
    changed_through = stored.last_seq if stored.gap else stored.strip_thinking_through
    return build(
        snapshot,
        tail,
        policy,
        strip_thinking_through=changed_through,
        other_model_through=stored.shapes.other_model_through,
        frame_code=stored.frame_code,
    )


def _keep_before_gap(messages: View, tail: Sequence[Original], *, has_summary: bool) -> View:
    """Return what of a snapshot comes before a tail that begins later: its summary, and what the tail goes on from.

    That is the request of rounds that were read; where nothing was answered since, the answer to it as well.
    """
    opening = opening_length(messages, carries_summary=has_summary)
    is_answered = any(row.role == "assistant" for row in tail)
    if not messages or (is_answered and is_request(tail[0].role, _content(tail[0].content))):
        return messages[:opening]
    last = exchanges(messages)[-1]
    newest = rounds(messages, last)[-1:]
    before = newest[0].start if newest and not is_answered else len(messages)
    asked = [index for index in range(before) if is_request(messages[index].role, messages[index].content)][-1:]
    core = {*range(opening), *asked, *(index for part in newest if not is_answered for index in part)}
    return tuple(message for index, message in enumerate(messages) if index in core)
