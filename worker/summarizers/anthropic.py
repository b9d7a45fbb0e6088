"""The model behind /v1/messages: Claude, or any server that speaks its API."""

from __future__ import annotations

import asyncio
import time
from functools import cache
from typing import TYPE_CHECKING, Any, Final, NamedTuple, TypeAlias, TypeVar

import anthropic
import httpx2
import stamina
import structlog
from anthropic.types import Message

from compaction.steps.runs import RunReason
from compaction.windows import LOW_CONTEXT_WINDOW, window_of
from runtime import tracing
from worker.metrics import METRICS
from worker.summarizers.api_errors import REQUEST_ID, failure, may_pass, retry_after, text_of
from worker.summarizers.base import Answer, Spent, SummaryError
from worker.summarizers.prices import BilledTokens, cost

if TYPE_CHECKING:
    import ssl
    from collections.abc import Awaitable, Callable, Mapping

    from stamina.instrumentation import RetryDetails

    from runtime.settings import Settings, TokenPrices
    from worker.summarizers.breaker import CircuitBreaker

log = structlog.get_logger()

T = TypeVar("T")
Call: TypeAlias = "Callable[[anthropic.AsyncAnthropic], Awaitable[object]]"
"""One request; its answer may be anything."""

ATTEMPTS: Final = 4
FIRST_WAIT_SECONDS: Final = 0.5
"""Wait after the first failure, up to a second more by chance; each further one doubles it."""
LONGEST_BACKOFF_SECONDS: Final = 8.0
"""Longest wait where the server asks for none."""
LONGEST_WAIT_SECONDS: Final = 20.0
"""A server that asks for more patience than this is treated as down: the context is waiting."""
CONNECT_SECONDS: Final = 5.0
"""A host that does not take a connection within this is tried again; the SDK's own default."""

UNKNOWN_WINDOW: Final = LOW_CONTEXT_WINDOW
"""Tokens; a model that is not known is taken for a small one, since more chunks cost less than a refused request."""

MOST_TOKENS: Final = 10_000_000
"""Tokens; ten times the largest window there is. A server that bills more says something else than tokens."""

_NO_TEMPERATURE: Final[set[tuple[str | None, str]]] = set()
"""(server, model) of those that have refused a temperature; known to the process."""

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


class AnthropicModel:
    """Asked not streamed, at temperature 0; retried here and nowhere else, within one deadline for each question.

    Without a `breaker` it is asked however often it has failed.
    """

    name = "anthropic"

    def __init__(self, settings: Settings, breaker: CircuitBreaker | None = None) -> None:
        # The library's own hook logs the error's text, which comes from outside.
        stamina.instrumentation.set_on_retry_hooks([_log_retry])
        self.model = settings.summarizer_model
        self.context_tokens = settings.summarizer_context_tokens or window_of(self.model, UNKNOWN_WINDOW)
        self._breaker = breaker
        self.prices = settings.summarizer_prices
        key, temperature = settings.anthropic_api_key, settings.summarizer_temperature
        self._service = _Service(
            key=(key.get_secret_value() if key else "") or "none",
            base_url=settings.anthropic_base_url,
            deadline=settings.summarizer_deadline_seconds,
            model=self.model,
        )
        self._temperature = temperature

    @property
    def extra(self) -> dict[str, float]:
        """What a question says besides: the SDK has no parameter for the temperature, and newer models refuse it."""
        if self._temperature is None or self._service.who in _NO_TEMPERATURE:
            return {}
        return {"temperature": self._temperature}

    @property
    def deadline_seconds(self) -> float:
        """Seconds for one question, every attempt and every wait included."""
        return self._service.deadline

    def refuses_temperature(self, text: str) -> bool:
        """Tell whether the text of a refusal names the temperature, which is left out from then on."""
        named = "temperature" in text.lower()
        if named:
            _NO_TEMPERATURE.add(self._service.who)
        return named and self._temperature is not None

    def ask(self, system: str, prompt: str, *, max_tokens: int) -> Answer:
        """Return the answer; SummaryError names what went wrong, and its `spent` counts the calls all the same.

        An answer that reached `max_tokens` is returned as it is, with that stop reason, and may be empty; any other
        has text.
        """

        async def call(client: anthropic.AsyncAnthropic) -> object:
            return await client.messages.create(
                model=self.model,
                max_tokens=max_tokens,
                system=system,
                messages=[{"role": "user", "content": prompt}],
                extra_body=self.extra,
            )

        return self.send(call, lambda answer, calls: answer_of(answer, self.model, self.prices, calls=calls))

    def send(self, call: Call, read: Callable[[object, int], T], *, model: str | None = None) -> T:
        """Return what `read` makes of an answer to `call` and of the number of requests that it took.

        Both may raise SummaryError; retries, deadline and breaker are those of every question. `model` is the one that
        is asked, where that is not the summarizer's.
        """
        permit = self._breaker.admit() if self._breaker is not None else None
        question = _Question(self._service, call, model or self.model)
        try:
            found = read(asyncio.run(question.ask()), question.calls)
        except SummaryError as error:
            if self._breaker is not None and permit is not None:
                self._breaker.report(permit, error.code, question.asked_patience)
            raise
        if self._breaker is not None and permit is not None:
            self._breaker.report(permit)
        return found


class _Service(NamedTuple):
    """Where the model is asked, and how."""

    key: str
    base_url: str | None
    deadline: float
    """Seconds for one question."""
    model: str

    @property
    def who(self) -> tuple[str | None, str]:
        """The server and the model, whoever asks."""
        return self.base_url, self.model


@cache
def _authorities() -> ssl.SSLContext:
    """Return the trusted authorities, read once: every question for itself costs 20 ms and most of a megabyte."""
    return httpx2.create_ssl_context()


class _Question:
    """One question on its way: what was tried, and how the last attempt failed."""

    def __init__(self, service: _Service, call: Call, model: str) -> None:
        self._service = service
        self._call = call
        self._model = model
        self._ends = time.monotonic() + service.deadline
        self._failed: anthropic.APIError | None = None
        self._without_temperature = False
        self.calls = 0
        """Requests sent."""
        self.asked_patience: float | None = None
        """Seconds that the server asked for, where that is why it was given up on."""

    async def ask(self) -> object:
        """Return what the server answered with a 200, which may be anything; raise SummaryError."""
        try:
            async with asyncio.timeout(self._service.deadline):
                return await self._attempts()
        except TimeoutError:
            if self._failed is not None:  # the deadline came while the next attempt was waited for
                raise failure(self._failed, self.calls) from None
            raise SummaryError(
                RunReason.MODEL_TIMEOUT, f"no answer within {self._service.deadline:g} s", Spent(self.calls)
            ) from None
        except anthropic.APIError as error:
            raise failure(error, self.calls) from None
        except (ValueError, RecursionError) as error:
            # A proxy's page or a cut body: a 200 that is not an answer.
            raise SummaryError(RunReason.MODEL_GARBAGE, type(error).__name__, Spent(self.calls)) from None

    async def _attempts(self) -> object:
        service = self._service
        # The SDK's own retries are off: they know nothing of the deadline, and a wait that a server asks for has no
        # bound there.
        async with anthropic.AsyncAnthropic(
            api_key=service.key,
            base_url=service.base_url,
            max_retries=0,
            timeout=anthropic.Timeout(service.deadline, connect=CONNECT_SECONDS),
            http_client=anthropic.DefaultAsyncHttpxClient(verify=_authorities()),
        ) as client:
            async for attempt in stamina.retry_context(
                on=self._wait_before_retry,
                attempts=ATTEMPTS,
                timeout=service.deadline,
                wait_initial=FIRST_WAIT_SECONDS,
                wait_max=LONGEST_BACKOFF_SECONDS,
            ):
                with attempt:
                    self.calls += 1
                    self._failed = None
                    return await _told(self._call(client), self._model, lambda error: failure(error, 1).code)
        raise AssertionError("the last attempt returns or raises")

    def _wait_before_retry(self, error: Exception) -> bool | float:
        """Tell whether to try again, and after how many seconds where the server says so."""
        if isinstance(error, anthropic.BadRequestError) and self._names_temperature(error):
            return 0.0
        if isinstance(error, anthropic.APIConnectionError):
            self._failed = error
            return True
        if not isinstance(error, anthropic.APIStatusError) or not may_pass(error):
            return False
        self._failed = error
        asked = retry_after(error.response.headers)
        if asked is None:
            return True
        if asked > LONGEST_WAIT_SECONDS:
            self.asked_patience = asked
            return False
        return asked if asked < self._ends - time.monotonic() else False

    def _names_temperature(self, error: anthropic.APIStatusError) -> bool:
        """Tell whether the temperature is what is wrong, which is left out from then on; once in a question."""
        if self._without_temperature or "temperature" not in text_of(error):
            return False
        _NO_TEMPERATURE.add(self._service.who)
        self._without_temperature = True
        return True


def answer_of(
    message: object,
    model: str,
    prices: Mapping[str, TokenPrices],
    *,
    calls: int = 1,
    batch: bool = False,
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
            spent = Spent(calls, usage.prompt, usage.output, cost(model, usage, prices, batch=batch))
        text = storable("".join(block.text for block in message.content if block.type == "text")).strip()
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


def billed(told: Any) -> BilledTokens | None:
    """Return the tokens billed, None for a server that does not say, or says something else."""
    try:
        written = told.cache_creation_input_tokens or 0
        hourly = told.cache_creation.ephemeral_1h_input_tokens if told.cache_creation else 0
        read = told.cache_read_input_tokens or 0
        usage = BilledTokens(told.input_tokens, told.output_tokens, written - hourly, hourly, read)
        return usage if all(type(count) is int and 0 <= count <= MOST_TOKENS for count in usage) else None
    except (AttributeError, TypeError):
        return None


def storable(text: str) -> str:
    """Return the text with U+FFFD for what JSON can escape and neither UTF-8 nor Postgres can hold."""
    return text.replace("\0", "\ufffd").encode("utf-16", "surrogatepass").decode("utf-16", "replace")


def _log_retry(details: RetryDetails) -> None:
    log.warning(
        "summary.retried",
        attempt=details.retry_num,
        error=type(details.caused_by).__name__,
        status=getattr(details.caused_by, "status_code", None),
        wait_seconds=round(details.wait_for, 2),
    )


async def _told(answer: Awaitable[T], model: str, code_of: Callable[[anthropic.APIError], str]) -> T:
    """Return what a request is answered with, told to the log, the metrics and the trace: ids and numbers alone.

    Raises what it raises. `code_of` names errors by their reason codes.
    """
    started = time.monotonic()
    outcome: str = RunReason.MODEL_GARBAGE
    given = None
    with tracing.span("messages.create", kind="client", model=METRICS.model(model)) as span:
        try:
            found = await answer
            outcome, given = "ok", getattr(found, "_request_id", None)
        except anthropic.APIError as error:
            outcome, given = code_of(error), getattr(error, "request_id", None)
            raise
        except asyncio.CancelledError:
            outcome = RunReason.MODEL_TIMEOUT  # the deadline of the question
            raise
        finally:
            seconds = time.monotonic() - started
            provider_id = given if isinstance(given, str) and REQUEST_ID.fullmatch(given) else None
            METRICS.requested(model, outcome, seconds)
            span.set(outcome=outcome, provider_request_id=provider_id)
            log.info(
                "model.requested",
                model=METRICS.model(model),
                outcome=outcome,
                provider_request_id=provider_id,
                seconds=round(seconds, 3),
            )
    return found
