"""Wake-ups against a real Redis that comes, goes and hangs: the turn is stored all the same, and nobody waits."""

from __future__ import annotations

import asyncio
import base64
import contextlib
import json
import os
import signal
import socketserver
import subprocess
import tempfile
import threading
from typing import TYPE_CHECKING, Any, Self
from uuid import uuid4

import httpx2
import pytest
import redis

from actions.background import ending
from actions.background.ending import end
from actions.background.wakeups import CROWD, Wakeups
from actions.monitoring.metrics import Metrics
from cli.local.embedded import free_port
from cli.local.installations import redis_server as redis_program
from runtime.broker import BATCH, CHECK_TASK
from tests.support.eventually import eventually
from tests.support.service.running_api import TIMEOUT, running_api

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from runtime.settings import Settings
    from tests.conftest import Tenant
    from tests.support.service.running_api import RunningApi

TURN = {"messages": [{"role": "user", "content": "Hello."}]}
QUEUE = "palimpsest:checks"


class Broker:
    """A Redis of the test's own that can be killed and started again on its port."""

    def __init__(self) -> None:
        self.port = free_port()
        self.url = f"redis://127.0.0.1:{self.port}/0"
        self._process: subprocess.Popen[bytes] | None = None
        self._folder: tempfile.TemporaryDirectory[str] | None = None

    def start(self) -> None:
        options = {"port": str(self.port), "bind": "127.0.0.1", "save": "", "appendonly": "no", "logfile": "/dev/null"}
        # A replica writes what it is sent there, and whoever starts there reads that.
        self._folder = tempfile.TemporaryDirectory(prefix="redis-")
        options["dir"] = self._folder.name
        arguments = [part for name, value in options.items() for part in (f"--{name}", value)]
        self._process = subprocess.Popen([str(redis_program()), *arguments])
        eventually(self.answers)

    def answers(self) -> bool:
        with self.client() as client, contextlib.suppress(redis.ConnectionError):
            return bool(client.ping())
        return False

    def signal(self, number: signal.Signals) -> None:
        assert self._process is not None
        os.kill(self._process.pid, number)

    def kill(self) -> None:
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            self._process = None
        if self._folder is not None:
            self._folder.cleanup()

    def client(self) -> redis.Redis:
        return redis.Redis.from_url(self.url, socket_timeout=5)

    def batches(self) -> list[list[str]]:
        """Return the conversations that each message in the queue carries, oldest first."""
        with self.client() as client:
            messages = [json.loads(text) for text in client.lrange(QUEUE, 0, -1)][::-1]
        items = []
        for message in messages:
            assert message["headers"]["task"] == CHECK_TASK
            (batch,), _, _ = json.loads(base64.b64decode(message["body"]))
            items.append([f"conv_{identifier.replace('-', '')}" for identifier in batch])
        return items


@pytest.fixture
def broker() -> Iterator[Broker]:
    made = Broker()
    made.start()
    yield made
    made.kill()


class Echo:
    """A server that says what it is told."""

    def __init__(self, port: int) -> None:
        self.heard = threading.Event()
        heard = self.heard

        class Handler(socketserver.BaseRequestHandler):
            def handle(self) -> None:
                while told := self.request.recv(65_536):
                    self.request.sendall(told)
                    heard.set()

        class Server(socketserver.ThreadingTCPServer):
            allow_reuse_address = True
            daemon_threads = True

        self._server = Server(("127.0.0.1", port), Handler)
        self._thread = threading.Thread(target=self._server.serve_forever, kwargs={"poll_interval": 0.05})

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()


class Chat:
    """A client that appends to conversations it makes."""

    def __init__(self, api: RunningApi, key: str) -> None:
        self.client = api.client(key)

    def conversation(self) -> str:
        response: str = self.client.post("/v1/conversations", json={}).json()["id"]
        return response

    def append(self, conversation: str) -> str:
        """Append a turn and return what became of its check."""
        done = self.client.post(f"/v1/conversations/{conversation}/turns", json=TURN)
        assert done.status_code == 201
        check: str = done.json()["check"]
        return check

    def ready(self) -> dict[str, Any]:
        answer = self.client.get("/readyz")
        assert answer.status_code == 200
        services: dict[str, Any] = answer.json()["services"]
        return services

    def counted(self) -> dict[str, float]:
        """Return the conversations in wake-ups, by what became of them."""
        lines = self.client.get("/metrics").text.splitlines()
        found = (line.split() for line in lines if line.startswith("palimpsest_wakeups_total{"))
        return {name.split('"')[1]: float(value) for name, value in found}


@pytest.fixture
def chat(make_settings: Callable[..., Settings], broker: Broker, tenant: Tenant) -> Iterator[Chat]:
    settings = make_settings(broker_url=broker.url, wakeup_interval_seconds=0.3)
    with running_api(settings) as api:
        made = Chat(api, tenant.key)
        yield made
        made.client.close()


def test_many_appends_are_one_message(chat: Chat, broker: Broker) -> None:
    conversations = [chat.conversation() for _ in range(40)]
    assert {chat.append(each) for each in conversations} == {"queued"}
    assert {chat.append(each) for each in conversations} == {"coalesced"}
    eventually(lambda: sum(map(len, broker.batches())) == 40)
    batches = broker.batches()
    assert sorted(each for batch in batches for each in batch) == sorted(conversations)
    assert len(batches) < 20
    eventually(lambda: chat.counted() == {"sent": 40, "deferred": 0, "lost": 0})


@pytest.mark.parametrize(
    ("together", "sizes"), [(CROWD - 1, [CROWD - 1, 1]), (CROWD, [CROWD + 1]), (BATCH + 50, [BATCH, 50, 1])]
)
def test_a_crowd_waits_for_more_unless_its_message_is_full(
    make_settings: Callable[..., Settings], broker: Broker, together: int, sizes: list[int]
) -> None:
    """One comes after the first interval: timers fire in their order, however late."""
    settings = make_settings(broker_url=broker.url, wakeup_interval_seconds=0.1)

    async def run() -> None:
        wakeups = Wakeups(settings, Metrics())
        await wakeups.start()
        for _ in range(together):
            assert wakeups.add(uuid4(), uuid4()) == "queued"
        await asyncio.sleep(0)  # the batch's timer is set before this one
        await asyncio.sleep(1.5 * settings.wakeup_interval_seconds)
        wakeups.add(uuid4(), uuid4())
        await wakeups.stop()

    asyncio.run(run())
    assert [len(batch) for batch in broker.batches()] == sizes


def test_a_policy_that_changed_is_checked(chat: Chat, broker: Broker) -> None:
    conversation = chat.conversation()
    chat.client.patch(f"/v1/conversations/{conversation}", json={"policy": {"input_token_budget": 5}})
    assert eventually(broker.batches) == [[conversation]]


def test_a_fork_is_checked(chat: Chat, broker: Broker) -> None:
    conversation = chat.conversation()
    chat.append(conversation)
    assert eventually(broker.batches) == [[conversation]]
    fork: str = chat.client.post(f"/v1/conversations/{conversation}/fork", json={"through_seq": 0}).json()["id"]
    assert chat.append(fork) == "coalesced"
    assert eventually(lambda: broker.batches()[1:]) == [[fork]]


def _pin(chat: Chat, path: str) -> None:
    assert chat.client.post(f"{path}/pins", json={"seq": 0}).status_code == 201


def _unpin(chat: Chat, path: str) -> None:
    (made,) = chat.client.get(f"{path}/pins").json()["data"]
    assert chat.client.delete(f"{path}/pins/{made['id']}").status_code == 204


def _withdraw(chat: Chat, path: str) -> None:
    rule = chat.client.get(f"{path}/rules").json()["data"][0]
    assert chat.client.patch(f"{path}/rules/{rule['id']}", json={"in_force": False}).status_code == 200


def _restore(chat: Chat, path: str) -> None:
    assert chat.client.post(f"{path}/restore", json={"version": 0}).status_code == 200


def _overflow(chat: Chat, path: str) -> None:
    assert chat.client.post(f"{path}/overflow", json={}).status_code == 200


@pytest.mark.parametrize("change", [_unpin, _withdraw, _restore, _overflow])
def test_whatever_makes_a_check_due_wakes_the_workers(
    chat: Chat, broker: Broker, change: Callable[[Chat, str], None]
) -> None:
    """The next turn finds the check due already and sends no wake-up of its own."""
    conversation = chat.conversation()
    path = f"/v1/conversations/{conversation}"
    said = {"role": "user", "content": "Never name the harbour. " + "lorem ipsum " * 400}
    answer = {"role": "assistant", "content": "Well. " + "dolor sit " * 400}
    turn = {"messages": [said, answer, said, answer, {"role": "user", "content": "And?"}]}
    assert chat.client.post(f"{path}/turns", json=turn).status_code == 201
    eventually(lambda: broker.batches() == [[conversation]])
    _pin(chat, path)
    eventually(lambda: broker.batches()[1:] == [[conversation]])
    change(chat, path)
    eventually(lambda: broker.batches()[2:] == [[conversation]])


@pytest.mark.fault("F9")
def test_something_else_in_the_place_of_the_broker_is_not_taken_for_it_for_good(chat: Chat, broker: Broker) -> None:
    """A connection to a port that nobody listens at may be one to itself, which says what it is told."""
    broker.kill()
    with Echo(broker.port) as echo:
        assert echo.heard.wait(60)
        eventually(lambda: chat.ready()["broker"] == "unavailable")
    broker.start()
    eventually(lambda: chat.ready()["broker"] == "ok")
    assert chat.append(chat.conversation()) == "queued"


@pytest.mark.fault("F9")
def test_turns_are_deferred_as_soon_as_the_broker_has_gone(chat: Chat, broker: Broker) -> None:
    waiting, conversation = chat.conversation(), chat.conversation()
    assert chat.append(waiting) == "queued"
    eventually(broker.batches)
    broker.kill()
    eventually(lambda: chat.ready()["broker"] == "unavailable")
    assert chat.append(conversation) == "deferred"
    assert chat.append(conversation) == "deferred"
    assert chat.append(waiting) == "deferred"
    assert chat.ready() == {
        "database": "ok",
        "migrations": "ok",
        "broker": "unavailable",
        "checks": "missing",
        "summaries": "missing",
        "beat": "missing",
    }
    assert chat.counted()["deferred"] == 1
    broker.start()
    eventually(lambda: chat.ready()["broker"] == "ok")
    assert chat.append(conversation) == "coalesced"
    fresh = chat.conversation()
    assert chat.append(fresh) == "queued"
    assert eventually(broker.batches) == [[fresh]]


def test_a_broker_that_is_not_up_yet(make_settings: Callable[..., Settings], tenant: Tenant) -> None:
    broker = Broker()
    try:
        with running_api(make_settings(broker_url=broker.url)) as api:
            chat = Chat(api, tenant.key)
            assert chat.append(chat.conversation()) == "deferred"
            broker.start()
            eventually(lambda: chat.ready()["broker"] == "ok")
            fresh = chat.conversation()
            assert chat.append(fresh) == "queued"
            assert eventually(broker.batches) == [[fresh]]
            chat.client.close()
    finally:
        broker.kill()


@pytest.mark.fault("F9")
def test_a_hung_broker_holds_up_nobody(chat: Chat, broker: Broker) -> None:
    """Everything up to SIGCONT happens while Redis answers nobody."""
    first = chat.conversation()
    broker.signal(signal.SIGSTOP)
    try:
        assert chat.append(first) in {"queued", "deferred"}
        eventually(lambda: chat.append(chat.conversation()) == "deferred")
        assert chat.ready()["broker"] == "unavailable"
        for _ in range(5):
            assert chat.append(chat.conversation()) == "deferred"
    finally:
        broker.signal(signal.SIGCONT)
    fresh = eventually(lambda: queued(chat))
    eventually(lambda: [fresh] in broker.batches() or any(fresh in batch for batch in broker.batches()))


def queued(chat: Chat) -> str | None:
    """Append to a new conversation; return it if its check is on its way."""
    conversation = chat.conversation()
    return conversation if chat.append(conversation) == "queued" else None


def test_a_process_that_ends_sends_its_last_batch(
    make_settings: Callable[..., Settings], broker: Broker, tenant: Tenant
) -> None:
    """The interval is longer than the test may take: only the end can have sent it."""
    with running_api(make_settings(broker_url=broker.url, wakeup_interval_seconds=3_600)) as api:
        chat = Chat(api, tenant.key)
        conversations = [chat.conversation() for _ in range(3)]
        for each in conversations:
            assert chat.append(each) == "queued"
        assert broker.batches() == []
        chat.client.close()
        api.stop()
    assert broker.batches() == [conversations]


def test_a_process_ends_although_its_broker_hangs(
    make_settings: Callable[..., Settings], broker: Broker, tenant: Tenant
) -> None:
    with running_api(make_settings(broker_url=broker.url, wakeup_interval_seconds=3_600)) as api:
        chat = Chat(api, tenant.key)
        assert chat.append(chat.conversation()) == "queued"
        broker.signal(signal.SIGSTOP)
        chat.client.close()
        api.stop()
    broker.signal(signal.SIGCONT)
    with pytest.raises(httpx2.TransportError):
        api.client().get("/healthz")


async def end_one_that_takes_an_end_for_a_failure() -> int:
    failures = 0

    async def go_on() -> None:
        nonlocal failures
        while failures < 3:
            try:
                await asyncio.Event().wait()
            except asyncio.CancelledError:
                failures += 1

    task = asyncio.create_task(go_on())
    await asyncio.sleep(0)
    await end(task)
    assert task.done()
    return failures


def test_what_goes_on_though_it_was_cancelled_is_cancelled_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ending, "AGAIN_SECONDS", 0.01)
    assert asyncio.run(asyncio.wait_for(end_one_that_takes_an_end_for_a_failure(), TIMEOUT)) == 3
