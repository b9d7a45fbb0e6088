"""What came in another shape: kept in the message's own row, carried over from and to the table of before."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Final

import msgspec
import pytest
from psycopg.errors import RestrictViolation
from sqlalchemy import text
from sqlalchemy.exc import IntegrityError

from compaction.shapes import codecs
from migrations.run import downgrade, upgrade
from store.conversations import messages
from store.engine import transaction
from store.hot_path import SentTurn
from tests.support.service.hot_calls import hot_calls
from tests.support.shapes.shaped_turns import EVERY, three_shapes

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from uuid import UUID

    from compaction.shapes.inner import Shape
    from runtime.settings import Settings
    from tests.conftest import Tenant
    from tests.support.service.hot_calls import HotCalls

AS_SENT: Final = "select seq, shape, sent::text as sent from sent_messages where conversation_id = %s order by seq"


@pytest.fixture
def calls(make_settings: Callable[..., Settings], tenant: Tenant) -> Iterator[HotCalls]:
    with hot_calls(make_settings(), tenant.id) as opened:
        yield opened


def originals(calls: HotCalls, conversation: UUID) -> list[tuple[int, str | None, str | None]]:
    with transaction(calls.engine, calls.tenant_id) as connection:
        rows, _ = messages.page(connection, calls.tenant_id, conversation, after=-1, limit=10)
    return [(row.seq, row.shape, row.sent) for row in rows]


def test_what_was_sent_is_read_back(calls: HotCalls) -> None:
    conversation = three_shapes(calls)
    assert originals(calls, conversation) == EVERY


ITEM: Final = '{"type":"message","role":"user","content":[{"type":"input_text","text":%s}]}'


NAMED: Final = '{"role":"user","name":"%s","content":"Hello."}'


@pytest.mark.parametrize(
    ("shape", "sent", "stored"),
    [
        ("chat", '{"role":"user","content":"Hello."}', None),
        ("chat", '{"content":"Hello.","role":"user"}', ['{"content":', ',"role":"user"}']),
        ("responses", ITEM % '"Hello."', ITEM.split("%s")),
        # The first of several such places is as good as any.
        ("responses", ITEM % '"role"', ['{"type":"message",', ITEM.partition('"role"')[2] % '"role"']),
        ("responses", ITEM % r'"\u0048ello"', ITEM % r'"\u0048ello"'),
        ("chat", NAMED % ("n" * 447), ['{"role":"user","name":"' + "n" * 447 + '","content":', "}"]),
        ("chat", NAMED % ("n" * 448), NAMED % ("n" * 448)),
    ],
)
def test_a_text_is_stored_once(calls: HotCalls, shape: Shape, sent: str, stored: object) -> None:
    conversation, decoded = calls.conversation(), codecs.decode(shape, json.loads(sent))
    calls.at_once([{**calls.turn(conversation, decoded._asdict()), "sent": SentTurn(shape, [sent])}])
    (row,) = calls.owner("select sent::text as sent from messages where conversation_id = %s", conversation)
    expected = stored if stored is None or isinstance(stored, str) else msgspec.json.encode(stored).decode()
    assert row["sent"] == expected
    assert originals(calls, conversation) == [(0, shape, sent)]


def test_down_and_up_again_keeps_every_byte(calls: HotCalls, database_url: str) -> None:
    conversation = three_shapes(calls)
    downgrade(database_url, "0112")
    whole = calls.owner(
        "select sent::text as sent from messages where conversation_id = %s and sent is not null", conversation
    )
    assert {row["sent"] for row in whole} < {sent for _, _, sent in EVERY}
    downgrade(database_url, "0107")
    table = [tuple(row.values()) for row in calls.owner(AS_SENT, conversation)]
    assert table == [row for row in EVERY if row[1]]
    upgrade(database_url)
    assert originals(calls, conversation) == EVERY
    # The release before reads, copies and imports by the table's name.
    assert [tuple(row.values()) for row in calls.owner(AS_SENT, conversation)] == table


def test_the_release_before_adds_what_was_sent_to_a_message_that_it_writes(calls: HotCalls) -> None:
    conversation, copy = three_shapes(calls), calls.conversation()
    columns = "tenant_id, seq, role, content, tokens, view_tokens, bytes, is_request, has_thinking"
    names = {"old": conversation, "new": copy}
    with transaction(calls.engine, calls.tenant_id) as connection:
        connection.execute(
            text(
                f"insert into messages (conversation_id, {columns})"  # noqa: S608 - constants
                f" select :new, {columns} from messages where conversation_id = :old"
            ),
            names,
        )
        connection.execute(
            text(
                "insert into sent_messages (tenant_id, conversation_id, seq, shape, sent)"
                " select tenant_id, :new, seq, shape, sent from sent_messages where conversation_id = :old"
            ),
            names,
        )
    assert originals(calls, copy) == EVERY


def test_nothing_is_added_to_a_message_afterwards(calls: HotCalls) -> None:
    conversation = three_shapes(calls)
    late = text("update messages set shape = 'chat', sent = '{}' where conversation_id = :id and seq = 2")
    with pytest.raises(IntegrityError) as refused, transaction(calls.engine, calls.tenant_id) as connection:
        connection.execute(late, {"id": conversation})
    assert isinstance(refused.value.orig, RestrictViolation)
    assert originals(calls, conversation) == EVERY
