"""Snapshots: the working view of a conversation, and what of a new view has to be written down."""

from __future__ import annotations

import hashlib
from bisect import bisect_right
from dataclasses import dataclass
from itertools import compress, count
from operator import attrgetter, is_not
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Final, Literal, NamedTuple

import msgspec

from compaction.cache_marks import without_marks
from compaction.coverage import Coverage, Fate, Span, extend, find_span, gone_spans, name_seqs, shown_seqs
from compaction.credentials.masking import Masker
from compaction.frames.codes import code_at_end
from compaction.frames.languages import language_of_frames
from compaction.media.limits import NO_MEDIA, MediaLoad, media_load
from compaction.messages import CACHE_MARK, acceptable, is_instruction, is_request
from compaction.pins.pinned import (
    Pin,
    latest_request_pin,
    masked_pins,
    message_text,
    only_frames,
    standing_pins,
    without_pins,
)
from compaction.pins.requests import is_answered
from compaction.recall.handles import Handles
from compaction.repair import Repairs, mend
from compaction.shorten.inline_tags import cut_inline
from compaction.sizes import uncounted_bytes
from compaction.soundness import is_sound
from compaction.steps.boundary import tail_begins, with_answers
from compaction.steps.stored_view import NOTHING, StoredView, dump_messages
from compaction.summary.zone import frames_index, preamble_length, without_summary
from compaction.text.names import speaker_of
from compaction.view import (
    WRITTEN,
    View,
    ViewMessage,
    WholeResults,
    cap_results,
    map_blocks,
    strip_thinking,
    view_tokens,
)

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator, Mapping, Sequence

    from compaction.claims.claim import Claim
    from compaction.policy import Policy


NOTHING_MASKED: Final[Mapping[str, int]] = MappingProxyType({})


class _Stored(msgspec.Struct, gc=False):
    role: str
    content: Any


NO_NAMES: Final[Mapping[int, str]] = MappingProxyType({})
_ROLE: Final = attrgetter("role")
_CONTENT: Final = attrgetter("content")
_SEQ: Final = attrgetter("seq")
_json = msgspec.json.Encoder()
_loads = msgspec.json.Decoder().decode
_load_messages = msgspec.json.Decoder(list[_Stored]).decode


UNREAD: Final = '""'
"""Content of an original that a hard limit left unread: no view shows it, and a snapshot that covers it dropped it."""
_INSTRUCTED: Final = "instruction-"
"""Begins the id of a pin that is a whole system or developer message."""
STRIPPED: Final = "reasoning from before the last compaction or change of model is left out: it is valid no longer"


@dataclass(frozen=True, slots=True)
class Snapshot:
    """A stored compacted view of messages `0..covers_through`; version 0 covers nothing."""

    version: int = 0
    covers_through: int = -1
    messages: View = ()
    summary: str | None = None
    coverage: Coverage = ()
    prefix_hash: bytes = b""
    pins: tuple[Pin, ...] = ()
    """Those in the frame of its first user message."""
    claims: tuple[Claim, ...] | None = None
    """What the lines of its summary rest on; None where that is not known."""
    stored: StoredView = NOTHING
    """What else is stored of its messages; nothing where nobody asked for it."""


class Original(NamedTuple):
    """A stored message of the tail: its seq, role, content as JSON text, and its estimated tokens where known."""

    seq: int
    role: str
    content: str
    tokens: int | None = None


class Working(NamedTuple):
    """What a compaction starts from: the whole view, made valid, and where it came from."""

    view: View
    snapshot: Snapshot
    tail: tuple[Original, ...]
    warnings: tuple[str, ...]
    pins: tuple[Pin, ...] = ()
    """What has to stay word for word, shown or in a frame; the view itself holds no frame then."""
    withdrawn: frozenset[tuple[int, str]] = frozenset()
    """Seqs and texts of standing instructions that were withdrawn."""
    unrepaired: View = ()
    """The tail's messages where repair had something to do: it may have moved blocks from one to another."""
    whole: WholeResults | None = None
    """The tool results that the view has capped; None where they are not read again."""
    handles: Handles | None = None
    """By what names results that are cut can be had back; None where the policy has no handles."""
    broken_through: int | None = None
    """Seq of the newest message that was stored broken, -1 for none; None = not known."""
    in_pieces: bool = False
    """Whether turns came in another shape than the Messages API's, so that neighbours of one role count as one."""
    names: Mapping[int, str] = NO_NAMES
    """Who wrote messages, by seq, as far as it is known."""
    masks_secrets: bool = True
    """Whether credentials are masked in what is shortened."""
    language: str = "english"
    """Of the frames that a compaction writes."""
    frame_code: str = ""
    """Of the conversation's frames."""

    @property
    def last_seq(self) -> int:
        """Seq of the newest message, -1 for none."""
        return self.tail[-1].seq if self.tail else self.snapshot.covers_through


class UncoveredSourceError(Exception):
    """A snapshot would hold text of messages that its coverage does not name, so that no edit would remove it."""


class NewSnapshot(NamedTuple):
    """What is written for a view that a compaction made."""

    messages_json: str
    seqs: tuple[int, ...]
    covers_through: int
    coverage: Coverage
    summary: str | None
    prefix_hash: bytes
    tokens: int
    bytes: int
    exchanges: int
    pins: tuple[Pin, ...] = ()
    claims: tuple[Claim, ...] | None = None
    sources: frozenset[int] = frozenset()
    """Seqs of messages whose text its new summary, claims and pins hold, besides those that it shows."""
    masked: Mapping[str, int] = NOTHING_MASKED
    """How many credentials of each kind were masked in messages that were shortened."""
    media: MediaLoad = NO_MEDIA
    """What its messages have of images and files."""

    def check_sources(self) -> None:
        """Raise UncoveredSourceError if it holds text of messages that its coverage does not name."""
        named = self.sources.union(self.seqs) - {WRITTEN}
        seqs = {seq for seq in named if seq > self.covers_through or find_span(self.coverage, seq) is None}
        if seqs:
            raise UncoveredSourceError(f"it holds text of messages that it does not cover: {name_seqs(seqs)}")


def load_view(messages_json: str, seqs: Sequence[int]) -> View:
    """Return the view that a snapshot stores. Raises ValueError where seqs and messages are not as many."""
    stored = _load_messages(messages_json)
    if len(stored) != len(seqs):
        raise ValueError("a snapshot has a seq for each message")
    return tuple(map(ViewMessage, map(_ROLE, stored), map(_CONTENT, stored), seqs))


def serialized(message: dict[str, Any]) -> bytes:
    """Return one message as JSON."""
    return _json.encode(message)


def serialized_bytes(message: ViewMessage) -> int:
    """Return the bytes of one message in a serialized context, with the comma after it."""
    return len(serialized(message.as_message())) + 1


def counted_bytes(message: ViewMessage) -> int:
    """Return what a message takes of `max_context_bytes` in a serialized context, see `sizes`."""
    return serialized_bytes(message) - uncounted_bytes(message.content)


def build(
    snapshot: Snapshot,
    tail: Sequence[Original],
    policy: Policy,
    *,
    strip_thinking_through: int = -1,
    other_model_through: int = -1,
    pinned: Sequence[Pin] | None = None,
    withdrawn: frozenset[tuple[int, str]] = frozenset(),
    broken_through: int | None = None,
    in_pieces: bool = False,
    names: Mapping[int, str] = NO_NAMES,
    frame_code: str = "",
) -> Working:
    """Return the view of a conversation: the snapshot and the tail, stripped, repaired, capped, inline results cut.

    Signed thinking in the tail up to `strip_thinking_through` is left out: its prefix has changed since; so is that of
    another model in the snapshot, up to `other_model_through`. For a view to be compacted, `pinned` has the rules in
    force, and `withdrawn` those that are not any more: the frame of pins is taken off, to be put on again when the new
    view is settled. For one to be served it is None. Up to `broken_through` (None = throughout) repair may have moved
    blocks of the snapshot: there handles name no place. `in_pieces` tells that turns came in another shape than the
    Messages API's. `names` are those of who wrote messages, by seq, as far as they are known. `frame_code` is the
    conversation's, for frames of a snapshot that has none: a fork goes on with the code that it was copied with.
    """
    stored = tuple(map(_as_stored, tail))
    current = strip_thinking(stored, strip_thinking_through)
    before = strip_thinking(snapshot.messages, other_model_through)
    is_unstripped = (before, current) == (snapshot.messages, stored)
    warnings = [] if is_unstripped else [STRIPPED]
    # Snapshots are written whole, and of a turn it is found out when it is appended; a context is served by no more.
    is_known = (
        broken_through is not None
        and broken_through <= snapshot.covers_through
        and is_unstripped
        and not in_pieces
        and not (tail and tail[0].content == UNREAD)
    )
    if pinned is not None and snapshot.pins:
        before = without_pins(before, snapshot.pins, _code_of(snapshot) or "")
        is_known = is_known and before == snapshot.messages
    handles = None
    joined = (*before, *current)
    is_whole = is_known or is_sound(joined)
    if policy.recall_handles:
        if not is_whole:
            # What repair would mend is mended first, so that a block is the same before and after it.
            current = tuple(map(_mended, current))
            joined = (*before, *current)
        unplaced = snapshot.covers_through if broken_through is None else broken_through
        handles = Handles(joined, head=len(before), unplaced_through=unplaced)
    # An answer that was thought alone is the newest message still where nothing of it is left to show.
    has_newest = [message.seq for message in current[-1:]] == [message.seq for message in stored[-1:]]
    sound, repairs = (joined, Repairs()) if is_whole else mend(joined, ends_with_newest=has_newest)
    unrepaired = () if sound is joined else _shortened(current, policy, handles)
    all_warnings = (*warnings, *repairs.warnings())
    whole = WholeResults() if policy.html_results == "text" else None
    view = _shortened(sound, policy, handles, whole)
    working = Working(
        view,
        snapshot,
        tuple(tail),
        all_warnings,
        unrepaired=unrepaired,
        whole=whole,
        handles=handles,
        broken_through=broken_through,
        in_pieces=in_pieces,
        names=names,
        masks_secrets=policy.secrets == "mask",
        frame_code=_code_of(snapshot) or frame_code,
    )
    if pinned is None:
        return working
    # The ledger has what was entered when it came; what is older, or deep in a long message, is looked for here.
    known = withdrawn.union((pin.seq, pin.text) for pin in pinned)
    # What was in a frame before has no credentials any more.
    gone = (Pin("", seq, text) for seq, text in withdrawn)
    known |= {(pin.seq, pin.text) for pin in masked_pins((*pinned, *gone), policy)}
    standing = (pin for pin in _standing(working) if (pin.seq, pin.text) not in known)
    latest = _latest_request(working, (*before, *stored))
    is_framed = snapshot.summary is not None or bool(snapshot.pins)
    language = language_of_frames(policy.frame_language, snapshot.messages if is_framed else view, is_framed=is_framed)
    return working._replace(pins=(*pinned, *standing, *latest), withdrawn=withdrawn, language=language)


def _code_of(snapshot: Snapshot) -> str | None:
    """Return the code of the frames in a snapshot, None if it has no frames or they have none."""
    host = frames_index(snapshot.messages) if snapshot.summary is not None or snapshot.pins else None
    return None if host is None else code_at_end(message_text(snapshot.messages[host].content))


def _as_stored(row: Original) -> ViewMessage:
    seq, role, content, tokens = row
    message = ViewMessage(role, _loads(content), seq)
    if tokens is not None and content != UNREAD:
        message.__dict__["tokens"] = tokens
    return message


def _mended(message: ViewMessage) -> ViewMessage:
    return map_blocks(message, lambda block: acceptable(message.role, block) or block)


def _shortened(view: View, policy: Policy, handles: Handles | None, whole: WholeResults | None = None) -> View:
    """Return `view` with tool results capped and inline ones cut."""
    capped = cap_results(view, policy.max_tool_result_chars, handles, whole)
    return cut_inline(capped, policy.inline_tool_tags, policy.tool_result_retention_chars, handles)


def _standing(working: Working) -> tuple[Pin, ...]:
    """Return the standing instructions of the conversation's first message."""
    first = _first_seq(working)
    opening = next((message for message in working.view if message.seq == first), None)
    if opening is None or opening.role != "user":
        return tuple(pin for pin in working.snapshot.pins if pin.source == "standing_instruction")
    if working.snapshot.summary is not None:
        opening = without_summary(opening, working.snapshot.summary)
    earlier = (pin for pin in working.snapshot.pins if pin.id.startswith(_INSTRUCTED))
    instructions = {pin.id: pin for pin in (*earlier, *_instructions(working.view))}
    return (*standing_pins(message_text(opening.content), first), *instructions.values())


def _first_seq(working: Working) -> int:
    """Return the seq of the conversation's first message that is no instruction, as far as is known."""
    coverage, tail = working.snapshot.coverage, working.tail
    first = coverage[0].first if coverage else tail[0].seq if tail else WRITTEN
    return first + preamble_length(working.view)


def _instructions(view: View) -> Iterator[Pin]:
    """Yield what the system or the developer said after the beginning: it holds although its message may go."""
    for message in view[preamble_length(view) :]:
        # Most are none: the first question alone is cheaper than a call.
        if message.role == "user" and message.seq != WRITTEN and is_instruction(message.role, message.content):
            text = message_text(message.content)
            yield Pin(f"{_INSTRUCTED}{message.seq}", message.seq, text, "standing_instruction", "system")


def _latest_request(working: Working, originals: Sequence[ViewMessage]) -> tuple[Pin, ...]:
    """Return the latest request and whether it is answered; that of an earlier snapshot if the view shows none.

    `originals` are the messages of the view as they were stored, where none is repaired away.
    """
    request = latest_request_pin(working.view)
    if request is None:
        request = next((pin for pin in working.snapshot.pins if pin.source == "latest_request"), None)
    if request is None:
        return ()
    if request.seq in working.names:
        request = request._replace(speaker=speaker_of("user", working.names[request.seq]))
    return (request._replace(is_answered=request.is_answered or is_answered(originals, request.seq)),)


def settle(
    working: Working,
    after: View,
    *,
    run_id: str,
    truncated: Collection[int] = (),
    removed: Literal["summarized", "dropped"] = "dropped",
    summary: str | None = None,
    claims: tuple[Claim, ...] | None = None,
    pins: tuple[Pin, ...] = (),
    read_through: int = -1,
) -> NewSnapshot:
    """Return what to write so that the context becomes `after`.

    The snapshot holds only what can't be read from the tail: messages at the end that are as they were stay
    there. `truncated` are seqs that were cut, `removed` is the fate of originals that `after` no longer shows; `claims`
    are those of `summary`, `pins` those that are in its frame. The snapshot covers every message up to `read_through`,
    the newest that `summary` was made from, and the messages of its pins.
    """
    sources = _sources(working.snapshot, read_through, pins, claims if summary is not None else None)
    cut, covers = _covered(working, after, max(sources))
    if cut == len(after):
        after = with_answers(working, after)
        cut = len(after)
    kept = strip_thinking(after[:cut], covers, from_index=_first_change(working.view, after))
    known, rest = working.snapshot.stored.split(kept)
    masker = Masker()
    if working.masks_secrets:
        rest = _with_cuts_masked(rest, working, masker)
    text = dump_messages(rest)
    if CACHE_MARK in text:
        # What is cached begins anew behind a snapshot: marks in it would only use up those that the tail may have.
        rest = without_marks(rest)
        text = dump_messages(rest)
    messages_json = known.followed_by(text)
    new_rows = working.tail[: bisect_right(working.tail, covers, key=_SEQ)]
    seqs = tuple(map(_SEQ, rest))
    # What was gone before is not gone through again: a long conversation has far more of that than of the view.
    shown = () if known.messages else shown_seqs(working.snapshot.coverage)
    gone = {*shown, *map(_SEQ, new_rows)}.difference(seqs, map(_SEQ, after[cut:]))
    fates: dict[int, Fate] = dict.fromkeys(gone, removed)
    fates.update({seq: "dropped" for seq, _, content, _ in new_rows if content == UNREAD})
    fates.update({seq: "truncated" for seq in truncated if seq <= covers})
    return NewSnapshot(
        messages_json=messages_json,
        seqs=(*map(_SEQ, known.messages), *seqs),
        covers_through=covers,
        coverage=extend(working.snapshot.coverage, map(_SEQ, new_rows), fates, run_id),
        summary=summary if summary is not None else working.snapshot.summary,
        prefix_hash=_hash(working.snapshot.prefix_hash, new_rows),
        tokens=known.tokens + view_tokens(rest),
        bytes=len(messages_json) if messages_json.isascii() else len(messages_json.encode()),
        exchanges=known.exchanges + sum([is_request("user", each.content) for each in rest if each.role == "user"]),
        pins=pins,
        claims=claims if summary is not None else working.snapshot.claims,
        sources=sources,
        masked=masker.counts,
        media=media_load(message.content for message in (*known.messages, *rest)),
    )


def _sources(
    before: Snapshot, read_through: int, pins: Sequence[Pin], claims: Sequence[Claim] | None
) -> frozenset[int]:
    """Return the seqs of the messages that a new summary, its claims and pins rest on, without those of `before`."""
    known_pins, known_claims = set(before.pins), set(before.claims or ())
    named = {pin.seq for pin in pins if pin not in known_pins}
    named.update(seq for claim in claims or () if claim not in known_claims for seq in claim.seqs)
    return frozenset({read_through, *named})


def _with_cuts_masked(shown: View, working: Working, masker: Masker) -> View:
    """Return messages with the credentials masked in every block that is not as it came: it was written anew here."""
    rows = {row.seq: row for row in working.tail}
    before = {message.seq: message for message in working.snapshot.messages}

    def masked(message: ViewMessage) -> ViewMessage:
        if message.seq == WRITTEN or message is before.get(message.seq):
            return message
        row = rows.get(message.seq)
        was = before.get(message.seq) if row is None or row.content == UNREAD else _as_stored(row)
        if was is None or was.content == message.content:
            return message
        content: Any = _apart_from_frames(message)
        changed: Any = masker.mask_anew(content, _apart_from_frames(was), message.seq)
        return message if changed is content else message.with_content(changed + message.content[len(content) :])

    return tuple(map(masked, shown))


def _apart_from_frames(message: ViewMessage) -> Any:
    """Return a content without the frames at its end, the summary's and the pins'."""
    frames = only_frames(message)
    return message.content if frames is None else message.content[: len(message.content) - len(frames.content)]


def left_out(working: Working, after: View, read_through: int = -1) -> list[Span]:
    """Return the originals that a snapshot of `after` would cover and not show, in order and apart from each other."""
    _, covers = _covered(working, after, read_through)
    kept_seqs = {message.seq for message in after}
    coverage = working.snapshot.coverage
    known = (*shown_seqs(coverage), *(row.seq for row in working.tail if row.seq <= covers))
    return gone_spans(coverage, (seq for seq in known if seq not in kept_seqs))


def _covered(working: Working, after: View, read_through: int) -> tuple[int, int]:
    """Return the index in `after` from which on it is the tail's, and the seq up to which the rest covers originals."""
    cut, first = tail_begins(working, after, read_through)
    return cut, max(first - 1, working.snapshot.covers_through)


def _first_change(before: View, after: View) -> int:
    return next(compress(count(), map(is_not, before, after)), min(len(before), len(after)))


def _hash(parent: bytes, rows: Sequence[Original]) -> bytes:
    """Return the hash of the prefix a snapshot represents, chained from its parent's."""
    digest = hashlib.sha256(parent)
    for seq, role, content, _ in rows:
        digest.update(f"{seq}\x00{role}\x00{content}".encode())
    return digest.digest()


def context_json(head: str | None, tail: str | None) -> str:
    """Return the context's messages as JSON text from a snapshot's text and the tail's, neither parsed.

    `head` is a JSON array or None, `tail` its elements' texts joined by commas or None.
    """
    if not tail:
        return head or "[]"
    if not head or head == "[]":
        return f"[{tail}]"
    return f"{head[:-1]},{tail}]"
