"""Asks the questions of talk of every context, several times each, and counts the right answers."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor
from decimal import Decimal
from itertools import product
from typing import TYPE_CHECKING, Final, NamedTuple

import msgspec

from bench.answers.asking import FailedError, Reply
from bench.answers.contexts import Asked, extracted, newest, summarized
from bench.answers.costs import questions_cost, summaries_cost, total
from bench.answers.judging import JUDGE, QUESTION, judged, verdict_of
from bench.answers.kept import KeptSummarizer, key_of
from bench.answers.originals import Originals
from bench.answers.scores import AnswerScore, Judged, score_of
from bench.fidelity.talk import threshold_of
from bench.measure import progress
from compaction.policy import Policy
from worker.summarizers.base import SummaryError

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from bench.answers.asking import Asker
    from bench.answers.costs import Estimate
    from bench.answers.kept import Kept
    from bench.reach.talks import Question, Source, Talk
    from compaction.view import ViewMessage
    from worker.summarizers.base import Spent, Summarizer

REPLICATES: Final = 3
QUESTIONS: Final = 10
"""Questions of each conversation that are asked, spread evenly over all that it has."""
_AT_ONCE: Final = 8


class Planned(NamedTuple):
    """A conversation whose questions are asked, with the contexts that no model has to make."""

    source: str
    talk: Talk
    threshold: int
    contexts: list[Asked]
    questions: list[Question]


class _StoppedError(Exception):
    """The limit is reached."""


def plan(sources: Sequence[Source], most_questions: int) -> list[Planned]:
    """Return what is asked; nothing is asked yet."""
    planned = []
    for source in sources:
        threshold = threshold_of(source.talks)
        for talk in source.talks:
            extract = extracted(talk, threshold)
            contexts = [newest(talk, extract.characters), extract]
            planned.append(Planned(source.name, talk, threshold, contexts, _spread(talk.questions, most_questions)))
            progress(f"{talk.name}: {len(planned[-1].questions)} questions")
    return planned


def estimate(planned: Sequence[Planned], replicates: int) -> tuple[Estimate, Estimate]:
    """Return what the questions take, and what the model's summaries do, as many as there were extracts."""
    asked, summaries = [], []
    for each in planned:
        extract = each.contexts[-1]
        count = len(each.questions) * replicates
        for context, may_recall in product((*each.contexts, extract), (False, True)):
            asked.append(questions_cost(context.tokens(may_recall=may_recall), count, may_recall=may_recall))
        most = Policy().summary_max_tokens
        summaries.append(summaries_cost(extract.runs, each.threshold + most, most))
    return total(asked), total(summaries)


class Measuring:
    """Asks, as far as the money goes; what `kept` has is not asked again."""

    def __init__(
        self, asker: Asker, summarizer: Summarizer, kept: Kept, *, replicates: int, limit: Decimal | None
    ) -> None:
        self.spent = Decimal()
        self.stopped = False
        """Whether the limit was reached: what is missing then is asked by the next run."""
        self._asker = asker
        self._kept = kept
        self._replicates = replicates
        self._limit = limit
        self._lock = threading.Lock()
        self._summarizer = KeptSummarizer(summarizer, kept, self._spend)

    def scores(self, planned: Sequence[Planned]) -> Iterator[AnswerScore]:
        """Yield the scores of each source, a row for each context with and without a recall."""
        for source in dict.fromkeys(each.source for each in planned):
            own = [each for each in planned if each.source == source]
            rows: dict[tuple[str, bool], list[Judged]] = {}
            sizes: dict[tuple[str, bool], list[int]] = {}
            for each in own:
                originals = Originals(each.talk.messages)
                for context, may_recall in product(self._contexts(each), (False, True)):
                    of_way = rows.setdefault((context.way, may_recall), [])
                    of_way += self._asked(each, context, originals if may_recall else None)
                    sizes.setdefault((context.way, may_recall), []).append(context.characters)
            for (way, may_recall), judgements in rows.items():
                yield score_of(source, way, judgements, sizes[way, may_recall], may_recall=may_recall)

    def _contexts(self, planned: Planned) -> list[Asked]:
        try:
            self._check()
            return [*planned.contexts, summarized(planned.talk, planned.threshold, self._summarizer)]
        except SummaryError as error:
            self._spend(error.spent)
            progress(f"{planned.talk.name}: no summary by the model ({error.code})")
        except _StoppedError:
            pass
        return planned.contexts

    def _asked(self, planned: Planned, context: Asked, originals: Originals | None) -> list[Judged]:
        wanted = [(question, number) for number in range(self._replicates) for question in planned.questions]

        def one(each: tuple[Question, int]) -> Judged:
            return self._judged(context, *each, originals)

        # The first alone: what it has the provider write to its cache, the others read.
        with ThreadPoolExecutor(_AT_ONCE) as pool:
            judgements = [*map(one, wanted[:1]), *pool.map(one, wanted[1:])]
        done = sum(each.right is not None for each in judgements)
        recalling = "" if originals is None else " with one recall"
        progress(f"{planned.talk.name}: {context.way}{recalling}: {done} of {len(wanted)} answers, ${self.spent:.2f}")
        return judgements

    def _judged(self, context: Asked, question: Question, replicate: int, originals: Originals | None) -> Judged:
        try:
            reply = self._reply(context, question, replicate, originals)
        except FailedError:
            return Judged(replicate, "failed")
        except _StoppedError:
            return Judged(replicate, "stopped")
        right = judged(question, reply.text)
        if right is not None:
            return Judged(replicate, "rules", right, reply)
        try:
            right = self._by_model(question, reply.text)
        except (FailedError, _StoppedError):
            right = None
        return Judged(replicate, "model" if right is not None else "undecided", right, reply)

    def _reply(self, context: Asked, question: Question, replicate: int, originals: Originals | None) -> Reply:
        view = context.plain if originals is None else context.recalling
        given = [message.as_message() for message in view]
        return self._ask(view, question.text, originals, key_of("answer", given, question.text, replicate))

    def _by_model(self, question: Question, reply: str) -> bool | None:
        text = QUESTION.format(question=question.text, answer=question.answer, reply=reply)
        return verdict_of(self._ask((), text, None, key_of("judge", text), system=JUDGE).text)

    def _ask(
        self,
        view: Sequence[ViewMessage],
        question: str,
        originals: Originals | None,
        key: str,
        *,
        system: str | None = None,
    ) -> Reply:
        key = key_of(key, self._asker.name, self._asker.model, originals is not None)
        if (known := self._kept.get(key)) is not None:
            return msgspec.convert(known, Reply)
        self._check()
        reply = self._asker.ask(tuple(view), question, originals, system=system)
        with self._lock:
            self.spent += reply.usd or 0
        self._kept.put(key, reply)
        return reply

    def _spend(self, spent: Spent) -> None:
        with self._lock:
            self.spent += spent.cost_usd or 0

    def _check(self) -> None:
        """Raise _StoppedError where the limit is reached."""
        with self._lock:
            self.stopped |= self._limit is not None and self.spent >= self._limit
            if self.stopped:
                raise _StoppedError


def _spread(questions: Sequence[Question], most: int) -> list[Question]:
    """Return at most so many questions that have a known answer, evenly spread over all."""
    known = [question for question in questions if question.answer]
    count = min(most, len(known))
    return [known[at * len(known) // count] for at in range(count)]
