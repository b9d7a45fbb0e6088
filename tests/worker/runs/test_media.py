"""Runs that a check begins because a context has more images or files than a request may have."""

from __future__ import annotations

import json
from random import Random
from typing import TYPE_CHECKING, Any, Final
from uuid import uuid4

import pytest
from sqlalchemy import event, text

from compaction.media.limits import NO_MEDIA, MediaLoad, media_load
from compaction.policy import merge
from store.conversations import branches, conversations
from tests.support.blocks import pdf_block, png, text_block
from tests.support.service.in_process import Chat, Workers, check_state
from tests.support.talk import answer, exchanges

if TYPE_CHECKING:
    from uuid import UUID

    from tests.support.blocks import Block, Message

ROOM: Final = {
    "compaction_threshold_tokens": 10_000_000,
    "total_token_budget": 10_000_000,
    "input_token_budget": 0,
    "model_context_tokens": 10_000_000,
}


def image(width: int = 40, height: int = 30) -> Block:
    source = {"type": "base64", "media_type": "image/png", "data": png(width, height, 60)}
    return {"type": "image", "source": source}


def asked(*media: Block) -> list[Message]:
    """Return an exchange whose request has media."""
    return [{"role": "user", "content": [*media, text_block("Look.")]}, answer("Seen.")]


def send(chat: Chat, conversation: UUID, *turns: list[Message]) -> None:
    for turn in turns:
        chat.append(conversation, turn)


def images_in(chat: Chat, conversation: UUID) -> int:
    """Return the images of the context that is stored: the head's messages and the tail's."""
    row = chat.row(conversation)
    head = chat.query(
        "select messages::text as text from snapshots where conversation_id = :c and version = :v",
        c=conversation,
        v=row.head_version,
    )
    tail = chat.query(
        "select content::text as text from messages "
        "where conversation_id = :c and seq > :covered and superseded_at is null",
        c=conversation,
        covered=row.covers_through,
    )
    return sum(json.dumps(json.loads(part.text)).count('"type": "image"') for part in (*head, *tail))


def test_too_many_images_begin_a_run_of_their_own(chat: Chat) -> None:
    conversation = chat.begin(ROOM)
    workers = Workers(chat)
    send(chat, conversation, *[asked(image()) for _ in range(100)])
    workers.settle(conversation)
    assert chat.runs(conversation) == []
    send(chat, conversation, *[asked(image()) for _ in range(20)])
    workers.settle(conversation)
    run = chat.run(conversation)
    assert (run.state, run.trigger) == ("committed", "check")
    (step,) = chat.steps(run.id)
    assert (step.name, step.state) == ("media", "committed")
    assert "the context had 120 images" in step.detail
    assert images_in(chat, conversation) == 100
    # What is over the limit again is shed again; what is under it is left alone.
    send(chat, conversation, asked(), asked(image()))
    workers.settle(conversation)
    assert [each.state for each in chat.runs(conversation)] == ["committed"] * 2
    assert images_in(chat, conversation) == 91
    send(chat, conversation, asked(image()))
    workers.settle(conversation)
    assert len(chat.runs(conversation)) == 2


@pytest.mark.parametrize("inside", ["message", "result"])
def test_a_large_image_among_many_begins_a_run(chat: Chat, inside: str) -> None:
    conversation = chat.begin(ROOM)
    for number in range(24):
        shot = image(2_400, 100) if number == 3 else image()
        if inside == "message":
            chat.append(conversation, asked(shot))
            continue
        use = {"type": "tool_use", "id": f"t{number}", "name": "look", "input": {}}
        shown = {"type": "tool_result", "tool_use_id": f"t{number}", "content": [shot]}
        chat.append(conversation, [{"role": "user", "content": "Look."}, {"role": "assistant", "content": [use]}])
        chat.append(conversation, [{"role": "user", "content": [shown]}, answer("Seen.")])
    Workers(chat).settle(conversation)
    (step,) = chat.steps(chat.run(conversation).id)
    assert (step.name, step.state) == ("media", "committed")
    head = chat.snapshot(conversation, chat.row(conversation).head_version)
    contents = [message["content"] for message in json.loads(head.messages)]
    assert head.media == list(media_load(contents))
    assert MediaLoad(*head.media).image_side <= 2_000 or head.media[0] < 21


@pytest.mark.parametrize(
    ("media", "policy"),
    [
        ([pdf_block(6)], {"max_context_document_pages": 10}),
        ([pdf_block(1)], {"max_context_documents": 1}),
        ([image()], {"max_context_media_bytes": 200}),
    ],
)
def test_documents_and_bytes_begin_runs_too(chat: Chat, media: list[Block], policy: dict[str, Any]) -> None:
    conversation = chat.begin(ROOM | policy)
    workers = Workers(chat)
    send(chat, conversation, asked(*media))
    workers.settle(conversation)
    assert chat.runs(conversation) == []
    send(chat, conversation, asked(*media))
    workers.settle(conversation)
    assert [step.name for step in chat.steps(chat.run(conversation).id)] == ["media"]


def test_images_that_an_edit_took_away_begin_no_run(chat: Chat) -> None:
    conversation = chat.begin(ROOM)
    send(chat, conversation, exchanges(1, 10), *[asked(image()) for _ in range(120)])
    chat.append(conversation, exchanges(1, 10), replace_from=2)
    Workers(chat).settle(conversation)
    assert chat.runs(conversation) == []
    assert check_state(chat, conversation) is None


def test_an_edit_before_the_snapshot_brings_the_images_back(chat: Chat) -> None:
    conversation = chat.begin(ROOM | {"max_context_images": 20})
    workers = Workers(chat)
    send(chat, conversation, *[asked(image()) for _ in range(120)])
    workers.settle(conversation)
    chat.append(conversation, exchanges(1, 10), replace_from=190)
    assert images_in(chat, conversation) == 95
    workers.settle(conversation)
    assert [run.state for run in chat.runs(conversation)] == ["committed"] * 2
    assert images_in(chat, conversation) <= 20


def test_what_cannot_give_way_is_not_tried_again(chat: Chat) -> None:
    conversation = chat.begin(ROOM)
    workers = Workers(chat)
    send(chat, conversation, *[asked(image()) for _ in range(120)])
    # Facts that promise more than there is, as another release may have written them.
    chat.query(
        "insert into message_media select tenant_id, conversation_id, 1, 900, 0, 0, 0, 0 from message_media limit 1"
    )
    workers.settle(conversation)
    count = len(chat.runs(conversation))
    send(chat, conversation, exchanges(1, 10))
    workers.settle(conversation)
    assert len(chat.runs(conversation)) == count == 1


def test_another_policy_is_looked_at(chat: Chat) -> None:
    conversation = chat.begin(ROOM)
    workers = Workers(chat)
    send(chat, conversation, *[asked(image()) for _ in range(120)])
    workers.settle(conversation)
    assert images_in(chat, conversation) == 100
    with chat.database.transaction(chat.tenant_id) as connection:
        conversations.change(connection, chat.tenant_id, conversation, {"policy": ROOM | {"max_context_images": 20}})
    workers.settle(conversation)
    assert images_in(chat, conversation) == 20


def test_a_restored_version_keeps_its_images_until_more_come(chat: Chat) -> None:
    conversation = chat.begin(ROOM)
    workers = Workers(chat)
    send(chat, conversation, *[asked(image()) for _ in range(120)])
    workers.settle(conversation)
    with chat.database.transaction(chat.tenant_id) as connection:
        branches.restore(connection, chat.tenant_id, conversation, 0, merge(ROOM), uuid4())
    send(chat, conversation, exchanges(1, 10))
    workers.settle(conversation)
    assert images_in(chat, conversation) == 120
    send(chat, conversation, asked(image()))
    workers.settle(conversation)
    assert images_in(chat, conversation) <= 100


def test_conversations_without_media_pay_nothing(chat: Chat) -> None:
    conversation = chat.begin(ROOM)
    send(chat, conversation, *[exchanges(1, 10) for _ in range(5)])
    row = chat.row(conversation)
    assert (row.newest_media, row.media_checked_through) == (-1, -1)
    assert chat.query("select from message_media") == []
    state = check_state(chat, conversation)
    assert state is not None
    assert state.media is None
    said: list[str] = []

    def hear(_: Any, __: Any, statement: str, *___: Any) -> None:
        said.append(statement)

    event.listen(chat.database.engine, "before_cursor_execute", hear)
    Workers(chat).check(conversation)
    event.remove(chat.database.engine, "before_cursor_execute", hear)
    assert not any("messages" in statement for statement in said)


@pytest.mark.parametrize("seed", range(4))
def test_the_facts_are_those_of_the_messages_in_force(chat: Chat, seed: int) -> None:
    random = Random(seed)  # noqa: S311
    conversation = chat.begin(ROOM | {"max_context_images": 6, "max_context_documents": 2})
    workers = Workers(chat)
    for _ in range(30):
        end = chat.row(conversation).next_seq
        media = [random.choice([image(), image(2_400, 10), pdf_block(3)]) for _ in range(random.choice([0, 0, 1, 3]))]
        edits = end > 4 and random.random() < 0.25
        chat.append(conversation, asked(*media), replace_from=random.randrange(0, end, 2) if edits else None)
        if random.random() < 0.4:
            workers.settle(conversation)
        check_facts(chat, conversation)
    newest = max(row.seq for row in chat.query("select seq from messages where conversation_id = :c", c=conversation))
    with chat.database.transaction(chat.tenant_id) as connection:
        fork = branches.fork(connection, chat.tenant_id, conversation, newest, None, merge(ROOM), uuid4())
    assert fork is not None
    check_facts(chat, fork)
    with chat.database.transaction(chat.tenant_id) as connection:
        erase = text("select erase_conversation(:id, :c, 'conversation', null, null)")
        connection.execute(erase, {"id": uuid4(), "c": conversation})
    assert chat.query("select from message_media where conversation_id = :c", c=conversation) == []
    check_facts(chat, fork)


def check_facts(chat: Chat, conversation: UUID) -> None:
    """Compare the stored facts with those of the contents, and the load that a check sees with that of the context."""
    stored = chat.query("select * from message_media where conversation_id = :c", c=conversation)
    rows = chat.query(
        "select seq, content::text as content from messages where conversation_id = :c and superseded_at is null",
        c=conversation,
    )
    contents = {row.seq: json.loads(row.content) for row in rows}
    loads = {seq: media_load([content]) for seq, content in contents.items()}
    fields = MediaLoad._fields
    assert {row.seq: MediaLoad(*(getattr(row, name) for name in fields)) for row in stored} == {
        seq: load for seq, load in loads.items() if load != NO_MEDIA
    }
    state, row = check_state(chat, conversation), chat.row(conversation)
    if state is None or state.media is None:
        return
    shown = [content for seq, content in contents.items() if seq > row.covers_through]
    if row.head_version:
        head = chat.snapshot(conversation, row.head_version)
        shown += [message["content"] for message in json.loads(head.messages)]
    assert MediaLoad(*state.media) == media_load(shown)
