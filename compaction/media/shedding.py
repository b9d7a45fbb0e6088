"""Shedding media: images and files give way to a text that names them, the oldest first."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from compaction.media.files import media_facts
from compaction.media.limits import NO_MEDIA, MediaLoad, load_of, media_in
from compaction.recall import references
from compaction.summary.attachments import media_note
from compaction.view import WRITTEN, View, ViewMessage, strip_thinking

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Sequence

    from compaction.media.files import MediaFacts
    from compaction.media.limits import MediaLimits

_NOTE: Final = "[{about}: stored but not shown{where}]"
_NAMED: Final = re.compile(r"\[(?P<about>[^\[\]\n]+): stored but not shown(?:, recall (?P<place>m\d{1,9}\.\d{1,6}))?\]")
_STEPS: Final = 10
"""What is over a limit is shed in tenths of it, so that what is served stays the same for a while."""


class Medium(NamedTuple):
    """One image or file of a view."""

    message: int
    """Index of its message."""
    place: tuple[int, ...]
    """The way to it in the message's content: the index of its block, and that inside a tool result."""
    facts: MediaFacts

    @property
    def load(self) -> MediaLoad:
        """Return what it adds to a context's load."""
        return load_of(self.facts)


class ShedMedia(NamedTuple):
    """A view with fewer media."""

    view: View
    seqs: tuple[int, ...] = ()
    """Seqs of the messages that lost any."""
    replaced: int = 0
    """Media that were replaced."""


def media_of(view: Sequence[ViewMessage]) -> list[Medium]:
    """Return the media of a view, oldest first."""
    return [
        Medium(index, place, facts) for index, message in enumerate(view) for place, facts in media_in(message.content)
    ]


def load_of_view(view: Iterable[ViewMessage]) -> MediaLoad:
    """Return what a view has of media."""
    load = NO_MEDIA
    for message in view:
        for _, facts in media_in(message.content):
            load += load_of(facts)
    return load


def shed_media(view: Sequence[ViewMessage], limits: MediaLimits, *, beside: MediaLoad = NO_MEDIA) -> ShedMedia:
    """Return `view` within `limits`: the oldest media become texts that name them.

    No more go than that takes, rounded up to a tenth of the limit, so that the next request begins alike. The newest
    stay, unless they are over a limit by themselves. `beside` is what the same request has besides the view,
    which nothing is taken from. Idempotent: a view within its limits comes back as it is.
    """
    every = media_of(view)
    if not every or (not (beside + _total(every)).exceeds(limits) and not _has_too_large(every, limits)):
        return ShedMedia(tuple(view))
    return replace_media(view, _select_excess(every, limits, beside))


def replace_media(view: Sequence[ViewMessage], media: Collection[Medium]) -> ShedMedia:
    """Return `view` with the given media replaced by the texts that name them.

    Signed thinking after the first change is left out: it is valid only while nothing before it has changed.
    """
    if not media:
        return ShedMedia(tuple(view))
    places: dict[int, set[tuple[int, ...]]] = {}
    for medium in media:
        places.setdefault(medium.message, set()).add(medium.place)
    changed = tuple(
        message if (own := places.get(index)) is None else message.with_content(_replace_media(message, own))
        for index, message in enumerate(view)
    )
    last = max((message.seq for message in view), default=WRITTEN)
    seqs = tuple(view[index].seq for index in sorted(places) if view[index].seq != WRITTEN)
    return ShedMedia(strip_thinking(changed, last, from_index=min(places) + 1), seqs, len(media))


def without_media(message: ViewMessage) -> ViewMessage:
    """Return a message whose media are all replaced by the texts that name them."""
    return replace_media((message,), media_of((message,))).view[0]


def media_notes(view: Sequence[ViewMessage]) -> list[str]:
    """Return for each medium of a view what it is and where recall finds it, oldest first.

    Those that are texts already have their place too.
    """
    notes = []
    for message in view:
        for index, block in enumerate(message.content if isinstance(message.content, list) else ()):
            inner = block.get("content") if block.get("type") == "tool_result" else None
            for part in inner if isinstance(inner, list) else [block]:
                if not isinstance(part, dict):
                    continue
                text = part if media_facts(part) is None else named_medium(part, message.seq, index)
                if named := _NAMED.fullmatch(str(text.get("text"))):
                    notes.append(named["about"] + (f" [{named['place']}]" if named["place"] else ""))
    return notes


def named_medium(block: dict[str, Any], seq: int, index: int) -> dict[str, Any]:
    """Return the text block that stands for an image or a file, block `index` of the message with `seq`.

    It has the block's mark for the prompt cache.
    """
    where = "" if seq == WRITTEN else f", recall {references.block(seq, index)}"
    about = _MEDIA_TYPE.sub(lambda match: match[1].upper(), media_note(block).translate(_BRACKETS))
    text = _NOTE.format(about=about, where=where)
    mark = block.get("cache_control")
    return {"type": "text", "text": text, **({} if mark is None else {"cache_control": mark})}


_MEDIA_TYPE: Final = re.compile(r"\b(?:image|application|audio|video)/([\w.+-]+)")
"""Written as `PNG`: what is left of an image must not count as one for who looks for its type."""
_BRACKETS: Final = str.maketrans("[]", "()")
"""A name from outside must not end the note, nor begin another one."""


def _replace_media(message: ViewMessage, places: Collection[tuple[int, ...]]) -> Any:
    def new(block: Any, place: tuple[int, ...]) -> Any:
        if place in places:
            return named_medium(block, message.seq, place[0])
        if len(place) == 1 and any(each[0] == place[0] for each in places):
            return {**block, "content": [new(part, (*place, at)) for at, part in enumerate(block["content"])]}
        return block

    return [new(block, (index,)) for index, block in enumerate(message.content)]


def _total(media: Iterable[Medium]) -> MediaLoad:
    load = NO_MEDIA
    for medium in media:
        load += medium.load
    return load


def _has_too_large(media: Iterable[Medium], limits: MediaLimits) -> bool:
    return any(_is_too_large(medium, limits) for medium in media)


def _is_too_large(medium: Medium, limits: MediaLimits) -> bool:
    """Return whether an image is refused in any request, however few others there are."""
    return medium.facts.kind == "image" and 0 < limits.image_bytes < medium.facts.encoded_bytes


def _select_excess(media: Sequence[Medium], limits: MediaLimits, beside: MediaLoad) -> list[Medium]:
    """Return the media that have to go, oldest first."""
    gone = {medium for medium in media if _is_too_large(medium, limits)}
    for measure, limit in (
        (_images, limits.images),
        (_documents, limits.documents),
        (_pages, limits.document_pages),
        (_images_and_pages, limits.media),
        (_bytes, limits.media_bytes),
    ):
        gone |= _oldest_over(media, gone, measure, limit, measure(beside))
    gone |= _too_long_sides(media, gone, limits, beside)
    return [medium for medium in media if medium in gone]


def _images(load: MediaLoad) -> int:
    return load.images


def _documents(load: MediaLoad) -> int:
    return load.documents


def _pages(load: MediaLoad) -> int:
    return load.document_pages


def _images_and_pages(load: MediaLoad) -> int:
    return load.images + load.document_pages


def _bytes(load: MediaLoad) -> int:
    return load.bytes


def _oldest_over(
    media: Sequence[Medium],
    gone: Collection[Medium],
    measure: Callable[[MediaLoad], int],
    limit: int,
    beside: int,
) -> set[Medium]:
    """Return the oldest media without which the rest are within a limit by one measure.

    They are counted from the first medium of all, in steps of a tenth of the limit: as more come, the same stay.
    """
    sizes = [(medium, measure(medium.load)) for medium in media]
    over = beside + sum(size for _, size in sizes) - limit
    left = beside + sum(size for medium, size in sizes if medium not in gone)
    if limit <= 0 or left <= limit:
        return set()
    step = max(1, limit // _STEPS)
    wanted = -(-over // step) * step
    newest = media[-1].message
    shed: set[Medium] = set()
    count = 0
    for medium, size in sizes:
        # What was wanted for the sake of later requests alone leaves the newest message be.
        if count >= over and (count >= wanted or medium.message == newest):
            break
        count += size
        if size:
            shed.add(medium)
    return shed.difference(gone)


def _too_long_sides(
    media: Sequence[Medium], gone: Collection[Medium], limits: MediaLimits, beside: MediaLoad
) -> set[Medium]:
    """Return the images that have to go because some are too large for a request of so many.

    Either those that are too large go, or the oldest, until there are few: whatever is less, and the newest stay.
    """
    images = [medium for medium in media if medium.facts.kind == "image" and medium not in gone]
    count = beside.images + len(images)
    large = [medium for medium in images if medium.facts.size and max(medium.facts.size) > limits.image_side > 0]
    if count < limits.side_from or not large:
        return set()
    excess = count - limits.side_from + 1
    step = max(1, (limits.side_from - 1) // _STEPS)
    oldest = images[: -(-excess // step) * step]
    newest = images[-1].message
    may_be_few = limits.side_from > 1 and beside.images < limits.side_from
    if may_be_few and (len(oldest) < len(large) or any(medium.message == newest for medium in large)):
        return {medium for medium in oldest if medium.message != newest} | set(oldest[:excess])
    return set(large)
