"""The product's processes as a deployment runs them, and the chat product that feeds them."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from contextlib import contextmanager, suppress
from typing import IO, TYPE_CHECKING, Any

import httpx2
import pytest

from cli.local.embedded import free_port
from runtime.broker import CHECK_TASK, CHECKS, celery_app
from runtime.settings import Settings
from tests.support.eventually import eventually
from tests.support.service.in_process import Chat
from tests.support.talk import exchanges

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping
    from pathlib import Path
    from uuid import UUID

    from celery import Celery

    from tests.conftest import Tenant
    from tests.support.servers.loopback_model import LoopbackModel

START_SECONDS = 120  # a bound for a loaded machine
STOP_SECONDS = 20  # a bound for a loaded machine, well under that of the product


class Product:
    """Settings for real processes, and the chat product that feeds them."""

    def __init__(self, env: dict[str, str], chat: Chat, app: Celery, folder: Path) -> None:
        self.env, self.chat, self.app, self.folder = env, chat, app, folder
        self.program = ["-m", "cli.main"]
        self._started = 0

    @contextmanager
    def worker(self, queue: str, *extra: str, env: Mapping[str, str] | None = None) -> Iterator[Worker]:
        """Run `palimpsest worker` or `palimpsest beat`; it is killed at the end if it still runs."""
        arguments = ["beat"] if queue == "beat" else ["worker", "--queues", queue, *extra]
        with self._palimpsest(queue, *arguments, env=env) as worker:
            yield worker

    @contextmanager
    def api(self, *extra: str, env: Mapping[str, str] | None = None) -> Iterator[Api]:
        """Run `palimpsest api` on a free port until it answers; it is killed at the end if it still runs."""
        with self._serving("api", *extra, env=env) as api:
            yield api

    @contextmanager
    def gateway(self, *extra: str, env: Mapping[str, str] | None = None) -> Iterator[Api]:
        """Run `palimpsest gateway` on a free port until it answers; it is killed at the end if it still runs."""
        with self._serving("gateway", *extra, env=env) as gateway:
            yield gateway

    @contextmanager
    def _serving(self, role: str, *extra: str, env: Mapping[str, str] | None) -> Iterator[Api]:
        port = free_port()
        with self._palimpsest(role, role, "--port", str(port), *extra, env=env) as process:
            served = Api(process.process, process.log, f"http://127.0.0.1:{port}")
            eventually(served.answers, START_SECONDS)
            yield served

    @contextmanager
    def _palimpsest(self, name: str, *arguments: str, env: Mapping[str, str] | None) -> Iterator[Worker]:
        self._started += 1
        log = self.folder / f"{self._started}-{name}.log"
        with log.open("wb") as output:
            process = started([sys.executable, "-P", *self.program, *arguments], {**self.env, **(env or {})}, output)
        worker = Worker(process, log)
        try:
            yield worker
        finally:
            if process.poll() is None:  # one that has ended has to have taken its children along by itself
                worker.kill()

    def wake(self, *conversations: UUID) -> None:
        """Send the wake-up that the API would send."""
        self.app.send_task(CHECK_TASK, args=[[str(each) for each in conversations]], queue=CHECKS)


def started(argv: list[str], env: dict[str, str], output: IO[bytes]) -> subprocess.Popen[bytes]:
    """Start a process that leads a group, so that `kill` reaches the children of its pool."""
    return subprocess.Popen(argv, stdout=output, stderr=output, env=env, process_group=0)


class Worker:
    """One process of the product and what it has written."""

    def __init__(self, process: subprocess.Popen[bytes], log: Path) -> None:
        self.process, self.log = process, log

    def end(self, number: signal.Signals = signal.SIGTERM) -> int:
        """Signal the process and return its exit status."""
        self.process.send_signal(number)
        return self.process.wait(STOP_SECONDS)

    def kill(self) -> None:
        """End it at once, the children of its pool with it."""
        with suppress(ProcessLookupError):
            os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait(STOP_SECONDS)

    @property
    def events(self) -> list[dict[str, Any]]:
        lines = self.log.read_text().splitlines()
        return [json.loads(line) for line in lines if line.startswith("{")]


class Api(Worker):
    """An API process that answers at `url`."""

    def __init__(self, process: subprocess.Popen[bytes], log: Path, url: str) -> None:
        super().__init__(process, log)
        self.url = url

    def answers(self) -> bool:
        """Tell whether it answers; fail if it has ended."""
        try:
            return httpx2.get(f"{self.url}/healthz").status_code == 200
        except httpx2.TransportError:
            assert self.process.poll() is None, self.log.read_text()
            return False

    def client(self, key: str) -> httpx2.Client:
        """Return a client that presents `key`."""
        return httpx2.Client(base_url=self.url, headers={"x-api-key": key}, timeout=START_SECONDS)


def environment(**given: str) -> dict[str, str]:
    """Return this process's environment without settings of the product, and with those that are given."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("PALIMPSEST_", "ANTHROPIC_"))}
    return kept | given


@pytest.fixture
def product(
    database_url: str, broker_url: str, tenant: Tenant, model: LoopbackModel, tmp_path: Path
) -> Iterator[Product]:
    env = environment(
        PALIMPSEST_DATABASE_URL=database_url,
        PALIMPSEST_BROKER_URL=broker_url,
        PALIMPSEST_SUMMARIZER="anthropic",
        PALIMPSEST_SWEEP_INTERVAL_SECONDS="0.2",
        PALIMPSEST_CHECK_OVERDUE_SECONDS="0.5",
        PALIMPSEST_RUN_OVERDUE_SECONDS="2",
        ANTHROPIC_API_KEY="sk-test",
        ANTHROPIC_BASE_URL=model.url,
    )
    settings = Settings(database_url=database_url, broker_url=broker_url)  # type: ignore[arg-type] # pydantic makes secrets
    app = celery_app(settings, "test")
    with Chat(settings, tenant.id) as chat:
        yield Product(env, chat, app, tmp_path)
    app.close()


def long_talk(product: Product) -> UUID:
    conversation = product.chat.begin({"input_token_budget": 0})
    product.chat.append(conversation, exchanges(12, 200))
    return conversation


def ended(product: Product, conversation: UUID) -> Callable[[], bool]:
    return lambda: bool(product.chat.runs(conversation)) and product.chat.run(conversation).finished_at is not None
