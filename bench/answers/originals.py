"""What a model's one recall gives back: the product's search over a conversation's originals, without its database."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, Final

import msgspec

from actions.recall import hits_for
from compaction.recall import references
from compaction.recall.framing import frame_passages
from compaction.recall.passages import (
    PackedPassages,
    StoredText,
    pack_passages,
    quote_messages,
    read_range,
    segments_of,
)
from compaction.recall.patterns import BadPatternError, PatternSearch
from compaction.recall.ranking import Hit, rank
from compaction.recall.words import NEUTRAL, term_places
from gateway.recalls.calls import AnsweredCall

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from bench.fidelity.recall import Message
    from gateway.recalls.calls import RecallCall

MAX_TOKENS: Final = 2_000
"""Tokens that an answer may have; the API's default."""
_LIMIT: Final = 1_000
_WHEN: Final = datetime(2026, 1, 1, tzinfo=UTC)
"""Recorded talk does not say when its messages were sent, but in their texts."""
ONCE: Final = "There is one recall for each question, and this one has had it."


class Originals:
    """The messages of a conversation, ready to be searched; by several threads at once."""

    def __init__(self, messages: Sequence[Message]) -> None:
        self._messages = quote_messages(
            StoredText(seq, each["role"], msgspec.json.encode(each["content"]).decode(), _WHEN)
            for seq, each in enumerate(messages)
        )
        self._segments = segments_of(self._messages)
        self._languages = {seq: segment.language for segment in self._segments for seq in segment.seqs}

    def answers(self, calls: Sequence[RecallCall]) -> list[AnsweredCall]:
        """Return the result of the first call, and for the others that there is but one."""
        first, *others = calls
        return [self._answer(first), *(AnsweredCall(call.id, ONCE, is_error=True) for call in others)]

    def _answer(self, call: RecallCall) -> AnsweredCall:
        try:
            return AnsweredCall(call.id, frame_passages(self._packed(call.asked)), is_error=False)
        except (references.BadReferenceError, BadPatternError) as error:
            return AnsweredCall(call.id, str(error), is_error=True)

    def _packed(self, asked: Mapping[str, Any]) -> PackedPassages:
        if "ref" in asked:
            return self._by_ref(str(asked["ref"]), asked.get("offset"))
        if "pattern" in asked:
            return self._by_pattern(str(asked["pattern"]))
        return self._by_query(str(asked.get("query", "")))

    def _by_query(self, query: str) -> PackedPassages:
        ranking = rank(self._segments, query)
        hits = ranking.hits[: hits_for(MAX_TOKENS)]

        def focus(seq: int, text: str) -> Sequence[tuple[int, float]]:
            language = self._languages.get(seq, NEUTRAL)
            return term_places(text, language, ranking.weights.get(language, {}))

        packed = pack_passages(hits, self._messages, max_tokens=MAX_TOKENS, limit=_LIMIT, focus=focus)
        return packed._replace(more=packed.more or len(hits) < len(ranking.hits))

    def _by_ref(self, ref: str, offset: Any) -> PackedPassages:
        place = references.parse(ref)
        named = [] if place.is_context else [m for s, m in self._messages.items() if place.first <= s <= place.last]
        if not named:
            raise references.BadReferenceError("There is nothing of this reference to be recalled.")
        skipped = offset if isinstance(offset, int) and not place.is_range else 0
        return read_range(named, block=place.block, offset=skipped, max_tokens=MAX_TOKENS)

    def _by_pattern(self, pattern: str) -> PackedPassages:
        search = PatternSearch(pattern)
        newest_first = reversed(self._messages.items())
        hits = [
            Hit(seq, 1.0) for seq, each in newest_first if any(search.find_places(part.text) for part in each.parts)
        ]
        return pack_passages(
            hits, self._messages, max_tokens=MAX_TOKENS, limit=_LIMIT, focus=lambda _, text: search.find_places(text)
        )
