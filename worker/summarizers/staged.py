"""Summaries by a model in stages: in one request where that fits, otherwise part by part and merged.

What fails is tried smaller before it is given up: in more parts, without messages too large by themselves, and at last
only as far as it went well.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING, Final, NamedTuple, Protocol, TypeVar

from compaction.claims.citations import cite_previous, copy_citations, strip_citations
from compaction.quality.verdict import Reason
from compaction.steps.runs import RunReason
from compaction.summary.prompts import corrective_prompt
from compaction.summary.staging import WindowTooSmallError, join_summaries, plan
from compaction.summary.transcript import PROMPT_VERSION
from compaction.summary.zone import NOTE, PARTIAL, REFERENCE, SIDE_BY_SIDE
from compaction.tokens import CHARS_PER_TOKEN, text_weight
from worker.claims.proving import borne_out, objections_to
from worker.summarizers.base import Summary, SummaryError, SummaryRequest, chosen_by
from worker.summarizers.parallel import answers_in_order
from worker.summarizers.paying import UNLIMITED
from worker.summarizers.writing import Writer

if TYPE_CHECKING:
    from compaction.policy import Policy
    from compaction.quality.verdict import Verdict
    from compaction.summary.prompts import Prompt
    from compaction.summary.staging import OversizedMessage, Part, Plan
    from worker.summarizers.base import Model
    from worker.summarizers.paying import Purse


class Judge(Protocol):
    """Judges summaries of one request."""

    def of(self, text: str) -> Verdict:
        """Return what is wrong with a summary."""

    def mend(self, text: str, verdict: Verdict) -> str:
        """Return a summary with what it lacks added, as far as that can be done without a model."""


Guard = Callable[[SummaryRequest], Judge]
T = TypeVar("T")
R = TypeVar("R")

THREADS: Final = 4
"""Requests under way at once for one summary."""
HALVINGS: Final = 3
"""How often a window is taken to be half as large after a request was too long for it."""
FATAL: Final = frozenset(
    {RunReason.MODEL_AUTH, RunReason.MODEL_BILLING, RunReason.MODEL_REJECTED, RunReason.MODEL_UNREACHABLE}
)
"""Reason codes after which no other request would do better."""
LIGHTER: Final = frozenset(
    {
        RunReason.MODEL_TIMEOUT,
        RunReason.MODEL_GARBAGE,
        RunReason.MODEL_REFUSED,
        RunReason.MODEL_ERROR,
        RunReason.SUMMARY_CUT,
        RunReason.SUMMARY_TOO_LONG,
        RunReason.EMPTY_SUMMARY,
    }
)
"""Reason codes after which a part is asked for without its oversized messages: they may be why it failed."""
FORM: Final = frozenset({Reason.SECTIONS_MISSING, Reason.MARKERS})
"""Flaws of form alone: they are mended without asking again."""
NAMED: Final = 20
"""Messages left out that the notes name; the others are counted."""


class StagedSummarizer:
    """Summaries by `model`, judged by `guard` before they count.

    Where something is wrong with a summary that only a model can put right, there is one more request that says what;
    then what is missing is added. A summary that still fails is no summary (`summary_rejected`).
    """

    def __init__(self, model: Model, guard: Guard | None = None) -> None:
        self._model = model
        self._guard = guard

    @property
    def name(self) -> str:
        """Name for the audit: the model's backend."""
        return self._model.name

    @property
    def model(self) -> str:
        """The model it calls."""
        return self._model.model

    def chosen_by(self, policy: Policy) -> StagedSummarizer:
        """Return the same by the model that a policy names."""
        model = chosen_by(self._model, policy)
        return self if model is self._model else StagedSummarizer(model, self._guard)

    def plan(self, request: SummaryRequest) -> Plan:
        """Return the requests that it would make of the model; raise SummaryError if there can be none."""
        return _Work(self._model, request, self._guard, UNLIMITED).plan(self._model.context_tokens)

    def accept(self, text: str, request: SummaryRequest) -> Accepted:
        """Return a summary that the guard accepts, as it is or mended without the model; raise SummaryError."""
        text, dropped = borne_out(request.without_secrets(text), request)
        if self._guard is None:
            return Accepted(text, dropped)
        judge = self._guard(request)
        verdict = judge.of(strip_citations(text))
        return Accepted(text if verdict.is_accepted else _mended(judge, text, verdict), dropped)

    def summarize(self, request: SummaryRequest) -> Summary:
        """Return a summary of the zone, or of as much of its beginning as could be summarized.

        Raises SummaryError with the model's code, `summary_cut`, `summary_too_long`, `summary_rejected`,
        `prompt_too_long` or `empty_summary`; its `spent` counts every call.
        """
        return self.summarize_paid(request, UNLIMITED)

    def summarize_paid(self, request: SummaryRequest, purse: Purse) -> Summary:
        """Return the same, each call paid from `purse`."""
        return _Work(self._model, request, self._guard, purse).run()


class Accepted(NamedTuple):
    """A summary that may be committed, citations included, and how many lines were left out of it."""

    text: str
    dropped: int = 0


class _Done(NamedTuple):
    """A text that a model wrote, the request it answers, and what was named in that and not shown."""

    text: str
    prompt: Prompt | None
    """None where texts are only put side by side."""
    left_out: tuple[OversizedMessage, ...] = ()


class _Level(NamedTuple):
    """A text on its way to be merged, and the parts that it covers: `start` inclusive, `stop` exclusive."""

    done: _Done
    start: int
    stop: int


class _Merged(NamedTuple):
    """What became of the first `parts` texts; `trouble` says why they could not all be merged."""

    done: _Done
    parts: int
    trouble: SummaryError | None = None


class _Work:
    """One summary on its way."""

    def __init__(self, model: Model, request: SummaryRequest, guard: Guard | None, purse: Purse) -> None:
        self._model = model
        self._writer = Writer(model, purse)
        self._request = request
        self._guard = guard
        self._halvings = 0

    def run(self) -> Summary:
        """Return the summary; every error tells what all calls cost."""
        try:
            return self._run()
        except SummaryError as error:
            raise SummaryError(error.code, error.detail, self._writer.spent) from None

    def _run(self) -> Summary:
        staged = self.plan(self._model.context_tokens)
        while True:
            texts, failed = _each(staged.parts, partial(self._part, staged))
            if failed is None or failed.code != RunReason.PROMPT_TOO_LONG:
                break
            smaller = self._smaller(staged, staged.parts[len(texts)])
            if smaller is None:
                break
            staged = smaller
        if failed is not None and not texts:
            raise failed
        merged = self._merge(staged, texts) if len(texts) > 1 else _Merged(texts[0], 1)
        if failed is None and merged.parts < len(texts):
            failed = merged.trouble
        return self._finish(staged, merged, texts, failed)

    def _finish(self, staged: Plan, merged: _Merged, texts: Sequence[_Done], failed: SummaryError | None) -> Summary:
        used = staged.parts[: merged.parts]
        zone = self._request.zone if failed is None else self._request.zone[: used[-1].stop]
        notes = []
        if failed is not None:
            here, whole = staged.place(0, merged.parts), staged.place(0, len(staged.parts))
            notes.append(f"{PARTIAL}it covers {here} of {whole}; the rest could not be summarized ({failed.code})")
        if merged.trouble is not None and merged.done.prompt is None:
            notes.append(f"{SIDE_BY_SIDE}, as they could not be merged ({merged.trouble.code})")
        large = [each.name for text in texts[: merged.parts] for each in text.left_out]
        notes += [f"left out for its size: {name}" for name in large[:NAMED]]
        if len(large) > NAMED:
            notes.append(f"left out for their size: {len(large) - NAMED:,} more messages")
        request = self._request._replace(zone=zone, canary=staged.secret)
        accepted = self._accepted(staged, merged.done, request)
        return Summary(
            finished(accepted.text, notes),
            self._model.model,
            PROMPT_VERSION,
            self._writer.spent,
            covers_through=None if failed is None else zone[-1].seq,
            notes=tuple(notes),
            parts=merged.parts,
            dropped=accepted.dropped,
        )

    def plan(self, window: int, *, without_oversized: bool = False) -> Plan:
        """Return the plan for a model of `window` tokens; raise SummaryError if there is none."""
        request = self._request
        try:
            staged = plan(
                request.zone,
                None if request.previous is None else cite_previous(request.previous, request.claims or ()),
                request.policy,
                window,
                times=request.times,
                names=request.names,
                instructions=request.instructions,
                pins=request.pins,
                strip_fields=request.strip_fields,
                without_oversized=without_oversized,
                language=request.language,
            )
        except WindowTooSmallError as error:
            raise SummaryError(RunReason.PROMPT_TOO_LONG, str(error)) from None
        if not any(entry.text for part in staged.parts for entry in part.entries):
            raise SummaryError(RunReason.EMPTY_SUMMARY, "there is nothing to summarize")
        return staged

    def _smaller(self, staged: Plan, refused: Part) -> Plan | None:
        """Return a plan for half of what was refused as too long, or without oversized messages, or None."""
        if self._halvings < HALVINGS:
            self._halvings += 1
            size = staged.ask(refused).tokens(staged.answer_tokens)
            with suppress(SummaryError):
                return self.plan(min(staged.window, size) // 2)
        if not staged.oversized:
            return None
        self._halvings = HALVINGS
        return self.plan(staged.window, without_oversized=True)

    def _part(self, staged: Plan, part: Part) -> _Done:
        prompt = staged.ask(part)
        try:
            return _Done(self._write(prompt, staged.answer_tokens), prompt, part.left_out)
        except SummaryError as error:
            if error.code not in LIGHTER or not part.oversized:
                raise
        lighter = part.lighter()
        prompt = staged.ask(lighter)
        return _Done(self._write(prompt, staged.answer_tokens), prompt, lighter.left_out)

    def _write(self, prompt: Prompt, answer_tokens: int) -> str:
        """Return what the model writes, its credentials masked."""
        return self._request.without_secrets(self._writer.write(prompt, answer_tokens))

    def _merge(self, staged: Plan, texts: Sequence[_Done]) -> _Merged:
        """Return one text of several, in as many levels as the window asks for."""
        level = [_Level(done, number, number + 1) for number, done in enumerate(texts)]
        while len(level) > 1:
            groups = [level[start:stop] for start, stop in staged.groups([each.done.text for each in level])]
            merged, failed = _each(groups, partial(self._join, staged, final=len(groups) == 1))
            if failed is None:
                level = merged
                continue
            smaller = self._narrower(staged, groups) if failed.code == RunReason.PROMPT_TOO_LONG else None
            if smaller is None:
                return _side_by_side(staged, level, failed)
            staged = smaller
        return _Merged(level[0].done, len(texts))

    def _join(self, staged: Plan, group: Sequence[_Level], *, final: bool) -> _Level:
        if len(group) == 1:
            return group[0]
        prompt = _merge_prompt(staged, group, final=final)
        text = self._write(prompt, staged.answer_tokens)
        return _Level(_Done(text, prompt), group[0].start, group[-1].stop)

    def _narrower(self, staged: Plan, groups: Sequence[Sequence[_Level]]) -> Plan | None:
        """Return the plan with a window of half of what was refused as too long, or None."""
        if self._halvings >= HALVINGS:
            return None
        self._halvings += 1
        asked = [_merge_prompt(staged, group, final=len(groups) == 1) for group in groups if len(group) > 1]
        size = max(prompt.tokens(staged.answer_tokens) for prompt in asked)
        with suppress(WindowTooSmallError):
            return staged.with_window(min(staged.window, size) // 2)
        return None

    def _accepted(self, staged: Plan, done: _Done, request: SummaryRequest) -> Accepted:
        """Return the summary that the guard accepts: as it is, written again, or mended."""
        text, dropped = borne_out(done.text, request)
        if self._guard is None:
            return Accepted(text, dropped)
        judge = self._guard(request)
        verdict, objections = judge.of(strip_citations(text)), objections_to(text, request)
        if done.prompt is not None and (objections or not FORM.issuperset(verdict.reasons)):
            again = self._again(staged, done.prompt, text, (*verdict.details, *objections))
            text_again, dropped_again = borne_out(again or "", request)
            left = verdict if again is None else judge.of(strip_citations(text_again))
            if again is not None and len(left.reasons) <= len(verdict.reasons):
                text, dropped, verdict = text_again, dropped_again, left
        return Accepted(text if verdict.is_accepted else _mended(judge, text, verdict), dropped)

    def _again(self, staged: Plan, prompt: Prompt, draft: str, details: Sequence[str]) -> str | None:
        """Return what the model writes once it is told what was wrong, None if it writes nothing."""
        correction = corrective_prompt(prompt, draft, details, window=staged.window, answer_tokens=staged.answer_tokens)
        try:
            return self._write(correction, staged.answer_tokens)
        except SummaryError as error:
            if error.code in FATAL:
                raise
            return None


def _mended(judge: Judge, text: str, verdict: Verdict) -> str:
    """Return a summary with what it lacks added; raise SummaryError if that is not enough."""
    plain = judge.mend(strip_citations(text), verdict)
    left = judge.of(plain)
    if not left.is_accepted:
        # Codes alone: what is missing would be words of the conversation.
        raise SummaryError(RunReason.SUMMARY_REJECTED, ", ".join(left.reasons))
    return copy_citations(plain, text)


def _merge_prompt(staged: Plan, group: Sequence[_Level], *, final: bool) -> Prompt:
    places = [staged.place(each.start, each.stop) for each in group]
    return staged.merge([each.done.text for each in group], places, final=final)


def _each(items: Sequence[T], do: Callable[[T], R]) -> tuple[list[R], SummaryError | None]:
    return answers_in_order(items, do, threads=THREADS, fatal=FATAL)


def _side_by_side(staged: Plan, level: Sequence[_Level], trouble: SummaryError) -> _Merged:
    """Return as many texts from the first on as a summary has room for, heading by heading."""
    limit = staged.answer_tokens * CHARS_PER_TOKEN
    for count in range(len(level), 1, -1):
        text = join_summaries([each.done.text for each in level[:count]])
        if text_weight(text) <= limit:
            return _Merged(_Done(text, None), level[count - 1].stop, trouble)
    return _Merged(level[0].done, level[0].stop, trouble)


def finished(text: str, notes: Sequence[str]) -> str:
    """Return a summary marked as reference, with its notes at the end."""
    return "\n\n".join([REFERENCE, text, *(["\n".join(f"{NOTE}{note}." for note in notes)] if notes else [])])
