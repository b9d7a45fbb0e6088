"""Message Batches: the same questions at half price, answered within a day (Claude docs, "Batch processing").

Each call but the one that creates a batch may be repeated. That one is sent again only where the provider has said that
it did not take it: whoever does not know searches for the batch first (`recent`, `is_of`).
"""

from __future__ import annotations

import re
from datetime import datetime
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import anthropic
from anthropic.types.messages import MessageBatch

from compaction.steps.runs import RunReason
from compaction.summary.transcript import PROMPT_VERSION
from compaction.summary.zone import PARTIAL, SIDE_BY_SIDE
from worker.batches.ahead import side_by_side
from worker.summarizers.anthropic import answer_of, trouble_of
from worker.summarizers.api_errors import failure
from worker.summarizers.base import Spent, Summary, SummaryError
from worker.summarizers.staged import finished
from worker.summarizers.writing import text_of, total

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from compaction.policy import Policy
    from compaction.summary.prompts import Prompt
    from compaction.summary.staging import Plan
    from worker.summarizers.anthropic import AnthropicModel
    from worker.summarizers.base import SummaryRequest
    from worker.summarizers.staged import StagedSummarizer

NAME: Final = "anthropic-batch"
LISTED: Final = 100
"""Batches of the provider, made about when one of ours was sent, that are looked through for it, newest first."""
NOT_TAKEN: Final = frozenset(
    {
        RunReason.CIRCUIT_OPEN,
        RunReason.MODEL_AUTH,
        RunReason.MODEL_BILLING,
        RunReason.MODEL_OVERLOADED,
        RunReason.MODEL_RATE_LIMITED,
        RunReason.MODEL_REJECTED,
        RunReason.PROMPT_TOO_LONG,
    }
)
"""Reason codes of a call that cannot have made a batch: no call, or a refusal."""

_OVERLOADED: Final = 529
_TYPE: Final = re.compile(r"[a-z_]{1,64}")
_ID: Final = re.compile(r"[!-~]{1,200}")
_YEARS: Final = range(2020, 2200)
"""In which a batch may have been made."""


class Status(NamedTuple):
    """A batch as the provider has it."""

    id: str
    ended: bool
    canceling: bool
    requests: int
    created_at: datetime
    expires_at: datetime


class Results(NamedTuple):
    """What came of a batch: the answers in the order of their questions, or why they cannot be used; and the costs."""

    texts: tuple[str, ...]
    trouble: SummaryError | None
    spent: Spent


class AnthropicBatches:
    """Has summaries made by batches of `model`; `staged` divides the text and judges the answers."""

    name = NAME
    not_taken = NOT_TAKEN
    prompt_version = PROMPT_VERSION

    def __init__(self, model: AnthropicModel, staged: StagedSummarizer) -> None:
        self._model = model
        self._staged = staged
        self.model = model.model

    @property
    def deadline_seconds(self) -> float:
        """Seconds after which a call to the provider has ended, however."""
        return self._model.deadline_seconds

    def chosen_by(self, policy: Policy) -> AnthropicBatches:
        """Return the same by the model, and with the prices, that a policy names."""
        return AnthropicBatches(self._model.chosen_by(policy), self._staged.chosen_by(policy))

    def plan(self, request: SummaryRequest) -> Plan:
        """Return the questions that a summary takes; raise SummaryError if there can be none."""
        return self._staged.plan(request)

    def create(self, key: str, prompts: Sequence[Prompt], max_tokens: int) -> Status:
        """Send the questions; `key` and its place name each of them. Raises SummaryError, see NOT_TAKEN."""
        self._model.check_allowed()
        requests: list[Any] = [
            {
                "custom_id": _custom_id(key, number),
                "params": {
                    "model": self._model.model,
                    "max_tokens": max_tokens,
                    "system": prompt.system,
                    "messages": [{"role": "user", "content": prompt.text}],
                    **self._model.extra,
                },
            }
            for number, prompt in enumerate(prompts)
        ]

        async def call(client: anthropic.AsyncAnthropic) -> object:
            try:
                return await client.messages.batches.create(requests=requests)
            except (anthropic.APIStatusError, anthropic.APIConnectionError) as error:
                trouble = trouble_of(error)
                assert trouble is not None  # noqa: S101 - an error of the SDK
                if 0 < trouble.status < 500 or trouble.status == _OVERLOADED:  # noqa: PLR2004 - a server error
                    raise
                # It may have been taken all the same: not to be repeated before somebody has looked.
                raise failure(trouble, 1) from None

        return self._model.send(call, lambda answer, _: _status(answer))

    def status(self, provider_id: str) -> Status:
        """Return how a batch is; raise SummaryError."""
        return self._model.send(
            lambda client: client.messages.batches.retrieve(provider_id), lambda answer, _: _status(answer)
        )

    def cancel(self, provider_id: str) -> Status:
        """Have the provider answer no more of a batch; raise SummaryError."""
        return self._model.send(
            lambda client: client.messages.batches.cancel(provider_id), lambda answer, _: _status(answer)
        )

    def recent(self, since: datetime, until: datetime) -> list[Status]:
        """Return the batches of this key that were made in that time, newest first; raise SummaryError.

        Of more than LISTED nobody knows whether all were seen: that is an error that passes, not an answer.
        """

        async def call(client: anthropic.AsyncAnthropic) -> object:
            statuses: list[Status] = []
            async for batch in client.messages.batches.list(limit=LISTED):
                listed = _status(batch)
                if listed.created_at < since or len(statuses) > LISTED:
                    break
                if listed.created_at <= until:
                    statuses.append(listed)
            return statuses

        def read(answer: object, _: int) -> list[Status]:
            assert isinstance(answer, list)  # noqa: S101 - see above
            return answer

        found = self._model.send(call, read)
        if len(found) > LISTED:
            raise SummaryError(RunReason.MODEL_ERROR, f"over {LISTED} batches were made at the time of this one")
        return found

    def is_of(self, provider_id: str, key: str) -> bool:
        """Tell whether a batch that has ended is the one with this key; raise SummaryError."""

        async def call(client: anthropic.AsyncAnthropic) -> object:
            results = await client.messages.batches.results(provider_id)
            try:
                # One line tells: a batch has the questions of one summary. Somebody else's may have very many.
                async for entry in results:
                    return entry
                return None
            finally:
                await results.close()

        return self._model.send(call, lambda entry, _: str(getattr(entry, "custom_id", "")).rpartition("-")[0] == key)

    def results(self, provider_id: str, key: str, parts: int, max_tokens: int) -> Results:
        """Return what came of a batch that has ended, in whatever order it is told; raise SummaryError."""
        entries = self._entries(provider_id)
        texts: list[str] = []
        costs: list[Spent] = []
        trouble: SummaryError | None = None
        for number in range(parts):
            try:
                text, spent = self._text(entries.get(_custom_id(key, number)), max_tokens)
            except SummaryError as error:
                costs.append(error.spent)
                trouble = trouble or error
            else:
                costs.append(spent)
                texts.append(text)
        return Results(() if trouble else tuple(texts), trouble, total(costs))

    def summary(
        self, request: SummaryRequest, texts: Sequence[str], ends: Sequence[int], answer_tokens: int
    ) -> Summary:
        """Return the summary that the answers make; raise SummaryError if it is not accepted.

        `ends` are where the parts end in the zone. Nothing is merged by the model: that would be a second batch.
        """
        text, used = side_by_side(texts, answer_tokens)
        is_partial = used < len(texts)
        zone = request.zone[: ends[used - 1]] if is_partial else request.zone
        notes = [f"{PARTIAL}parts 1 to {used} of {len(texts)}; the rest found no room"] if is_partial else []
        if used > 1:
            notes.append(SIDE_BY_SIDE)
        accepted = self._staged.accept(text, request._replace(zone=zone))
        return Summary(
            finished(accepted.text, notes),
            self._model.model,
            PROMPT_VERSION,
            Spent(),
            covers_through=zone[-1].seq if is_partial else None,
            notes=tuple(notes),
            parts=used,
            dropped=accepted.dropped,
        )

    def _text(self, entry: Any, max_tokens: int) -> tuple[str, Spent]:
        """Return the text of one result and what it cost; raise SummaryError with a code of its own."""
        try:
            kind = entry.result.type
        except AttributeError:
            raise SummaryError(RunReason.MODEL_GARBAGE, "the batch has no result for a part") from None
        if kind == "errored":
            raise self._errored(entry.result)
        if kind != "succeeded":
            codes = {"expired": RunReason.BATCH_EXPIRED, "canceled": RunReason.BATCH_CANCELED}
            raise SummaryError(codes.get(str(kind), RunReason.MODEL_GARBAGE), "a part was not answered")
        answer = answer_of(getattr(entry.result, "message", None), self._model.model, self._model.prices, batch=True)
        try:
            return text_of(answer, max_tokens), answer.spent
        except SummaryError as error:
            raise SummaryError(error.code, error.detail, answer.spent) from None

    def _errored(self, result: Any) -> SummaryError:
        error = getattr(getattr(result, "error", None), "error", None)
        # What the provider says may quote the request; its kind of error cannot.
        kind, said = str(getattr(error, "type", "")), str(getattr(error, "message", ""))
        self._model.refuses_temperature(said)
        return SummaryError(RunReason.BATCH_ERRORED, kind if _TYPE.fullmatch(kind) else "unknown error")

    def _entries(self, provider_id: str) -> Mapping[str, Any]:
        """Return the results by the names of their questions."""

        async def call(client: anthropic.AsyncAnthropic) -> object:
            return [entry async for entry in await client.messages.batches.results(provider_id)]

        def read(answer: object, _: int) -> dict[str, Any]:
            assert isinstance(answer, list)  # noqa: S101 - see above
            return {str(getattr(entry, "custom_id", "")): entry for entry in answer}

        return self._model.send(call, read)


def _custom_id(key: str, number: int) -> str:
    return f"{key}-{number}"


def _status(answer: object) -> Status:
    if not isinstance(answer, MessageBatch) or not isinstance(answer.id, str) or not _ID.fullmatch(answer.id):
        raise SummaryError(RunReason.MODEL_GARBAGE, "the answer is not a batch", Spent())
    try:
        counts = answer.request_counts
        requests = counts.processing + counts.succeeded + counts.errored + counts.canceled + counts.expired
        status = answer.processing_status
        times = [answer.created_at, answer.expires_at]
        if not all(isinstance(each, datetime) and each.tzinfo and each.year in _YEARS for each in times):
            raise TypeError  # noqa: TRY301 - one way out for all that is no batch
        if type(requests) is not int:
            raise TypeError  # noqa: TRY301 - one way out for all that is no batch
    except (AttributeError, TypeError, OverflowError):
        raise SummaryError(RunReason.MODEL_GARBAGE, "the answer is not a batch", Spent()) from None
    return Status(answer.id, status == "ended", status == "canceling", requests, *times)
