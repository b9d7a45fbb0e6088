"""One tenant's rows are no other's: what the catalogue says, and what happens to whoever tries."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, NamedTuple
from uuid import uuid4

import psycopg
import pytest
from psycopg import sql
from psycopg.errors import InsufficientPrivilege
from psycopg.rows import dict_row

from compaction.payload.context_blocks import prepare
from compaction.policy import Policy
from compaction.recall import segments
from compaction.steps.runs import RunKind, RunTrigger, StepState
from compaction.text.outline import ContextBlock
from runtime import ids
from runtime.queues import Queue
from store import hot_path
from store.archive import erasures
from store.console import sessions
from store.conversations import assemblies, context_blocks, conversations, messages, pins, snapshots, usages, waiting
from store.conversations.context_blocks import Exchange
from store.engine import transaction
from store.gateway import histories
from store.hot_path import SentTurn
from store.operations import operator_actions
from store.recall import requests as recall_requests
from store.recall import segments as recall_segments
from store.runs import runs, waiting_summaries
from store.runs.runs import LeaseHolder
from store.tables import metadata
from store.tenants import api_keys, webhooks
from tests.conftest import make_tenants
from tests.support.service.hot_calls import HotCalls, hot_calls
from tests.support.service.in_process_worker import work

if TYPE_CHECKING:
    from collections.abc import Iterator
    from uuid import UUID

    from runtime.settings import Settings

SERVICE, BACKGROUND, AUDITOR = "palimpsest_service", "palimpsest_background", "palimpsest_auditor"
TENANT_SETTING = "current_setting('app.tenant_id'"
DEFINERS = {
    "due_states",
    "forget_media",
    "cold_snapshots",
    "watch_pauses",
    "usages_to_reckon",
    "expire_leases",
    "over_by_fixed",
    "clear_checks",
    "due_deliveries",
    "backlog",
    "overdue_checks_by_turns",
    "stranded_runs_by_turns",
    "may_summarize",
    "offer_summary",
    "expire_rows",
    "expire_runs",
    "expire_snapshots",
    "erase_conversation",
    "tenants_with_retention",
    "find_console_session",
    "take_console_ticket",
    "count_model_usage",
    "due_waiting_summaries",
    "rate_limits_since",
    "model_spending",
    "waiting_work",
    "model_totals",
    "key_in_force",
    "tenant_of_token",
    "note_key_uses",
}
OF_NO_TENANT = {"processes"}
TABLES = sorted(set(metadata.tables) - OF_NO_TENANT)
CONTENT = {
    "messages": {"content", "sent"},
    "snapshot_parts": {"messages", "part", "summary", "coverage"},
    "conversations": {"system", "tools", "metadata", "external_id", "user_ref"},
    "idempotency_keys": {"key", "body_hash"},
    "run_steps": {"detail", "error"},
    "runs": {"error"},
    "context_blocks": {"source", "title", "text", "outline", "summary"},
    "pins": {"text"},
    "recall_segments": {"terms"},
    "recall_requests": {"asked"},
    "gateway_prefixes": {"key"},
    "gateway_recalls": {"shown", "results"},
    "webhooks": {"url", "secret"},
    "webhook_deliveries": {"body", "error"},
}


class Two(NamedTuple):
    """Two tenants, each with rows in every table."""

    a: HotCalls
    b: HotCalls
    a_conversation: UUID
    b_conversation: UUID


@pytest.fixture(scope="module")
def database_url(module_settings: Settings) -> str:
    """The URL of the module's database: its catalogue alone is read."""
    return module_settings.database_url.get_secret_value()


def owner(database_url: str, statement: str, *values: object) -> list[dict[str, Any]]:
    with psycopg.connect(database_url, row_factory=dict_row) as connection:
        return connection.execute(statement.encode(), values).fetchall()


def assembly(tenant_id: UUID, conversation: UUID) -> assemblies.AssemblyRecord:
    return assemblies.AssemblyRecord(
        conversation_id=conversation,
        tenant_id=tenant_id,
        call="payload",
        snapshot_version=1,
        system_tokens=0,
        history_tokens=10,
        reserved_output_tokens=0,
        total_token_budget=1_000,
        exchanges_total=1,
        exchanges_kept=1,
        rounds_dropped=False,
        responses_truncated=0,
        warnings=0,
        assembled_at=datetime.now(UTC),
    )


def usage(tenant_id: UUID, conversation: UUID) -> usages.UsageRecord:
    return usages.UsageRecord(
        tenant_id=tenant_id,
        conversation_id=conversation,
        seq=1,
        snapshot_version=None,
        input_tokens=10,
        cached_tokens=None,
        written_tokens=None,
        output_tokens=1,
        is_edit=False,
        answered_at=datetime.now(UTC),
    )


def fill(calls: HotCalls, settings: Settings) -> UUID:
    """Give a tenant a conversation with a row in every table that belongs to one."""
    conversation = calls.conversation(external_id="same for both", policy={"input_token_budget": 100})
    named = histories.Begun(ids.new_id(), conversation, None, None, None, {}, b"one", in_session=False, branch_of=None)
    calls.run(histories.begin, named)
    with transaction(calls.engine, calls.tenant_id) as connection:
        webhooks.add(connection, calls.tenant_id, "https://hooks.example.com/", webhooks.EVENTS)
    for number in range(3):
        call = {"type": "tool_use", "id": f"call_{number}", "name": "look", "input": {}}
        result = {"type": "tool_result", "tool_use_id": f"call_{number}", "content": "long " * 2_000}
        turn: list[dict[str, Any]] = [{"role": "user", "content": "Look."}] if number == 0 else []
        turn += [{"role": "assistant", "content": [call]}, {"role": "user", "content": [result]}]
        calls.append(conversation, *turn, key=f"key {number}")
    blocks = prepare([ContextBlock("doc", "Doc", "# Part\n" + "word " * 200)], Policy())
    as_chat = SentTurn("chat", ['{"role":"user","name":"ann","content":"As chat."}'])
    calls.at_once([{**calls.turn(conversation, {"role": "user", "content": "As chat."}), "sent": as_chat}])
    image = {"type": "image", "source": {"type": "url", "url": "https://images.example.com/1.png"}}
    calls.append(conversation, {"role": "user", "content": [image]})
    turn_with_context = calls.turn(conversation, {"role": "user", "content": "And this?"})
    calls.at_once([{**turn_with_context, "context": context_blocks.new_blocks(blocks, Policy()).context}])
    noted = histories.Noted("unchanged", 0, 0, retried=False, aborted=False)
    recalls = [histories.AnsweredRecall(1, 1, None, [], [])]
    calls.run(histories.note, conversation, [0], [b"key"], last_seq=0, noted=noted, recalls=recalls)
    work(settings, conversation)
    erased = calls.conversation()
    with transaction(calls.engine, calls.tenant_id) as connection:
        pins.add(connection, calls.tenant_id, conversation, 0, "Look.", ids.new_id())
        assemblies.remember(connection, [assembly(calls.tenant_id, conversation)])
        usages.remember(connection, [usage(calls.tenant_id, conversation)])
        terms = segments.build_segments([segments.Searchable(0, "user", "Look.")])
        recall_segments.insert_segments(connection, calls.tenant_id, conversation, -1, list(terms))
        (run,) = runs.page(connection, calls.tenant_id, conversation_id=conversation, limit=1)
        lease = runs.Lease(
            run_id=run.id,
            tenant_id=calls.tenant_id,
            conversation_id=conversation,
            token=ids.new_id(),
            attempt=1,
            queue=Queue.SUMMARIES,
            kind=RunKind.LADDER,
            trigger=RunTrigger.CHECK,
            policy=Policy(),
            request_id=None,
        )
        runs.add_step(connection, lease, runs.StepRecord("summary", StepState.FAILED, 1, 1, 1, 1, 1, model_calls=1))
        waiting_summaries.remember(connection, lease, 0)
        waiting.wait(connection, calls.tenant_id, conversation, 1, head_version=0, lifetime=300)
        (key,) = api_keys.all_of(connection, calls.tenant_id)
        sessions.begin(connection, calls.tenant_id, key.id)
        operator = operator_actions.Operator(calls.tenant_id, key.id, ids.new_id())
        operator_actions.record(connection, operator, "sign_in")
        given = recall_requests.RecalledPassages(conversation, ["m0"], [0], {}, 1, 2)
        recall_requests.insert_recalls(connection, operator, recall_requests.Question("query", "look", "api"), [given])
        erasures.erase(connection, operator_actions.Operator(calls.tenant_id, ids.new_id(), ids.new_id()), erased)
    return conversation


@pytest.fixture(scope="module")
def two(module_settings: Settings, database_url: str) -> Iterator[Two]:
    tenant, rival = make_tenants(database_url, "acme", "rival")
    with hot_calls(module_settings, tenant.id) as a, hot_calls(module_settings, rival.id) as b:
        yield Two(a, b, fill(a, module_settings), fill(b, module_settings))


def test_every_table_of_a_tenant_is_guarded(database_url: str) -> None:
    rows = owner(
        database_url,
        """
        select c.relname, c.relrowsecurity, c.relforcerowsecurity,
               (select json_agg(p) from pg_policies as p where p.tablename = c.relname) as policies
        from pg_class as c
        where c.relkind in ('r', 'p') and c.relnamespace = 'public'::regnamespace
          and (c.relname = 'tenants' or exists (select from pg_attribute as a
               where a.attrelid = c.oid and a.attname = 'tenant_id' and not a.attisdropped))
        """,
    )
    assert sorted(row["relname"] for row in rows) == TABLES
    for row in rows:
        assert row["relrowsecurity"], row
        assert row["relforcerowsecurity"], row
        for policy in row["policies"]:
            if policy["roles"] == [BACKGROUND]:
                continue
            if policy["roles"] == [AUDITOR]:
                assert policy["cmd"] == "SELECT"
                continue
            assert policy["roles"] == ["public"]
            assert TENANT_SETTING in policy["qual"]
            assert TENANT_SETTING in policy["with_check"]
        assert any(policy["roles"] == ["public"] for policy in row["policies"])


@pytest.mark.parametrize("role", [SERVICE, BACKGROUND, AUDITOR])
def test_the_roles_cannot_step_past_it(database_url: str, role: str) -> None:
    (row,) = owner(database_url, "select * from pg_roles where rolname = %s", role)
    powers = ("rolsuper", "rolbypassrls", "rolcanlogin", "rolcreaterole", "rolcreatedb", "rolreplication")
    assert [name for name in powers if row[name]] == []
    assert owner(database_url, "select from pg_auth_members where member = %s", row["oid"]) == []
    assert owner(database_url, "select relname from pg_class where relowner = %s", row["oid"]) == []
    assert owner(database_url, "select nspname from pg_namespace where nspowner = %s", row["oid"]) == []
    owned = owner(database_url, "select proname from pg_proc where proowner = %s", row["oid"])
    assert {found["proname"] for found in owned} == (DEFINERS if role == BACKGROUND else set())
    assert owner(database_url, "select has_schema_privilege(%s, 'public', 'create') as can", role) == [{"can": False}]


def test_the_service_may_change_and_remove_only_what_it_must(database_url: str) -> None:
    rows = owner(
        database_url,
        """
        select t.name, array(select p from unnest(array['delete', 'truncate', 'references', 'trigger']) as p
                             where has_table_privilege(%s, t.name, p)) as more,
               has_table_privilege(%s, t.name, 'update') as changes
        from unnest(%s::text[]) as t (name)
        """,
        SERVICE,
        SERVICE,
        TABLES,
    )
    assert {row["name"] for row in rows if row["more"]} == set()
    assert {row["name"] for row in rows if row["changes"]} == {"conversations", "runs"}


def test_the_functions_that_look_across_reveal_no_content(database_url: str) -> None:
    rows = owner(
        database_url,
        """
        select p.proname, r.rolname, p.proargnames, p.proconfig,
               has_function_privilege('public', p.oid, 'execute') as anybody
        from pg_proc as p join pg_roles as r on r.oid = p.proowner
        where p.prosecdef and p.pronamespace = 'public'::regnamespace
        """,
    )
    assert {row["proname"] for row in rows} == DEFINERS
    for row in rows:
        assert row["rolname"] == BACKGROUND
        assert row["proconfig"] == ["search_path=pg_catalog, public, pg_temp"]
        assert not row["anybody"]
        assert not set().union(*CONTENT.values()) & set(row["proargnames"] or ())
    readable = owner(
        database_url,
        """
        select c.relname, a.attname from pg_class as c join pg_attribute as a on a.attrelid = c.oid and a.attnum > 0
        where c.relname = any(%s) and has_column_privilege(%s, c.oid, a.attnum, 'select')
        """,
        TABLES,
        BACKGROUND,
    )
    tables = {row["relname"] for row in readable}
    assert tables == {
        "tenants",
        "api_keys",
        "conversations",
        "idempotency_keys",
        "runs",
        "run_steps",
        "snapshot_parts",
        "webhook_deliveries",
        "messages",
        "message_media",
        "gateway_conversations",
        "gateway_prefixes",
        "gateway_recalls",
        "context_blocks",
        "pins",
        "recall_segments",
        "recall_requests",
        "assemblies",
        "erasures",
        "console_sessions",
        "model_usage",
        "waiting_summaries",
        "waiting_snapshots",
        "turn_usages",
    }
    assert [row for row in readable if row["attname"] in CONTENT.get(row["relname"], ())] == []


def test_no_view_looks_past_the_policies(database_url: str) -> None:
    rows = owner(
        database_url,
        """
        select c.relname, c.relkind::text as kind, coalesce(c.reloptions, '{}') as options,
               array(select r from unnest(%s::text[]) as r where has_table_privilege(r, c.oid, 'select')) as readers
        from pg_class as c
        where c.relkind in ('v', 'm', 'f') and c.relnamespace = 'public'::regnamespace
        """,
        [SERVICE, BACKGROUND, "public"],
    )
    for row in rows:
        assert row["kind"] == "v", row
        assert not row["readers"] or "security_invoker=true" in row["options"], row


def test_no_function_elsewhere_acts_for_its_owner(database_url: str) -> None:
    assert not owner(
        database_url,
        """
        select p.proname from pg_proc as p join pg_namespace as n on n.oid = p.pronamespace
        where p.prosecdef and n.nspname not in ('public', 'pg_catalog', 'information_schema')
        """,
    )


def test_a_tenant_sees_its_own_rows_alone(two: Two) -> None:
    for table in TABLES:
        column = "id" if table == "tenants" else "tenant_id"
        with transaction(two.a.engine, two.a.tenant_id) as connection:
            seen = connection.exec_driver_sql(f"select distinct {column} from {table}").scalars().all()  # noqa: S608
        assert seen == [two.a.tenant_id], table
        with transaction(two.a.engine, None) as connection:
            assert connection.exec_driver_sql(f"select count(*) from {table}").scalar() == 0, table  # noqa: S608


def test_a_tenant_cannot_write_for_another(two: Two) -> None:
    for table in TABLES:
        column = "id" if table == "tenants" else "tenant_id"
        (row,) = owner(two.a._url, f"select * from {table} where {column} = %s limit 1", two.b.tenant_id)  # noqa: S608
        names = [name for name in row if name not in {"result_cap", "coverage", "policy", "metadata"}]
        copy = sql.SQL("insert into {table} ({names}) select {names} from json_populate_record(null::{table}, %s)")
        statement = copy.format(table=sql.Identifier(table), names=sql.SQL(",").join(map(sql.Identifier, names)))
        (stored,) = owner(
            two.a._url,
            f"select to_json(t) as t from {table} as t where {column} = %s limit 1",  # noqa: S608
            two.b.tenant_id,
        )
        # Tombstones are written by the erasure alone, not even for the tenant itself; usage by what records a step.
        refusal = "permission denied" if table in {"erasures", "model_usage"} else "row-level"
        with (
            in_service_role(two, two.a.tenant_id) as connection,
            pytest.raises(InsufficientPrivilege, match=refusal),
        ):
            connection.execute(statement, (psycopg.types.json.Json(stored["t"]),))


def test_a_tenant_cannot_change_what_is_anothers(two: Two) -> None:
    changes = {
        "conversations": "update conversations set next_seq = 99, check_due_at = null",
        "runs": "update runs set state = 'dead'",
        "messages": "update messages set superseded_at = now()",
        "tenants": "update tenants set policy = '{}', name = 'mine'",
        "api_keys": "update api_keys set revoked_at = now()",
        "context_blocks": "update context_blocks set summary = 'mine', superseded_at = now()",
        "assemblies": "update assemblies set warnings = 9",
        "pins": "update pins set removed_at = now()",
        "webhooks": "update webhooks set removed_at = now()",
        "webhook_deliveries": "update webhook_deliveries set state = 'dead'",
        "console_sessions": "update console_sessions set ended_at = now()",
    }
    for table, change in changes.items():
        before = owner(two.a._url, f"select * from {table}")  # noqa: S608
        with in_service_role(two, two.a.tenant_id) as connection:
            column = "id" if table == "tenants" else "tenant_id"
            done = connection.execute(f"{change} where {column} = %s".encode(), (two.b.tenant_id,))
            assert done.rowcount == 0
            connection.commit()
        assert owner(two.a._url, f"select * from {table}") == before  # noqa: S608


def test_a_row_cannot_be_given_away(two: Two) -> None:
    for table in ("conversations", "runs"):
        with in_service_role(two, two.a.tenant_id) as connection, pytest.raises(InsufficientPrivilege):
            connection.execute(f"update {table} set tenant_id = %s".encode(), (two.b.tenant_id,))  # noqa: S608


def test_the_stores_functions_find_nothing_of_anothers(two: Two) -> None:
    theirs = two.b_conversation
    (run,) = owner(two.a._url, "select id from runs where conversation_id = %s", theirs)
    for asked in (two.a.tenant_id, two.b.tenant_id):  # the second is a mistake in the code above the store
        with transaction(two.a.engine, two.a.tenant_id) as connection:
            assert conversations.get(connection, asked, theirs) is None
            assert conversations.change(connection, asked, theirs, {"model": "mine"}) is None
            assert {row.id for row in conversations.page(connection, asked, limit=10)} <= {two.a_conversation}
            assert messages.page(connection, asked, theirs, after=-1, limit=10) == ((), False)
            assert messages.get(connection, asked, theirs, 0) is None
            assert snapshots.page(connection, asked, theirs, limit=10) == []
            assert snapshots.get(connection, asked, theirs, 1) is None
            assert snapshots.chain(connection, asked, theirs) == []
            assert context_blocks.page(connection, asked, theirs, limit=10) == []
            assert context_blocks.get(connection, asked, theirs, 5, 0) is None
            assert context_blocks.stored(connection, theirs, Exchange(0, keeps_prefix=False), max_tokens=100_000) == (
                (),
                (),
            )
            assert context_blocks.summaries_of(connection, theirs, None, ["# Part"]) == {}
            assert runs.get(connection, asked, run["id"]) is None
            assert runs.page(connection, asked, conversation_id=theirs, limit=10) == []
            assert runs.steps_of(connection, [run["id"]]) == []
            assert recall_requests.list_page(connection, asked, theirs, limit=10) == []
            assert recall_requests.most_recalled(connection, asked, theirs) == []
            assert recall_requests.list_regrets(connection, asked, theirs) == []
            assert runs.claim(connection, run["id"], holder=LeaseHolder("w"), lease_seconds=9, max_attempts=9) is None
    with transaction(two.a.engine, two.a.tenant_id) as connection:
        assert api_keys.all_of(connection, two.b.tenant_id) == []
        row, made = conversations.create(connection, two.a.tenant_id, {"external_id": "same for both"})
        assert (row.id, made) == (two.a_conversation, False)


def test_the_hot_calls_find_nothing_of_anothers(two: Two) -> None:
    before = two.b.stored(two.b_conversation)
    hello = {"role": "user", "content": "Hello."}
    assert two.a.append(two.b_conversation, hello).outcome == "missing"
    assert two.a.append(two.b_conversation, hello, key="key 0").outcome == "missing"
    assert two.a.append(two.b_conversation, hello, expected_next_seq=0).outcome == "missing"
    assert two.a.append(uuid4(), hello).outcome == "missing"
    assert two.a.context(two.b_conversation) is None
    assert two.b.stored(two.b_conversation) == before


def test_a_pooled_connection_forgets_its_tenant(two: Two) -> None:
    """The hot pool resets nothing between calls; the setting ends with each call's own transaction."""
    look = "select count(*) as seen, current_setting('app.tenant_id', true) as tenant from conversations"
    for call in (
        lambda: two.a.append(two.a_conversation, {"role": "user", "content": "Hello."}),
        lambda: two.a.append(two.a_conversation, {"role": "user", "content": "Hello."}, expected_next_seq=0),
        lambda: two.a.context(two.a_conversation),
        lambda: two.a.context(uuid4()),
    ):
        call()
        assert two.a.pool.get_idle_size() == two.a.pool.get_size() == 1
        row = two.a.fetch(look)
        assert (row["seen"], row["tenant"]) in {(0, ""), (0, None)}
    with transaction(two.a.engine, two.a.tenant_id) as connection:
        assert connection.exec_driver_sql("select count(*) from conversations").scalar() == 1
        same = connection.exec_driver_sql("select pg_backend_pid()").scalar()
    with transaction(two.a.engine, None) as connection:
        assert connection.exec_driver_sql("select pg_backend_pid()").scalar() == same
        assert connection.exec_driver_sql("select count(*) from conversations").scalar() == 0


def test_a_failed_call_leaves_no_tenant_behind(two: Two) -> None:
    broken = two.a.turn(two.a_conversation, {"role": "user", "content": "x"})
    with pytest.raises(Exception, match="json"):
        two.a.at_once([{**broken, "contents": ["{not json"]}])
    row = two.a.fetch("select count(*) as seen from messages")
    assert row["seen"] == 0


def test_a_key_is_found_by_its_id_and_only_in_force(two: Two) -> None:
    (key,) = owner(two.b._url, "select id from api_keys where tenant_id = %s", two.b.tenant_id)

    def find(identifier: UUID) -> Any:
        return two.a._runner.run(hot_path.find_api_key(two.a.pool, identifier))

    assert find(key["id"]).tenant_id == two.b.tenant_id
    assert find(ids.new_id()) is None
    with transaction(two.b.engine, two.b.tenant_id) as connection:
        revoked, _ = api_keys.create(connection, two.b.tenant_id, "another")
    assert find(revoked.id).tenant_id == two.b.tenant_id
    with transaction(two.b.engine, two.b.tenant_id) as connection:
        assert api_keys.revoke(connection, two.b.tenant_id, revoked.id)
    assert find(revoked.id) is None


def in_service_role(two: Two, tenant_id: UUID) -> psycopg.Connection[Any]:
    """Connect in the role of the service, on behalf of a tenant for the next transaction."""
    connection = psycopg.connect(two.a._url, options=f"-c role={SERVICE}")
    connection.execute("select set_config('app.tenant_id', %s, true)", (str(tenant_id),))
    return connection
