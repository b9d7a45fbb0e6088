"""The Python client's turns that wait: nobody waits long for them, and each is stored once and shown once."""

from __future__ import annotations

import asyncio
import math
import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import TYPE_CHECKING

import psycopg
import pytest
from palimpsest_client import AsyncClient, Client, KeptTurn, Outbox, UnexpectedSeqError, UnreachableError

from tests.support.eventually import eventually
from tests.support.places import ROOT
from tests.support.servers.faulty_proxy import FaultyProxy, Refused
from tests.support.service.proxied_client import client, conversation, key, labels, proxy
from tests.support.talk import answer, request

if TYPE_CHECKING:
    from collections.abc import Iterator

    from runtime.settings import Settings
    from tests.support.service.running_api import Service

__all__ = ["client", "conversation", "key", "proxy"]

OWN = [request("what I remember myself")]
COLUMNS = """
    select string_agg(column_name, ', ') from information_schema.columns
    where table_schema = 'public' and table_name = %s and is_generated = 'NEVER'
"""
FORKING = """
import os, signal, sys
from palimpsest_client import Client, KeptTurn

url, key, one, other = sys.argv[1:]
client = Client(url, key)
client.context(other)
client.outbox.add(KeptTurn(one, "key", {"messages": []}))
child = os.fork()
if not child:
    print(len(client.outbox), flush=True)
    client.context(one)
    os._exit(0)
sys.stdin.readline()
os.kill(child, signal.SIGKILL)
os.waitpid(child, 0)
print("ended", flush=True)
print(client.context(other).messages[0]["content"], len(client.outbox))
"""
"""A child asks for the context of one conversation and is gone before the answer; then its parent for the other's."""
SHAPES = [
    Refused(308, {}),
    Refused(200, {}),
    Refused(200, {}, b"null"),
    Refused(200, {}, b"[]"),
    Refused(200, {}, b"{}"),
    Refused(200, {}, b'{"messages": ["x"], "snapshot": null, "last_seq": 1, "tokens": {}, "warnings": []}'),
    Refused(200, {}, b'{"messages": [], "snapshot": null, "last_seq": "x", "tokens": {}, "warnings": []}'),
]


def stored(service: Service, conversation: str) -> list[str]:
    path = f"/v1/conversations/{conversation}/messages"
    return [each["content"].partition(":")[0] for each in service.client.get(path).json()["data"]]


def kept(conversation: str, *texts: str) -> Outbox:
    outbox = Outbox()
    outbox.restore(KeptTurn(conversation, f"key-{text}", {"messages": [request(text)]}) for text in texts)
    return outbox


def test_nobody_waits_for_turns_that_are_being_sent(proxy: FaultyProxy, key: str, conversation: str) -> None:
    answers = threading.Event()
    proxy.always = answers.wait
    with Client(proxy.url, key, outbox=kept(conversation, "a")) as client, ThreadPoolExecutor(1) as pool:
        flushing = pool.submit(client.flush)
        try:
            eventually(lambda: proxy.seen)
            context = client.context(conversation, fallback=lambda: OWN, timeout=0.4)
            assert (context.messages, context.is_fallback) == (OWN, True)
            with pytest.raises(UnreachableError, match="still being sent"):
                client.context(conversation, timeout=0.4)
            assert not flushing.done()
        finally:
            answers.set()
        assert flushing.result() == 0


def test_no_task_waits_for_turns_that_are_being_sent(proxy: FaultyProxy, key: str, conversation: str) -> None:
    answers = threading.Event()
    proxy.always = answers.wait

    async def talk() -> None:
        async with AsyncClient(proxy.url, key, outbox=kept(conversation, "a")) as client:
            flushing = asyncio.create_task(client.flush())
            try:
                await asyncio.to_thread(eventually, lambda: proxy.seen)
                assert (await client.context(conversation, fallback=lambda: OWN, timeout=0.4)).is_fallback
                assert not flushing.done()
            finally:
                answers.set()
            assert await flushing == 0
            assert labels(await client.context(conversation)) == ["a"]

    asyncio.run(talk())


def test_a_turn_that_is_cut_off_while_it_waits_for_others(proxy: FaultyProxy, key: str, conversation: str) -> None:
    answers = threading.Event()
    proxy.always = answers.wait
    noted: list[KeptTurn] = []

    async def talk() -> None:
        outbox = Outbox(on_kept=lambda turn, _: noted.append(turn))
        async with AsyncClient(proxy.url, key, outbox=outbox) as client:
            first = asyncio.create_task(client.deliver(conversation, [request("a")]))
            try:
                await asyncio.to_thread(eventually, lambda: proxy.seen)
                waiting = asyncio.create_task(client.deliver(conversation, [answer("b")]))
                await asyncio.sleep(0)  # one turn of the loop, with which it begins to wait
                waiting.cancel()
                with pytest.raises(asyncio.CancelledError):
                    await waiting
            finally:
                answers.set()
            turn = await first
            assert turn is not None
            assert turn.first_seq == 0
            assert labels(await client.context(conversation)) == ["a", "b"]
            assert len(client.outbox) == 0

    asyncio.run(talk())
    # Once when it is left, once when it goes out.
    assert [(turn.body["messages"], turn.begun) for turn in noted] == [([answer("b")], False), ([answer("b")], True)]


def test_turns_that_wait_share_the_time_of_a_context(proxy: FaultyProxy, key: str, conversation: str) -> None:
    # Each of them takes a second, and there are two for sending.
    proxy.then(*[Refused(503, {"retry-after": "1"}), None] * 3)
    with Client(proxy.url, key, outbox=kept(conversation, "a", "b", "c")) as client:
        context = client.context(conversation, timeout=4)
        assert labels(context) == ["a", "b", "c"]
        assert context.kept > 0
        proxy.faults.clear()
        assert client.flush() == 0


def test_a_turn_is_stored_however_often_others_overtake_it(
    client: Client, conversation: str, proxy: FaultyProxy, service: Service
) -> None:
    def overtake() -> None:
        service.append(f"/v1/conversations/{conversation}", request("theirs"))

    client.append(conversation, [request("a")])
    proxy.then(*[overtake] * 4)
    turn = client.deliver(conversation, [answer("mine")])
    assert turn is not None
    assert stored(service, conversation)[turn.first_seq :] == ["mine"]
    proxy.always = overtake
    assert client.deliver(conversation, [answer("mine too")]) is None
    proxy.always = None
    assert client.flush() == 0
    assert client.outbox.refused == []
    assert stored(service, conversation)[-1] == "mine too"


def test_a_key_that_may_not_read_originals_leaves_no_turn_behind(
    conversation: str, proxy: FaultyProxy, service: Service
) -> None:
    response = service.client.post("/v1/keys", json={"name": "chat", "scopes": ["turns:write", "context:read"]})
    with Client(proxy.url, response.json()["key"]) as client:
        client.append(conversation, [request("a")])
        proxy.always = "drop"
        assert client.deliver(conversation, [answer("mine")]) is None
        service.append(f"/v1/conversations/{conversation}", request("theirs"))
        proxy.always = None
        assert eventually(lambda: client.flush() == 0)
    assert stored(service, conversation) == ["a", "theirs", "mine"]


def test_a_turn_whose_answer_was_lost_is_shown_once(
    client: Client, conversation: str, proxy: FaultyProxy, service: Service
) -> None:
    client.append(conversation, [request("a")])
    proxy.always = "lose"
    assert client.deliver(conversation, [answer("b")]) is None
    assert client.deliver(conversation, [answer("b")]) is None  # the same again, and this one was not sent
    proxy.always = None
    client.core._caller._away_until = math.inf
    context = client.context(conversation)
    assert (labels(context), context.kept) == (["a", "b", "b"], 1)
    service.append(f"/v1/conversations/{conversation}", request("theirs"))
    client.core._caller._away_until = math.inf
    assert labels(client.context(conversation)) == ["a", "b", "theirs", "b"]
    client.core._caller._away_until = 0
    assert client.flush() == 0
    assert stored(service, conversation) == ["a", "b", "theirs", "b"]


def test_a_turn_under_a_key_of_the_callers_own_is_shown_once(
    client: Client, conversation: str, proxy: FaultyProxy
) -> None:
    proxy.always = "lose"
    assert client.deliver(conversation, [request("a"), answer("b")], idempotency_key="reply-1") is None
    proxy.always = None
    client.core._caller._away_until = math.inf
    context = client.context(conversation)
    assert (labels(context), context.kept) == (["a", "b"], 0)


def test_the_same_words_of_two_processes_are_two_turns(
    client: Client, conversation: str, proxy: FaultyProxy, service: Service, key: str
) -> None:
    client.append(conversation, [request("a")])
    with Client(proxy.url, key) as other:
        other.context(conversation)
        for process in (client, other):
            turn = process.deliver(conversation, [request("ok")])
            assert turn is not None
            assert not turn.replayed
        with pytest.raises(UnexpectedSeqError):
            other.deliver(conversation, [request("ok")], expected_next_seq=1)
    assert stored(service, conversation) == ["a", "ok", "ok"]


@pytest.mark.parametrize("shape", SHAPES)
def test_what_is_not_the_services_answer_is_none(
    client: Client, conversation: str, proxy: FaultyProxy, service: Service, shape: Refused
) -> None:
    proxy.always = shape
    context = client.context(conversation, fallback=lambda: OWN)
    assert (context.messages, context.is_fallback) == (OWN, True)
    assert isinstance(context.error, UnreachableError)
    client.core._caller._away_until = 0
    assert client.deliver(conversation, [request("a")]) is None
    client.core._caller._away_until = 0
    assert client.flush() == 1
    client.core._caller._away_until = 0
    proxy.always = None
    assert client.flush() == 0
    assert stored(service, conversation) == ["a"]


@contextmanager
def lost(database_url: str) -> Iterator[None]:
    """Have the database afterwards as it was before, as one that was restored, or a standby that lagged."""
    tables = ("conversations", "messages", "idempotency_keys")
    with psycopg.connect(database_url, autocommit=True) as owner:
        for table in tables:
            owner.execute(f"create temporary table before_{table} as table {table}".encode())
        yield
        owner.execute("set session_replication_role = replica")
        for table in tables:
            (columns,) = owner.execute(COLUMNS, [table]).fetchone() or ("",)
            owner.execute(f"delete from {table}".encode())  # noqa: S608
            owner.execute(f"insert into {table} ({columns}) select {columns} from before_{table}".encode())  # noqa: S608


@pytest.mark.parametrize("noticed_by", ["context", "overflow"])
def test_turns_are_lost_where_the_context_is_the_one_that_is_remembered(
    client: Client, conversation: str, service: Service, module_settings: Settings, noticed_by: str
) -> None:
    long = [request("a: " + "word " * 4000), answer("b: " + "word " * 4000)] * 2
    client.deliver(conversation, [*long, request("c")])
    before = client.context(conversation)
    with lost(module_settings.database_url.get_secret_value()):
        client.deliver(conversation, [answer("d")])
        client.deliver(conversation, [request("e")])
    after = client.context(conversation) if noticed_by == "context" else client.overflow(conversation)
    assert after.last_seq == before.last_seq
    client.deliver(conversation, [answer("f")])
    assert stored(service, conversation) == ["a", "b", "a", "b", "c", "d", "e", "f"]


def test_a_turn_that_names_no_seq_notices_what_is_lost(
    client: Client, conversation: str, service: Service, module_settings: Settings
) -> None:
    client.deliver(conversation, [request("a")])
    with lost(module_settings.database_url.get_secret_value()):
        client.deliver(conversation, [answer("b")])
        client.deliver(conversation, [request("c")], idempotency_key="request-c")
    client.deliver(conversation, [answer("d")], idempotency_key="reply-d")
    client.deliver(conversation, [answer("d")], idempotency_key="reply-d")
    client.deliver(conversation, [request("e")])
    assert stored(service, conversation) == ["a", "d", "b", "c", "e"]


def test_a_forked_process_has_connections_of_its_own(
    proxy: FaultyProxy, key: str, conversation: str, service: Service
) -> None:
    other = service.conversation().rpartition("/")[2]
    service.append(f"/v1/conversations/{conversation}", request("of one user"))
    service.append(f"/v1/conversations/{other}", request("of another"))
    asked, ended = threading.Event(), threading.Event()

    def held() -> None:
        asked.set()
        ended.wait()

    proxy.then(None, held)
    command = [sys.executable, "-c", FORKING, proxy.url, key, conversation, other]
    with subprocess.Popen(
        command, cwd=ROOT / "clients/python", stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        try:
            assert process.stdout.readline() == "0\n"
            asked.wait()
            process.stdin.write("\n")
            process.stdin.flush()
            assert process.stdout.readline() == "ended\n"
        finally:
            ended.set()
        context, _, waiting = process.stdout.read().strip().rpartition(" ")
        assert (context.partition(":")[0], waiting) == ("of another", "1")


def test_an_event_loop_may_end(proxy: FaultyProxy, key: str, conversation: str) -> None:
    client = AsyncClient(proxy.url, key)

    async def talk(text: str) -> int | None:
        context = await client.context(conversation, fallback=lambda: OWN)
        assert not context.is_fallback
        turn = await client.deliver(conversation, [request(text)])
        return turn.first_seq if turn is not None else None

    assert [asyncio.run(talk(text)) for text in "ab"] == [0, 1]
    asyncio.run(client.close())
    with pytest.raises(RuntimeError, match="closed"):
        asyncio.run(talk("c"))
