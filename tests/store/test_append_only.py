"""The database itself keeps what was stored, also from those who own it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import psycopg
import pytest
from psycopg.errors import InsufficientPrivilege, RestrictViolation

from tests.support.service.hot_calls import hot_calls
from tests.support.service.in_process_worker import work

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from runtime.settings import Settings
    from tests.conftest import Tenant

CHANGES = [
    "update messages set content = '\"other\"'",
    "update messages set role = 'assistant' where seq = 0",
    "update messages set seq = seq + 100",
    "update messages set conversation_id = gen_random_uuid()",
    "update messages set tenant_id = gen_random_uuid()",
    "update messages set tokens = 0, view_tokens = 0",
    "update messages set result_chars = null where result_chars is not null",
    "update messages set is_request = not is_request",
    "update messages set has_thinking = true",
    "update messages set created_at = now()",
    "update messages set superseded_at = now(), content = '\"other\"'",
    "delete from messages",
    "truncate messages",
    "update snapshots set messages = '[]'",
    "update snapshots set covers_through = 0",
    "update snapshots set version = version",
    "delete from snapshots",
    "update snapshot_parts set part = '['",
    "update snapshot_parts set follows = '{}'",
    "delete from snapshot_parts",
    "truncate snapshot_parts",
    "truncate conversations cascade",
    "truncate runs cascade",
]


@pytest.fixture
def stored(
    make_settings: Callable[..., Settings], broker_url: str, tenant: Tenant
) -> Iterator[psycopg.Connection[tuple[Any, ...]]]:
    """A connection as superuser to a database with messages and a snapshot; nothing of it is committed."""
    settings = make_settings(broker_url=broker_url)
    with hot_calls(settings, tenant.id) as calls:
        conversation = calls.conversation(policy={"input_token_budget": 100})
        calls.append(conversation, {"role": "user", "content": "Look."})
        for number in range(2):
            call = {"type": "tool_use", "id": f"call_{number}", "name": "look", "input": {}}
            result = {"type": "tool_result", "tool_use_id": f"call_{number}", "content": "long " * 2_000}
            calls.append(conversation, {"role": "assistant", "content": [call]}, {"role": "user", "content": [result]})
        work(settings, conversation)
    with psycopg.connect(settings.database_url.get_secret_value()) as connection:
        assert connection.execute("select rolsuper from pg_roles where rolname = current_user").fetchone() == (True,)
        assert connection.execute("select count(*) from snapshots").fetchone() == (1,)
        connection.commit()
        yield connection
        connection.rollback()


def test_nothing_stored_is_altered_or_removed(stored: psycopg.Connection[Any]) -> None:
    before = contents(stored)
    for change in CHANGES:
        with pytest.raises(RestrictViolation, match="append-only"):
            stored.execute(change.encode())
        stored.rollback()
        assert contents(stored) == before, change


def test_the_service_has_not_even_the_privilege(stored: psycopg.Connection[Any]) -> None:
    stored.execute("set role palimpsest_service")
    stored.execute("select set_config('app.tenant_id', (select tenant_id::text from conversations limit 1), false)")
    stored.commit()
    for change in CHANGES:
        with pytest.raises(InsufficientPrivilege):
            stored.execute(change.encode())
        stored.rollback()


def test_a_message_is_marked_superseded_once(stored: psycopg.Connection[Any]) -> None:
    marked = stored.execute("update messages set superseded_at = now() where seq >= 3")
    assert marked.rowcount == 2
    stored.execute("savepoint marked")
    for change in (
        "update messages set superseded_at = null where seq = 3",
        "update messages set superseded_at = now() + interval '1 hour' where seq = 3",
        "update messages set superseded_at = superseded_at where seq = 3",
        "delete from messages where seq = 3",
    ):
        with pytest.raises(RestrictViolation):
            stored.execute(change.encode())
        stored.execute("rollback to savepoint marked")


def contents(connection: psycopg.Connection[Any]) -> list[Any]:
    """Return everything stored in the two tables."""
    return [
        connection.execute("select t::text from messages as t order by 1").fetchall(),
        connection.execute("select t::text from snapshots as t order by 1").fetchall(),
    ]
