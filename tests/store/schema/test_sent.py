"""Messages of other shapes, stored as they were sent in their own rows."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Final

import msgspec
import pytest
from psycopg.errors import RestrictViolation

from compaction.shapes import codecs
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


def test_nothing_is_added_to_a_message_afterwards(calls: HotCalls) -> None:
    conversation = three_shapes(calls)
    late = "update messages set shape = 'chat', sent = '{}' where conversation_id = %s and seq = 2 returning 1"
    with pytest.raises(RestrictViolation):
        calls.owner(late, conversation)
    assert originals(calls, conversation) == EVERY
