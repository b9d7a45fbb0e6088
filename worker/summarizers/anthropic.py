"""The model behind /v1/messages: Claude, or any server that speaks its API."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import anthropic
from anthropic.types import Message

from compaction.steps.runs import RunReason
from worker.summarizers.api_errors import Trouble, trouble_of_status
from worker.summarizers.asking import (
    CONNECT_SECONDS,
    TEMPERATURE,
    RemoteModel,
    Service,
    TooLongError,
    authorities,
    bound_answer,
    said_in,
)
from worker.summarizers.base import Answer, Spent, SummaryError
from worker.summarizers.prices import MOST_TOKENS, BilledTokens, cost

if TYPE_CHECKING:
    from collections.abc import Mapping

    from runtime.summarizers import ModelAccess
    from worker.summarizers.prices import PriceTable

_STOPS: Final = frozenset({"end_turn", "stop_sequence", "max_tokens", None})
"""Stop reasons of an answer; None is what servers send that know none."""
_REFUSED: Final[Mapping[str | None, tuple[str, str]]] = {
    "refusal": (RunReason.MODEL_REFUSED, "the model declined to answer"),
    "model_context_window_exceeded": (
        RunReason.PROMPT_TOO_LONG,
        "the model's window was full before its answer was whole",
    ),
}
"""Stop reasons without an answer: the reason code, and what it means."""


class AnthropicModel(RemoteModel[anthropic.AsyncAnthropic]):
    """A model that is asked by the Messages API."""

    name = "anthropic"

    @staticmethod
    def service(door: ModelAccess, deadline: float) -> Service[anthropic.AsyncAnthropic]:
        """Return where models are asked, for questions of `deadline` seconds."""

        def connect() -> anthropic.AsyncAnthropic:
            return anthropic.AsyncAnthropic(
                api_key=door.key or "none",
                base_url=door.base_url,
                max_retries=0,
                timeout=anthropic.Timeout(deadline, connect=CONNECT_SECONDS),
                http_client=anthropic.DefaultAsyncHttpxClient(
                    verify=authorities(), follow_redirects=False, event_hooks={"response": [bound_answer]}
                ),
            )

        return Service(door.base_url, connect, trouble_of, "messages.create")

    @property
    def extra(self) -> dict[str, float]:
        """What a question says besides: the SDK has no parameter for the temperature, and newer models refuse it."""
        return {} if self.temperature is None else {TEMPERATURE: self.temperature}

    def refuses_temperature(self, text: str) -> bool:
        """Tell whether the text of a refusal names the temperature, which is left out from then on."""
        named = TEMPERATURE in text.lower()
        if named:
            self.learned.add(TEMPERATURE)
        return named and self._temperature is not None

    def ask(self, system: str, prompt: str, *, max_tokens: int) -> Answer:
        """Return the answer; SummaryError names what went wrong, and its `spent` counts the calls all the same.

        An answer that reached `max_tokens` is returned as it is, with that stop reason, and may be empty; any other
        has text.
        """
        self.check_allowed()

        async def call(client: anthropic.AsyncAnthropic) -> object:
            return await client.messages.create(
                model=self.model,
                max_tokens=max_tokens,
                system=system,
                messages=[{"role": "user", "content": prompt}],
                extra_body=self.extra,
            )

        return self.send(call, lambda answer, calls: answer_of(answer, self.model, self.prices, calls=calls))


def trouble_of(error: Exception) -> Trouble | None:
    """Return what an error of the SDK says, None for one that is not its own."""
    match error:
        case anthropic.APIStatusError():
            return trouble_of_status(error)
        case anthropic.APITimeoutError():
            return Trouble("timeout", type(error).__name__)
        case anthropic.APIConnectionError(__cause__=TooLongError()):
            return Trouble("garbage", TooLongError.__name__)
        case anthropic.APIConnectionError():
            return Trouble("unreachable", type(error).__name__)
        case anthropic.APIError():
            return Trouble("garbage", type(error).__name__)
        case _:
            return None


def answer_of(
    message: object,
    model: str,
    prices: PriceTable,
    *,
    calls: int = 1,
) -> Answer:
    """Return what a message of the API answers and what it cost; SummaryError where it answers nothing.

    `message` may be anything: the SDK does not check what it parses.
    """
    spent = Spent(calls)
    try:
        if not isinstance(message, Message):
            raise TypeError  # noqa: TRY301 - one way out for all that is no message
        usage = billed(message.usage)
        if usage is not None:
            spent = Spent(calls, usage.prompt, usage.output, cost(model, usage, prices))
        text = said_in("".join(block.text for block in message.content if block.type == "text"))
        refused = _REFUSED.get(message.stop_reason)
    except (AttributeError, TypeError):
        raise SummaryError(RunReason.MODEL_GARBAGE, "the answer is not a message", spent) from None
    if refused is not None:
        raise SummaryError(*refused, spent)
    if message.stop_reason not in _STOPS:
        raise SummaryError(RunReason.MODEL_GARBAGE, "the model stopped for another reason than its end", spent)
    if not text and message.stop_reason != "max_tokens":
        raise SummaryError(RunReason.EMPTY_SUMMARY, "the model answered without text", spent)
    return Answer(text, message.stop_reason, spent)


def billed(reported: Any) -> BilledTokens | None:
    """Return the tokens billed, None for a server that does not say, or says something else."""
    try:
        written = reported.cache_creation_input_tokens or 0
        hourly = reported.cache_creation.ephemeral_1h_input_tokens if reported.cache_creation else 0
        read = reported.cache_read_input_tokens or 0
        usage = BilledTokens(reported.input_tokens, reported.output_tokens, written - hourly, hourly, read)
        return usage if all(type(count) is int and 0 <= count <= MOST_TOKENS for count in usage) else None
    except (AttributeError, TypeError):
        return None
