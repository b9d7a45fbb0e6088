"""Recall through the gateway: the model calls it, the client sees one answer and never the calls."""

from __future__ import annotations

import json
from itertools import count
from typing import TYPE_CHECKING, Any, Final

import pytest

from compaction.recall.tool import NAME, definition
from gateway.recalls.asking import MOST_CALLS, TOO_MANY
from runtime import ids
from store.archive import exports
from store.archive.export_lines import line
from store.engine import service_engine, transaction
from tests.conftest import make_tenant
from tests.gateway.chatter import PATHS, Chatter
from tests.gateway.conftest import room_on
from tests.gateway.test_compacting import LONG, PROBLEMS, SHORT
from tests.support.eventually import eventually
from tests.support.servers.loopback_providers import Asked, Fails, Says
from tests.support.service.running_api import running_api

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from runtime.settings import Settings
    from tests.gateway.conftest import Room

SHAPES: Final = tuple(PATHS)
NUMBERS: Final = count()
SECRET: Final = "the door code is 4711"


@pytest.fixture(scope="module")
def recalling(module_settings: Settings) -> Iterator[Room]:
    tenant = make_tenant(module_settings.database_url.get_secret_value(), "recalls")
    with room_on(module_settings, tenant, policy=SHORT | {"gateway_recall": True, "recall_handles": True}) as room:
        yield room


@pytest.fixture(scope="module")
def summarizing(module_settings: Settings) -> Iterator[Room]:
    """A gateway before which heads leave out answers, those within which recall was answered too."""
    tenant = make_tenant(module_settings.database_url.get_secret_value(), "summarizes")
    policy = {"gateway_recall": True, "compaction_threshold_tokens": 3_000, "protected_tail_messages": 2}
    with room_on(module_settings, tenant, policy=policy) as room:
        yield room


def results_of(asked: Asked) -> list[str]:
    """Return the results of calls that a model was given."""
    texts: list[str] = []
    for row in asked.rows:
        if row.get("role") == "tool":
            texts.append(row["content"])
        elif row.get("type") == "function_call_output":
            texts.append(row["output"])
        elif isinstance(row.get("content"), list):
            texts += [part["content"] for part in row["content"] if part.get("type") == "tool_result"]
    return texts


def results_in(asked: Asked) -> list[str]:
    """Return the results of recall that a model was given."""
    return [text for text in results_of(asked) if "<recalled" in text or "out of view" in text]


def scripted(*answers: Says) -> Callable[[Asked], Says]:
    """Return a model that says these, one after the other, the same to the same request."""
    said = iter(answers)

    def model(asked: Asked) -> Says:
        known = getattr(asked, "says", None) or next(said)
        asked.says = known  # type: ignore[attr-defined] # remembered with its request
        return known

    return model


def recall(identifier: str, **asked: Any) -> tuple[str, str, dict[str, Any]]:
    return identifier, NAME, asked


class Seen(Chatter):
    """A client that reads what it is sent, and keeps that."""

    def send(self, *, stream: bool = True, rows: list[Any] | None = None) -> None:
        name = "input" if self.shape == "responses" else "messages"
        body = {"model": "m", "max_tokens": 99, name: rows or self.rows, "stream": stream, **self.fields}
        answer = self.room.client.post(PATHS[self.shape], json=body, headers=self.headers)
        assert answer.status_code == 200, answer.text
        self.name = answer.headers.get("x-palimpsest-conversation", "")
        self.outcome = answer.headers["x-palimpsest-outcome"]
        self.raw = answer.content
        self.whole = read_stream(self.shape, answer.text) if stream else answer.json()
        self.rows += kept(self.shape, self.whole)
        self.called = self.whole_calls()[-1] if self.whole_calls() else ""

    def whole_calls(self) -> list[str]:
        match self.shape:
            case "messages":
                return [part["id"] for part in self.whole["content"] if part["type"] == "tool_use"]
            case "chat":
                return [call["id"] for call in self.whole["choices"][0]["message"].get("tool_calls") or ()]
        return [item["call_id"] for item in self.whole["output"] if item["type"] == "function_call"]

    @property
    def said(self) -> str:
        match self.shape:
            case "messages":
                return " ".join(part["text"] for part in self.whole["content"] if part["type"] == "text")
            case "chat":
                return (self.whole["choices"][0]["message"]["content"] or "").replace("\n\n", " ")
        return " ".join(item["content"][0]["text"] for item in self.whole["output"] if item["type"] == "message")


def events_in(text: str) -> list[dict[str, Any]]:
    lines = [line[6:] for line in text.splitlines() if line.startswith("data: ")]
    return [json.loads(line) for line in lines if line != "[DONE]"]


def read_stream(shape: str, text: str) -> dict[str, Any]:
    """Return the answer of a stream, read as strictly as an SDK would: each part begins once, and at its place."""
    events = events_in(text)
    match shape:
        case "messages":
            return read_messages(events)
        case "chat":
            assert text.endswith("data: [DONE]\n\n")
            return read_chat(events)
    numbers = [event["sequence_number"] for event in events]
    assert numbers == list(range(len(events)))
    assert [event["type"] for event in events].count("response.created") == 1
    assert events[-1]["type"] == "response.completed"
    added = [event["output_index"] for event in events if event["type"] == "response.output_item.added"]
    done = [event["item"] for event in events if event["type"] == "response.output_item.done"]
    whole: dict[str, Any] = events[-1]["response"]
    assert added == list(range(len(added)))
    assert done == whole["output"]
    assert whole["id"] == events[0]["response"]["id"]
    return whole


def read_messages(events: list[dict[str, Any]]) -> dict[str, Any]:
    assert [event["type"] for event in events if event["type"].startswith("message")] == [
        "message_start",
        "message_delta",
        "message_stop",
    ]
    whole: dict[str, Any] = events[0]["message"]
    content: list[dict[str, Any]] = []
    is_open = False
    for event in events:
        if event["type"] == "content_block_start":
            assert event["index"] == len(content)
            assert not is_open
            is_open = True
            content.append({**event["content_block"], "given": ""})
        elif event["type"] == "content_block_delta":
            assert is_open
            assert event["index"] == len(content) - 1
            delta = event["delta"]
            for name, field in (("text", "text"), ("thinking", "thinking"), ("signature", "signature")):
                if name in delta:
                    content[-1][field] += delta[name]
            content[-1]["given"] += delta.get("partial_json", "")
        elif event["type"] == "content_block_stop":
            is_open = False
            given = content[-1].pop("given")
            if given:
                content[-1]["input"] = json.loads(given)
    ended = next(event for event in events if event["type"] == "message_delta")
    return {**whole, **ended["delta"], "content": content, "usage": {**whole["usage"], **ended["usage"]}}


def read_chat(events: list[dict[str, Any]]) -> dict[str, Any]:
    assert len({event["id"] for event in events}) == 1
    message: dict[str, Any] = {"role": "", "content": "", "reasoning_content": ""}
    calls: list[dict[str, Any]] = []
    stops = []
    for event in events:
        for choice in event["choices"]:
            delta = choice["delta"]
            for name in message:
                message[name] += delta.get(name) or ""
            for call in delta.get("tool_calls") or ():
                if call["index"] == len(calls):
                    calls.append({**call, "function": {**call["function"], "arguments": ""}})
                calls[call["index"]]["function"]["arguments"] += call["function"].get("arguments", "")
            stops += [choice["finish_reason"]] if choice["finish_reason"] else []
    assert message["role"] == "assistant"
    (stop,) = stops
    counted = [event["usage"] for event in events if event.get("usage")]
    given = {"tool_calls": [{k: v for k, v in call.items() if k != "index"} for call in calls]} if calls else {}
    whole = {"role": "assistant", "content": message["content"] or None, **given}
    if message["reasoning_content"]:
        whole["reasoning_content"] = message["reasoning_content"]
    return {"id": events[0]["id"], "choices": [{"message": whole, "finish_reason": stop}], "usage": [*counted, None][0]}


def kept(shape: str, whole: dict[str, Any]) -> list[dict[str, Any]]:
    """Return an answer as a client keeps it."""
    match shape:
        case "messages":
            content = [{k: v for k, v in part.items() if v is not None} for part in whole["content"]]
            return [{"role": "assistant", "content": content}]
        case "chat":
            message = whole["choices"][0]["message"]
            return [{k: v for k, v in message.items() if k in {"role", "content", "tool_calls"}}]
    return list(whole["output"])


def talk_out_of_view(room: Room, shape: str, is_stream: bool) -> Seen:
    """Return a chat whose beginning has left the context."""
    chat = Seen(room, shape, **{"x-session-id": f"session {next(NUMBERS)}"})
    for number in range(10):
        room.providers.model = scripted(Says("", ((f"call_{number}", "look", {"n": number}),)), Says(f"noted {number}"))
        chat.ask(f"question {number} {shape}", stream=is_stream)
        chat.give(chat.called, f"result {number} {LONG[:500]} {SECRET if number == 1 else ''} {LONG}")
        chat.send(stream=is_stream)
    room.eventually_stored(chat.name, len(chat.rows))
    room.compact(chat.name)
    return chat


@pytest.mark.parametrize("is_stream", [True, False])
@pytest.mark.parametrize("shape", SHAPES)
def test_model_recalls_and_the_client_sees_one_answer(recalling: Room, shape: str, is_stream: bool) -> None:
    room = recalling
    chat = talk_out_of_view(room, shape, is_stream)
    stored = len(chat.rows)
    room.providers.model = scripted(
        Says("Let me look.", (recall("r1", query="door code"),)),
        Says("", (recall("r2", pattern="code is"),)),
        Says("It is 4711."),
    )
    before = len(room.providers.asked)
    chat.ask("What was the door code?", stream=is_stream)
    first, second, third = room.providers.asked[before:]
    assert chat.said == "Let me look. It is 4711."
    assert NAME not in chat.raw.decode()
    assert SECRET not in first.raw.decode()
    assert len(results_in(second)) == 1
    assert SECRET in results_in(second)[0]
    assert second.rows == third.rows[: len(second.rows)]
    for asked in (first, second, third):
        assert not PROBLEMS[shape](asked.rows), asked.rows
        assert asked.body["tools"] == [definition(shape)]  # type: ignore[arg-type] # of these shapes
    name = "input_tokens" if shape != "chat" else "prompt_tokens"
    usage = chat.whole["usage"]
    if usage:
        assert usage[name] == sum(len(asked.raw) // 4 for asked in (first, second, third))
    # What was said is stored, and stands in its place when the client goes on.
    hidden = {"messages": 4, "chat": 4, "responses": 4}[shape]
    room.eventually_stored(chat.name, len(chat.rows) + hidden)
    name = chat.name
    room.providers.model = scripted(Says("Gladly."))
    chat.ask("Thanks.", stream=is_stream)
    asked = room.providers.asked[-1]
    assert chat.name == name
    # Reasoning that is shown as none, the newest but one row is the answer.
    said = [row for row in third.rows if row in asked.rows]
    assert said == third.rows
    assert not PROBLEMS[shape](asked.rows)
    room.eventually_stored(chat.name, len(chat.rows) + hidden)
    chat_again(chat, stored)


def exported(room: Room, conversation: str) -> list[dict[str, Any]]:
    identifier = ids.parse("conv", conversation)
    assert identifier is not None
    engine = service_engine(room.settings, "test")
    with transaction(engine, room.tenant.id) as connection:
        rows, _ = exports.portion(connection, room.tenant.id, identifier, "gateway_recall", None)
    engine.dispose()
    return [json.loads(line(kind, row)) for kind, row in rows]


def test_export_has_what_a_client_was_shown_in_the_place_of_a_recalled_answer(recalling: Room) -> None:
    chat = talk_out_of_view(recalling, "chat", False)
    count = len(chat.rows)
    recalling.providers.model = scripted(Says("", (recall("r1", query="door code"),)), Says("It is 4711."))
    chat.ask("What was the door code?", stream=False)
    recalling.eventually_stored(chat.name, len(chat.rows) + 2)
    (row,) = eventually(lambda: exported(recalling, chat.name))
    assert (row["type"], row["conversation_id"]) == ("gateway_recall", chat.name)
    assert (row["seq"], row["through_seq"], row["resent"]) == (count + 1, count + 3, None)
    assert [each["content"] for each in row["shown"]] == ["It is 4711."]
    recalling.erase(chat.name)
    assert exported(recalling, chat.name) == []


def chat_again(chat: Seen, first: int) -> None:
    """An edit of the question takes the place of all that came of it."""
    room = chat.room
    room.providers.model = scripted(Says("Edited."))
    chat.rows = [*chat.rows[:first], {"role": "user", "content": "Never mind the code."}]
    name = chat.name
    chat.send()
    assert chat.name == name
    assert SECRET not in room.providers.asked[-1].raw.decode()
    room.eventually_stored(name, len(chat.rows))


@pytest.mark.parametrize("is_stream", [True, False])
@pytest.mark.parametrize("shape", SHAPES)
def test_mixed_reply(recalling: Room, shape: str, is_stream: bool) -> None:
    room = recalling
    chat = talk_out_of_view(room, shape, is_stream)
    own = ("own1", "look", {"n": 99})
    room.providers.model = scripted(Says("Both.", (recall("r1", query="door code"), own)), Says("It is 4711."))
    before = len(room.providers.asked)
    chat.ask("Look both up.", stream=is_stream)
    assert chat.called == "own1"
    assert len(chat.whole_calls()) == 1
    chat.give("own1", "own result")
    chat.send(stream=is_stream)
    first, second = room.providers.asked[before:]
    assert chat.said == "It is 4711."
    assert not PROBLEMS[shape](second.rows), second.rows
    assert second.rows[: len(first.rows)] == first.rows
    assert SECRET in results_in(second)[0]
    assert "own result" in second.raw.decode()
    name = chat.name
    room.providers.model = scripted(Says("Gladly."))
    chat.ask("Thanks.", stream=is_stream)
    third = room.providers.asked[-1]
    assert chat.name == name
    assert third.rows[: len(second.rows)] == second.rows
    assert not PROBLEMS[shape](third.rows)
    assert not room.query(
        "select seq from messages where conversation_id = %s and superseded_at is not null", ids.parse("conv", name)
    )
    assert room.query("select broken_through from conversations where id = %s", ids.parse("conv", name)) == [
        {"broken_through": -1}
    ]


@pytest.mark.parametrize("shape", SHAPES)
def test_answer_without_recall_passes_byte_for_byte(recalling: Room, shape: str) -> None:
    room = recalling
    room.providers.model = lambda _: Says("Grüße \U0001f600 and more", (("call_1", "look", {"a": "ü"}),), "Hm.")
    for is_stream in (True, False):
        chat = Seen(room, shape)
        chat.ask(f"pass {is_stream}", stream=is_stream)
        assert chat.raw == room.providers.asked[-1].answered


@pytest.mark.parametrize(
    ("shape", "row"),
    [
        (
            "chat",
            {"role": "tool", "tool_call_id": "odd", "content": [{"type": "image_url", "image_url": {"url": "x"}}]},
        ),
        ("responses", {"type": "message", "role": "critic", "content": "Hm."}),
    ],
)
def test_what_cannot_be_read_after_a_recalled_answer_was_summarized_goes_on_as_it_came(
    summarizing: Room, shape: str, row: dict[str, Any]
) -> None:
    room = summarizing
    chat = Seen(room, shape, **{"x-session-id": f"session {next(NUMBERS)}"})
    room.providers.model = scripted(Says("", (recall("r1", query="door"),)), Says("No idea."))
    chat.ask("What was the code?")
    for number in range(8):
        room.providers.model = scripted(Says(f"noted {number} {LONG}"))
        chat.ask(f"question {number} {LONG}")
    room.eventually_stored(chat.name, len(chat.rows) + 2)
    room.compact(chat.name)
    room.providers.model = lambda _: Says("fine")
    chat.ask("Go on.")
    assert chat.outcome == "compacted"
    for _ in range(2):
        chat.rows.append(row)
        sent = [*chat.rows, {"role": "user", "content": "And on."}]
        chat.ask("And on.")
        # A result that cannot be read must stay with its call, wherever that is.
        assert chat.outcome == ("unchanged" if row.get("role") == "tool" else "compacted")
        asked = room.providers.asked[-1].rows
        assert asked == sent if chat.outcome == "unchanged" else asked[-2:] == sent[-2:]


@pytest.mark.parametrize("resends", [False, True])
@pytest.mark.parametrize("shape", ["messages", "responses"])
def test_answer_that_says_nothing_after_recall_is_gone_on_from_again_and_again(
    recalling: Room, shape: str, *, resends: bool
) -> None:
    chat = Seen(recalling, shape, **{"x-session-id": f"session {next(NUMBERS)}"})
    recalling.providers.model = scripted(Says("hello"))
    chat.ask("hi")
    first = chat.name
    recalling.providers.model = scripted(Says("", (recall("r1", query="door"),)), Says(thinks="I think of"))
    chat.ask("think of it")
    said = chat.rows.pop()
    assert said != chat.rows[-1]
    if resends:
        chat.rows.append(said)
    # The call, and its result by itself or within the next message; what was thought and led to nothing is not there.
    hidden = (shape == "responses") + (not resends)
    for number in range(3):
        recalling.providers.model = lambda _: Says("fine")
        chat.ask(f"go on {number}")
        assert chat.name == first
        recalling.eventually_stored(first, len(chat.rows) + hidden)
        asked = recalling.providers.asked[-1]
        assert len(asked.rows) == len(chat.rows) + hidden - 1
        assert not PROBLEMS[shape](asked.rows)


@pytest.mark.parametrize("shape", ["messages", "responses"])
def test_answer_that_comes_back_after_one_that_recalled_and_said_nothing(recalling: Room, shape: str) -> None:
    chat = Seen(recalling, shape, **{"x-session-id": f"session {next(NUMBERS)}"})
    recalling.providers.model = scripted(Says("hello"), Says("it is four"))
    chat.ask("hi")
    chat.headers["x-palimpsest-conversation"] = first = chat.name
    chat.ask("think of it")
    one_way = list(chat.rows)
    del chat.rows[-1]
    recalling.providers.model = scripted(Says("", (recall("r1", query="door"),)), Says(thinks="I think of"))
    chat.send()
    chat.rows = one_way
    for number in range(3):
        recalling.providers.model = lambda _: Says("fine")
        chat.ask(f"go on {number}")
        assert chat.name == first
        recalling.eventually_stored(first, len(chat.rows))
        assert recalling.providers.asked[-1].rows == chat.rows[:-1]


@pytest.mark.parametrize("by", ["id", "name"])
@pytest.mark.parametrize("shape", SHAPES)
def test_fork_has_the_calls_that_its_client_has_not(recalling: Room, shape: str, by: str) -> None:
    chat = Seen(recalling, shape)
    recalling.providers.model = scripted(
        *(said for k in range(2) for said in (Says("", (recall(f"r{k}", query="door"),)), Says(f"{shape} {by} {k}")))
    )
    for number in range(2):
        chat.ask(f"{shape} {by} {number}")
    last = recalling.eventually_stored(chat.name, len(chat.rows) + 4)[-1]["seq"]
    with running_api(recalling.settings) as served, served.client(recalling.tenant.key) as api:
        body = {"through_seq": last, "external_id": f"fork with recalls of {shape} by {by}"}
        made = api.post(f"/v1/conversations/{chat.name}/fork", json=body).json()
    chat.headers["x-palimpsest-conversation"] = made["id"] if by == "id" else made["external_id"]
    recalling.providers.model = lambda _: Says("fine")
    for number in range(3):
        chat.ask(f"go on {number}")
        assert chat.name == made["id"]
        recalling.eventually_stored(chat.name, len(chat.rows) + 4)
        assert len(results_in(recalling.providers.asked[-1])) == 2


@pytest.mark.parametrize("shape", SHAPES)
def test_rounds_are_bounded(recalling: Room, shape: str) -> None:
    room = recalling
    room.providers.model = lambda asked: Says("Again. ", (recall(f"r{len(asked.rows)}", query="code"),))
    before = len(room.providers.asked)
    chat = Seen(room, shape)
    chat.ask("Never done.")
    assert len(room.providers.asked) - before == 6
    assert chat.said.count("Again.") == 6
    assert not chat.called
    room.providers.model = scripted(Says("Done."))
    chat.ask("Go on.")
    assert not PROBLEMS[shape](room.providers.asked[-1].rows), room.providers.asked[-1].rows


@pytest.mark.parametrize("shape", SHAPES)
def test_calls_side_by_side_are_bounded(recalling: Room, shape: str) -> None:
    room = recalling
    calls = tuple(recall(f"r{number}", query="code") for number in range(MOST_CALLS + 3))
    room.providers.model = scripted(Says("All of it. ", calls), Says("Done."))
    chat = Seen(room, shape)
    chat.ask("Look everywhere.")
    asked = room.providers.asked[-1]
    assert not PROBLEMS[shape](asked.rows), asked.rows
    assert (len(results_in(asked)), asked.raw.decode().count(TOO_MANY)) == (MOST_CALLS, 3)


@pytest.mark.parametrize("shape", SHAPES)
def test_model_that_takes_no_tools_is_asked_without(recalling: Room, shape: str) -> None:
    room = recalling
    refusal = {"error": {"type": "invalid_request_error", "message": "this model does not support tools"}}
    room.providers.model = lambda asked: Fails(400, refusal) if "tools" in asked.body else Says("Without.")
    chat = Seen(room, shape)
    chat.ask("Hello.")
    assert chat.said == "Without."


def test_own_tool_of_that_name_is_the_clients(recalling: Room) -> None:
    room = recalling
    own = {"name": NAME, "input_schema": {"type": "object"}}
    chat = Seen(room, "messages")
    chat.fields = {"tools": [own]}
    room.providers.model = scripted(Says("", (recall("r1", query="mine"),)))
    chat.ask("Call yours.")
    assert chat.called == "r1"
    assert room.providers.asked[-1].body["tools"] == [own]


@pytest.mark.parametrize("shape", SHAPES)
def test_provider_that_fails_between(recalling: Room, shape: str) -> None:
    room = recalling
    script: tuple[Says | Fails, ...] = (
        Says("Look.", (recall("r1", query="x"),)),
        Fails(529, {"error": {"message": "Overloaded"}}),
    )
    answers = iter(script)
    room.providers.model = lambda _: next(answers)
    rows = [{"role": "user", "content": "fails between"}]
    name = "input" if shape == "responses" else "messages"
    answer = room.client.post(PATHS[shape], json={"model": "m", "max_tokens": 9, name: rows, "stream": True})
    assert "Overloaded" in events_in(answer.text)[-1].get("error", events_in(answer.text)[-1])["message"]
    answers = iter(script)
    answer = room.client.post(PATHS[shape], json={"model": "m", "max_tokens": 9, name: rows})
    assert (answer.status_code, answer.json()["error"]["message"]) == (529, "Overloaded")


@pytest.mark.parametrize("is_stream", [True, False])
@pytest.mark.parametrize("shape", SHAPES)
def test_recall_is_shown_as_thinking(recalling: Room, shape: str, is_stream: bool) -> None:
    fields = {"gateway_recall_as_thinking": True, "policy": {"gateway_recall": True}}
    with room_on(recalling.settings, recalling.tenant, **fields) as room:
        chat = Seen(room, shape, **{"x-session-id": f"thinking {next(NUMBERS)}"})
        room.providers.model = scripted(Says("Look.", (recall("r1", query="the words"),)), Says("Nothing."))
        chat.ask("Think of it.", stream=is_stream)
        assert "Recall: the words" in json.dumps(chat.whole)
        assert chat.said == "Look. Nothing."
        room.providers.model = scripted(Says("Gladly."))
        name = chat.name
        chat.ask("Thanks.", stream=is_stream)
        asked = room.providers.asked[-1]
        assert chat.name == name
        assert "Recall: the words" not in asked.raw.decode()
        assert not PROBLEMS[shape](asked.rows), asked.rows
        # A gateway that does not know the conversation takes it out as well.
        bare = Seen(room, shape, **{"x-session-id": f"thinking {next(NUMBERS)}"})
        bare.rows = chat.rows
        room.providers.model = scripted(Says("Gladly."))
        bare.ask("Thanks again.", stream=is_stream)
        assert "Recall: the words" not in room.providers.asked[-1].raw.decode()


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("asked", [{"query": "door code"}, {"pattern": "door code"}, {"ref": "m2"}, {"ref": "m1-m3"}])
def test_what_a_history_does_not_go_on_from_is_not_recalled(recalling: Room, shape: str, asked: dict[str, str]) -> None:
    # Clients that do not say who they are and began with the same words, or one who has taken a message back.
    number = next(NUMBERS)
    recalling.providers.model = scripted(Says("Hello there."), Says("I keep it."))
    one = Seen(recalling, shape)
    one.ask(f"Good morning {number}.")
    other = Seen(recalling, shape)
    other.rows = list(one.rows)
    one.ask(f"Note: {SECRET}.")
    recalling.eventually_stored(one.name, 4)
    call = recall(f"call_{number}", **asked)
    recalling.providers.model = scripted(Says("", (call,)), Says("There is nothing."))
    other.ask("What was noted?")
    assert SECRET not in json.dumps([each.rows for each in recalling.providers.asked[-2:]])
