"""The views for auditors: they agree with the API, hold no word of what was said, and answer the manual's questions."""

from __future__ import annotations

import re
from contextlib import contextmanager
from decimal import Decimal
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import psycopg
import pytest
from psycopg import sql
from psycopg.errors import InsufficientPrivilege
from psycopg.rows import dict_row

from runtime import ids
from tests.support import talk
from tests.support.eventually import eventually
from tests.support.service.in_process_worker import work
from tests.support.service.running_api import conversation_at

if TYPE_CHECKING:
    from collections.abc import Iterator
    from uuid import UUID

    from tests.support.service.running_api import Service

AUDITOR = "palimpsest_auditor"
VIEWS = (
    "compaction_history",
    "conversation_costs",
    "message_lineage",
    "recalls",
    "prompt_cache_turns",
    "compaction_savings",
    "claims",
)
CANARY = "canary-in-what-was-said"
POLICY = {
    "input_token_budget": 400,
    "compaction_threshold_tokens": 900,
    "min_savings_tokens": 50,
    "protected_tail_messages": 4,
}
QUESTIONS = re.findall(r"^```sql\n(.+?)^```", Path("docs/audit.md").read_text(), re.DOTALL | re.MULTILINE)


class Told(NamedTuple):
    """A conversation that was compacted several times, one of another tenant, and one that was erased."""

    path: str
    id: UUID
    stranger: UUID
    erased: UUID


@pytest.fixture(scope="module")
def told(service: Service) -> Told:
    path = service.conversation(policy=POLICY, external_id="ticket 7", user_ref="anna")
    for number in range(8):
        reply = [talk.request(f"{CANARY} {number}", 60)] if number % 4 == 0 else []
        turn = [*reply, talk.call(number), talk.result(number, 120), talk.answer(CANARY, 60)]
        assert service.client.post(f"{path}/turns", json={"messages": turn}).status_code == 201
        work(service.settings, path)
    for asked in ({"query": f"{CANARY} 1"}, {"pattern": CANARY}, {"ref": "m1"}):
        assert service.client.post(f"{path}/recall", json=asked).status_code == 200
    erased = service.conversation(policy=POLICY, external_id="gone", user_ref="bert")
    service.client.post(f"{erased}/turns", json={"messages": talk.exchanges(20, 100)})
    work(service.settings, erased)
    assert service.client.delete(erased).status_code == 200
    response = service.stranger.post("/v1/conversations", json={"policy": POLICY}).json()["id"]
    service.stranger.post(f"/v1/conversations/{response}/turns", json={"messages": talk.exchanges(20, 100)})
    work(service.settings, f"/v1/conversations/{response}")
    counted = service.conversation(policy=POLICY)
    usage = {"input_tokens": 50, "output_tokens": 5}
    service.client.post(f"{counted}/turns", json={"messages": talk.exchanges(1, 10), "usage": usage})
    # Usages are written in batches.
    eventually(lambda: ask(service, "select 1 from prompt_cache_turns"))
    return Told(path, identifier(path), identifier(response), identifier(erased))


def identifier(path: str) -> UUID:
    parsed = ids.parse("conv", path.rpartition("/")[2])
    assert parsed is not None
    return parsed


@contextmanager
def in_role(service: Service, role: str) -> Iterator[psycopg.Connection[dict[str, Any]]]:
    with psycopg.connect(service.database_url, options=f"-c role={role}", row_factory=dict_row) as connection:
        yield connection


def ask(service: Service, statement: str, *values: object, role: str = AUDITOR) -> list[dict[str, Any]]:
    with in_role(service, role) as connection:
        return connection.execute(statement.encode(), values).fetchall()


def test_the_history_is_what_the_api_tells(service: Service, told: Told) -> None:
    rows = ask(
        service, "select * from compaction_history where conversation_id = %s order by run_id desc, step_no", told.id
    )
    runs = service.client.get(f"{told.path}/runs", params={"limit": 100}).json()["data"]
    steps = [(run, step) for run in runs for step in run["steps"]]
    assert len(rows) == len(steps) > 3
    for row, (run, step) in zip(rows, steps, strict=True):
        assert ids.external("run", row["run_id"]) == run["id"]
        assert row["tenant"] == "acme"
        assert (row["run_state"], row["run_reason"], row["trigger"]) == (run["state"], run["reason"], run["trigger"])
        for name in ("tokens_before", "tokens_after", "messages_before", "messages_after", "model_calls", "attempt"):
            assert row[name] == step[name], name
        assert (row["step"], row["step_state"], row["step_reason"]) == (step["name"], step["state"], step["reason"])
        saved = step["tokens_before"] - step["tokens_after"] if step["state"] == "committed" else 0
        assert row["tokens_saved"] == saved
    head = service.client.get(told.path).json()["head_version"]
    assert {row["snapshot_version"] for row in rows if row["is_head"]} == {head}


def test_costs_are_the_sums_of_what_the_api_tells(service: Service, told: Told) -> None:
    (row,) = ask(service, "select * from conversation_costs where conversation_id = %s", told.id)
    body = service.client.get(told.path).json()
    messages = service.client.get(f"{told.path}/messages", params={"limit": 1_000}).json()["data"]
    runs = service.client.get(f"{told.path}/runs", params={"limit": 100}).json()["data"]
    assert (row["external_id"], row["user_ref"], row["turns"]) == ("ticket 7", "anna", 8)
    assert (row["messages_stored"], row["messages_superseded"]) == (len(messages), 0)
    assert row["tokens_stored"] == sum(message["tokens"] for message in messages)
    assert (row["tokens_served"], row["head_version"]) == (body["context_tokens"], body["head_version"])
    assert row["tokens_saved_per_call"] == row["tokens_stored"] - row["tokens_served"] > 0
    assert (row["runs"], row["runs_failed"]) == (len(runs), sum(run["state"] in {"failed", "dead"} for run in runs))
    assert row["model_calls"] == sum(step["model_calls"] for run in runs for step in run["steps"])
    assert row["cost_usd"] == sum(Decimal(run["cost_usd"] or 0) for run in runs)


def test_the_erased_keep_their_numbers_and_nothing_else(service: Service, told: Told) -> None:
    (row,) = ask(service, "select * from conversation_costs where conversation_id = %s", told.erased)
    assert row["erased_at"] is not None
    assert row["runs"] > 0
    assert (row["external_id"], row["user_ref"], row["messages_stored"], row["head_version"]) == (None, None, 0, 0)
    assert ask(service, "select * from message_lineage where conversation_id = %s", told.erased) == []


def lineages(service: Service, path: str, conversation: UUID) -> dict[int, list[str]]:
    """Return the fates of every message from its being stored on, once they are known to be what the API tells."""
    rows = ask(service, "select * from message_lineage where conversation_id = %s order by seq, version", conversation)
    by_seq: dict[int, list[dict[str, Any]]] = {}
    for row in rows:
        by_seq.setdefault(row["seq"], []).append(row)
    messages = service.client.get(f"{path}/messages", params={"limit": 1_000}).json()["data"]
    assert sorted(by_seq) == [message["seq"] for message in messages]
    for seq, (stored, *changes) in by_seq.items():
        one = service.client.get(f"{path}/messages/{seq}").json()
        assert (stored["version"], stored["fate"], stored["run_id"]) == (0, "kept", None)
        assert [
            {"fate": row["fate"], "version": row["version"], "run_id": ids.external("run", row["run_id"])}
            for row in changes
        ] == one["lineage"]
        assert (changes or [stored])[-1]["fate"] == one["fate"]
    return {seq: [row["fate"] for row in every] for seq, every in by_seq.items()}


def test_lineage_is_what_the_api_tells_of_every_message(service: Service, told: Told) -> None:
    fates = {every[-1] for every in lineages(service, told.path, told.id).values()}
    assert {"kept", "summarized"} <= fates


def test_lineage_goes_on_after_a_restore(service: Service) -> None:
    path = service.conversation(policy=POLICY)
    for number in range(8):
        service.append(path, talk.request(f"request {number}", 40), talk.answer(f"answer {number}", 120))
        work(service.settings, path)
    conversation = conversation_at(path)
    before = lineages(service, path, conversation)
    versions = [each["version"] for each in service.client.get(f"{path}/snapshots").json()["data"]]
    for version in (0, versions[-1], versions[0]):
        done = service.client.post(f"{path}/restore", json={"version": version}).json()
        head = service.client.get(f"{path}/snapshots/{done['head_version']}").json()
        covered = {
            seq: span["fate"] for span in head["coverage"] for seq in range(span["first_seq"], span["last_seq"] + 1)
        }
        after = lineages(service, path, conversation)
        assert {seq: every[-1] for seq, every in after.items()} == {seq: covered.get(seq, "kept") for seq in after}
    assert after[2] == [*before[2], "kept", *after[2][len(before[2]) + 1 :]]
    assert before[2][-1] == after[2][-1] == "summarized"


def test_claims_are_what_the_api_tells_without_their_words(service: Service, told: Told) -> None:
    rows = ask(service, "select * from claims where conversation_id = %s order by version, line", told.id)
    versions = [each["version"] for each in service.client.get(f"{told.path}/snapshots").json()["data"]]
    listed = [
        (version, claim["seqs"], claim["support"])
        for version in sorted(versions)
        for claim in service.client.get(f"{told.path}/snapshots/{version}/claims").json()["data"]
    ]
    assert [(row["version"], row["seqs"], row["support"]) for row in rows] == listed != []
    assert service.client.get(f"{told.path}/snapshots/999/claims").status_code == 404


def test_recalls_are_what_the_api_tells_without_what_was_asked(service: Service, told: Told) -> None:
    rows = ask(service, "select * from recalls where conversation_id = %s order by recall_id desc", told.id)
    listed = service.client.get(f"{told.path}/recalls").json()
    assert [ids.external("rcl", row["recall_id"]) for row in rows] == [each["id"] for each in listed["data"]]
    for row, each in zip(rows, listed["data"], strict=True):
        assert row["refs"] == [passage["ref"] for passage in each["refs"]]
        assert (row["kind"], row["tokens"], row["searched"]) == (each["kind"], each["tokens"], each["searched"])
    assert sum(row["messages_out_of_context"] for row in rows) == sum(each["messages"] for each in listed["regret"]) > 0


def test_auditors_see_every_tenant_but_no_word(service: Service, told: Told) -> None:
    seen = {row["conversation_id"] for row in ask(service, "select conversation_id from conversation_costs")}
    assert {told.id, told.stranger, told.erased} <= seen
    for view in VIEWS:
        everything = ask(service, f"select to_json(v)::text as row from {view} as v")  # noqa: S608 - names above
        assert everything
        assert not [row for row in everything if CANARY in row["row"] or "lorem" in row["row"]]


def test_the_service_sees_its_own_tenant_in_the_tables_and_no_views(service: Service) -> None:
    for view in VIEWS:
        with pytest.raises(InsufficientPrivilege):
            ask(service, f"select * from {view}", role="palimpsest_service")  # noqa: S608 - names above


def test_the_auditor_may_read_the_views_and_only_columns_without_words(service: Service, told: Told) -> None:
    words = {
        "messages": {"content"},
        "snapshot_parts": {"messages", "part", "summary", "pins"},
        "conversations": {"system", "tools", "metadata", "policy"},
        "runs": {"error", "instructions", "policy"},
        "run_steps": {"error", "detail"},
        "recall_requests": {"asked"},
        "tenants": {"policy"},
        "turn_usages": set(),
    }
    columns = ask(
        service,
        """
        select c.relname as table, a.attname as column
        from pg_class as c join pg_attribute as a on a.attrelid = c.oid and a.attnum > 0 and not a.attisdropped
        where c.relnamespace = 'public'::regnamespace and c.relkind = 'r'
          and has_column_privilege(%s, c.oid, a.attnum, 'select')
        """,
        AUDITOR,
    )
    assert {row["table"] for row in columns} == set(words)
    assert [row for row in columns if row["column"] in words[row["table"]]] == []
    powers = ask(
        service,
        """
        select c.relname from pg_class as c, unnest(array['insert', 'update', 'delete', 'truncate']) as p (power)
        where c.relnamespace = 'public'::regnamespace and c.relkind in ('r', 'v')
          and has_table_privilege(%s, c.oid, p.power)
        """,
        AUDITOR,
    )
    assert powers == []
    callable_here = ask(
        service,
        """
        select p.proname from pg_proc as p
        where p.pronamespace = 'public'::regnamespace and p.prosecdef and has_function_privilege(%s, p.oid, 'execute')
        """,
        AUDITOR,
    )
    assert callable_here == []
    with pytest.raises(InsufficientPrivilege):
        ask(service, "select content from messages limit 1")
    # The views run with the rights of whoever asks: so the columns can be read without them, and counted.
    assert ask(service, "select count(*) as messages from messages")[0]["messages"] > 0


def test_the_manual_asks_a_dozen_questions() -> None:
    assert len(QUESTIONS) >= 12


@pytest.mark.parametrize("question", QUESTIONS, ids=lambda question: " ".join(question.split()[:6]))
def test_a_question_of_the_manual_is_answered(service: Service, told: Told, question: str) -> None:
    with in_role(service, AUDITOR) as connection:
        statement = sql.SQL(question.replace(":'conversation'", "{conversation}"))
        cursor = connection.execute(statement.format(conversation=sql.Literal(told.id)))
        rows = cursor.fetchall()
        assert cursor.description is not None
        named = {column.name for column in cursor.description}
        # Nothing has failed, no model was asked, nothing is dead, and an extract is borne out.
        empty = ("'failed'", "'summary' and step_state = 'committed'", "'dead'", "'unsupported'")
        assert rows or any(part in question for part in empty)
        assert all(set(row) == named for row in rows)
