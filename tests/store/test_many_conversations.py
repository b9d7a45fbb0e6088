"""What one tenant with thousands of conversations asks for is looked up, not searched for among them all."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import psycopg
import pytest
from sqlalchemy import text

from store.console import overview
from store.conversations import conversations
from store.runs import runs
from store.tenants import webhooks

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from uuid import UUID

    from sqlalchemy import Connection

    from tests.support.service.in_process import Chat

MANY: Final = 20_000
CONVERSATIONS: Final = f"""
    insert into conversations (id, tenant_id, external_id, user_ref)
    select gen_random_uuid(), current_setting('app.tenant_id')::uuid, 'chat-' || i, 'user-' || i % 100
    from generate_series(1, {MANY}) as i
"""  # noqa: S608 - a constant
RUNS: Final = """
    insert into runs (id, tenant_id, conversation_id, trigger, state, queue, policy)
    select gen_random_uuid(), tenant_id, id, 'check',
        case external_id when 'chat-8' then 'failed' when 'chat-9' then 'dead' else 'committed' end, 'checks', '{}'
    from conversations
"""
ANSWERS: Final = """
    insert into gateway_recalls (tenant_id, conversation_id, seq, through_seq, shown, results, response_id,
        last_response_id)
    select tenant_id, id, 1, 1, '[]', '[]', 'resp-' || external_id, 'last-' || external_id from conversations
"""
DELIVERIES: Final = """
    with hook as (
        insert into webhooks (id, tenant_id, url, secret, events)
        values (gen_random_uuid(), current_setting('app.tenant_id')::uuid, 'https://hooks.example.com/', '', '{}')
        returning id
    )
    insert into webhook_deliveries (id, tenant_id, webhook_id, run_id, run_finished_at, event, body, state)
    select gen_random_uuid(), r.tenant_id, hook.id, r.id, now(), '', '',
        case r.state when 'failed' then 'pending' when 'dead' then 'dead' else 'delivered' end
    from runs as r, hook
"""
ROWS_READ: Final = text("select sum(seq_tup_read + coalesce(idx_tup_fetch, 0)) from pg_stat_xact_user_tables")


@pytest.fixture(scope="module")
def busy(module_chat: Chat) -> Chat:
    """A tenant with many conversations, a run with its delivery and an answer of the gateway's in each; analyzed."""
    chat = module_chat.renew()
    for statement in (CONVERSATIONS, RUNS, ANSWERS, DELIVERIES):
        chat.query(statement)
    with psycopg.connect(chat.url, autocommit=True) as owner:
        owner.execute("analyze conversations, runs, gateway_recalls, webhook_deliveries")
    return chat


def read(chat: Chat, function: Callable[..., Sequence[Any]], **asked: Any) -> tuple[int, Sequence[Any]]:
    """Return how many rows of any table a function of the store reads, and what it returns."""
    with chat.database.transaction(chat.tenant_id) as connection:
        before = connection.scalar(ROWS_READ) or 0
        rows = function(connection, chat.tenant_id, **asked)
        return connection.scalar(ROWS_READ) - before, rows


def test_a_conversation_is_looked_up_by_its_name(busy: Chat) -> None:
    count, (row,) = read(busy, conversations.page, external_id="chat-77", limit=1)
    assert row.external_id == "chat-77"
    assert count <= 2
    for others in ({"after": row.id}, {"before": row.id}, {"external_id": "chat-0"}):
        count, rows = read(busy, conversations.page, **({"external_id": "chat-77", "limit": 1} | others))
        assert (rows, count <= 2) == ([], True)


def test_a_users_conversations_are_looked_up(busy: Chat) -> None:
    count, rows = read(busy, conversations.page, user_ref="user-7", limit=10)
    assert {row.user_ref for row in rows} == {"user-7"}
    assert len(rows) == 10
    assert count <= 20


@pytest.mark.parametrize(("sort", "for_each"), [("created", 0), ("tokens", 1), ("activity", 1), ("run", 2)])
def test_a_list_looks_up_what_it_shows_for_its_page_alone(busy: Chat, sort: overview.Sort, for_each: int) -> None:
    def page(connection: Connection, tenant_id: UUID) -> Sequence[Any]:
        asked: dict[str, Any] = {"words": "", "identifier": None, "limit": 50, "skip": 0}
        return overview.conversation_page(connection, tenant_id, sort=sort, **asked).rows

    count, rows = read(busy, page)
    assert len({row.id for row in rows}) == 50
    assert count <= for_each * overview.SORTED_AT_MOST + 4 * 51


@pytest.mark.parametrize("state", ["failed", "dead", "queued"])
def test_runs_that_few_conversations_have_are_looked_up(busy: Chat, state: str) -> None:
    count, rows = read(busy, runs.page, conversation_id=None, state=state, limit=50)
    assert [row.state for row in rows] == [state] * (state != "queued")
    assert count <= 4


@pytest.mark.parametrize("state", ["dead", "pending"])
def test_deliveries_that_few_runs_have_are_looked_up(busy: Chat, state: str) -> None:
    count, rows = read(busy, webhooks.deliveries, state=state, limit=50)
    assert [row.state for row in rows] == [state]
    assert count <= 4


def test_an_answer_of_the_gateways_is_looked_up_by_its_id(busy: Chat) -> None:
    def answers(connection: Connection, tenant_id: UUID, response_id: str) -> Sequence[Any]:
        asked = {"tenant": tenant_id, "id": response_id}
        return connection.execute(text("select * from gateway_response(:tenant, :id)"), asked).all()

    assert read(busy, answers, response_id="resp-chat-77") == (1, [("last-chat-77", "[]")])
    assert read(busy, answers, response_id="resp-of-nobody") == (0, [(None, None)])
