"""A model behind an API, whoever serves it: attempts, deadline, breaker and records of one question.

What differs between providers is the call and what their errors say: a module for each.
"""

from __future__ import annotations

import asyncio
import re
import time
from abc import ABC, abstractmethod
from concurrent.futures import ThreadPoolExecutor
from contextlib import aclosing
from functools import cache
from typing import TYPE_CHECKING, Any, Final, Generic, NamedTuple, Self, TypeVar

import httpx2
import stamina
import structlog

from compaction.steps.runs import RunReason
from compaction.windows import UNKNOWN_SUMMARIZER_WINDOW, window_of
from runtime import tracing
from worker.metrics import METRICS
from worker.summarizers.api_errors import REQUEST_ID, failure, is_too_long, may_pass, retry_after
from worker.summarizers.base import Spent, SummaryError
from worker.summarizers.prices import PriceTable

if TYPE_CHECKING:
    import ssl
    from collections.abc import AsyncGenerator, Awaitable, Callable
    from contextlib import AbstractAsyncContextManager

    from stamina.instrumentation import RetryDetails

    from compaction.policy import Policy
    from runtime.settings import Settings
    from runtime.summarizers import ModelAccess, Provider
    from worker.summarizers.api_errors import Trouble
    from worker.summarizers.breaker import CircuitBreaker

log = structlog.get_logger()

T = TypeVar("T")
Client = TypeVar("Client")
"""The SDK's client."""

ATTEMPTS: Final = 4
FIRST_WAIT_SECONDS: Final = 0.5
"""Wait after the first failure, up to a second more by chance; each further one doubles it."""
LONGEST_BACKOFF_SECONDS: Final = 8.0
"""Longest wait where the server asks for none."""
LONGEST_WAIT_SECONDS: Final = 20.0
"""A server that asks for more patience than this is treated as down: the context is waiting."""
CONNECT_SECONDS: Final = 5.0
"""A host that does not take a connection within this is tried again; the SDKs' own default."""

MOST_BYTES: Final = 16 * 1024 * 1024
"""Bytes of an answer, unpacked; a summary has some thousand, and what was thought before it some ten thousand."""
TEMPERATURE: Final = "temperature"
"""Lesson: this model takes no temperature."""
_THOUGHT: Final = re.compile(
    r"\A(?:\s*<think(?:ing)?>.*?(?:</think(?:ing)?>|\Z)|(?:(?!<think).)*?^[ \t]*</think(?:ing)?>[ \t]*$)",
    re.DOTALL | re.MULTILINE,
)
"""What servers leave in the answer that were not told how a model writes down what it thinks; where its template has
opened the thought already, the answer only closes it."""
_LEARNED: Final[dict[tuple[str | None, str], set[str]]] = {}
"""What (server, model) have refused and are asked without; known to the process."""
_ABOUT_THE_REQUEST: Final = frozenset({400, 422})
"""Statuses of refusals that name what is wrong with a request; 422 is that of servers made with FastAPI."""


class Service(NamedTuple, Generic[Client]):
    """Where models are asked, and how."""

    base_url: str | None
    connect: Callable[[], AbstractAsyncContextManager[Client]]
    """Makes a client for one question, whose own retries are off: they know nothing of the deadline, and a wait that a
    server asks for has no bound there."""
    trouble_of: Callable[[Exception], Trouble | None]
    """What an error of the SDK says, None for errors that are not its own."""
    span: str
    """What a request is called in traces."""


class RemoteModel(ABC, Generic[Client]):
    """Asked not streamed, at temperature 0; retried here and nowhere else, within one deadline for each question.

    Without a `breaker` it is asked however often it has failed. A `policy` may choose another model than the
    installation's, and say what it costs.
    """

    name: Provider

    def __init__(
        self,
        settings: Settings,
        breaker: CircuitBreaker | None = None,
        policy: Policy | None = None,
    ) -> None:
        # The library's own hook logs the error's text, which comes from outside.
        stamina.instrumentation.set_on_retry_hooks([_log_retry])
        own = settings.model_of(self.name)
        self.model = (policy.summarizer_model if policy else "") or own
        self.context_tokens = settings.summarizer_context_tokens or window_of(self.model, UNKNOWN_SUMMARIZER_WINDOW)
        self.prices = PriceTable.of(settings, policy)
        self.deadline_seconds = settings.summarizer_deadline_seconds
        """Seconds for one question, every attempt and every wait included."""
        self._is_allowed = self.model == own or settings.allows_model(self.model)
        self._settings = settings
        self._breaker = breaker
        self._service = self.service(settings.model_access(self.name), self.deadline_seconds)
        self._temperature = settings.summarizer_temperature

    def chosen_by(self, policy: Policy) -> Self:
        """Return the model of the same service that a policy names, itself where it names none and no prices."""
        if not policy.summarizer_model and not policy.model_prices:
            return self
        return type(self)(self._settings, self._breaker, policy)

    @staticmethod
    @abstractmethod
    def service(door: ModelAccess, deadline: float) -> Service[Client]:
        """Return where models are asked, for questions of `deadline` seconds."""

    @property
    def base_url(self) -> str | None:
        """Where the model is asked, None for the provider's own place."""
        return self._service.base_url

    @property
    def learned(self) -> set[str]:
        """What this model, at this server, has refused in a request."""
        return _LEARNED.setdefault((self.base_url, self.model), set())

    @property
    def temperature(self) -> float | None:
        """The temperature to ask for, None for models that refuse one."""
        return None if TEMPERATURE in self.learned else self._temperature

    def lesson(self, text: str) -> str | None:
        """Return what a refusal of a request, in small letters, says to do without; None where that is nothing."""
        return TEMPERATURE if TEMPERATURE in text else None

    def check_allowed(self) -> None:
        """Raise SummaryError where the installation does not let a policy choose this model."""
        if not self._is_allowed:
            raise SummaryError(
                RunReason.MODEL_REJECTED, "the policy's summarizer_model is not in PALIMPSEST_SUMMARIZER_MODELS"
            )

    def send(
        self,
        call: Callable[[Client], Awaitable[object]],
        read: Callable[[object, int], T],
        *,
        model: str | None = None,
    ) -> T:
        """Return what `read` makes of an answer to `call` and of the number of requests that it took.

        `call` makes one request, whose answer may be anything. Both may raise SummaryError; retries, deadline and
        breaker are those of every question. `model` is the one that is asked, where that is not this one.
        """
        permit = self._breaker.admit() if self._breaker is not None else None
        question = _Question(self, self._service, call, model or self.model)
        try:
            answer = read(asyncio.run(question.ask()), question.calls)
        except SummaryError as error:
            if self._breaker is not None and permit is not None:
                self._breaker.report(permit, error.code, question.asked_patience)
            raise
        if self._breaker is not None and permit is not None:
            self._breaker.report(permit)
        return answer


@cache
def authorities() -> ssl.SSLContext:
    """Return the trusted authorities, read once: every question for itself costs 20 ms and most of a megabyte."""
    return httpx2.create_ssl_context()


class TooLongError(ValueError):
    """An answer of more than MOST_BYTES."""


async def bound_answer(response: httpx2.Response) -> None:
    """Have reading an answer's body end with TooLongError where it is too long, whatever it is packed in.

    Of either version of the HTTP client: their answers are read alike. Results of batches are read one by one.
    """
    if response.request.url.path.endswith("/results"):
        return
    whole = response.aiter_bytes

    async def bounded(chunk_size: int | None = None) -> AsyncGenerator[bytes]:
        size = 0
        async with aclosing(whole(chunk_size)) as pieces:
            async for piece in pieces:
                size += len(piece)
                if size > MOST_BYTES:
                    raise TooLongError
                yield piece

    response.aiter_bytes = bounded  # type: ignore[method-assign] # what every other way of reading it goes through


def storable(text: str) -> str:
    """Return the text with U+FFFD for what JSON can escape and neither UTF-8 nor Postgres can hold."""
    return text.replace("\0", "\ufffd").encode("utf-16", "surrogatepass").decode("utf-16", "replace")


def said_in(text: str) -> str:
    """Return what an answer says, as it can be stored, without what the model thought before."""
    return _THOUGHT.sub("", storable(text), count=1).strip()


class _Lookups(ThreadPoolExecutor):
    """Threads in which a question's event loop looks up addresses.

    A loop that ends waits for its threads, and a resolver may have patience for longer than the deadline: the lookup
    goes on, and nobody waits for it.
    """

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:  # noqa: FBT001, FBT002 - as the library has it
        """End the threads once they have nothing more to do, without waiting for that."""
        del wait, cancel_futures
        super().shutdown(wait=False, cancel_futures=True)


class _Question(Generic[Client]):
    """One question on its way: what was tried, and how the last attempt failed."""

    def __init__(
        self,
        asked: RemoteModel[Client],
        service: Service[Client],
        call: Callable[[Client], Awaitable[object]],
        model: str,
    ) -> None:
        self._asked = asked
        self._service = service
        self._call = call
        self._model = model
        self._ends = time.monotonic() + asked.deadline_seconds
        self._failed: Trouble | None = None
        self._adapted: set[str] = set()
        self.calls = 0
        """Requests sent."""
        self.asked_patience: float | None = None
        """Seconds that the server asked for, where that is why it was given up on."""

    async def ask(self) -> object:
        """Return what the server answered with a 200, which may be anything; raise SummaryError."""
        deadline = self._asked.deadline_seconds
        asyncio.get_running_loop().set_default_executor(_Lookups(thread_name_prefix="model-lookup"))
        try:
            async with asyncio.timeout(deadline):
                return await self._attempts()
        except TimeoutError:
            if self._failed is not None:  # the deadline came while the next attempt was waited for
                raise failure(self._failed, self.calls) from None
            raise SummaryError(RunReason.MODEL_TIMEOUT, f"no answer within {deadline:g} s", Spent(self.calls)) from None
        except (ValueError, RecursionError) as error:
            # A proxy's page or a cut body: a 200 that is not an answer.
            raise SummaryError(RunReason.MODEL_GARBAGE, type(error).__name__, Spent(self.calls)) from None
        except Exception as error:
            trouble = self._service.trouble_of(error)
            if trouble is None:
                raise
            raise failure(trouble, self.calls) from None

    async def _attempts(self) -> object:
        async with self._service.connect() as client:
            async for attempt in stamina.retry_context(
                on=self._wait_before_retry,
                attempts=ATTEMPTS,
                timeout=self._asked.deadline_seconds,
                wait_initial=FIRST_WAIT_SECONDS,
                wait_max=LONGEST_BACKOFF_SECONDS,
            ):
                with attempt:
                    self.calls += 1
                    self._failed = None
                    return await self._recorded(self._call(client))
        raise AssertionError("the last attempt returns or raises")

    def _wait_before_retry(self, error: Exception) -> bool | float:
        """Tell whether to try again, and after how many seconds where the server says so."""
        trouble = self._service.trouble_of(error)
        if trouble is None or trouble.kind == "garbage":
            return False
        if self._adapts(trouble):
            return 0.0
        if trouble.kind == "status" and not may_pass(trouble):
            return False
        self._failed = trouble
        asked = retry_after(trouble.headers)
        if asked is None:
            return True
        if asked > LONGEST_WAIT_SECONDS:
            self.asked_patience = asked
            return False
        return asked if asked < self._ends - time.monotonic() else False

    def _adapts(self, trouble: Trouble) -> bool:
        """Tell whether the next attempt leaves out what is refused, and so do all later ones; once in a question."""
        if trouble.status not in _ABOUT_THE_REQUEST or is_too_long(trouble):
            return False
        lesson = self._asked.lesson(trouble.text)
        if lesson is None or lesson in self._adapted:
            return False
        self._asked.learned.add(lesson)
        self._adapted.add(lesson)
        return True

    async def _recorded(self, answer: Awaitable[T]) -> T:
        """Return the answer of a request, reported to the log, the metrics and the trace: ids and numbers alone.

        Raises what it raises.
        """
        started = time.monotonic()
        outcome: str = RunReason.MODEL_GARBAGE
        given: Any = None
        model = METRICS.model(self._model)
        with tracing.span(self._service.span, kind="client", model=model) as span:
            try:
                answered = await answer
                outcome, given = "ok", getattr(answered, "_request_id", None)
            except asyncio.CancelledError:
                outcome = RunReason.MODEL_TIMEOUT  # the deadline of the question
                raise
            except Exception as error:
                if (trouble := self._service.trouble_of(error)) is not None:
                    outcome, given = failure(trouble, 1).code, trouble.request_id
                raise
            finally:
                seconds = time.monotonic() - started
                provider_id = given if isinstance(given, str) and REQUEST_ID.fullmatch(given) else None
                METRICS.requested(self._model, outcome, seconds)
                span.set(outcome=outcome, provider_request_id=provider_id)
                log.info(
                    "model.requested",
                    model=model,
                    outcome=outcome,
                    provider_request_id=provider_id,
                    seconds=round(seconds, 3),
                )
        return answered


def _log_retry(details: RetryDetails) -> None:
    log.warning(
        "summary.retried",
        attempt=details.retry_num,
        error=type(details.caused_by).__name__,
        status=getattr(details.caused_by, "status_code", None),
        wait_seconds=round(details.wait_for, 2),
    )
