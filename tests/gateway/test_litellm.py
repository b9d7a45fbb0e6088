"""LiteLLM's Generic Guardrail API, called as its proxy calls it."""

from __future__ import annotations

import json
from functools import partial
from itertools import count
from typing import TYPE_CHECKING, Any, Final

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from runtime import ids
from tests.conftest import make_tenant
from tests.gateway.chatter import Chatter
from tests.gateway.conftest import room_on
from tests.support.eventually import eventually
from tests.support.shapes import chat_api

if TYPE_CHECKING:
    from tests.gateway.conftest import Room

PATH: Final = "/beta/litellm_basic_guardrail_api"
LONG: Final = "a line of output that is long enough to be cut\n" * 300
CALLS: Final = count()
NONE: Final = {"action": "NONE"}


class Proxy:
    """LiteLLM's proxy, and a client behind it that keeps its history."""

    def __init__(self, room: Room, trace: str | None, **request_data: Any) -> None:
        self.room = room
        self.trace = trace or f"made up {next(CALLS)}"
        self.headers = {"x-session-id": "[present]"} if trace else {"accept": "*/*"}
        self.request_data = request_data
        self.rows: list[dict[str, Any]] = []
        self.received: list[dict[str, Any]] = []
        self.name = ""
        """The conversation."""

    def say(self, input_type: str, **fields: Any) -> dict[str, Any]:
        about: dict[str, Any] = {
            "input_type": input_type,
            "litellm_call_id": self.call,
            "litellm_trace_id": self.trace,
            "request_data": self.request_data,
            "request_headers": self.headers,
            "litellm_version": "1.109.1",
            "model": "m",
            "texts": [],
            "images": None,
            "additional_provider_specific_params": {},
        }
        answered = self.room.client.post(PATH, json={**about, **fields})
        assert answered.status_code == 200, answered.text
        self.name = answered.headers.get("x-palimpsest-conversation", self.name)
        said: dict[str, Any] = answered.json()
        return said

    def call_model(self, *, answer: str = "", calls: list[Any] | None = None, is_shown: bool = True) -> dict[str, Any]:
        """Ask with the history as it stands, and show the answer, if post_call is set."""
        self.call = f"call {next(CALLS)}"
        said = self.say("request", structured_messages=self.rows)
        self.received = said.get("structured_messages", self.rows)
        assert not chat_api.problems(self.received), self.received
        assert self.received[-1] == self.rows[-1]
        if is_shown:
            answered = {"texts": [answer] if answer else [], "tool_calls": calls}
            assert self.say("response", **answered) == NONE
        self.rows.append({"role": "assistant", "content": answer or None, **({"tool_calls": calls} if calls else {})})
        return said

    def ask(self, text: str, answer: str = "fine") -> dict[str, Any]:
        self.rows.append({"role": "user", "content": text})
        return self.call_model(answer=answer)

    def round(self, text: str) -> None:
        """Ask, call a tool, give its result, answer."""
        name = f"call_{next(CALLS)}"
        self.rows.append({"role": "user", "content": text})
        self.call_model(calls=[{"id": name, "type": "function", "function": {"name": "look", "arguments": "{}"}}])
        self.rows.append({"role": "tool", "tool_call_id": name, "content": f"result of {text} {LONG}"})
        self.call_model(answer=f"answer to {text}")


def test_shorter_history_takes_the_place_of_the_whole(room: Room) -> None:
    proxy = Proxy(room, "trace-of-a-session", user_api_key_hash="hash", user_api_key_end_user_id="user-1")
    proxy.rows = [{"role": "system", "content": "Be brief."}]
    for number in range(14):
        proxy.round(f"litellm {number}")
    proxy.rows.append({"role": "user", "content": "litellm on"})
    said = proxy.call_model(answer="on")
    assert said == NONE
    conversation = room.query("select id from conversations where user_ref = 'user-1'")
    assert len(conversation) == 1
    name = ids.external("conv", conversation[0]["id"])
    stored = room.eventually_stored(name, len(proxy.rows) - 1)
    assert [row["role"] for row in stored[:4]] == ["user", "assistant", "user", "assistant"]
    room.compact(name)
    said = proxy.ask("litellm after it")
    assert said["action"] == "GUARDRAIL_INTERVENED"
    rows = said["structured_messages"]
    assert rows[0] == {"role": "system", "content": "Be brief."}
    assert rows[-1] == {"role": "user", "content": "litellm after it"}
    assert len(json.dumps(rows)) < len(json.dumps(proxy.rows)) / 3
    about = room.query("select metadata from conversations where id = %s", conversation[0]["id"])
    assert about[0]["metadata"]["gateway"]["client"] == "litellm"
    room.eventually_stored(name, len(proxy.rows) - 1)


def test_answer_that_is_not_shown_comes_with_the_next_request(room: Room) -> None:
    proxy = Proxy(room, "pre-call-alone")
    proxy.rows = [{"role": "user", "content": "pre_call alone"}]
    proxy.call_model(answer="not shown", is_shown=False)
    name = proxy.name
    room.eventually_stored(name, 1)
    proxy.rows.append({"role": "user", "content": "and on"})
    proxy.call_model(answer="shown")
    assert room.eventually_stored(name, 4)[1]["content"] == "not shown"


def test_answer_is_known_by_its_call_in_another_process(room: Room) -> None:
    proxy = Proxy(room, "two processes")
    proxy.rows = [{"role": "user", "content": "asked of one process"}]
    proxy.call_model(answer="x", is_shown=False)
    name = proxy.name
    room.eventually_stored(name, 1)
    eventually(lambda: is_noted(room, name))
    with room_on(room.settings, room.tenant) as other:
        proxy.room = other
        assert proxy.say("response", texts=["answered ", "by another"]) == NONE
        assert room.eventually_stored(name, 2)[1]["content"] == "answered by another"
        # Streams that are looked at again and again are stored once.
        proxy.say("response", texts=["answered by another, and on"])
        eventually(lambda: 'turns_total{state="resent"} 1.0' in other.client.get("/metrics").text)
    assert len(room.stored(name)) == 2


def test_trace_that_is_made_up_for_a_call_is_no_session(room: Room) -> None:
    names = set()
    rows: list[Any] = []
    for number in range(3):
        proxy = Proxy(room, None)
        proxy.rows = rows
        proxy.ask(f"no session {number}", f"answer {number}")
        rows = proxy.rows
        has_answer = partial(room.query, "select 1 as x from messages where content::text = %s", f'"answer {number}"')
        eventually(has_answer)
        proxy.say("request", structured_messages=rows)
        names.add(proxy.name)
    assert len(names) == 1


def test_title_request_of_the_same_trace_is_beside_it(room: Room) -> None:
    chat, title = Proxy(room, "with a title"), Proxy(room, "with a title")
    chat.rows = [{"role": "user", "content": "first of the chat"}]
    chat.call_model(answer="answer of the chat", is_shown=False)
    name = chat.name
    title.rows = [{"role": "user", "content": "Write a title"}]
    title.call_model(answer="A title", is_shown=False)
    assert title.name != name


def test_nothing_of_another_tenant(room: Room) -> None:
    proxy = Proxy(room, "shared trace")
    proxy.rows = [{"role": "user", "content": "ours"}]
    proxy.call_model(answer="our answer", is_shown=False)
    name = proxy.name
    room.eventually_stored(name, 1)
    stranger = make_tenant(room.settings.database_url.get_secret_value(), "stranger")
    with room.gateway.client(stranger.key) as client:
        proxy.room = room._replace(client=client)
        proxy.say("request", structured_messages=proxy.rows)
        assert proxy.name != name
        proxy.say("response", texts=["by a stranger"])
    proxy.room = room
    proxy.say("response", texts=["ours"])
    assert room.eventually_stored(name, 2)[1]["content"] == "ours"


def test_erased_conversation_is_begun_anew(room: Room) -> None:
    proxy = Proxy(room, "erased")
    proxy.rows = [{"role": "user", "content": "to be erased"}]
    proxy.call_model(answer="x", is_shown=False)
    name = proxy.name
    room.eventually_stored(name, 1)
    room.erase(name)
    proxy.say("response", texts=["too late"])
    proxy.say("request", structured_messages=proxy.rows)
    assert proxy.name != name
    room.eventually_stored(proxy.name, len(proxy.rows))
    assert not room.stored(name)


def is_noted(room: Room, name: str) -> bool:
    """Tell whether the place of an answer is known."""
    noted = "select seq from gateway_prefixes where conversation_id = %s"
    return len(room.query(noted, ids.parse("conv", name))) == 2


@pytest.mark.parametrize(
    "body",
    [
        b"{",
        b"",
        b"[1]",
        b'"text"',
        b"{}",
        b'{"input_type":"other","structured_messages":[]}',
        b'{"input_type":5}',
    ],
)
def test_what_is_no_request_of_litellms(room: Room, body: bytes) -> None:
    answer = room.client.post(PATH, content=body)
    assert (answer.status_code, answer.json()["error"]["type"]) == (400, "invalid_request_error")


@pytest.mark.parametrize(
    "rows",
    [None, [], "text", [1], [{"role": "user"}], [{"role": 5, "content": []}], [{"role": "system", "content": "x"}]],
)
def test_rows_that_cannot_be_read_stay(room: Room, rows: Any) -> None:
    answer = room.client.post(PATH, json={"input_type": "request", "structured_messages": rows})
    assert (answer.status_code, answer.json()) == (200, NONE)


def test_lone_surrogates_are_stored_as_replacement_characters(room: Room) -> None:
    body = b'{"input_type":"request","structured_messages":[{"role":"user","content":"cut \\ud83d"}]}'
    answer = room.client.post(PATH, content=body)
    assert (answer.status_code, answer.json()) == (200, NONE)
    (stored,) = room.eventually_stored(answer.headers["x-palimpsest-conversation"], 1)
    assert "cut \ufffd" in json.dumps(stored["content"], ensure_ascii=False)


def test_what_only_others_can_read_is_counted(room: Room) -> None:
    body = b'{"input_type":"request","structured_messages":[{"role":"user","content":"a","x":NaN}]}'
    answer = room.client.post(PATH, content=body)
    assert (answer.json(), answer.headers["x-palimpsest-outcome"]) == (NONE, "failed_open")
    assert 'palimpsest_gateway_failed_open_total{why="opaque"} 1.0' in room.client.get("/metrics").text


def test_keys_are_asked_for(room: Room) -> None:
    body = {"input_type": "request", "structured_messages": [{"role": "user", "content": "x"}]}
    with room.gateway.client("plk_wrong") as client:
        assert client.post(PATH, json=body).status_code == 401
    with room.gateway.client() as client:
        assert client.post(PATH, json=body, headers={"x-api-key": room.tenant.key}).json() == NONE


def test_every_error_that_is_not_the_callers_is_a_503(room: Room) -> None:
    body = {"input_type": "request", "structured_messages": [{"role": "user", "content": "x" * 10_001}]}
    with room_on(room.settings, room.tenant, gateway_max_body_bytes=10_000) as other:
        assert other.client.post(PATH, json=body).status_code == 503


def test_bypass_and_names_by_headers_that_litellm_passes_on(room: Room) -> None:
    body = {"input_type": "request", "structured_messages": [{"role": "user", "content": "named through it"}]}
    headers = {"x-palimpsest-conversation": "a thread of LiteLLM's", "x-palimpsest-bypass": "[present]"}
    room.client.post(PATH, json={**body, "request_headers": headers})
    statement = "select external_id from conversations where external_id like 'a thread of%%'"
    eventually(lambda: len(room.query(statement)) == 1)
    answer = room.client.post(PATH, json={**body, "request_headers": {"X-Palimpsest-Bypass": "true"}})
    assert answer.headers["x-palimpsest-outcome"] == "bypassed"


WORDS: Final = st.text(st.characters(exclude_categories=["Cs", "Cc"]), min_size=1, max_size=20)
ROUNDS: Final = st.lists(
    st.tuples(st.sampled_from(["ask", "round", "edit", "regenerate", "compact"]), WORDS), max_size=12
)


@pytest.mark.hypothesis
def test_whatever_is_asked_the_rows_are_a_chat_that_ends_with_the_newest(room: Room) -> None:
    policy = {"input_token_budget": 2_000, "compaction_threshold_tokens": 4_000, "min_savings_tokens": 100}
    actions: set[str] = set()

    @settings(max_examples=settings().max_examples // 10)
    @given(rounds=ROUNDS, session=st.booleans())
    def behaves(rounds: list[tuple[str, str]], *, session: bool) -> None:
        proxy = Proxy(own, f"property {next(CALLS)}" if session else None)
        for number, (what, word) in enumerate(
            [("round", "a"), ("round", "b"), *rounds, ("compact", "c"), ("ask", "d")]
        ):
            asked = [at for at, row in enumerate(proxy.rows) if row["role"] == "user"]
            match what:
                case "edit":
                    del proxy.rows[asked[number % len(asked)] :]
                case "regenerate":
                    del proxy.rows[asked[-1] :]
                case "compact" if proxy.name:
                    own.compact(proxy.name)
            if what == "round":
                proxy.round(f"{word} {number}")
            else:
                # `call_model` checks what is shown.
                actions.add(proxy.ask(f"{word} {number}")["action"])

    with room_on(room.settings, room.tenant, policy=policy) as own:
        behaves()
    assert actions == {"NONE", "GUARDRAIL_INTERVENED"}


def test_a_chat_of_the_other_doors_is_not_mixed_in(room: Room) -> None:
    chat = Chatter(room, "chat", **{"x-session-id": "of both doors"})
    chat.ask("asked at the door")
    room.eventually_stored(chat.name, 2)
    proxy = Proxy(room, "of both doors")
    proxy.rows = [*chat.rows, {"role": "user", "content": "asked through LiteLLM"}]
    proxy.call_model(answer="x", is_shown=False)
    # The same history of the same session is the same conversation.
    assert proxy.name == chat.name
