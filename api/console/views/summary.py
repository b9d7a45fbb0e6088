"""A summary beside what its model was asked and what the quality guard found: made again from the originals.

Nothing of it is stored: prompts follow from the messages, the policy and the version of the prompt alone, and the guard
is deterministic. So it goes with the messages when they are erased.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NamedTuple

from api.console.views.content import SHOWN_CHARS
from compaction.claims.citations import cite_previous, strip_citations
from compaction.claims.handing_on import prepare_previous
from compaction.credentials.masking import Masker, mask_text
from compaction.frames.wordings import in_english, language_shown
from compaction.overrides import in_force
from compaction.pins.pinned import message_text
from compaction.quality.verdict import KEPT, gather, judge, most_chars
from compaction.summary.staging import WindowTooSmallError, plan
from compaction.summary.transcript import SECTIONS
from compaction.view import ViewMessage
from compaction.windows import UNKNOWN_SUMMARIZER_WINDOW, window_of

if TYPE_CHECKING:
    from collections.abc import Sequence

    from store.console.summaries import Source

PARTS_SHOWN: Final = 20


class Asked(NamedTuple):
    """A request to a model: its rules and its text, of which `hidden` characters are not shown."""

    rules: str
    text: str
    hidden: int


class Summary(NamedTuple):
    """What is shown of a summary; lists of values are those that matter most first."""

    asked: Sequence[Asked]
    parts: int
    answer: str
    added: str
    """What the guard added to the answer, word for word from the conversation."""
    missed: Sequence[str]
    """Exact values that the answer had to hold and did not, before anything was added."""
    still_missing: Sequence[str]
    invented: Sequence[str]
    messages: int
    is_too_large: bool


def summary(source: Source) -> Summary:
    """Return what there is to show of a run's summary."""
    shown = (source.snapshot.summary if source.snapshot else None) or ""
    text = strip_citations(in_english(shown))
    answer, _, added = text.partition(KEPT)
    if not source.zone or source.snapshot is None:
        return Summary((), 0, answer, added, (), (), (), 0, is_too_large=source.zone is None)
    policy = in_force(source.run.policy).policy
    zone: Sequence[ViewMessage] = [ViewMessage(role, content, seq) for seq, role, content in source.zone]
    other_texts = (*source.pins, *map(message_text, source.opening))
    marks = policy.unsupported_claims == "mark"
    previous = (
        None if source.previous is None else prepare_previous(in_english(source.previous), source.earlier, marks=marks)
    )
    if policy.secrets == "mask":
        # As the summarizer was asked: without credentials.
        masker = Masker()
        zone = masker.mask_view(zone)
        other_texts = tuple(map(masker.mask_known, other_texts))
        previous = previous and masker.mask_known(previous)
    evidence = gather(zone, previous, other_texts=other_texts, names=source.origins.names)
    most = most_chars(policy.summary_max_tokens)
    first, whole = (
        judge(each, evidence, sections=SECTIONS, max_chars=most, other_texts=other_texts) for each in (answer, text)
    )
    asked, parts = _asked(source, zone, previous, language_shown(shown) or "english")
    return Summary(
        asked, parts, answer.strip(), added.strip(), first.missing, whole.missing, whole.invented, len(zone),
        is_too_large=False,
    )  # fmt: skip


def _asked(source: Source, zone: Sequence[ViewMessage], previous: str | None, language: str) -> tuple[list[Asked], int]:
    step = next((each for each in source.steps if each.model is not None), None)
    if step is None:
        return [], 0
    policy = in_force(source.run.policy).policy
    wishes = "\n".join(wish for wish in (policy.summary_instructions, source.run.instructions) if wish)
    wishes = mask_text(wishes) if policy.secrets == "mask" else wishes
    try:
        planned = plan(
            zone,
            None if previous is None else cite_previous(previous, source.earlier),
            policy,
            window_of(step.model, UNKNOWN_SUMMARIZER_WINDOW),
            times=source.origins.times,
            names=source.origins.names,
            instructions=wishes or None,
            pins=source.pins,
            strip_fields=policy.private_result_fields,
            language=language,
        )
    except WindowTooSmallError:
        return [], 0
    prompts = [planned.ask(part) for part in planned.parts[:PARTS_SHOWN]]
    return [
        Asked(prompt.system, prompt.text[:SHOWN_CHARS], max(0, len(prompt.text) - SHOWN_CHARS)) for prompt in prompts
    ], len(planned.parts)
