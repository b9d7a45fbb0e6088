"""Worker processes as a deployment runs them: what they take over, how they end, what they log."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import pytest
from sqlalchemy import text

from store.broker import CHECK_TASK, CHECKS, celery_app
from store.settings import Settings
from tests.eventually import eventually
from tests.in_process import SMALL, Chat, head
from tests.loopback_model import LoopbackModel
from tests.talk import exchanges, request, rounds

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path
    from uuid import UUID

    from celery import Celery

    from tests.conftest import Tenant

STOP_SECONDS = 20  # a bound for a loaded machine, well under that of the product


class Product:
    """Settings for real workers, and the chat product that feeds them."""

    def __init__(self, env: dict[str, str], chat: Chat, app: Celery, folder: Path) -> None:
        self.env, self.chat, self.app, self.folder = env, chat, app, folder
        self.program = ["-m", "cli.main"]
        self._started = 0

    @contextmanager
    def worker(self, queue: str, *extra: str) -> Iterator[Worker]:
        """Run `palimpsest worker` or `palimpsest sweeper`; it is killed at the end if it still runs."""
        self._started += 1
        log = self.folder / f"{self._started}-{queue}.log"
        arguments = ["sweeper"] if queue == "sweeper" else ["worker", "--queues", queue, *extra]
        with (
            log.open("wb") as output,
            subprocess.Popen(
                [sys.executable, "-P", *self.program, *arguments], stdout=output, stderr=output, env=self.env
            ) as process,
        ):
            try:
                yield Worker(process, log)
            finally:
                process.kill()

    def wake(self, *conversations: UUID) -> None:
        """Send the wake-up that the API would send."""
        self.app.send_task(CHECK_TASK, args=[[str(each) for each in conversations]], queue=CHECKS)


class Worker:
    """One worker process and what it has written."""

    def __init__(self, process: subprocess.Popen[bytes], log: Path) -> None:
        self.process, self.log = process, log

    def end(self, number: signal.Signals = signal.SIGTERM) -> int:
        """Signal the process and return its exit status."""
        self.process.send_signal(number)
        return self.process.wait(STOP_SECONDS)

    @property
    def events(self) -> list[dict[str, Any]]:
        lines = self.log.read_text().splitlines()
        return [json.loads(line) for line in lines if line.startswith("{")]


@pytest.fixture
def model() -> Iterator[LoopbackModel]:
    with LoopbackModel() as server:
        yield server


@pytest.fixture
def product(
    database_url: str, broker_url: str, tenant: Tenant, model: LoopbackModel, tmp_path: Path
) -> Iterator[Product]:
    given = {
        "PALIMPSEST_DATABASE_URL": database_url,
        "PALIMPSEST_BROKER_URL": broker_url,
        "PALIMPSEST_SUMMARIZER": "anthropic",
        "PALIMPSEST_SWEEP_INTERVAL_SECONDS": "0.2",
        "PALIMPSEST_CHECK_OVERDUE_SECONDS": "0.5",
        "PALIMPSEST_RUN_OVERDUE_SECONDS": "2",
        "ANTHROPIC_API_KEY": "sk-test",
        "ANTHROPIC_BASE_URL": model.url,
    }
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("PALIMPSEST_", "ANTHROPIC_"))}
    settings = Settings(database_url=database_url, broker_url=broker_url)  # type: ignore[arg-type] # pydantic makes secrets
    app = celery_app(settings, "test")
    with Chat(settings, tenant.id) as chat:
        yield Product(kept | given, chat, app, tmp_path)
    app.close()


def long_talk(product: Product) -> UUID:
    conversation = product.chat.begin({"input_token_budget": 0})
    product.chat.append(conversation, exchanges(12, 200))
    return conversation


def ended(product: Product, conversation: UUID) -> Callable[[], bool]:
    return lambda: bool(product.chat.runs(conversation)) and product.chat.run(conversation).finished_at is not None


def test_sigterm_gives_up_a_model_call_and_another_worker_goes_on_at_once(
    product: Product, model: LoopbackModel
) -> None:
    conversation = long_talk(product)
    model.hold()
    with product.worker("checks,summaries", "--concurrency", "2") as first:
        product.wake(conversation)
        model.wait_for_requests(1)
        assert first.end() == 0
    assert "run.released" in {event["event"] for event in first.events}
    assert "Traceback" not in first.log.read_text()
    run = product.chat.run(conversation)
    assert (run.state, run.attempts, run.lease_token) == ("queued", 0, None)
    model.release()
    with product.worker("summaries", "--concurrency", "2") as second:
        # No sweeper runs: the wake-up was there for it.
        eventually(ended(product, conversation), 60)
        assert second.end() == 0
    run = product.chat.run(conversation)
    assert (run.state, run.attempts) == ("committed", 1)
    assert len(model.requests) == 2


def test_sigterm_ends_idle_workers_and_the_sweeper(product: Product) -> None:
    conversation = product.chat.begin()
    product.chat.append(conversation, [request("go"), *rounds(6, 600)])
    with product.worker("checks") as checks, product.worker("sweeper") as sweeper:
        eventually(ended(product, conversation), 60)  # nobody woke the worker: the sweeper did
        assert (checks.end(), sweeper.end()) == (0, 0)
    for worker in (checks, sweeper):
        assert "Traceback" not in worker.log.read_text()
    assert product.chat.run(conversation).state == "committed"
    assert head(product.chat, conversation).version == 1


def test_a_failed_task_logs_its_type_and_nothing_of_what_it_held(product: Product) -> None:
    secret = "the words of a user"
    product.chat.begin(SMALL)
    with product.worker("checks", "--concurrency", "1") as worker:
        product.app.send_task(CHECK_TASK, args=[[secret]], queue=CHECKS)
        (failed,) = eventually(lambda: [each for each in worker.events if each["event"] == "task.failed"], 60)
        assert (failed["task"], failed["error"]) == (CHECK_TASK, "ValueError")
        # It goes on with the next.
        conversation = product.chat.begin()
        product.chat.append(conversation, [request(secret), *rounds(6, 600)])
        product.wake(conversation)
        eventually(ended(product, conversation), 60)
        assert worker.end() == 0
    told = worker.log.read_text()
    assert secret not in told
    assert "Traceback" not in told
    assert "lorem" not in told


def test_a_worker_that_hangs_ends_all_the_same(product: Product) -> None:
    impatient = "from worker import shutdown; shutdown.STOP_SECONDS = 0.5; from cli.main import main; main()"
    product.program = ["-c", impatient]
    conversation = product.chat.begin()
    product.chat.append(conversation, [request("go"), *rounds(6, 600)])
    with (
        product.worker("checks", "--concurrency", "1") as worker,
        product.chat.database.transaction(product.chat.tenant_id) as connection,
    ):
        connection.execute(text("select from conversations where id = :c for update"), {"c": conversation})
        product.wake(conversation)
        eventually(lambda: product.chat.query("select from pg_locks where not granted"), 60)
        assert worker.end() == 1
    assert "worker.stop_overdue" in {event["event"] for event in worker.events}
    # Its child is gone as well, or it would have the row by now.
    product.chat.append(conversation, [request("more")])
    assert product.chat.runs(conversation) == []
