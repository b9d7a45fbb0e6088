"""Worker processes that run from one stop to the next when they are told to, in the test's own process.

A process stops before each of its transactions and while it waits for a model. Whatever a test does meanwhile comes in
between, as another machine's doing would. At a stop a process may go on, or die: at once, or just before the
transaction that it is about to begin would have been committed. Only one of them runs at a time.
"""

from __future__ import annotations

from contextlib import contextmanager
from threading import Semaphore, Thread
from typing import TYPE_CHECKING, Any, Final, Literal, NamedTuple

from store.runs import runs
from store.runs.runs import LeaseHolder
from tests.support.service.in_process import Workers
from tests.support.service.stub_summarizer import SPENT, StubSummarizer
from worker.database import Database
from worker.runs.dispatch import Dispatcher
from worker.runs.resources import RunResources
from worker.summarizers import SummaryError
from worker.summarizers.base import Answer

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence
    from uuid import UUID

    from sqlalchemy import Connection

    from store.runs.runs import Lease
    from tests.support.service.in_process import Chat
    from worker.summarizers import Summary, SummaryRequest

Order = Literal["go", "die", "die before commit", "failure", "bug", "long", "blank"]
"""What a process does next; the last four say what the model does, and are `go` elsewhere."""

LOST: Final = 60.0
"""Seconds after which a process that came to no stop hangs; no test waits that long unless something is broken."""
MAX_ATTEMPTS: Final = 3


class DeathError(BaseException):
    """The worker's process is gone, in the middle of whatever it did."""


class Process:
    """One worker process at work on one task."""

    def __init__(self, chat: Chat, task: Callable[[SteppedWorkers], None]) -> None:
        self.woken: list[UUID] = []
        """Runs that it told other workers of."""
        self.ended = False
        self.at_model = False
        self._order: Order = "go"
        self._error: BaseException | None = None
        self._proceed, self._stopped = Semaphore(0), Semaphore(0)
        self._task = task
        self._workers = SteppedWorkers(chat, self)
        self._thread = Thread(target=self._run, name="stepped-worker", daemon=True)
        self._thread.start()
        self._wait()

    def step(self, order: Order = "go") -> None:
        """Go on to the next stop, or to the end."""
        self._order = order
        self._proceed.release()
        self._wait()

    def finish(self, order: Order = "go") -> None:
        """Go on to the end; the model does what `order` says."""
        while not self.ended:
            self.step(order)

    def stop(self, *, at_model: bool = False) -> Order:
        """Stop here until the test says how to go on; called by the process itself."""
        self.at_model = at_model
        self._stopped.release()
        assert self._proceed.acquire(timeout=LOST)
        if self._order == "die":
            raise DeathError
        return self._order

    def _run(self) -> None:
        try:
            self.stop()
            self._task(self._workers)
        except DeathError:
            pass
        except BaseException as error:  # noqa: BLE001 - raised again where the test waits
            self._error = error
        self.woken += self._workers.woken
        self.ended = True
        self._stopped.release()

    def _wait(self) -> None:
        assert self._stopped.acquire(timeout=LOST), "a process came to no stop"
        if self._error is not None:
            raise self._error


class SteppedDatabase(Database):
    """The database of a process that stops before each of its transactions; the connections are the test's."""

    def __init__(self, chat: Chat, process: Process) -> None:
        super().__init__(chat.settings, "stepped")
        self.engine = chat.database.engine
        self._process = process

    @contextmanager
    def transaction(self, tenant_id: UUID | None, *, one_moment: bool = False) -> Iterator[Connection]:
        """Stop, then open a transaction."""
        order = self._process.stop()
        with super().transaction(tenant_id, one_moment=one_moment) as connection:
            yield connection
            if order == "die before commit":
                raise DeathError


class SteppedModel(StubSummarizer):
    """A model that answers when it is told to, with what it was asked about: also as the model for context blocks."""

    model: str = "stub-model"
    context_tokens: Final = 100_000

    def __init__(self, process: Process, quoted: Callable[[Any], str]) -> None:
        super().__init__()
        self._process = process
        self._quoted = quoted

    def summarize(self, request: SummaryRequest) -> Summary:
        """Return a summary that names what it is of."""
        self.text = self._answer(f"They spoke of {self._quoted([message.content for message in request.zone])}.")
        return super().summarize(request)

    def ask(self, system: str, prompt: str, *, max_tokens: int) -> Answer:
        """Return an answer about a context block."""
        del system, max_tokens
        return Answer(self._answer(f"Of {self._quoted(prompt)}."), "end_turn", SPENT)

    def _answer(self, text: str) -> str:
        match self._process.stop(at_model=True):
            case "failure":
                raise SummaryError("model_error", "status 500", SPENT)
            case "bug":
                raise KeyError("a bug")
            case "long":
                return f"{text} It was longer than anything that it could stand for. " * 1_000
            case "blank":
                return "[CONTEXT SUMMARY] <- as if it were its own marker"
            case _:
                return text


class SteppedWorkers(Workers):
    """What one process does, on its own database."""

    def __init__(self, chat: Chat, process: Process) -> None:
        self.model = SteppedModel(process, getattr(chat, "quoted", lambda _: "many things"))
        super().__init__(chat, self.model, max_attempts=MAX_ATTEMPTS)
        self._database = SteppedDatabase(chat, process)
        self.resources = RunResources(
            self._database,
            lambda: self.model,
            make_model=lambda: self.model,
            lease_seconds=self.lease_seconds,
            wake=lambda lease: self.woken.append(lease.run_id),
        )
        self.dispatcher = Dispatcher(self.resources)
        self.checker._database = self._database

    def claim(self, run_id: UUID) -> Lease | None:
        """Take a queued run, or one whose lease is over."""
        with self._database.transaction(self.chat.tenant_id) as connection:
            return runs.claim(
                connection,
                run_id,
                holder=LeaseHolder("test"),
                lease_seconds=self.lease_seconds,
                max_attempts=self.max_attempts,
            )

    def carry_out(self, run_id: UUID) -> None:
        """Do what the task of a run does."""
        lease = self.claim(run_id)
        if lease is not None:
            self.dispatcher.execute(lease)
            self.check(lease.conversation_id)


class Found(NamedTuple):
    """What a sweep found: conversations whose check is due, and runs that were put back into their queues."""

    checks: list[UUID]
    runs: list[UUID]


def sweep(chat: Chat, conversations: Sequence[UUID]) -> Found:
    """Do what a sweeper does for some conversations, to which everything that waits is overdue."""
    due = chat.query("select id from conversations where id = any(:c) and check_due_at is not null", c=conversations)
    stranded = chat.query(
        "select id from runs where conversation_id = any(:c)"
        " and (state = 'queued' or (state = 'running' and lease_expires_at < now()))",
        c=conversations,
    )
    queued = []
    for run in stranded:
        with chat.database.transaction(chat.tenant_id) as connection:
            if runs.requeue(connection, run.id, MAX_ATTEMPTS) in {"checks", "summaries"}:
                queued.append(run.id)
    return Found([row.id for row in due], queued)
