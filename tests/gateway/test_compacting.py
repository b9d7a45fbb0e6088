"""What a model is sent once the conversation was compacted: the head for what it covers, all else as it came."""

from __future__ import annotations

import hashlib
import json
from typing import TYPE_CHECKING, Any, Final

import pytest

from runtime import ids
from tests.conftest import make_tenant
from tests.gateway.chatter import PATHS, Chatter
from tests.gateway.conftest import room_on
from tests.support import messages_api
from tests.support.eventually import eventually
from tests.support.servers.loopback_providers import Asked, Fails, Says
from tests.support.service.running_api import running_api
from tests.support.shapes import chat_api, responses_api

if TYPE_CHECKING:
    from collections.abc import Iterator

    from runtime.settings import Settings
    from tests.gateway.conftest import Room

SHAPES: Final = tuple(PATHS)
PROBLEMS: Final[dict[str, Any]] = {
    "messages": messages_api.problems,
    "chat": chat_api.problems,
    "responses": responses_api.problems,
}
SHORT: Final = {"input_token_budget": 5_000, "tool_result_retention_chars": 60}
MARK: Final = {"type": "ephemeral"}
LONG: Final = "a line of output that is long enough to be cut\n" * 50


@pytest.fixture(scope="module")
def shared(module_settings: Settings) -> Iterator[Room]:
    """A gateway that compacts what is short for one of default thresholds: all of it is sent again and again."""
    tenant = make_tenant(module_settings.database_url.get_secret_value(), "acme")
    with room_on(module_settings, tenant, policy=SHORT) as room:
        yield room


def calls_a_tool(asked: Asked) -> Says:
    """Call a tool after each request, answer after each result."""
    last = asked.rows[-1]
    number = len(asked.raw)
    is_result = "tool_result" in str(last) or last.get("role") == "tool" or last.get("type") == "function_call_output"
    return Says(f"answer {number}") if is_result else Says("", ((f"call_{number}", "look", {"n": number}),))


def talk(chat: Chatter, rounds: int, about: str, result: str = LONG) -> None:
    """Ask, and give what is called for."""
    for number in range(rounds):
        chat.ask(f"{about} {number}")
        chat.give(chat.called, f"{about} result {number} {result}")
        chat.send()


@pytest.mark.parametrize("shape", SHAPES)
def test_head_stands_for_what_it_covers(room: Room, shape: str) -> None:
    room.providers.model = calls_a_tool
    chat = Chatter(room, shape)
    talk(chat, 12, f"{shape} compacting")
    count = len(chat.rows)
    room.eventually_stored(chat.name, count)
    room.compact(chat.name)
    chat.ask(f"{shape} after it")
    asked = room.providers.asked[-1]
    assert chat.outcome == "compacted"
    assert chat.saved > 1_250
    assert not PROBLEMS[shape](asked.rows)
    assert asked.rows[-1] == {"role": "user", "content": f"{shape} after it"}
    assert f"{shape} compacting 0" in json.dumps(asked.rows[0])
    assert len(asked.raw) < len(json.dumps(chat.rows)) / 3
    assert chat.rows[count - 2] in asked.rows
    name = chat.name
    talk(chat, 2, f"{shape} on")
    assert (chat.name, chat.outcome) == (name, "compacted")
    room.eventually_stored(name, len(chat.rows))


OPAQUE: Final = {
    "a key twice": ('{"role":"user","content":"a","content":"said twice"}', "ambiguous"),
    "a key of a part twice": ('{"role":"user","content":[{"type":"text","text":"a","text":"b"}]}', "ambiguous"),
    "no double": ('{"role":"user","content":"a","x":1e400}', "unreadable"),
    "a part without its content": ('{"role":"user","content":[{"type":"image_url"}]}', "unreadable"),
}


def rows_counted(room: Room, kind: str) -> float:
    text: str = room.client.get("/metrics").text
    return float(text.split(f"\npalimpsest_gateway_{kind}_rows_total ")[1].split("\n", maxsplit=1)[0])


@pytest.mark.parametrize("name", OPAQUE)
def test_row_that_cannot_be_read_disables_only_itself(room: Room, name: str) -> None:
    row, kind = OPAQUE[name]
    room.providers.model = calls_a_tool
    chat = Chatter(room, "chat")
    talk(chat, 12, f"beside {name}")
    room.eventually_stored(chat.name, len(chat.rows))
    room.compact(chat.name)
    counted = rows_counted(room, kind)
    room.providers.model = lambda _: Says("Yes.")
    before = ",".join(json.dumps(each) for each in chat.rows)
    after = ""
    for number in (1, 2):
        # The first time the row is new; the second time it is in what is behind the head.
        body = f'{{"model":"m","messages":[{before},{row}{after}]}}'.encode()
        answer = room.client.post(PATHS["chat"], content=body)
        assert answer.headers["x-palimpsest-opaque"] == "1"
        assert answer.headers["x-palimpsest-outcome"] == "compacted"
        assert answer.headers["x-palimpsest-conversation"] == chat.name
        assert row.encode() in room.providers.asked[-1].raw
        room.eventually_stored(chat.name, len(chat.rows) + 2 * number)
        after = ',{"role":"assistant","content":"Yes."},{"role":"user","content":"Go on."}'
    assert rows_counted(room, kind) == counted + 1


def test_everything_beside_the_head_is_as_it_came(room: Room) -> None:
    room.providers.model = calls_a_tool
    chat = Chatter(room, "messages")
    talk(chat, 12, "byte for byte")
    room.eventually_stored(chat.name, len(chat.rows))
    room.compact(chat.name)
    system = '[{"type":"text",  "text":"spaced   out"}]'
    tools = '[ {"name":"look","input_schema":{"type":"object"}} ]'
    newest = '{"role" : "user", "content":[{"type":"text","text":"newest \\u00fc", "x_new": 1.0}]}'
    before = ",".join(json.dumps(row) for row in chat.rows)
    body = f'{{"model":"m","max_tokens":9,"system":{system},"messages":[{before},{newest}],"tools":{tools}}}'
    answer = room.client.post("/v1/messages", content=body.encode(), headers={"content-type": "application/json"})
    raw = room.providers.asked[-1].raw.decode()
    assert answer.headers["x-palimpsest-outcome"] == "compacted"
    for part in (f'"system":{system}', f'"tools":{tools}', newest, json.dumps(chat.rows[-1])):
        assert part in raw


@pytest.mark.parametrize("thinks", ["", "Let me see."])
@pytest.mark.parametrize("as_blocks", [False, True])
def test_system_messages_amid_the_others_keep_no_conversation_from_being_compacted(
    room: Room, thinks: str, as_blocks: bool
) -> None:
    # "Mid-conversation system messages": after a message of the user's, before an answer.
    def model(asked: Asked) -> Says:
        if "tool_result" in str(asked.rows[-2:]):
            return Says(f"answer {len(asked.raw)}", (), thinks)
        return Says("", ((f"call_{len(asked.raw)}", "look", {"n": 1}),), thinks)

    room.providers.model = model
    chat = Chatter(room, "messages")
    for number in range(12):
        chat.ask(f"amid {thinks} {as_blocks} {number}")
        chat.give(chat.called, f"result {number} {LONG}")
        text = f"Be {number} times as brief from here on."
        chat.rows.append({"role": "system", "content": [{"type": "text", "text": text}] if as_blocks else text})
        chat.send()
    stored = room.eventually_stored(chat.name, len(chat.rows))
    assert stored[3] == {**stored[3], "role": "user", "content": "[system message]\nBe 0 times as brief from here on."}
    room.compact(chat.name)
    chat.ask("after it")
    assert chat.outcome == "compacted"
    chat.give(chat.called, "the last result")
    chat.rows.append({"role": "system", "content": "Be brief."})
    chat.send()
    assert chat.outcome == "compacted"
    asked = room.providers.asked[-1]
    assert asked.rows[-1] == {"role": "system", "content": "Be brief."}
    places = [at for at, row in enumerate(asked.rows) if row["role"] == "system"]
    assert all(asked.rows[at - 1]["role"] == "user" for at in places)
    assert not PROBLEMS["messages"]([row for row in asked.rows if row["role"] != "system"])
    room.eventually_stored(chat.name, len(chat.rows))


def test_marks_for_the_cache_stay_within_four(room: Room) -> None:
    room.providers.model = calls_a_tool
    chat = Chatter(room, "messages")
    talk(chat, 12, "marked")
    room.eventually_stored(chat.name, len(chat.rows))
    room.compact(chat.name)
    rows = json.loads(json.dumps(chat.rows))
    rows.append({"role": "user", "content": [{"type": "text", "text": "marked on", "cache_control": MARK}]})
    system = [{"type": "text", "text": "s", "cache_control": MARK}]

    def sent(system_marks: int) -> list[Any]:
        fields = {"model": "m", "max_tokens": 9, "system": system * system_marks, "messages": rows}
        answer = room.client.post("/v1/messages", json=fields)
        assert answer.headers["x-palimpsest-outcome"] == "compacted"
        asked = room.providers.asked[-1]
        assert json.dumps(asked.body).count("cache_control") <= 4
        return asked.rows

    once, again = sent(2), sent(2)
    assert json.dumps(once).count("cache_control") == 2
    assert once == again
    assert json.dumps(sent(3)).count("cache_control") == 1
    unmarked = Chatter(room, "messages")
    unmarked.rows = list(chat.rows)
    unmarked.ask("not marked at all")
    assert unmarked.outcome == "compacted"
    assert "cache_control" not in room.providers.asked[-1].raw.decode()


def test_edit_within_what_is_covered_gets_no_head(room: Room) -> None:
    room.providers.model = calls_a_tool
    chat = Chatter(room, "messages")
    talk(chat, 12, "deep edit")
    room.eventually_stored(chat.name, len(chat.rows))
    room.compact(chat.name)
    chat.rows = [*chat.rows[:8], {"role": "user", "content": "edited deep within"}]
    sent = list(chat.rows)
    chat.send()
    assert room.providers.asked[-1].rows == sent
    assert chat.outcome == "unchanged"
    name = chat.name
    room.eventually_stored(name, len(chat.rows))
    chat.ask("on after the edit")
    assert chat.name == name
    assert "deep edit 7" not in room.providers.asked[-1].raw.decode()


@pytest.mark.parametrize("by", ["id", "name"])
@pytest.mark.parametrize("shape", SHAPES)
def test_fork_is_gone_on_with_again_and_again(room: Room, shape: str, by: str) -> None:
    room.providers.model = calls_a_tool
    chat = Chatter(room, shape)
    talk(chat, 2, f"{shape} forked by {by}")
    for _ in range(3):
        # What a regenerated answer takes the place of stays behind, so that the fork's seqs have gaps.
        del chat.rows[-1]
        chat.send()
    talk(chat, 10, f"{shape} forked by {by}, on")
    through = room.eventually_stored(chat.name, len(chat.rows))[-1]["seq"]
    room.compact(chat.name)
    with running_api(room.settings) as served, served.client(room.tenant.key) as api:
        body = {"through_seq": through, "external_id": f"fork of {shape} by {by}"}
        made = api.post(f"/v1/conversations/{chat.name}/fork", json=body).json()
    fork = Chatter(room, shape, **{"x-palimpsest-conversation": made["id"] if by == "id" else made["external_id"]})
    fork.rows = list(chat.rows)
    newest = fork.rows[-4:]
    for number in range(3):
        fork.ask(f"asked in the fork {number}")
        assert (fork.name, fork.outcome) == (made["id"], "compacted")
        asked = room.providers.asked[-1]
        newest = [*newest, {"role": "user", "content": f"asked in the fork {number}"}]
        assert asked.rows[-len(newest) :] == newest
        assert not PROBLEMS[shape](asked.rows)
        fork.give(fork.called, "looked up")
        fork.send()
        newest += fork.rows[-3:]
        room.eventually_stored(fork.name, len(fork.rows))
    first = chat.name
    chat.headers = {"x-palimpsest-conversation": first} if by == "id" else {}
    chat.ask("asked beside it")
    assert chat.name == first
    assert len(room.eventually_stored(first, len(chat.rows))) == len(chat.rows)


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("is_stream", [False, True])
def test_refusal_as_too_long_is_answered_with_less(room: Room, shape: str, is_stream: bool) -> None:
    limit = 8_000

    def refuses(asked: Asked) -> Says | Fails:
        if len(asked.raw) <= limit:
            return calls_a_tool(asked)
        text = f"prompt is too long: {len(asked.raw) // 4} tokens > {limit // 4} maximum"
        if shape == "messages":
            return Fails(400, {"type": "error", "error": {"type": "invalid_request_error", "message": text}})
        tokens = f"maximum context length is {limit // 5} tokens. However, your messages resulted in"
        message = f"This model's {tokens} {len(asked.raw) // 4} tokens."
        return Fails(400, {"error": {"message": message, "code": "context_length_exceeded", "type": "x"}})

    chat = Chatter(room, shape)
    room.providers.model = calls_a_tool
    talk(chat, 6, f"{shape} overflow {is_stream}")
    room.eventually_stored(chat.name, len(chat.rows))
    room.providers.model = refuses
    chat.rows.append({"role": "user", "content": f"{shape} one too many"})
    before = len(room.providers.asked)
    name = "input" if shape == "responses" else "messages"
    fields = {"model": "m", "max_tokens": 9, name: chat.rows, "stream": is_stream}
    answer = room.client.post(PATHS[shape], json=fields)
    assert answer.status_code == 200, answer.text
    refused, taken = room.providers.asked[before:]
    assert len(taken.raw) <= limit < len(refused.raw)
    assert answer.headers["x-palimpsest-outcome"] == "compacted"
    assert answer.content == taken.answered
    assert not PROBLEMS[shape](taken.rows)
    assert f"{shape} one too many" in json.dumps(taken.rows[-1])
    room.eventually_stored(answer.headers["x-palimpsest-conversation"], len(chat.rows) + 1)


@pytest.mark.parametrize("can_be_smaller", [True, False])
def test_refusal_within_a_stream(room: Room, can_be_smaller: bool) -> None:
    limit = 60_000 if can_be_smaller else 0

    def refuses(asked: Asked) -> Says | Fails:
        if len(asked.raw) <= limit:
            return calls_a_tool(asked)
        tokens = f"maximum context length is {limit // 5} tokens. However, your messages resulted in"
        message = f"This model's {tokens} {len(asked.raw) // 4} tokens."
        return Fails(200, {"error": {"code": "context_length_exceeded", "message": message}}, within=True)

    chat = Chatter(room, "responses", **{"x-session-id": f"within {can_be_smaller}"})
    room.providers.model = calls_a_tool
    talk(chat, 6, f"within {can_be_smaller}", LONG * 8)
    room.eventually_stored(chat.name, len(chat.rows))
    room.providers.model = refuses
    rows = [*chat.rows, {"role": "user", "content": "one too many"}]
    before = len(room.providers.asked)
    fields = {"model": "m", "input": rows, "stream": True}
    answer = room.client.post("/v1/responses", json=fields, headers=chat.headers)
    asked = room.providers.asked[before:]
    assert answer.status_code == 200
    assert answer.content == asked[-1].answered
    assert ("context_length_exceeded" in answer.text) is not can_be_smaller
    assert len(asked) == 2
    assert len(asked[1].raw) < len(asked[0].raw)


def test_refusal_of_what_cannot_be_smaller_comes_back(room: Room) -> None:
    body = {"type": "error", "error": {"type": "invalid_request_error", "message": "prompt is too long: 9 > 8"}}
    room.providers.model = lambda _: Fails(400, body)
    answer = room.client.post("/v1/messages", json={"model": "m", "messages": [{"role": "user", "content": "hi"}]})
    assert (answer.status_code, answer.json()) == (400, body)


def test_thinking_from_before_the_head_is_left_out(room: Room) -> None:
    room.providers.model = lambda asked: calls_a_tool(asked)._replace(thinks="I think.")
    chat = Chatter(room, "messages")
    thought = {"type": "thinking", "thinking": "I think.", "signature": "c2lnbmVk"}
    for number in range(12):
        chat.ask(f"thinking {number}")
        chat.rows[-1]["content"] = [thought, *chat.rows[-1]["content"]]
        chat.give(chat.rows[-1]["content"][1]["id"], f"result {number} {LONG}")
        chat.send()
        chat.rows[-1]["content"] = [thought, *chat.rows[-1]["content"]]
    room.eventually_stored(chat.name, len(chat.rows))
    room.compact(chat.name)
    chat.ask("thinking on")
    asked = room.providers.asked[-1]
    assert chat.outcome == "compacted"
    # What stands before the first result that was cut is as it was when it was signed.
    assert "I think." in json.dumps(asked.rows[:2])
    assert "I think." not in json.dumps(asked.rows[2:])
    assert not PROBLEMS["messages"](asked.rows)


@pytest.mark.parametrize("shape", SHAPES)
def test_rules_that_stand_in_what_is_sent_are_named_by_their_hash(room: Room, shape: str) -> None:
    room.providers.model = calls_a_tool
    chat = Chatter(room, shape)
    rule = "From now on, never mention prices."
    chat.ask(f"{shape} rules. {rule}")
    chat.give(chat.called, "done")
    chat.send()
    talk(chat, 12, f"{shape} under a rule")
    assert (chat.outcome, chat.rules) == ("unchanged", None)
    room.eventually_stored(chat.name, len(chat.rows))
    room.compact(chat.name)
    chat.ask(f"{shape} after it")
    assert chat.outcome == "compacted"
    conversation = ids.parse("conv", chat.name)
    rows = room.query(
        "select text from pins where conversation_id = %s and source <> 'withdrawal' order by seq, id", conversation
    )
    rules = [row["text"] for row in rows]
    assert rule in rules
    assert chat.rules == hashlib.sha256("\n".join(rules).encode()).hexdigest()
    room.query(
        "update pins set removed_at = now() where conversation_id = %s and text = %s returning 1", conversation, rule
    )
    chat.ask(f"{shape} once it is withdrawn")
    rules.remove(rule)
    assert chat.rules == hashlib.sha256("\n".join(rules).encode()).hexdigest()


@pytest.mark.parametrize(("shape", "cached"), [("messages", 0), ("chat", None)])
def test_what_a_call_counted_is_kept_with_the_head_that_it_was_made_with(
    room: Room, shape: str, cached: int | None
) -> None:
    room.providers.model = calls_a_tool
    chat = Chatter(room, shape)
    chat.fields = {"stream_options": {"include_usage": True}} if shape == "chat" else {}
    talk(chat, 12, f"{shape} counting")
    room.eventually_stored(chat.name, len(chat.rows))
    room.compact(chat.name)
    chat.ask(f"{shape} after it")
    assert chat.outcome == "compacted"
    identifier = ids.parse("conv", chat.name)
    statement = "select * from turn_usages where conversation_id = %s order by seq"

    def kept(count: int) -> list[dict[str, Any]]:
        rows = room.query(statement, identifier)
        return rows if len(rows) == count else []

    rows = eventually(lambda: kept(len(room.providers.asked)))
    assert [row["snapshot_version"] > 0 for row in rows] == [*[False] * (len(rows) - 1), True]
    assert [row["input_tokens"] for row in rows] == [len(asked.raw) // 4 for asked in room.providers.asked]
    assert {row["cached_tokens"] for row in rows} == {cached}
    assert not any(row["is_edit"] for row in rows)
    # A regenerated answer says little of the prefix of the one that it takes the place of.
    chat.rows = [*chat.rows[:-2], {"role": "user", "content": f"{shape} something else"}]
    chat.send()
    assert eventually(lambda: kept(len(room.providers.asked)))[-1]["is_edit"]
