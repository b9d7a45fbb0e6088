"""The Python client against a running API: the two calls around a model call, and a service that is away."""

from __future__ import annotations

import asyncio
import threading
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest
from palimpsest_client import (
    ApiError,
    AsyncClient,
    AuthenticationError,
    Client,
    ConflictError,
    InvalidError,
    KeptTurn,
    NotFoundError,
    Outbox,
    OutboxFullError,
    OverflowExhaustedError,
    PermissionDeniedError,
    RateLimitedError,
    UnexpectedSeqError,
    UnreachableError,
)
from pydantic import BaseModel

from tests.api.doors.test_problems import key_with
from tests.support.eventually import eventually
from tests.support.servers.faulty_proxy import FaultyProxy, Refused
from tests.support.servers.tcp_gate import gate
from tests.support.service.in_process_worker import work
from tests.support.service.proxied_client import client, conversation, key, labels, proxy
from tests.support.talk import answer, exchanges, request

if TYPE_CHECKING:
    from palimpsest_client import Context

    from tests.support.service.running_api import Service

__all__ = ["client", "conversation", "key", "proxy"]

OWN = [request("what I remember myself")]
BUSY = Refused(503, {"retry-after": "0"})
TOO_LONG = "prompt is too long: 10000 tokens > 8000 maximum"


def stored(client: Client, conversation: str) -> list[str]:
    return [each["content"].partition(":")[0] for each in client.list_messages(conversation, limit=100).data]


class ModelUsage(BaseModel):
    """As the SDK has it."""

    input_tokens: int
    output_tokens: int
    cache_read_input_tokens: int | None = None
    service_tier: str = "standard"


class TextBlock(BaseModel):
    """As the SDK has it."""

    type: str
    text: str
    citations: list[str] | None = None


def test_the_two_calls(client: Client, conversation: str) -> None:
    empty = client.context(conversation)
    assert (empty.messages, empty.version, empty.last_seq, empty.is_fallback) == ([], 0, -1, False)
    reply = {"role": "assistant", "content": [TextBlock(type="text", text="hello")]}
    usage = ModelUsage(input_tokens=11, output_tokens=3)
    turn = client.append(conversation, [request("hi"), reply], usage=usage, snapshot_version=empty.version)
    assert (turn.first_seq, turn.last_seq, turn.replayed) == (0, 1, False)
    context = client.context(conversation)
    assert context.messages == [
        request("hi"),
        {"role": "assistant", "content": [{"type": "text", "text": "hello"}]},
    ]
    assert context.tokens is not None
    assert context.tokens["measured"] == 11


@pytest.mark.parametrize("kind", [Client, AsyncClient])
def test_an_address_that_is_none_is_told_at_once(kind: type[Client | AsyncClient]) -> None:
    for url in ("", "127.0.0.1:8080", "localhost:8080/v1", "ftp://palimpsest.example"):
        with pytest.raises(ValueError, match="begins with http"):
            kind(url, "key")


@pytest.mark.parametrize("kind", [Client, AsyncClient])
@pytest.mark.parametrize("key", ["pk_\u2026", "pk_1\r\nx-other: 1"])
def test_a_key_that_no_request_can_have_is_told_at_once(kind: type[Client | AsyncClient], key: str) -> None:
    with pytest.raises(ValueError, match="characters that no key has"):
        kind("http://localhost:8080", key)


def test_a_key_may_be_read_from_a_file(service: Service, key: str) -> None:
    conversation = service.conversation().rpartition("/")[2]
    with Client(service.api.url, f" {key}\n") as client:
        assert client.context(conversation).version == 0


def test_a_turn_under_a_key_that_no_header_may_have_stands_in_nobodys_way(client: Client, conversation: str) -> None:
    for name in ("\u043a\u043b\u044e\u0447", "a\nb", " a"):
        for call in (client.deliver, client.append):
            with pytest.raises(ValueError, match="idempotency key"):
                call(conversation, exchanges(1, 20), idempotency_key=name)
    assert client.deliver(conversation, exchanges(1, 20)) is not None
    assert len(client.outbox) == 0


def test_an_address_may_be_that_of_the_calls(service: Service, key: str) -> None:
    conversation = service.conversation().rpartition("/")[2]
    for end in ("", "/", "/v1", "/v1/"):
        with Client(service.api.url + end, key) as client:
            assert client.context(conversation).version == 0


def test_a_context_is_marked_where_the_service_says(client: Client, conversation: str, proxy: FaultyProxy) -> None:
    client.append(conversation, [*exchanges(2, 50), request("and then?")])
    plain = client.context(conversation)
    assert plain.cache_breakpoints is None
    assert plain.marked() == plain.messages
    for _ in range(2):
        context = client.context(conversation, cache_breakpoints=2)
        assert context.messages == plain.messages
        ends = [message["content"][-1] for message in context.marked() if isinstance(message["content"], list)]
        assert [block["text"] for block in ends] == [plain.messages[at]["content"] for at in (2, 4)]
        assert all(block["cache_control"] == {"type": "ephemeral"} for block in ends)
    # The second one was remembered, and not taken for the plain one.
    assert "if-none-match" in proxy.seen[-1].headers
    payload = client.payload(conversation, system="Be brief.", cache_breakpoints=3)
    assert [each["field"] for each in payload["cache_breakpoints"] or ()] == ["system", "messages", "messages"]
    assert client.context(conversation, shape="responses", cache_breakpoints=2).cache_breakpoints is None


def test_a_context_that_has_not_changed_is_not_sent_again(
    client: Client, conversation: str, proxy: FaultyProxy
) -> None:
    client.append(conversation, exchanges(3, 50))
    first = client.context(conversation)
    whole = list(first.messages)
    first.messages.append(request("the caller's own"))
    second = client.context(conversation)
    assert second.messages == whole
    assert "if-none-match" in proxy.seen[-1].headers
    client.append(conversation, [request("more")])
    assert labels(client.context(conversation)) == [*labels(second), "more"]


def test_a_lost_answer_does_not_make_a_second_turn(client: Client, conversation: str, proxy: FaultyProxy) -> None:
    proxy.then("lose", BUSY)
    turn = client.append(conversation, [request("once")])
    assert turn.replayed
    sent = [each for each in proxy.seen if each.path.endswith("/turns")]
    assert len(sent) == 3
    assert len({(each.headers["idempotency-key"], each.body) for each in sent}) == 1
    assert stored(client, conversation) == ["once"]


def test_a_turn_under_a_key_of_the_callers_own_is_stored_once(client: Client, conversation: str) -> None:
    first = client.deliver(conversation, exchanges(1, 20), idempotency_key="reply-1")
    again = client.deliver(conversation, exchanges(1, 20), idempotency_key="reply-1")
    assert first is not None
    assert again == replace(first, replayed=True)
    assert client.context(conversation).last_seq == 1


def test_what_may_not_be_done_twice_is_not_sent_twice(client: Client, conversation: str, proxy: FaultyProxy) -> None:
    client.append(conversation, exchanges(2, 50))
    proxy.then("lose")
    with pytest.raises(UnreachableError):
        client.fork(conversation, 1)
    assert sum(each.path.endswith("/fork") for each in proxy.seen) == 1
    proxy.then(BUSY)
    assert client.fork(conversation, 1)["last_seq"] == 1


def test_a_wait_that_is_too_long_is_reported(client: Client, conversation: str, proxy: FaultyProxy) -> None:
    proxy.then(Refused(429, {"retry-after": "3600"}, b'{"code": "rate_limited", "detail": "slowly"}'))
    with pytest.raises(RateLimitedError) as caught:
        client.append(conversation, [request("quick")])
    assert (caught.value.retry_after, caught.value.code) == (3600, "rate_limited")
    assert stored(client, conversation) == []


def test_errors_are_typed(client: Client, conversation: str, proxy: FaultyProxy) -> None:
    with pytest.raises(NotFoundError) as missing:
        client.get_conversation("conv_nobody/../x")
    assert (missing.value.status, missing.value.code) == (404, "not_found")
    assert missing.value.request_id
    with pytest.raises(InvalidError) as invalid:
        client.change_conversation(conversation, policy={"no_such_key": 1})
    assert invalid.value.pointer == "/policy/no_such_key"
    with pytest.raises(UnexpectedSeqError) as moved:
        client.append(conversation, [request("late")], expected_next_seq=7)
    assert moved.value.next_seq == 0
    assert isinstance(moved.value, ConflictError)
    with Client(proxy.url, "wrong") as stranger, pytest.raises(AuthenticationError):
        stranger.context(conversation)
    proxy.then(Refused(404, {"content-type": "text/html"}, b"<h1>nothing here</h1>"))
    with pytest.raises(ApiError, match="nothing here"):
        client.context(conversation)


def test_the_callers_own_history_stands_in(client: Client, conversation: str, proxy: FaultyProxy) -> None:
    proxy.always = "drop"
    with pytest.raises(UnreachableError):
        client.context(conversation)
    served = client.context(conversation, fallback=lambda: OWN)
    assert (served.messages, served.is_fallback, served.version) == (OWN, True, 0)
    assert isinstance(served.error, UnreachableError)
    asked = len(proxy.seen)
    assert client.context(conversation, fallback=lambda: OWN).is_fallback
    assert len(proxy.seen) == asked  # nobody waits for a service that has just failed
    proxy.always = None
    assert eventually(lambda: not client.context(conversation, fallback=lambda: OWN).is_fallback)


def test_nobody_waits_for_a_service_that_hangs(service: Service, key: str, client: Client, conversation: str) -> None:
    with (
        gate(int(service.api.url.rpartition(":")[2])) as silent,
        Client(f"http://127.0.0.1:{silent.port}", key) as slow,
    ):
        silent.silence()
        assert slow.context(conversation, fallback=lambda: OWN, timeout=0.2).is_fallback
        assert slow.deliver(conversation, [request("a")], timeout=0.2) is None
        silent.open()
        assert eventually(lambda: slow.flush() == 0)
    assert stored(client, conversation) == ["a"]


def test_an_answer_that_does_not_end_is_given_up(client: Client, conversation: str, proxy: FaultyProxy) -> None:
    proxy.always = "trickle"
    served = client.context(conversation, fallback=lambda: OWN, timeout=0.3)
    assert isinstance(served.error, UnreachableError)


def test_what_is_no_json_is_refused_at_once(client: Client, conversation: str) -> None:
    for content in (object(), "\ud800", [{"type": "text", "text": "x", "at": float("nan")}]):
        with pytest.raises((TypeError, ValueError)):
            client.deliver(conversation, [{"role": "user", "content": content}])
    assert len(client.outbox) == 0


def test_turns_wait_and_are_sent_in_order_and_once(client: Client, conversation: str, proxy: FaultyProxy) -> None:
    client.append(conversation, [request("a")])
    proxy.always = "lose"  # the service stores it, and nobody learns of it
    assert client.deliver(conversation, [answer("b")]) is None
    proxy.always = "drop"
    assert client.deliver(conversation, [request("c")]) is None
    assert client.deliver(conversation, [answer("d")]) is None
    assert len(client.outbox) == 3
    assert client.flush() == 3
    proxy.always = None
    eventually(lambda: not client.context(conversation, fallback=list).is_fallback)
    context = client.context(conversation)
    assert labels(context) == ["a", "b", "c", "d"]
    assert (len(client.outbox), context.kept) == (0, 0)
    turn = client.deliver(conversation, [request("e")])
    assert turn is not None
    assert turn.first_seq == 4
    assert stored(client, conversation) == ["a", "b", "c", "d", "e"]


def test_a_context_has_the_turns_that_wait(client: Client, conversation: str, proxy: FaultyProxy) -> None:
    client.append(conversation, [request("a")])
    assert client.context(conversation).version == 0
    # Reading is well, writing is not.
    proxy.then(*[BUSY] * 3)
    assert client.deliver(conversation, [answer("b")]) is None
    client.core._caller._away_until = 0
    proxy.then(*[BUSY] * 3)
    served = client.context(conversation)
    assert (labels(served), served.kept) == (["a", "b"], 1)
    # An edit can't be shown, so the caller's history is asked for.
    client.core._caller._away_until = 0
    proxy.then(*[BUSY] * 3)
    assert client.deliver(conversation, [request("x")], replace_from=0) is None
    client.core._caller._away_until = 0
    proxy.then(*[BUSY] * 3)
    assert client.context(conversation, fallback=lambda: OWN).messages == OWN
    client.core._caller._away_until = 0
    assert client.flush() == 0
    assert labels(client.context(conversation)) == ["x"]


def test_others_may_write_meanwhile(client: Client, conversation: str, proxy: FaultyProxy, service: Service) -> None:
    client.append(conversation, [request("a")])
    proxy.always = "drop"
    assert client.deliver(conversation, [answer("mine")]) is None
    service.append(f"/v1/conversations/{conversation}", request("theirs"))
    proxy.always = None
    assert eventually(lambda: client.flush() == 0)
    assert stored(client, conversation) == ["a", "theirs", "mine"]
    proxy.always = "drop"
    assert client.deliver(conversation, [answer("only here")], expected_next_seq=3) is None
    service.append(f"/v1/conversations/{conversation}", request("theirs again"))
    proxy.always = None
    assert eventually(lambda: client.flush() == 0)
    ((turn, error),) = client.outbox.refused
    assert turn.body["messages"] == [answer("only here")]
    assert isinstance(error, UnexpectedSeqError)


def test_a_turn_is_found_after_its_key_is_forgotten(
    client: Client, conversation: str, proxy: FaultyProxy, service: Service
) -> None:
    client.append(conversation, [request("a")])
    proxy.always = "lose"
    assert client.deliver(conversation, [answer("b"), request("c")]) is None
    import psycopg  # noqa: PLC0415 - only this test looks behind the API

    with psycopg.connect(service.database_url, autocommit=True) as connection:
        connection.execute("delete from idempotency_keys")
    proxy.always = None
    assert eventually(lambda: client.flush() == 0)
    assert stored(client, conversation) == ["a", "b", "c"]
    assert client.outbox.refused == []


def test_kept_turns_survive_a_restart_of_the_caller(
    client: Client, conversation: str, proxy: FaultyProxy, key: str
) -> None:
    table: dict[str, KeptTurn] = {}
    outbox = Outbox(
        on_kept=lambda turn, _: table.update({turn.idempotency_key: turn}),
        on_sent=lambda turn: table.__delitem__(turn.idempotency_key),
    )
    with Client(proxy.url, key, outbox=outbox) as before:
        proxy.always = "lose"
        before.deliver(conversation, [request("a")])
        before.deliver(conversation, [answer("b")])
    proxy.always = None
    assert len(table) == 2
    restored = Outbox(on_sent=lambda turn: table.__delitem__(turn.idempotency_key))
    restored.restore(table.values())
    with Client(proxy.url, key, outbox=restored) as after:
        assert after.flush() == 0
    assert stored(client, conversation) == ["a", "b"]
    assert table == {}


def test_a_turn_that_the_service_refuses_does_not_hold_up_the_others(
    client: Client, conversation: str, proxy: FaultyProxy
) -> None:
    with pytest.raises(InvalidError):
        client.deliver(conversation, [{"role": "nobody", "content": "x"}])
    assert (len(client.outbox), client.outbox.refused) == (0, [])
    proxy.always = "drop"
    client.deliver(conversation, [{"role": "nobody", "content": "x"}])
    client.deliver(conversation, [request("good")])
    proxy.always = None
    assert eventually(lambda: client.flush() == 0)
    assert [type(error) for _, error in client.outbox.refused] == [InvalidError]
    assert stored(client, conversation) == ["good"]


def test_the_outbox_is_bounded(proxy: FaultyProxy, key: str, conversation: str) -> None:
    proxy.always = "drop"
    with Client(proxy.url, key, outbox=Outbox(limit=1)) as client:
        assert client.deliver(conversation, [request("a")]) is None
        with pytest.raises(OutboxFullError) as caught:
            client.deliver(conversation, [request("b")])
    assert caught.value.turn.body["messages"] == [request("b")]


def test_threads_keep_the_order_of_a_conversation(client: Client, proxy: FaultyProxy) -> None:
    conversations = [client.create_conversation()["id"] for _ in range(3)]
    proxy.then("lose", "drop", None, "lose", None, BUSY, None, None, "lose")

    def talk(conversation: str) -> None:
        for number in range(5):
            client.deliver(conversation, [request(f"{number}")])

    with ThreadPoolExecutor(3) as pool:
        list(pool.map(talk, conversations))
    assert eventually(lambda: client.flush() == 0)
    for each in conversations:
        assert stored(client, each) == ["0", "1", "2", "3", "4"]


def test_a_model_that_refuses_gets_a_smaller_context(client: Client, conversation: str) -> None:
    client.append(conversation, exchanges(20, 200))
    sizes: list[int] = []

    def call(context: Context) -> str:
        sizes.append(len(context.messages))
        if len(sizes) < 3:
            raise RuntimeError(TOO_LONG)
        return "well"

    done = client.call_model(conversation, call)
    assert (done.result, len(done.context.messages)) == ("well", sizes[-1])
    assert sizes == sorted(set(sizes), reverse=True)
    client.append(conversation, [answer("taken")], snapshot_version=done.context.version)

    def never(context: Context) -> None:
        raise RuntimeError(TOO_LONG)

    with pytest.raises((RuntimeError, OverflowExhaustedError)):
        client.call_model(conversation, never)

    def broken(context: Context) -> None:
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        client.call_model(conversation, broken)


def test_a_smaller_context_has_the_turns_that_wait(client: Client, conversation: str, proxy: FaultyProxy) -> None:
    client.append(conversation, exchanges(20, 200))
    proxy.always = BUSY
    assert client.deliver(conversation, [request("late"), answer("later")]) is None
    proxy.always = None
    read: list[list[str]] = []

    def call(context: Context) -> str:
        read.append(labels(context))
        if len(read) == 1:
            # There was no time to send it before.
            client.outbox.add(KeptTurn(conversation, "key", {"messages": [request("last")]}))
            raise RuntimeError(TOO_LONG)
        return "well"

    done = client.call_model(conversation, call)
    assert len(read[1]) < len(read[0])
    assert [each[-3:] for each in read] == [[read[0][-3], "late", "later"], ["late", "later", "last"]]
    assert (done.context.kept, len(client.outbox)) == (0, 0)


def test_everything_else(client: Client, service: Service) -> None:
    made = client.create_conversation(external_id="a/ü b", user_ref="u/1", system="Be brief.", metadata={"a": 1})
    conversation = made["id"]
    assert client.create_conversation(external_id="a/ü b")["id"] == conversation
    assert [each["id"] for each in client.list_conversations(user_ref="u/1").data] == [conversation]
    assert client.change_conversation(conversation, model=None, metadata={"b": 2})["metadata"] == {"b": 2}
    client.append(conversation, exchanges(30, 200))
    payload = client.payload(conversation, user_message="and now?", max_output_tokens=100)
    assert (payload["system"], payload["reserved_output"]) == ("Be brief.", 100)
    assert payload["messages"][-1] == {"role": "user", "content": "and now?"}
    pinned = client.pin(conversation, 0, text="request 0")
    assert [each["id"] for each in client.list_pins(conversation)["data"]] == [pinned["id"]]
    (rule,) = [each for each in client.list_rules(conversation)["data"] if each["source"] == "pinned"]
    assert client.decide_rule(conversation, rule["id"], in_force=True) == rule
    client.unpin(conversation, pinned["id"])
    assert client.list_pins(conversation)["data"] == []
    plan = client.plan_compaction(conversation, strategy="drop", policy={"max_conversation_messages": 10})
    assert plan["messages_after"] < plan["messages_before"]
    run = client.compact(conversation, strategy="drop", policy={"max_conversation_messages": 10})
    work(service.settings, f"/v1/conversations/{conversation}")
    ended = client.wait_for_run(run["run_id"])
    assert ended["state"] == "committed"
    assert client.get_run(run["run_id"])["steps"] == ended["steps"]
    assert run["run_id"] in [each["id"] for each in client.list_runs(conversation, limit=10).data]
    version = ended["snapshot_version"]
    assert version is not None
    assert client.context(conversation).version == client.list_snapshots(conversation).data[0]["version"]
    assert client.get_snapshot(conversation, version)["coverage"][0]["fate"] == "dropped"
    assert client.list_claims(conversation, version) == {"data": []}
    bisected = client.bisect(conversation, "request 3")
    assert (bisected["seqs"], bisected["in_context"]) == ([6], False)
    assert bisected["loss"] is not None
    assert (bisected["loss"]["version"], bisected["loss"]["run_id"]) == (version, run["run_id"])
    compared = client.compare(conversation, (0, version), seq=59)
    assert [each["version"] for each in compared["contexts"]] == [0, version]
    assert 6 in compared["differences"]["messages"]["first"]
    assert client.restore(conversation, 0)["context_messages"] == 60
    assert client.fork(conversation, 9)["last_seq"] == 9
    assert client.erase_conversation(conversation)["conversation_id"] == conversation
    assert client.erase_user("u/1") == {"conversations": 1}  # the fork


def test_asyncio(proxy: FaultyProxy, key: str) -> None:
    async def talk() -> None:
        async with AsyncClient(proxy.url, key) as client:
            conversation = (await client.create_conversation())["id"]
            await client.append(conversation, exchanges(20, 200))
            first = (await client.context(conversation)).messages
            assert (await client.context(conversation)).messages == first

            async def model(context: Context) -> int:
                if len(context.messages) == 40:
                    raise RuntimeError(TOO_LONG)
                return len(context.messages)

            done = await client.call_model(conversation, model)
            assert 0 < done.result < 40
            proxy.always = "lose"

            async def own() -> list[dict[str, Any]]:
                return OWN

            assert (await client.context(conversation, fallback=own)).messages == OWN
            kept = await asyncio.gather(*(client.deliver(conversation, [request(f"{n}")]) for n in range(3)))
            assert kept == [None, None, None]
            proxy.always = None
            client.core._caller._away_until = 0
            assert await client.flush() == 0
            page = await client.list_messages(conversation, after=39, limit=10)
            assert [each["content"][0] for each in page.data] == ["0", "1", "2"]

    asyncio.run(talk())


def test_a_turn_that_is_cut_off_is_kept(proxy: FaultyProxy, key: str, conversation: str, client: Client) -> None:
    cut_off = threading.Event()

    async def talk() -> None:
        loop, under_way = asyncio.get_running_loop(), asyncio.Event()

        def wait() -> None:
            loop.call_soon_threadsafe(under_way.set)
            assert cut_off.wait(30)

        async with AsyncClient(proxy.url, key) as other:
            proxy.then(wait)
            sending = asyncio.create_task(other.deliver(conversation, [request("cut off")]))
            await under_way.wait()
            sending.cancel()
            with pytest.raises(asyncio.CancelledError):
                await sending
            assert len(other.outbox) == 1
            cut_off.set()
            assert await other.flush() == 0

    asyncio.run(talk())
    assert stored(client, conversation) == ["cut off"]


CALLS: dict[str, Any] = {
    "messages": {"type": "tool_use", "id": "c1", "name": "recall", "input": {"query": "garage", "why": "x"}},
    "chat": {"id": "c1", "type": "function", "function": {"name": "recall", "arguments": '{"query": "garage"}'}},
    "responses": {"type": "function_call", "call_id": "c1", "name": "recall", "arguments": '{"query": "garage"}'},
}
BAD_CALLS: dict[str, Any] = {
    "messages": {"type": "tool_use", "id": "c1", "name": "recall", "input": {"pattern": "("}},
    "chat": {"id": "c1", "type": "function", "function": {"name": "recall", "arguments": "{"}},
    "responses": {"type": "function_call", "call_id": "c1", "name": "recall", "arguments": "[]"},
}


@pytest.mark.parametrize(("shape", "at"), [("messages", "content"), ("chat", "content"), ("responses", "output")])
def test_a_models_call_of_the_recall_tool_is_answered_in_its_shape(
    client: Client, conversation: str, shape: Any, at: str
) -> None:
    client.append(conversation, [{"role": "user", "content": "The garage opens with 4711-B."}])
    assert "recall" in str(client.recall_tool(shape))
    result = client.answer_recall(conversation, CALLS[shape], max_tokens=500)
    assert "c1" in result.values()
    assert "The garage opens with 4711-B." in result[at]
    assert result[at].startswith("<recalled ")
    refused = client.answer_recall(conversation, BAD_CALLS[shape])
    assert "c1" in refused.values()
    assert "regular expression" in refused[at] or "Exactly one of" in refused[at]


def test_recall_takes_each_way_of_asking(client: Client, conversation: str) -> None:
    client.append(conversation, [{"role": "user", "content": "The garage opens with 4711-B."}])
    for found in (
        client.recall(conversation, "garages"),
        client.recall(conversation, ref="m0"),
        client.recall(conversation, pattern=r"\d{4}-B"),
    ):
        assert found["passages"][0]["parts"][0]["text"] == "The garage opens with 4711-B."
    with pytest.raises(InvalidError):
        client.recall(conversation, "a", ref="m0")


def test_what_was_said_to_a_user_comes_back_to_a_key_that_may(service: Service, client: Client) -> None:
    for _ in range(2):
        made = client.create_conversation(user_ref="anna/2")
        client.append(made["id"], [{"role": "user", "content": "The garage opens with 4711-B."}])
    with pytest.raises(PermissionDeniedError):
        client.recall_user("anna/2", "garage")
    with Client(service.api.url, key_with(service, ["recall:user"])) as reader:
        found = reader.recall_user("anna/2", "garage", framed=True)
        assert (found["conversations"], len(found["passages"])) == (2, 1)
        passage = found["passages"][0]
        assert passage["ref"] == f"{made['id']}:m0"
        assert f'<recalled refs="{passage["ref"]}">' in found["framed"]
        assert reader.recall_user("anna/2", ref=passage["ref"])["passages"][0]["parts"] == passage["parts"]
        assert reader.recall_user("anna", pattern="garage")["passages"] == []
