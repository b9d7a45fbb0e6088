"""Webhooks: every run's end is told once to whoever asked, signed, tried again, and given up in sight."""

from __future__ import annotations

import json
import re
import shutil
import socket
import subprocess
import threading
from concurrent.futures import ThreadPoolExecutor
from ipaddress import ip_address
from threading import Barrier
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import pytest
from standardwebhooks import Webhook, WebhookVerificationError

from runtime import ids
from store.runs import runs
from store.runs import stranded as stranded_runs
from store.tenants import webhooks
from tests.support.eventually import eventually
from tests.support.places import ROOT
from tests.support.servers.webhook_receiver import Drip, Receiver
from tests.support.service.in_process import Chat, Workers
from tests.support.service.problem_documents import problem
from tests.support.service.stub_summarizer import StubSummarizer
from tests.support.talk import request, rounds
from tests.support.threaded_http import ThreadedServer
from worker.summarizers import SummaryError
from worker.sweeping.webhooks import TIMEOUT_SECONDS, Courier, is_public

if TYPE_CHECKING:
    from collections.abc import Iterator
    from uuid import UUID

    from tests.support.service.running_api import Service

PAGE: Final = (ROOT / "docs/webhooks.md").read_text()
ADAPTER: Final = ROOT / "clients/ai-sdk"


def samples(language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```$", PAGE, re.MULTILINE | re.DOTALL)


@pytest.fixture
def receiver() -> Iterator[Receiver]:
    with Receiver() as made:
        yield made


def subscribe(chat: Chat, url: str, events: tuple[webhooks.Event, ...] = webhooks.EVENTS) -> str:
    """Make a webhook; return its secret."""
    with chat.database.transaction(chat.tenant_id) as connection:
        made = webhooks.add(connection, chat.tenant_id, url, events)
    assert made is not None
    return made[1]


def compact(chat: Chat) -> UUID:
    """Have a conversation compacted; return its id."""
    conversation = chat.begin()
    chat.append(conversation, [request("the secret word is plover"), *rounds(6, 600)])
    Workers(chat).settle(conversation)
    return conversation


def deliver(chat: Chat, *, private_addresses: bool = True) -> int:
    """Do what sweeper and workers do with the tenant's deliveries that are due; return how many those were."""
    courier = Courier(chat.database, private_addresses=private_addresses, threads=16)
    with chat.database.transaction(None) as connection:
        due = [each for each, tenant_id, _ in webhooks.due(connection, 1_000) if tenant_id == chat.tenant_id]
    for delivery_id in due:
        courier.deliver(chat.tenant_id, delivery_id)
    return len(due)


def rows(chat: Chat) -> list[Any]:
    return list(chat.query("select * from webhook_deliveries order by id"))


def make_due(chat: Chat) -> None:
    """Let the time of the next attempt have come."""
    chat.query("update webhook_deliveries set next_attempt_at = now() where state = 'pending'")


@pytest.mark.requirement("O10")
def test_the_end_of_a_run_is_told_with_ids_and_counts_and_a_signature(chat: Chat, receiver: Receiver) -> None:
    secret = subscribe(chat, f"{receiver.url}/hook")
    conversation = compact(chat)
    run = chat.run(conversation)
    assert deliver(chat) == 1
    (event,) = receiver.verified(secret)
    assert event["type"] == "compaction.completed"
    assert event["data"] == {
        "run_id": ids.external("run", run.id),
        "conversation_id": ids.external("conv", conversation),
        "external_id": None,
        "trigger": "check",
        "state": "committed",
        "reason": run.reason,
        "snapshot_version": run.snapshot_version,
        "tokens_before": run.tokens_before,
        "tokens_after": run.tokens_after,
    }
    headers, body = receiver.received[0]
    assert headers["webhook-id"] == event["id"]
    assert "plover" not in body
    with pytest.raises(WebhookVerificationError):
        Webhook("whsec_" + "A" * 44).verify(body, headers)
    (row,) = rows(chat)
    assert (row.state, row.attempts, row.status) == ("delivered", 1, 204)
    assert deliver(chat) == 0


def test_degraded_run_has_an_event_of_its_own(chat: Chat, receiver: Receiver) -> None:
    secret = subscribe(chat, receiver.url, ("compaction.degraded",))
    compact(chat)
    assert rows(chat) == []
    conversation = chat.begin({"input_token_budget": 0})
    chat.append(conversation, [request("go"), *rounds(12, 400)])
    Workers(chat, StubSummarizer(error=SummaryError("model_overloaded", "status 529"))).settle(conversation)
    deliver(chat)
    (event,) = receiver.verified(secret)
    assert (event["type"], event["data"]["state"]) == ("compaction.degraded", "degraded")


def test_a_dead_run_is_told_as_a_failure(chat: Chat, receiver: Receiver) -> None:
    secret = subscribe(chat, receiver.url)
    conversation = chat.begin()
    chat.append(conversation, [request("go"), *rounds(6, 600)])
    lease = Workers(chat).begin(conversation)
    chat.expire_lease(lease.run_id)
    with chat.database.transaction(chat.tenant_id) as connection:
        assert runs.requeue(connection, lease.run_id, max_attempts=1) == "dead"
    deliver(chat)
    (event,) = receiver.verified(secret)
    assert (event["data"]["state"], event["data"]["reason"]) == ("dead", "attempts_exhausted")


def test_a_run_that_is_retried_and_dies_again_is_told_again(chat: Chat, receiver: Receiver) -> None:
    secret = subscribe(chat, receiver.url)
    conversation = chat.begin()
    chat.append(conversation, [request("go"), *rounds(6, 600)])
    lease = Workers(chat).begin(conversation)
    for _ in range(2):
        chat.expire_lease(lease.run_id)
        with chat.database.transaction(chat.tenant_id) as connection:
            assert runs.requeue(connection, lease.run_id, max_attempts=1) == "dead"
        with chat.database.transaction(chat.tenant_id) as connection:
            assert stranded_runs.retry(connection, chat.tenant_id, lease.run_id).outcome == "queued"
        assert Workers(chat).claim(lease.run_id) is not None
    deliver(chat)
    first, second = receiver.verified(secret)
    assert first["data"] == second["data"]
    assert first["id"] != second["id"]


def test_a_refused_delivery_is_tried_again_and_then_given_up_in_sight(chat: Chat) -> None:
    attempts = len(webhooks.RETRY_SECONDS) + 1
    with Receiver([500, 302, *[503] * (attempts - 2)]) as receiver:
        subscribe(chat, receiver.url)
        compact(chat)
        for number in range(1, attempts + 1):
            assert deliver(chat) == 1
            assert deliver(chat) == 0  # not before its time
            (row,) = rows(chat)
            assert row.attempts == number
            make_due(chat)
        assert (row.state, row.status, row.error) == ("dead", 503, "status 503")
        assert len(receiver.received) == attempts  # a redirect is not followed
        with chat.database.transaction(chat.tenant_id) as connection:
            assert webhooks.retry(connection, chat.tenant_id, row.id)
        assert deliver(chat) == 1
        (row,) = rows(chat)
        assert (row.state, row.attempts) == ("delivered", 1)


def test_a_receiver_that_is_away_is_a_failed_attempt(chat: Chat) -> None:
    with Receiver() as receiver:
        subscribe(chat, receiver.url)
    compact(chat)
    deliver(chat)
    (row,) = rows(chat)
    assert (row.state, row.attempts, row.status, row.error) == ("pending", 1, None, "ConnectError")


def test_a_name_is_looked_up_once_and_called_at_that_address(
    chat: Chat, receiver: Receiver, monkeypatch: pytest.MonkeyPatch
) -> None:
    look, asked = socket.getaddrinfo, 0

    def rebind(host: Any, *arguments: Any, **named: Any) -> Any:
        nonlocal asked
        if host != "rebind.example":
            return look(host, *arguments, **named)
        asked += 1
        return look("127.0.0.1" if asked == 1 else "127.0.0.9", *arguments, **named)

    monkeypatch.setattr("socket.getaddrinfo", rebind)
    subscribe(chat, receiver.url.replace("127.0.0.1", "rebind.example"))
    compact(chat)
    deliver(chat)
    assert asked == 1
    assert len(receiver.received) == 1


def test_one_private_address_among_public_ones_is_not_called(chat: Chat, monkeypatch: pytest.MonkeyPatch) -> None:
    look = socket.getaddrinfo

    def mix(host: Any, *arguments: Any, **named: Any) -> Any:
        if host != "mixed.example":
            return look(host, *arguments, **named)
        return [*look("8.8.8.8", *arguments, **named), *look("127.0.0.1", *arguments, **named)]

    monkeypatch.setattr("socket.getaddrinfo", mix)
    subscribe(chat, "https://mixed.example/hook")
    compact(chat)
    deliver(chat, private_addresses=False)
    (row,) = rows(chat)
    assert (row.attempts, row.error) == (1, "address_not_allowed")


@pytest.mark.parametrize(
    "host", ["127.0.0.1", "localhost", "[::1]", "169.254.169.254", "10.0.0.1", "[::ffff:10.0.0.1]"]
)
def test_private_addresses_are_not_called(chat: Chat, host: str) -> None:
    subscribe(chat, f"https://{host}/hook")
    compact(chat)
    deliver(chat, private_addresses=False)
    (row,) = rows(chat)
    assert (row.attempts, row.error) == (1, "address_not_allowed")


def test_two_workers_with_the_same_delivery_make_one_attempt(chat: Chat, receiver: Receiver) -> None:
    subscribe(chat, receiver.url)
    compact(chat)
    courier = Courier(chat.database, private_addresses=True, threads=16)
    (row,) = rows(chat)
    for _ in range(2):
        courier.deliver(chat.tenant_id, row.id)
    assert len(receiver.received) == 1


def test_removing_a_webhook_gives_up_what_was_waiting(chat: Chat, receiver: Receiver) -> None:
    subscribe(chat, receiver.url)
    compact(chat)
    with chat.database.transaction(chat.tenant_id) as connection:
        (webhook,) = webhooks.page(connection, chat.tenant_id)
        assert webhooks.remove(connection, chat.tenant_id, webhook.id)
        assert not webhooks.remove(connection, chat.tenant_id, webhook.id)
    (row,) = rows(chat)
    assert (row.state, row.error) == ("dead", "webhook_removed")
    assert deliver(chat) == 0
    assert compact(chat)
    assert len(rows(chat)) == 1


def test_a_receiver_that_drips_does_not_keep_the_worker(chat: Chat, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("worker.sweeping.webhooks.TIMEOUT_SECONDS", 0.5)
    with ThreadedServer(Drip) as server:
        subscribe(chat, f"{server.url}/hook")
        compact(chat)
        deliver(chat)
    (row,) = rows(chat)
    assert (row.state, row.status, row.error) == ("pending", None, "TimeoutError")


@pytest.mark.parametrize("host", ["a..example", f"{'a' * 64}.example", "receiver.example:65536"])
def test_a_host_that_cannot_be_is_given_up_like_any_other(chat: Chat, host: str) -> None:
    subscribe(chat, f"https://{host}/hook")
    compact(chat)
    for _ in range(len(webhooks.RETRY_SECONDS) + 1):
        assert deliver(chat) == 1
        make_due(chat)
    (row,) = rows(chat)
    assert (row.state, row.error) == ("dead", "address_not_allowed")


def test_a_lookup_that_hangs_does_not_keep_the_worker(chat: Chat, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("worker.sweeping.webhooks.TIMEOUT_SECONDS", 0.2)
    look, answers = socket.getaddrinfo, threading.Event()

    def hang(host: str, *arguments: Any, **named: Any) -> Any:
        if host == "slow.example":
            answers.wait()
            raise socket.gaierror
        return look(host, *arguments, **named)

    monkeypatch.setattr("socket.getaddrinfo", hang)
    subscribe(chat, "https://slow.example/hook")
    compact(chat)
    attempt = threading.Thread(target=deliver, args=(chat,), daemon=True)
    attempt.start()
    try:
        eventually(lambda: rows(chat)[0].error == "TimeoutError")
        attempt.join(30)
        assert not attempt.is_alive()
    finally:
        answers.set()


def test_tenants_take_turns_among_what_is_due(chat: Chat) -> None:
    for _ in range(3):
        subscribe(chat, "https://chat.example/hook")
    compact(chat)
    first = chat.tenant_id
    subscribe(chat.renew(), "https://chat.example/hook")
    compact(chat)
    with chat.database.transaction(None) as connection:
        due = [tenant_id for _, tenant_id, _ in webhooks.due(connection, 1_000)]
    ours = [tenant_id for tenant_id in due if tenant_id in {first, chat.tenant_id}]
    assert ours == [first, chat.tenant_id, first, first]


class Patient(NamedTuple):
    """A receiver that answers once it may; `asked` is released by each attempt."""

    url: str
    asked: threading.Semaphore
    may_answer: threading.Event


@pytest.fixture
def patient() -> Iterator[Patient]:
    asked, may_answer = threading.Semaphore(0), threading.Event()

    class Slow(Drip):
        def do_POST(self) -> None:
            asked.release()
            may_answer.wait()
            self.send_response(204)
            self.end_headers()

    with ThreadedServer(Slow) as server:
        yield Patient(f"{server.url}/hook", asked, may_answer)
        may_answer.set()


def due_of(chat: Chat) -> list[tuple[UUID, UUID]]:
    with chat.database.transaction(None) as connection:
        every = webhooks.due(connection, 1_000)
    return [(tenant_id, each) for each, tenant_id, _ in every if tenant_id == chat.tenant_id]


def test_receivers_that_take_their_time_hold_up_nobody_elses(chat: Chat, receiver: Receiver, patient: Patient) -> None:
    courier = Courier(chat.database, private_addresses=True, threads=16)
    for _ in range(3):
        subscribe(chat, patient.url)
    compact(chat)
    *held, left = due_of(chat)
    with ThreadPoolExecutor(2) as pool:
        attempts = [pool.submit(courier.deliver, *each) for each in held]
        try:
            assert all(patient.asked.acquire(timeout=30) for _ in held)
            courier.deliver(*left)
            assert due_of(chat) == [left]
            subscribe(chat.renew(), receiver.url)
            compact(chat)
            for each in due_of(chat):
                courier.deliver(*each)
            assert len(receiver.received) == 1
        finally:
            patient.may_answer.set()
        for attempt in attempts:
            attempt.result(30)
    courier.deliver(*left)
    assert patient.asked.acquire(timeout=30)


@pytest.mark.parametrize("is_quick", [True, False])
def test_quick_receivers_wait_for_nobody(
    chat: Chat, receiver: Receiver, patient: Patient, monkeypatch: pytest.MonkeyPatch, *, is_quick: bool
) -> None:
    if not is_quick:
        monkeypatch.setattr("worker.sweeping.webhooks.QUICK_SECONDS", 0.0)
    courier = Courier(chat.database, private_addresses=True, threads=1)
    for url in (receiver.url, patient.url, receiver.url):
        subscribe(chat, url)
    compact(chat)
    first, second, third = due_of(chat)
    courier.deliver(*first)
    with ThreadPoolExecutor(1) as pool:
        attempt = pool.submit(courier.deliver, *second)
        assert patient.asked.acquire(timeout=30)
        courier.deliver(*third)
        assert due_of(chat) == ([] if is_quick else [third])
        assert len(receiver.received) == (2 if is_quick else 1)
        patient.may_answer.set()
        attempt.result(30)


def test_nobody_else_makes_the_next_attempt_while_one_is_under_way() -> None:
    assert min(webhooks.RETRY_SECONDS) > TIMEOUT_SECONDS


@pytest.mark.parametrize(
    ("address", "public"),
    [
        ("8.8.8.8", True),
        ("2606:4700::1111", True),
        ("10.0.0.1", False),
        ("224.0.0.1", False),
        ("::ffff:8.8.8.8", True),
        ("::ffff:10.0.0.1", False),
        ("64:ff9b::8.8.8.8", True),
        ("64:ff9b::169.254.169.254", False),
        ("2002:808:808::1", True),
        ("2002:a00:1::1", False),
        ("fec0::1", False),
        ("fd00::1", False),
        ("64:ff9b:1::8.8.8.8", False),
        ("64:ff9b:1:ffff::10.0.0.1", False),
        ("::127.0.0.1", False),
        ("::8.8.8.8", False),
        ("::ffff:0:127.0.0.1", False),
        ("::", False),
        ("100::1", False),
        ("5f00::1", False),
        ("2001:0:4136:e378:8000:63bf:3fff:fdd2", False),
        ("2001:db8::1", False),
        ("3fff::1", False),
        ("2606:4700::5efe:127.0.0.1", False),
        ("2606:4700::200:5efe:10.0.0.1", False),
        ("2606:4700::5efe:8.8.8.8", True),
        ("192.0.0.192", False),
        ("192.0.0.9", False),
        ("192.88.99.1", False),
        ("168.63.129.16", False),
        ("100.100.100.200", False),
        ("240.0.0.1", False),
    ],
)
def test_an_address_that_stands_for_another_is_what_that_one_is(address: str, public: bool) -> None:
    assert is_public(ip_address(address)) == public


def test_webhooks_over_http(service: Service) -> None:
    body = service.client.post("/v1/webhooks", json={"url": "https://chat.example/hook"}).json()
    assert body["secret"].startswith("whsec_")
    assert body["events"] == list(webhooks.EVENTS)
    (listed,) = service.client.get("/v1/webhooks").json()["data"]
    assert listed == {name: value for name, value in body.items() if name != "secret"}
    assert service.stranger.get("/v1/webhooks").json() == {"data": []}
    assert service.stranger.delete(f"/v1/webhooks/{body['id']}").status_code == 404
    assert service.client.get("/v1/webhook-deliveries", params={"state": "dead"}).json()["data"] == []
    assert service.client.post("/v1/webhook-deliveries/evt_00/retry").status_code == 404
    assert service.client.delete(f"/v1/webhooks/{body['id']}").status_code == 204
    assert service.client.get("/v1/webhooks").json() == {"data": []}


@pytest.mark.parametrize(
    ("body", "pointer"),
    [
        ({"url": "http://chat.example/hook"}, "/url"),
        ({"url": "https://user:word@chat.example/"}, "/url"),
        ({"url": "https:///hook"}, "/url"),
        ({"url": "https://a..example/hook"}, "/url"),
        ({"url": f"https://{'a' * 64}.example/hook"}, "/url"),
        ({"url": "https://chat.example:65536/hook"}, "/url"),
        ({"url": "https://[::1/hook"}, "/url"),
        ({"url": "ftp://chat.example"}, "/url"),
        ({"url": "https://chat example/hook"}, "/url"),
        ({"url": "https://chat.example/hook", "events": ["compaction.started"]}, "/events/0"),
        ({"url": "https://chat.example/hook", "events": []}, "/events"),
    ],
)
def test_a_webhook_that_cannot_be_is_refused(service: Service, body: dict[str, Any], pointer: str) -> None:
    assert problem(service.client.post("/v1/webhooks", json=body), 422, "invalid", pointer)


def test_webhooks_that_are_made_at_once_are_counted_one_after_the_other(chat: Chat) -> None:
    for _ in range(webhooks.MAXIMUM - 1):
        subscribe(chat, "https://chat.example/hook")
    start = Barrier(8)

    def make(_: int) -> bool:
        start.wait()
        with chat.database.transaction(chat.tenant_id) as connection:
            return webhooks.add(connection, chat.tenant_id, "https://chat.example/hook", webhooks.EVENTS) is not None

    with ThreadPoolExecutor(8) as pool:
        assert sum(pool.map(make, range(8))) == 1
    with chat.database.transaction(chat.tenant_id) as connection:
        assert len(webhooks.page(connection, chat.tenant_id)) == webhooks.MAXIMUM


def test_a_tenant_has_a_bounded_number_of_webhooks(chat: Chat) -> None:
    for _ in range(webhooks.MAXIMUM):
        subscribe(chat, "https://chat.example/hook")
    with chat.database.transaction(chat.tenant_id) as connection:
        assert webhooks.add(connection, chat.tenant_id, "https://chat.example/hook", webhooks.EVENTS) is None


def shape(value: Any) -> Any:
    """Return the fields of an event, with what follows the prefix of an id or the date taken off their values."""
    if isinstance(value, dict):
        return {key: shape(each) for key, each in value.items()}
    if isinstance(value, str):
        return re.sub(r"^(evt|run|conv)_[0-9a-f]{32}$", r"\1", re.sub(r"^\d{4}-\d\d-\d\dT.*Z$", "time", value))
    return type(value).__name__


def test_the_page_shows_every_event_as_it_is_sent(chat: Chat, receiver: Receiver) -> None:
    secret = subscribe(chat, receiver.url)
    compact(chat)
    conversation = chat.begin({"input_token_budget": 0})
    chat.append(conversation, [request("go"), *rounds(12, 400)])
    Workers(chat, StubSummarizer(error=SummaryError("model_overloaded", "status 529"))).settle(conversation)
    stranded = chat.begin()
    chat.append(stranded, [request("go"), *rounds(6, 600)])
    lease = Workers(chat).begin(stranded)
    chat.expire_lease(lease.run_id)
    with chat.database.transaction(chat.tenant_id) as connection:
        runs.requeue(connection, lease.run_id, max_attempts=1)
    deliver(chat)
    shown = {each["data"]["state"]: each for each in map(json.loads, samples("json"))}
    sent = {each["data"]["state"]: each for each in receiver.verified(secret)}
    for each in (*shown.values(), *sent.values()):
        each["data"]["external_id"] = None
    assert {state: shape(each) for state, each in shown.items()} == {state: shape(each) for state, each in sent.items()}
    assert {each["type"] for each in shown.values()} == set(webhooks.EVENTS)


def test_the_page_tells_when_attempts_are_made() -> None:
    matches = re.findall(r"^\| (\d) \| ([\d,]+) \|$", PAGE, re.MULTILINE)
    assert [(int(number), int(seconds.replace(",", ""))) for number, seconds in matches] == list(
        enumerate(webhooks.RETRY_SECONDS, 2)
    )
    assert f"after {TIMEOUT_SECONDS:.0f} seconds in all" in PAGE
    assert f"about {sum(webhooks.RETRY_SECONDS) / 3600:.0f} hours after" in PAGE


def test_the_python_of_the_page_verifies_what_is_sent(chat: Chat, receiver: Receiver) -> None:
    secret = subscribe(chat, receiver.url)
    compact(chat)
    deliver(chat)
    ((headers, body),) = receiver.received
    (sample,) = samples("python")
    names: dict[str, Any] = {}
    exec(compile(sample, "docs/webhooks.md", "exec"), names)  # noqa: S102 - the page's own code
    assert names["event_of"](secret, headers, body.encode())["type"] == "compaction.completed"
    with pytest.raises(WebhookVerificationError):
        names["event_of"](secret, headers, body.replace("committed", "dead").encode())


def test_the_typescript_of_the_page_verifies_what_is_sent(chat: Chat, receiver: Receiver) -> None:
    if shutil.which("npm") is None or not (ADAPTER / "node_modules/.installed").exists():
        pytest.skip("the TypeScript compiler is not installed; make clients does that")
    secret = subscribe(chat, receiver.url)
    compact(chat)
    deliver(chat)
    ((headers, body),) = receiver.received
    (sample,) = samples("typescript")
    (ADAPTER / "dist").mkdir(exist_ok=True)
    (ADAPTER / "dist/webhooks.ts").write_text(sample)
    options = "--strict --exactOptionalPropertyTypes --skipLibCheck --module nodenext --target es2022 --types node"
    command = ["npx", "tsc", "--ignoreConfig", *options.split(), "dist/webhooks.ts"]
    done = subprocess.run(command, cwd=ADAPTER, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    script = """
        import { eventOf } from "./dist/webhooks.js";
        const [secret, headers, bodies, types] = [...JSON.parse(process.argv[1]), []];
        for (const body of bodies) {
            try { types.push(eventOf(secret, new Headers(headers), body).type); }
            catch (error) { types.push(error.message); }
        }
        console.log(JSON.stringify(types));
    """
    sent = json.dumps([secret, headers, [body, body.replace("committed", "dead")]])
    done = subprocess.run(
        ["node", "--input-type=module", "--eval", script, sent],
        cwd=ADAPTER,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout) == ["compaction.completed", "this event was not signed with this secret"]
