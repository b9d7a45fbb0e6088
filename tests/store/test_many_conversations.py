"""What one tenant with thousands of conversations asks for is looked up, not searched for among them all.

And what is asked of one with many edits takes as long as there are many, not as many times as long.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import msgspec
import psycopg
import pytest
from sqlalchemy import event, text

from compaction.policy import merge
from runtime import ids
from store.console import overview
from store.conversations import branches, conversations
from store.runs import runs
from store.tenants import webhooks
from tests.support.service.in_process import chat_alone as chat

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence
    from uuid import UUID

    from sqlalchemy import Connection

    from tests.support.service.in_process import Chat

__all__ = ["chat"]

MANY: Final = 20_000
MESSAGES: Final = 900
VERSIONS: Final = 50
SUPERSEDED: Final = 3
"""Of so many messages one was replaced."""
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


@pytest.fixture
def edited(chat: Chat) -> UUID:
    """A conversation whose every third message was replaced, with a chain of snapshots of the others."""
    conversation = chat.begin()
    with psycopg.connect(chat.url, autocommit=True) as owner:
        owner.execute("set session_replication_role = replica")
        owner.execute(
            "insert into messages (tenant_id, conversation_id, seq, role, content, tokens, view_tokens, bytes,"
            " is_request, has_thinking, superseded_at)"
            " select %s, %s, n, 'user', '\"words\"', 5, 5, 40, true, false, case when n %% %s = 1 then now() end"
            " from generate_series(0, %s) as n",
            (chat.tenant_id, conversation, SUPERSEDED, MESSAGES - 1),
        )
        for version in range(1, VERSIONS + 1):
            through = version * MESSAGES // VERSIONS - 1
            live = [seq for seq in range(through + 1) if seq % SUPERSEDED != 1]
            spans = [[seq, seq, "kept", None] for seq in live]
            owner.execute(
                "insert into snapshot_parts (tenant_id, conversation_id, version, parent_version, step, covers_through,"
                " messages, seqs, coverage, tokens, message_count, bytes, exchanges, prefix_hash)"
                " values (%s, %s, %s, %s, 'summary', %s, '[]', '{}', %s, 5, 0, 2, 0, '')",
                (chat.tenant_id, conversation, version, version - 1, through, msgspec.json.encode(spans).decode()),
            )
        owner.execute(
            "update conversations set next_seq = %s, head_version = %s, last_version = %s, covers_through = %s"
            " where id = %s",
            (MESSAGES, VERSIONS, VERSIONS, MESSAGES - 1, conversation),
        )
        owner.execute("analyze messages, snapshot_parts")
    return conversation


def rows_handled(plan: Any) -> Iterator[int]:
    """Yield how many rows each step of a plan has looked at."""
    passed_over = sum(rows for name, rows in plan.items() if name.startswith("Rows Removed by"))
    yield (plan["Actual Rows"] + passed_over) * plan["Actual Loops"]
    for step in plan.get("Plans", ()):
        yield from rows_handled(step)


def scans(plan: Any, table: str) -> Iterator[int]:
    """Yield how often each step of a plan that reads a table was begun."""
    if plan.get("Relation Name", "").startswith(table):
        yield plan["Actual Loops"]
    for step in plan.get("Plans", ()):
        yield from scans(step, table)


def test_a_fork_looks_at_each_message_once_for_all_versions(chat: Chat, edited: UUID) -> None:
    asked: list[tuple[str, Any]] = []

    def note(_connection: Any, _cursor: Any, statement: str, parameters: Any, *_: Any) -> None:
        if "superseded_at is not null" in statement:
            asked.append((statement, parameters))

    with chat.database.transaction(chat.tenant_id) as connection:
        event.listen(connection, "before_cursor_execute", note)
        fork = branches.fork(connection, chat.tenant_id, edited, MESSAGES - 1, None, merge({}), ids.new_id())
        assert connection.scalar(text("select head_version from conversations where id = :f"), {"f": fork}) == VERSIONS
        ((statement, parameters),) = asked
        plan = connection.exec_driver_sql(f"explain (analyze, format json) {statement}", parameters).scalar_one()
    assert sum(rows_handled(plan[0]["Plan"])) < 10 * VERSIONS * MESSAGES
    assert max(scans(plan[0]["Plan"], "messages")) == 1
