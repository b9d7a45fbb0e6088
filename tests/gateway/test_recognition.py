"""Which conversation a request belongs to, by what it resends: edited, regenerated, gone on beside, begun anew."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any, Final

import psycopg
import pytest

from gateway.conversations.sessions import session_of
from runtime import ids
from store.archive import exports
from store.archive.export_lines import line
from store.engine import service_engine, transaction
from tests.conftest import make_tenant
from tests.gateway.chatter import PATHS, Chatter
from tests.support.eventually import eventually
from tests.support.servers.loopback_providers import Says
from tests.support.service.running_api import running_api

if TYPE_CHECKING:
    from tests.gateway.conftest import Room

SHAPES: Final = tuple(PATHS)
MARK: Final = {"type": "ephemeral"}


@pytest.mark.parametrize(
    ("headers", "client"),
    [
        ({b"user-agent": b"claude-cli/2.1.0 (external, cli)"}, "claude-code"),
        ({b"user-agent": b"codex_exec/0.169.0 (Debian)"}, "codex"),
        ({b"user-agent": b"Agents/Python 0.24"}, "openai-agents"),
        ({b"user-agent": b"node", b"x-claude-code-session-id": b"s"}, "claude-code"),
        ({b"user-agent": b"Python/3.11 aiohttp/3.14", b"x-openwebui-chat-id": b"c"}, "open-webui"),
        ({b"user-agent": b"My-App/1.2 (x86)"}, "my-app"),
        ({b"user-agent": b"curl"}, "curl"),
        ({b"user-agent": b"<b>\xff/1"}, None),
        ({b"user-agent": b"a" * 41 + b"/1"}, None),
        ({}, None),
    ],
)
def test_client_is_what_its_first_request_says(headers: dict[bytes, bytes], client: str | None) -> None:
    assert session_of(headers, {}).client == client


def texts(room: Room, conversation: str) -> list[str]:
    every = []
    for row in room.stored(conversation):
        content = row["content"]
        every.append(content if isinstance(content, str) else "".join(block.get("text", "") for block in content))
    return every


@pytest.mark.parametrize("shape", SHAPES)
def test_conversation_goes_on_with_the_model_that_it_is_sent_to(room: Room, shape: str) -> None:
    chat = Chatter(room, shape)
    for number, model in enumerate(["model-1", "model-1", "model-2", "model-3", "model-2"]):
        chat.fields = {"model": model}
        chat.ask(f"{shape}, {number} of the models")
        room.eventually_stored(chat.name, len(chat.rows))
    identifier = ids.parse("conv", chat.name)
    (row,) = room.query("select model, other_model_through from conversations where id = %s", identifier)
    # What one model thought is nothing that the other can read.
    assert (row["model"], row["other_model_through"]) == ("model-2", 7)


@pytest.mark.parametrize("shape", SHAPES)
def test_history_that_is_resent_is_one_conversation(room: Room, shape: str) -> None:
    chat = Chatter(room, shape)
    names = []
    for number in range(4):
        chat.ask(f"{shape} resent, question {number}")
        names.append(chat.name)
    assert len(set(names)) == 1
    room.eventually_stored(names[0], 8)
    assert texts(room, names[0])[:3] == [f"{shape} resent, question 0", "answer 1", f"{shape} resent, question 1"]
    assert not room.query(
        "select seq from messages where conversation_id = %s and superseded_at is not null",
        ids.parse("conv", names[0]),
    )


def test_answer_is_recognized_however_the_client_writes_it(room: Room) -> None:
    room.providers.model = lambda asked: Says(f"said {len(asked.rows)}", ((f"t{len(asked.rows)}", "look", {"q": 1}),))
    chat = Chatter(room, "messages")
    chat.ask("written otherwise")
    chat.rows[-1]["content"][0]["cache_control"] = MARK
    result = {"type": "tool_result", "tool_use_id": "t1", "content": "x", "cache_control": MARK}
    chat.rows.append({"role": "user", "content": [result]})
    chat.send()
    first = chat.name
    # The mark moves on, a lone text becomes a string, a result loses its mark.
    del chat.rows[1]["content"][0]["cache_control"]
    del chat.rows[2]["content"][0]["cache_control"]
    chat.rows[0]["content"] = [{"type": "text", "text": "written otherwise", "cache_control": MARK}]
    chat.rows.append({"role": "user", "content": [{"type": "tool_result", "tool_use_id": "t3", "content": "y"}]})
    chat.send()
    assert chat.name == first
    assert len(room.eventually_stored(first, 6)) == 6


def test_import_by_use(room: Room) -> None:
    chat = Chatter(room, "messages")
    for number in range(150):
        chat.rows += [
            {"role": "user", "content": f"imported question {number}"},
            {"role": "assistant", "content": f"imported answer {number}"},
        ]
    chat.ask("and now")
    stored = room.eventually_stored(chat.name, 302)
    assert [row["content"] for row in stored[:2]] == ["imported question 0", "imported answer 0"]
    name = chat.name
    chat.ask("and then")
    assert chat.name == name
    room.eventually_stored(name, 304)


def test_edit_takes_the_place_of_what_it_edits(room: Room) -> None:
    chat = Chatter(room, "chat")
    for number in range(3):
        chat.ask(f"edited chat {number}")
    name = chat.name
    room.eventually_stored(name, 6)
    chat.rows = [*chat.rows[:2], {"role": "user", "content": "edited chat, said better"}]
    chat.send()
    assert chat.name == name
    room.eventually_stored(name, 4)
    assert texts(room, name)[2] == "edited chat, said better"
    chat.ask("and on")
    assert chat.name == name
    room.eventually_stored(name, 6)


def test_regenerated_answer_takes_the_place_of_the_one_before(room: Room) -> None:
    chat = Chatter(room, "messages")
    chat.ask("regenerated 0")
    chat.ask("regenerated 1")
    name = chat.name
    room.eventually_stored(name, 4)
    del chat.rows[3:]
    room.providers.model = lambda _: Says("another answer")
    chat.send()
    assert chat.name == name
    room.eventually_stored(name, 4)
    assert texts(room, name)[3] == "another answer"
    chat.ask("regenerated 2")
    assert chat.name == name
    assert texts(room, name)[3] == "another answer"


def test_branch_that_comes_back_is_a_conversation_of_its_own(room: Room) -> None:
    one = Chatter(room, "messages")
    one.ask("branching 0")
    one.ask("branching 1")
    other = Chatter(room, "messages")
    other.rows = one.rows[:2]
    one.ask("one's own")
    room.eventually_stored(one.name, 6)
    other.ask("other's own")
    assert other.name == one.name
    room.eventually_stored(one.name, 4)
    one.ask("one goes on")
    assert one.name != other.name
    room.eventually_stored(one.name, 8)
    about = room.query("select metadata from conversations where id = %s", ids.parse("conv", one.name))
    assert about[0]["metadata"]["gateway"]["branch_of"] == other.name
    names = (one.name, other.name)
    other.ask("other goes on")
    one.ask("one ends")
    assert (one.name, other.name) == names
    room.eventually_stored(one.name, 10)
    room.eventually_stored(other.name, 6)
    assert "one's own" not in texts(room, other.name)
    assert "other's own" not in texts(room, one.name)


@pytest.mark.parametrize("by", ["id", "name"])
def test_branch_that_comes_back_by_its_first_name_is_gone_on_with(room: Room, by: str) -> None:
    chat = Chatter(room, "messages", **({"x-palimpsest-conversation": "comes back"} if by == "name" else {}))
    chat.ask(f"named by {by} 0")
    chat.ask("first way")
    chat.ask("and on")
    first = chat.name
    chat.headers = {"x-palimpsest-conversation": first if by == "id" else "comes back"}
    room.eventually_stored(first, 6)
    one_way = list(chat.rows)
    chat.rows = chat.rows[:2]
    chat.ask("second way")
    assert chat.name == first
    room.eventually_stored(first, 4)
    chat.rows = one_way
    names = []
    for number in range(3):
        chat.ask(f"first way again {number}")
        names.append(chat.name)
        room.eventually_stored(chat.name, len(chat.rows))
    chat.rows = [*chat.rows[:-2], {"role": "user", "content": "asked otherwise"}]
    chat.send()
    assert {*names, chat.name} == {names[0]}
    assert first not in names


def test_same_first_words_are_two_conversations(room: Room) -> None:
    one, other = Chatter(room, "chat"), Chatter(room, "chat")
    one.ask("the same first words")
    other.ask("the same first words")
    assert one.name != other.name


def test_session_holds_a_conversation_and_what_is_beside_it(room: Room) -> None:
    session = {"x-claude-code-session-id": "session-1", "user-agent": "claude-cli/2.1 (external, cli)"}
    chat, title = Chatter(room, "messages", **session), Chatter(room, "messages", **session)
    chat.ask("in a session")
    room.eventually_stored(chat.name, 2)
    title.ask("Write a title for: in a session")
    chat.ask("in a session, on")
    assert title.name != chat.name
    room.eventually_stored(chat.name, 4)
    room.eventually_stored(title.name, 2)
    about = room.query("select metadata from conversations where id = %s", ids.parse("conv", chat.name))
    assert about[0]["metadata"]["gateway"] == {"client": "claude-code", "session": "session-1", "shape": "messages"}
    elsewhere = Chatter(room, "messages", **{**session, "x-claude-code-session-id": "session-2"})
    elsewhere.rows = list(chat.rows)
    elsewhere.ask("on in another session")
    assert elsewhere.name != chat.name


def test_own_compaction_of_a_client_is_a_branch(room: Room) -> None:
    chat = Chatter(room, "messages", **{"x-session-id": "session-3"})
    for number in range(3):
        chat.ask(f"compacted by the client {number}")
    first = chat.name
    room.eventually_stored(first, 6)
    chat.rows = [
        {"role": "user", "content": "This session is continued from an earlier one: a summary."},
        {"role": "user", "content": "Go on."},
    ]
    chat.send()
    assert chat.name != first
    room.eventually_stored(chat.name, 3)
    about = room.query("select metadata from conversations where id = %s", ids.parse("conv", chat.name))
    assert about[0]["metadata"]["gateway"]["branch_of"] == first


def test_own_compaction_is_a_branch_of_what_was_gone_on_with_last(room: Room) -> None:
    def branch_of(chat: Chatter) -> str | None:
        about = room.query("select metadata from conversations where id = %s", ids.parse("conv", chat.name))
        name: str | None = about[0]["metadata"]["gateway"].get("branch_of")
        return name

    session = {"x-session-id": "session with titles"}
    first_title, chat, title = (Chatter(room, "messages", **session) for _ in range(3))
    first_title.ask("Write a title for: what was gone on with")
    room.eventually_stored(first_title.name, 2)
    chat.ask("what was gone on with 0")
    chat.ask("what was gone on with 1")
    first = chat.name
    room.eventually_stored(first, 4)
    title.ask("Write another title for: what was gone on with")
    room.eventually_stored(title.name, 2)
    assert (branch_of(chat), branch_of(title)) == (None, first)
    for number in range(2):
        before = chat.name
        chat.rows = [{"role": "user", "content": f"a summary, {number}"}, {"role": "user", "content": "Go on."}]
        chat.send()
        room.eventually_stored(chat.name, 3)
        chat.ask("and on")
        room.eventually_stored(chat.name, 5)
        assert branch_of(chat) == before


def test_named_conversations(room: Room) -> None:
    chat = Chatter(room, "chat", **{"x-palimpsest-conversation": "my thread"})
    chat.ask("named 0")
    chat.ask("named 1")
    room.eventually_stored(chat.name, 4)
    row = room.query("select external_id from conversations where id = %s", ids.parse("conv", chat.name))
    assert row[0]["external_id"] == "my thread"
    by_id = Chatter(room, "chat", **{"x-palimpsest-conversation": chat.name})
    by_id.ask("begun under the id of another")
    assert by_id.name != chat.name
    again = by_id.name
    by_id.ask("and gone on with")
    assert by_id.name == again


@pytest.mark.parametrize(
    ("name", "sent"),
    [
        ("n" * 512, b"n" * 512),
        ("caf\u00e9 \u65e5\u672c", "caf\u00e9 \u65e5\u672c".encode()),
        ("caf\u00e9", b"caf\xe9"),
    ],
    ids=["the longest", "UTF-8", "Latin-1"],
)
def test_what_a_conversation_is_called_is_its_external_id(room: Room, name: str, sent: bytes) -> None:
    with running_api(room.settings) as served, served.client(room.tenant.key) as api:
        existing = api.post("/v1/conversations", json={"external_id": name}).json()["id"]
    body = {"model": "model-1", "max_tokens": 9, "messages": [{"role": "user", "content": "Are you this one?"}]}
    headers = {b"x-palimpsest-conversation": sent}
    answer = room.client.post(PATHS["messages"], json=body, headers=headers)
    assert (answer.status_code, answer.headers["x-palimpsest-conversation"]) == (200, existing)


@pytest.mark.parametrize("by", ["id", "name"])
def test_a_conversation_without_a_message_is_named_from_its_first_request_on(room: Room, by: str) -> None:
    name = f"without a message, by {by}"
    made = {"external_id": name, "policy": {"gateway_recall": True}}
    with running_api(room.settings) as served, served.client(room.tenant.key) as api:
        existing = api.post("/v1/conversations", json=made).json()["id"]
    named = {"x-palimpsest-conversation": existing if by == "id" else name}
    chat = Chatter(room, "messages", **named)
    for number in range(2):
        chat.ask(f"{name} {number}")
        assert chat.name == existing
        assert [tool["name"] for tool in room.providers.asked[-1].body["tools"]] == ["recall"]
        room.eventually_stored(existing, len(chat.rows))
        models = room.query("select model from conversations where id = %s", ids.parse("conv", existing))
        assert models == [{"model": "model-1"}]
    # Whoever comes with other words is beside it.
    other = Chatter(room, "messages", **named)
    other.rows = [{"role": "user", "content": "other words"}, {"role": "assistant", "content": "Yes."}]
    other.ask("who is it?")
    assert other.name != existing


def test_a_name_that_none_may_have_is_none(room: Room) -> None:
    called: list[str] = []
    for end in ("first", "second"):
        chat = Chatter(room, "messages", **{"x-palimpsest-conversation": "n" * 512 + end})
        chat.ask("The same words.")
        room.eventually_stored(chat.name, 2)
        called.append(chat.name)
    assert called[0] != called[1]
    named = "select external_id from conversations where id = any(%s)"
    rows = room.query(named, [ids.parse("conv", each) for each in called])
    assert [row["external_id"] for row in rows] == [None, None]


@pytest.mark.parametrize("by", ["id", "name"])
def test_turn_that_is_tried_again_stays_in_the_conversation_that_is_named(room: Room, by: str) -> None:
    name = f"tried again by {by}"
    with running_api(room.settings) as served, served.client(room.tenant.key) as api:
        existing = api.post("/v1/conversations", json={"external_id": name}).json()["id"]
    with psycopg.connect(room.settings.database_url.get_secret_value(), autocommit=True) as owner:
        # The messages are stored, and what they are recognized by is not, the first time.
        owner.execute("create sequence tried; grant usage on sequence tried to public")
        owner.execute(
            "create function refuse_once() returns trigger language plpgsql as $$ begin"
            " if nextval('public.tried') = 1 then raise 'not now'; end if; return new; end $$"
        )
        owner.execute(
            "create trigger refuse_once before insert on gateway_prefixes for each row execute function refuse_once()"
        )
        try:
            chat = Chatter(room, "messages", **{"x-palimpsest-conversation": existing if by == "id" else name})
            chat.ask(f"{name} 0")
            eventually(lambda: owner.execute("select last_value > 1 from tried").fetchone() == (True,))
            room.eventually_stored(existing, 2)
        finally:
            owner.execute("drop function refuse_once cascade; drop sequence tried")
    for number in range(2):
        chat.ask(f"{name} {number + 1}")
        assert chat.name == existing
        room.eventually_stored(existing, len(chat.rows))


def test_no_other_tenant_is_recognized(room: Room) -> None:
    chat = Chatter(room, "messages", **{"x-session-id": "shared name"})
    chat.ask("ours 0")
    chat.ask("ours 1")
    room.eventually_stored(chat.name, 4)
    stranger = make_tenant(room.settings.database_url.get_secret_value(), "stranger")
    with room.gateway.client(stranger.key) as client:
        theirs = Chatter(room._replace(client=client), "messages", **{"x-session-id": "shared name"})
        theirs.rows = list(chat.rows)
        theirs.ask("ours 2")
    assert theirs.name != chat.name
    room.eventually_stored(theirs.name, 6)
    room.eventually_stored(chat.name, 4)


def test_leading_system_prompt_may_change(room: Room) -> None:
    chat = Chatter(room, "chat")
    chat.rows = [{"role": "user", "content": "with a system prompt"}]
    chat.send(rows=[{"role": "system", "content": "It is Monday."}, *chat.rows])
    first = chat.name
    chat.rows.append({"role": "user", "content": "and on"})
    chat.send(rows=[{"role": "developer", "content": "It is Tuesday."}, *chat.rows])
    assert chat.name == first
    room.eventually_stored(first, 4)
    assert room.providers.asked[-1].rows[0]["content"] == "It is Tuesday."


def test_what_became_of_requests_is_exported_and_goes_with_the_conversation(room: Room) -> None:
    chat = Chatter(room, "chat")
    chat.ask("exported 0")
    chat.ask("exported 1")
    room.eventually_stored(chat.name, 4)
    identifier = ids.parse("conv", chat.name)
    assert identifier is not None

    def exported() -> list[dict[str, Any]]:
        engine = service_engine(room.settings, "test")
        with transaction(engine, room.tenant.id) as connection:
            rows, last = exports.portion(connection, room.tenant.id, identifier, "gateway_request", None)
        engine.dispose()
        assert last is None
        return [json.loads(line(kind, row)) for kind, row in rows]

    eventually(lambda: [row["outcome"] for row in exported() if row["outcome"]] == ["unchanged"] * 2)
    keys = {row["key"] for row in exported()}
    assert all(len(bytes.fromhex(key)) == 16 for key in keys)
    assert "exported" not in json.dumps(exported())
    room.erase(chat.name)
    assert not exported()
    name = chat.name
    chat.ask("exported 2")
    assert chat.name != name


@pytest.mark.parametrize("by", ["id", "name"])
@pytest.mark.parametrize("shape", SHAPES)
def test_conversation_of_the_api_is_gone_on_with_where_it_is_named(room: Room, shape: str, by: str) -> None:
    path = "/v1/conversations"
    rows: list[dict[str, object]] = [
        {"role": "user", "content": "begun elsewhere"},
        {"role": "assistant", "content": "answered elsewhere"},
        {"role": "user", "content": "asked elsewhere"},
        {"role": "assistant", "content": "answered again"},
    ]
    name = f"begun elsewhere {shape} {by}"
    with running_api(room.settings) as served, served.client(room.tenant.key) as api:
        existing = api.post(path, json={"external_id": name}).json()["id"]
        api.post(f"{path}/{existing}/turns", json={"messages": rows, "shape": shape}).raise_for_status()
    chat = Chatter(room, shape, **{"x-palimpsest-conversation": existing if by == "id" else name})
    chat.rows = [{**rows[0], "content": "another beginning"}, *rows[1:]]
    chat.ask("is it that one?")
    assert chat.name != existing
    chat.rows = list(rows)
    chat.ask("go on")
    assert chat.name == existing
    assert len(room.eventually_stored(existing, 6)) == 6
    chat.ask("and on")
    assert chat.name == existing
    room.eventually_stored(existing, 8)


def test_request_does_not_wait_for_a_long_history_that_is_being_stored(room: Room) -> None:
    chat = Chatter(room, "messages")
    for number in range(600):
        chat.rows += [{"role": "user", "content": f"long {number} " + "word " * 200}]
        chat.rows += [{"role": "assistant", "content": [{"type": "text", "text": f"said {number} " + "word " * 200}]}]
    answered = []
    with psycopg.connect(room.settings.database_url.get_secret_value()) as connection:
        # Nothing can be stored meanwhile: who waited for it would not be answered before it is given up.
        connection.execute("lock table messages in exclusive mode")
        for text in ("the long one", "goes on 0", "goes on 1", "goes on 2"):
            chat.ask(text)
            answered.append((chat.name, chat.outcome))
    assert set(answered) == {(chat.name, "unchanged")}
    stored = room.eventually_stored(chat.name, len(chat.rows))
    assert [row["seq"] for row in stored] == list(range(len(chat.rows)))
    said = texts(room, chat.name)
    assert said[1_200] == "the long one"
    assert [text for text in said if text.startswith("goes on")] == [f"goes on {number}" for number in range(3)]
    # Each of them is known by its key, so that the next request goes on from it.
    name = chat.name
    chat.ask("after it was stored")
    assert chat.name == name
    room.eventually_stored(chat.name, len(chat.rows))
    assert not room.query(
        "select seq from messages where conversation_id = %s and superseded_at is not null",
        ids.parse("conv", chat.name),
    )


def test_long_conversation_of_the_api_is_gone_on_with_whole_where_it_is_named(room: Room) -> None:
    path, count = "/v1/conversations", 1_200
    rows: list[dict[str, Any]] = [
        {"role": "assistant" if number % 2 else "user", "content": f"elsewhere {number}"} for number in range(count)
    ]
    with running_api(room.settings) as served, served.client(room.tenant.key) as api:
        name = api.post(path, json={}).json()["id"]
        for start in range(0, count, 400):
            api.post(f"{path}/{name}/turns", json={"messages": rows[start : start + 400]}).raise_for_status()
    chat = Chatter(room, "messages", **{"x-palimpsest-conversation": name})
    chat.rows = list(rows)
    chat.ask("go on")
    assert (chat.name, chat.outcome) == (name, "unchanged")
    room.eventually_stored(name, count + 2)
    chat.ask("and on")
    assert chat.name == name
    room.eventually_stored(name, count + 4)
    # One that has other words is a branch of it, stored whole.
    other = Chatter(room, "messages", **{"x-palimpsest-conversation": name})
    other.rows = [{"role": "user", "content": "another beginning"}, *rows[1:]]
    other.ask("is it that one?")
    other.ask("is it?")
    assert other.name != name
    room.eventually_stored(other.name, count + 4)
    assert len(room.stored(name)) == count + 4


@pytest.mark.parametrize("shape", SHAPES)
def test_a_history_that_is_met_late_has_no_times_of_its_own(room: Room, shape: str) -> None:
    chat = Chatter(room, shape)
    chat.rows = [
        {"role": "user", "content": f"met late {shape}"},
        {"role": "assistant", "content": "so far"},
        {"role": "user", "content": "and now?"},
    ]
    chat.send()
    room.eventually_stored(chat.name, len(chat.rows))
    chat.ask("and then?")
    room.eventually_stored(chat.name, len(chat.rows))
    undated = "select seq from messages where conversation_id = %s and is_undated order by seq"
    assert [row["seq"] for row in room.query(undated, ids.parse("conv", chat.name))] == [0, 1]
    with running_api(room.settings) as served, served.client(room.tenant.key) as api:
        told = api.get(f"/v1/conversations/{chat.name}/messages?after=-1").json()["data"]
        assert [each["created_at"] is None for each in told] == [each["seq"] < 2 for each in told]
        recalled = api.post(f"/v1/conversations/{chat.name}/recall", json={"ref": "m0-m2", "framed": True}).text
        assert recalled.count("time unknown") == 2
