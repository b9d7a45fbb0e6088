"""The summarizer that asks Claude, or any server that speaks /v1/messages."""

from __future__ import annotations

import asyncio
from decimal import Decimal
from typing import TYPE_CHECKING, Final

import anthropic
import stamina
import structlog

from compaction.summary import PROMPT_VERSION, SYSTEM_PROMPT, render_transcript
from worker.summarizers.base import Spent, Summary, SummaryError

if TYPE_CHECKING:
    from anthropic.types import Message
    from stamina.instrumentation import RetryDetails

    from store.settings import Settings
    from worker.summarizers.base import SummaryRequest

log = structlog.get_logger()

ATTEMPTS: Final = 4
LONGEST_WAIT_SECONDS: Final = 20.0
"""A server that asks for more patience than this is treated as down: the context is waiting."""

PRICES: Final = {
    "claude-haiku-4-5": (Decimal(1), Decimal(5)),
    "claude-sonnet-4-5": (Decimal(3), Decimal(15)),
    "claude-opus-4-5": (Decimal(5), Decimal(25)),
}
"""USD a million input and output tokens (API documentation, pricing), by the start of the model's name."""


class AnthropicSummarizer:
    """One call, not streamed, temperature 0; retried here and nowhere else, within one deadline for all of it."""

    name = "anthropic"

    def __init__(self, settings: Settings) -> None:
        # The library's own hook logs the error's text, which comes from outside.
        stamina.instrumentation.set_on_retry_hooks([_log_retry])
        self.model = settings.summarizer_model
        self._deadline = settings.summarizer_deadline_seconds
        self._base_url = settings.anthropic_base_url
        temperature = settings.summarizer_temperature
        self._sampling = {} if temperature is None else {"temperature": temperature}
        self._key = settings.anthropic_api_key.get_secret_value() if settings.anthropic_api_key else None

    def summarize(self, request: SummaryRequest) -> Summary:
        """Return Claude's summary; SummaryError names what went wrong."""
        return asyncio.run(self._summarize(request))

    async def _summarize(self, request: SummaryRequest) -> Summary:
        transcript = render_transcript(request.zone, request.policy, previous=request.previous)
        calls = 0
        try:
            async with (
                asyncio.timeout(self._deadline),
                # The SDK's own retries are off: they know nothing of the deadline, and a wait that a server asks for
                # has no bound there.
                anthropic.AsyncAnthropic(
                    api_key=self._key or "none",
                    base_url=self._base_url,
                    max_retries=0,
                    timeout=self._deadline,
                ) as client,
            ):
                async for attempt in stamina.retry_context(
                    on=_wait_before_retry,
                    attempts=ATTEMPTS,
                    timeout=self._deadline,
                    wait_initial=0.5,
                    wait_max=8,
                ):
                    with attempt:
                        calls += 1
                        message = await client.messages.create(
                            model=self.model,
                            max_tokens=request.policy.summary_max_tokens,
                            system=SYSTEM_PROMPT,
                            messages=[{"role": "user", "content": _frame(transcript)}],
                            # The SDK has no parameter for it any more; models that know none refuse it.
                            extra_body=self._sampling,
                        )
        except TimeoutError:
            raise SummaryError("model_timeout", f"no answer within {self._deadline:g} s", Spent(calls)) from None
        except anthropic.APIStatusError as error:
            raise SummaryError(_code(error), f"status {error.status_code}", Spent(calls)) from None
        except anthropic.APITimeoutError:
            raise SummaryError("model_timeout", "the connection timed out", Spent(calls)) from None
        except anthropic.APIError as error:
            raise SummaryError("model_unreachable", type(error).__name__, Spent(calls)) from None
        except ValueError as error:
            # A proxy's page or a cut body: a 200 that is not an answer.
            raise SummaryError("model_garbage", type(error).__name__, Spent(calls)) from None
        try:
            return self._read(message, calls)
        except (AttributeError, TypeError):
            # The SDK does not check what it parses: fields may be missing, or anything.
            raise SummaryError("model_garbage", "the answer is not a message", Spent(calls)) from None

    def _read(self, message: Message, calls: int) -> Summary:
        usage = message.usage
        read = usage.input_tokens + (usage.cache_read_input_tokens or 0) + (usage.cache_creation_input_tokens or 0)
        spent = Spent(calls, read, usage.output_tokens, price(self.model, read, usage.output_tokens))
        text = "".join(block.text for block in message.content if block.type == "text").strip()
        if message.stop_reason == "refusal":
            raise SummaryError("model_refused", "the model declined to summarize", spent)
        if message.stop_reason == "max_tokens":
            raise SummaryError("summary_cut", "the summary reached its token limit", spent)
        if not text:
            raise SummaryError("empty_summary", "the model answered without text", spent)
        return Summary(text, self.model, PROMPT_VERSION, spent)


def price(model: str, input_tokens: int, output_tokens: int) -> Decimal | None:
    """Return what a call cost in USD, None for a model whose price is not known."""
    for name, (per_input, per_output) in PRICES.items():
        if model.startswith(name):
            return (per_input * input_tokens + per_output * output_tokens) / 1_000_000
    return None


def _frame(transcript: str) -> str:
    return f"<transcript>\n{transcript}\n</transcript>\n\nWrite the summary."


def _wait_before_retry(error: Exception) -> bool | float:
    """Tell whether to try again, and after how many seconds where the server says so."""
    if isinstance(error, anthropic.APIStatusError):
        if error.status_code not in {408, 409, 429} and error.status_code < 500:  # noqa: PLR2004
            return False
        try:
            asked = float(error.response.headers.get("retry-after", ""))
        except ValueError:
            return True
        return asked if 0 <= asked <= LONGEST_WAIT_SECONDS else False
    return isinstance(error, anthropic.APIConnectionError)


def _log_retry(details: RetryDetails) -> None:
    log.warning(
        "summary.retried",
        attempt=details.retry_num,
        error=type(details.caused_by).__name__,
        status=getattr(details.caused_by, "status_code", None),
        wait_seconds=round(details.wait_for, 2),
    )


def _code(error: anthropic.APIStatusError) -> str:
    status = error.status_code
    if status in {401, 403}:
        return "model_auth"
    if status == 429:  # noqa: PLR2004 - status codes name themselves
        return "model_rate_limited"
    if status == 529:  # noqa: PLR2004
        return "model_overloaded"
    if status in {400, 413} and "too long" in str(error.message).lower():
        return "prompt_too_long"
    return "model_error" if status >= 500 else "model_rejected"  # noqa: PLR2004
