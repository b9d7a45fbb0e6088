"""The summarizer that needs no model: it keeps what matters of the text itself."""

from __future__ import annotations

from itertools import chain
from typing import TYPE_CHECKING, Final

from compaction.claims.citations import add_citations
from compaction.claims.extracted import claims_of_extract
from compaction.extract.extractive import extract_placed
from compaction.pieces import places
from compaction.private_fields import without_private
from compaction.quality.evidence import mentions
from compaction.steps.runs import RunReason
from compaction.text.clauses import READ_CHARS
from compaction.tokens import CHARS_PER_TOKEN, text_weight
from compaction.view import WRITTEN, view_tokens
from worker.summarizers.base import Spent, Summary, SummaryError

if TYPE_CHECKING:
    from collections.abc import Iterator

    from compaction.text.salience import Source
    from worker.summarizers.base import SummaryRequest

PROMPT_VERSION = "extract-6"

SHARE: Final = 8
"""An extract may fill this part of the threshold: a larger one would have the next summary due at once."""
REPLACED_SHARE: Final = 4
"""It may always have this part of what it replaces: a threshold below what has to stay cannot be kept to anyway."""
LEAST_TOKENS: Final = 64
"""And never less than a summary can be asked to have: the least of `summary_max_tokens`."""


class ExtractiveSummarizer:
    """Offline and deterministic; its text says that it is an extract."""

    name = "extractive"
    model = None

    def summarize(self, request: SummaryRequest) -> Summary:
        """Return an extract of at most `summary_max_tokens`, and of no more than its share of the context.

        Raises SummaryError if there was nothing to extract.
        """
        policy = request.policy
        replaced = view_tokens(request.zone) + text_weight(request.previous or "") // CHARS_PER_TOKEN
        fair = max(policy.compaction_threshold_tokens // SHARE, replaced // REPLACED_SHARE, LEAST_TOKENS)
        most = min(policy.summary_max_tokens, fair)
        originals = [message for message in request.zone if message.seq != WRITTEN]
        numbers = places(originals, in_pieces=request.in_pieces)
        at: dict[int, list[int]] = {}
        for place, message in zip(numbers, originals, strict=True):
            at.setdefault(place, []).append(message.seq)
        said = [
            {
                "role": message.role,
                "content": without_private(message.content, request.strip_fields),
                "name": request.names.get(message.seq, ""),
            }
            for message in originals
        ]
        shown = list(_staying(request))
        limit = room = most * CHARS_PER_TOKEN
        while True:
            text, placed = extract_placed(said, max_chars=room, previous=request.previous, places=numbers, beside=shown)
            claims = claims_of_extract(text, placed, at, previous=request.previous, earlier=request.claims or ())
            full = add_citations(text, claims) if policy.recall_handles else text
            weight = text_weight(full)
            over = weight - limit
            # References count, too: what they take the wording has to give up.
            if over <= 0 or room < limit * len(text) // text_weight(text) // 2:
                break
            # In characters, of which one of a dense script is a token by itself.
            room = min(room, len(full)) - -(-over * len(full) // weight)
        if not text.strip():
            raise SummaryError(RunReason.EMPTY_SUMMARY, "there was nothing to extract")
        return Summary(text, None, PROMPT_VERSION, Spent(), claims=claims)


def _staying(request: SummaryRequest) -> Iterator[tuple[Source, str]]:
    """Yield the texts after the zone, of tool results what a cut would leave of them: it may come before a summary."""
    for mention in chain.from_iterable(map(mentions, request.tail)):
        most = request.policy.tool_result_retention_chars if mention.source == "result" else READ_CHARS
        yield mention.source, mention.text[:most]
