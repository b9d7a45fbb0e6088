"""One text from a model: asked, counted, tidied, and asked for once more where it is too long."""

from __future__ import annotations

from decimal import Decimal
from threading import Lock
from typing import TYPE_CHECKING, Final

from compaction.steps.runs import RunReason
from compaction.summary.prompts import MARGIN, shorter
from compaction.summary.tidying import tidy_answer
from compaction.tokens import CHARS_PER_TOKEN, text_weight
from worker.summarizers.base import Spent, SummaryError
from worker.summarizers.paying import UNLIMITED, pay

if TYPE_CHECKING:
    from collections.abc import Sequence

    from compaction.summary.prompts import Prompt
    from worker.summarizers.base import Answer, Model
    from worker.summarizers.paying import Purse

TOO_LONG: Final = frozenset({RunReason.SUMMARY_CUT, RunReason.SUMMARY_TOO_LONG})
"""Reason codes of answers that are asked for once more, shorter."""

MOST_COUNTED: Final = 2**31 - 1
"""Tokens of all calls of a step that its record can hold."""


class Writer:
    """Asks a model for texts, from several threads at once, and keeps count of what they cost."""

    def __init__(self, model: Model, purse: Purse = UNLIMITED) -> None:
        self._model = model
        self._purse = purse
        self._lock = Lock()
        self._spent: list[Spent] = []

    @property
    def spent(self) -> Spent:
        """What every call so far cost together; what none of them tells stays unknown."""
        with self._lock:
            return total(self._spent)

    def write(self, prompt: Prompt, max_tokens: int) -> str:
        """Return the model's text of about `max_tokens` tokens at most; raise SummaryError if there is none."""
        try:
            return self._ask(prompt, max_tokens)
        except SummaryError as error:
            if error.code not in TOO_LONG:
                raise
        return self._ask(shorter(prompt, max_tokens), max_tokens)

    def _ask(self, prompt: Prompt, max_tokens: int) -> str:
        tokens = (prompt.tokens(0), max_tokens)
        try:
            answer = pay(
                self._purse,
                self._model.model,
                tokens,
                lambda: self._model.ask(prompt.system, prompt.text, max_tokens=max_tokens),
            )
        except SummaryError as error:
            self._count(error.spent)
            raise
        self._count(answer.spent)
        return text_of(answer, max_tokens)

    def _count(self, spent: Spent) -> None:
        with self._lock:
            self._spent.append(spent)


def text_of(answer: Answer, max_tokens: int) -> str:
    """Return the text of an answer, tidied; raise SummaryError if it was cut, is empty, or longer than asked for."""
    if answer.stop_reason == "max_tokens":
        raise SummaryError(RunReason.SUMMARY_CUT, f"the answer reached its limit of {max_tokens:,} tokens")
    text = tidy_answer(answer.text)
    if not text:
        raise SummaryError(RunReason.EMPTY_SUMMARY, "the model answered without text")
    if text_weight(text) > max_tokens * CHARS_PER_TOKEN * MARGIN:
        raise SummaryError(RunReason.SUMMARY_TOO_LONG, f"the answer is longer than {max_tokens:,} tokens")
    return text


def total(spent: Sequence[Spent]) -> Spent:
    """Return what several calls cost together; what none of them tells stays unknown."""
    read = [each.input_tokens for each in spent if each.input_tokens is not None]
    written = [each.output_tokens for each in spent if each.output_tokens is not None]
    costs = [each.cost_usd for each in spent if each.cost_usd is not None]
    return Spent(
        sum(each.calls for each in spent),
        min(sum(read), MOST_COUNTED) if read else None,
        min(sum(written), MOST_COUNTED) if written else None,
        sum(costs, Decimal()) if costs else None,
    )
