"""Erasure over HTTP: nothing that was said is anywhere afterwards, and nobody else's is touched."""

from __future__ import annotations

import hashlib
import json
import re
from contextlib import contextmanager
from datetime import UTC, datetime
from threading import Thread
from typing import TYPE_CHECKING, Any, Final
from uuid import UUID, uuid4

import psycopg
import pytest
import redis
from psycopg import sql
from psycopg.errors import InsufficientPrivilege, RestrictViolation
from psycopg.rows import dict_row

from compaction.recall.segments import Searchable, build_segments, encode_segment
from runtime import ids
from store.engine import owner_engine
from store.tenants import api_keys
from tests.support.eventually import eventually
from tests.support.service.in_process_worker import work
from tests.support.service.problem_documents import problem
from tests.support.service.running_api import conversation_at

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    import httpx2

    from tests.support.service.running_api import Service

CANARY: Final = "canaryWORD"
POLICY: Final = {
    "input_token_budget": 300,
    "compaction_threshold_tokens": 600,
    "min_savings_tokens": 50,
    "protected_tail_messages": 2,
    "inline_tool_tags": [CANARY],
}
REMOVED: Final = {
    "messages",
    "snapshot_parts",
    "context_blocks",
    "pins",
    "recall_segments",
    "recall_requests",
    "gateway_recalls",
    "idempotency_keys",
    "webhook_deliveries",
}
"""Tables whose rows go with their conversation."""
BLANKED: Final = {
    "conversations": {
        "external_id",
        "user_ref",
        "model",
        "system",
        "tools",
        "policy",
        "metadata",
        "open_calls",
        "rules",
    },
    "runs": {"error", "instructions", "policy"},
    "run_steps": {"detail", "error"},
}
"""Tables whose rows stay, and their columns that lose what they hold."""
WORDLESS: Final = {
    "conversations": {
        "left_out": "seqs of messages",
        "last_count": "what the API counted last, and what was estimated of it",
        "shape": "a word of ours",
    },
    "runs": {
        "kind": "a word of ours",
        "trigger": "a word of ours",
        "state": "a word of ours",
        "queue": "a word of ours",
        "reason": "a code",
        "worker": "a host and a process",
        "strategy": "the name of a step, ours or an installed package's",
    },
    "run_steps": {
        "name": "the name of a step",
        "state": "a word of ours",
        "reason": "a code",
        "summarizer": "the name of a summarizer",
        "model": "the name of the model that was paid",
        "prompt_version": "a version",
    },
}
"""What else may hold text in the rows that stay, and why it is none of the conversation's."""
OF_NO_WORDS: Final = {
    "api_keys": "who may ask",
    "webhooks": "where a tenant is told of runs",
    "erasures": "ids, counts and a hash of them",
    "console_sessions": "who is signed in",
    "model_usage": "what a tenant's models have cost in a day",
    "waiting_summaries": "ids and versions of what waits for the next day's budget",
    "waiting_snapshots": "ids, versions and times of what waits until it pays; removed as well",
    "message_media": "sizes and numbers of images and files; removed as well",
    "turn_usages": "token counts and times of calls; removed as well, and one that comes late finds nothing",
    "operator_actions": "what operators did: ids, versions, words of ours",
    "gateway_conversations": "ids and a hash; removed as well",
    "gateway_prefixes": "seqs, counts and hashes; removed as well",
    "assemblies": "token counts; removed as well, but one that is just being remembered may come after",
}
"""Tables of a tenant that hold nothing of what was said."""
OUR_WORDS: Final = {
    ("api_keys", "scopes"),
    ("assemblies", "call"),
    ("erasures", "asked_for"),
    ("erasures", "proof"),
    ("gateway_conversations", "circle"),
    ("gateway_prefixes", "key"),
    ("gateway_prefixes", "outcome"),
    ("messages", "role"),
    ("messages", "shape"),
    ("operator_actions", "action"),
    ("operator_actions", "outcome"),
    ("processes", "host"),
    ("recall_requests", "kind"),
    ("recall_requests", "origin"),
    ("processes", "kind"),
    ("processes", "model"),
    ("processes", "queues"),
    ("processes", "summarizer"),
    ("processes", "version"),
    ("snapshot_parts", "step"),
    ("snapshot_parts", "summarizer"),
    ("tenants", "name"),
    ("tenants", "rate_limit_key"),
    ("tenants", "rate_limit_tenant"),
    ("webhook_deliveries", "event"),
    ("webhook_deliveries", "state"),
    ("webhooks", "events"),
}
"""Further columns of text with words of the product, or of whoever runs it."""
TEXTUAL: Final = {"text", "json", "jsonb", "bytea", "ARRAY", "character varying"}


@contextmanager
def owning(service: Service) -> Iterator[Callable[..., list[dict[str, Any]]]]:
    """Yield what asks the database as its owner, for many questions at a time."""
    with psycopg.connect(service.database_url, row_factory=dict_row, autocommit=True) as connection:

        def ask(statement: str, *values: object) -> list[dict[str, Any]]:
            cursor = connection.execute(statement.encode(), values)
            return cursor.fetchall() if cursor.description else []

        yield ask


def owner(service: Service, statement: str, *values: object) -> list[dict[str, Any]]:
    with owning(service) as ask:
        return ask(statement, *values)


def tables(service: Service) -> list[str]:
    rows = owner(service, "select relname from pg_class where relkind = 'r' and relnamespace = 'public'::regnamespace")
    return sorted(row["relname"] for row in rows)


def places(service: Service, word: str) -> set[tuple[str, str]]:
    """Return (table, column) of every value in the database that holds a word, and every key of Redis that does."""
    found: set[tuple[str, str]] = set()
    with psycopg.connect(service.database_url) as connection:
        for table in tables(service):
            query = sql.SQL(
                "select distinct e.key from {} as t, jsonb_each_text(to_jsonb(t)) as e where e.value like any ({})"
            ).format(sql.Identifier(table), sql.Literal([f"%{word}%", f"%{word.lower().encode().hex()}%"]))
            found |= {(table, column) for (column,) in connection.execute(query)}
    with redis.Redis.from_url(service.settings.broker_url.get_secret_value()) as client:
        for key in client.scan_iter():
            if word.encode() in key + (client.dump(key) or b""):
                found.add(("redis", key.decode(errors="replace")))
    return found


def rows_of(service: Service, conversation: UUID) -> dict[str, list[dict[str, Any]]]:
    """Return everything that a conversation has, by table, as the owner sees it, but its last assembly.

    Rows come in an order of their own: that of the table changes with whatever else is removed from it.
    """
    by_name = {}
    with owning(service) as ask:
        for table in set(tables(service)) - {"assemblies"}:
            columns = ask("select column_name from information_schema.columns where table_name = %s", table)
            names = {row["column_name"] for row in columns}
            if table == "run_steps":
                where = "run_id in (select id from runs where conversation_id = %s)"
            elif table == "conversations":
                where = "id = %s"
            elif "conversation_id" in names:
                where = "conversation_id = %s"
            else:
                continue
            statement = f"select to_jsonb(t) as row from {table} as t where {where} order by 1"  # noqa: S608
            by_name[table] = ask(statement, conversation)
    return by_name


def converse(service: Service, word: str, user: str, client: httpx2.Client | None = None) -> str:
    """Hold a conversation that has its word everywhere a client can put one; return its path."""
    client = client or service.client
    response = client.post(
        "/v1/conversations",
        json={
            "external_id": f"ext {word} {uuid4()}",
            "user_ref": user,
            "model": f"model {word}",
            "system": f"Be {word}.",
            "tools": [{"name": "look", "description": f"Looks for {word}.", "input_schema": {"type": "object"}}],
            "policy": POLICY | {"inline_tool_tags": [word]},
            "metadata": {f"key {word}": f"value {word}"},
        },
    )
    assert response.status_code == 201, response.text
    path = f"/v1/conversations/{response.json()['id']}"

    def append(number: int, *messages: dict[str, Any], **fields: Any) -> None:
        headers = {"idempotency-key": f"key {word} {number}"}
        done = client.post(f"{path}/turns", json={"messages": messages, **fields}, headers=headers)
        assert done.status_code == 201, done.text

    block = {"source": f"from {word}", "title": f"on {word}", "text": f"# A page of {word}\n" + "It says so. " * 60}
    append(0, {"role": "user", "content": f"Find {word}."}, context=[block])
    for number in range(1, 4):
        call = {"type": "tool_use", "id": f"call_{word}_{number}", "name": "look", "input": {"q": word}}
        result = {"type": "tool_result", "tool_use_id": call["id"], "content": f"{word} is found. " * 100}
        append(number, {"role": "assistant", "content": [call]}, {"role": "user", "content": [result]})
    work(service.settings, path)
    assert client.post(f"{path}/pins", json={"seq": 0, "text": f"Find {word}."}).status_code == 201
    append(30, {"role": "user", "name": "ann", "content": f"As chat: {word}."}, shape="chat")
    answers = [{"role": "assistant", "content": f"It was {word} for the {time}th time. " * 10} for time in range(4, 10)]
    asked_again = {"role": "user", "content": f"And {word} again?"}
    append(4, *(message for answer in answers for message in (answer, asked_again)))
    asked = client.post(f"{path}/compactions", json={"instructions": f"Stress {word}.", "strategy": "summary"})
    assert asked.status_code == 202, asked.text
    work(service.settings, path)
    append(10, {"role": "assistant", "content": [{"type": "tool_use", "id": f"open_{word}", "name": "x", "input": {}}]})
    for recalled in ({"query": f"where is {word}"}, {"pattern": word}, {"ref": "m0"}):
        assert client.post(f"{path}/recall", json=recalled).status_code == 200
    return path


def hold_more(service: Service, path: str, word: str) -> None:
    """Write what only a failing model, a provider of batches, or a much longer conversation would have written."""
    conversation = conversation_at(path)
    (segment,) = build_segments([Searchable(0, "user", word)])
    owner(
        service,
        "insert into recall_segments (tenant_id, conversation_id, first_seq, last_seq, terms)"
        " values (%s, %s, 0, 0, %s)",
        service.tenant_id,
        conversation,
        encode_segment(segment),
    )
    owner(
        service,
        "insert into gateway_recalls (tenant_id, conversation_id, seq, through_seq, shown, results)"
        " values (%s, %s, 0, 0, %s, '[]')",
        service.tenant_id,
        conversation,
        f'["{word}"]',
    )
    owner(service, "update runs set error = %s where conversation_id = %s", f"saw {word}", conversation)
    owner(
        service,
        "update run_steps set detail = %s, error = %s where run_id in (select id from runs where conversation_id = %s)",
        f"of {word}",
        f"saw {word}",
        conversation,
    )


@pytest.fixture(scope="module", autouse=True)
def hook(service: Service) -> None:
    """Somebody who is told of runs, and never answers."""
    assert service.client.post("/v1/webhooks", json={"url": "https://hooks.example.com/"}).status_code == 201


@pytest.fixture
def other_user() -> str:
    return f"user {uuid4()}"


def test_every_table_of_a_tenant_is_thought_of(service: Service) -> None:
    """A new table, or a new column that may hold text, has to be named here, and be seen to."""
    columns = owner(
        service,
        "select table_name, column_name, data_type from information_schema.columns where table_schema = 'public'"
        " and table_name in (select relname from pg_class where relkind = 'r')",
    )
    of_tenants = {row["table_name"] for row in columns if row["column_name"] == "tenant_id"}
    assert of_tenants == REMOVED | BLANKED.keys() | OF_NO_WORDS.keys()
    for table, blanked in BLANKED.items():
        textual = {row["column_name"] for row in columns if row["table_name"] == table and row["data_type"] in TEXTUAL}
        numbers = {"ratio_samples", "part_ends"}
        assert textual - numbers == blanked | WORDLESS.get(table, {}).keys(), table


def test_the_planner_collects_no_word(service: Service) -> None:
    """Statistics outlive what they quote: no column that may hold a tenant's words has any."""
    columns = owner(
        service,
        "select c.relname, a.attname, format_type(a.atttypid, null) as type from pg_attribute as a"
        " join pg_class as c on c.oid = a.attrelid where c.relnamespace = 'public'::regnamespace and c.relkind = 'r'"
        " and a.attnum > 0 and not a.attisdropped and a.attstattarget is distinct from 0",
    )
    # Of type json nothing is kept: it has no order.
    kinds = {"text", "text[]", "jsonb", "bytea"}
    collected = {(row["relname"], row["attname"]) for row in columns if row["type"] in kinds}
    ours = {(table, column) for table, wordless in WORDLESS.items() for column in wordless}
    assert collected - ours == OUR_WORDS
    word = "plannerWORD"
    for _ in range(3):
        hold_more(service, converse(service, word, f"user of {word}"), word)
    owner(service, "analyze")
    assert owner(service, "select 1 from pg_stats where pg_stats::text like %s limit 1", f"%{word}%") == []


def test_nothing_of_it_is_anywhere(service: Service, other_user: str) -> None:
    path = converse(service, CANARY, f"user of {CANARY}")
    hold_more(service, path, CANARY)
    kept = converse(service, "keptWORD", other_user)
    theirs = converse(service, "theirWORD", f"user of {CANARY[::-1]}", service.stranger)
    before = {table for table, _ in places(service, CANARY)}
    held = {(table, column) for table, blanked in BLANKED.items() for column in blanked}
    assert held <= places(service, CANARY)
    assert before >= REMOVED
    untouched = [rows_of(service, conversation_at(each)) for each in (kept, theirs)]

    gone = service.client.delete(path)

    assert gone.status_code == 200, gone.text
    assert places(service, CANARY) == set()
    assert [rows_of(service, conversation_at(each)) for each in (kept, theirs)] == untouched
    left = rows_of(service, conversation_at(path))
    assert {table for table in REMOVED if left.get(table)} == set()
    assert all(run["row"]["state"] in {"committed", "skipped", "failed"} for run in left["runs"])
    assert {run["row"]["policy"]["input_token_budget"] for run in left["runs"]} == {300}
    # A worker that was told of it before finds nothing to do.
    work(service.settings, path)
    assert rows_of(service, conversation_at(path)) == left
    for each in (kept, theirs):
        client = service.client if each is kept else service.stranger
        assert client.get(f"{each}/context").status_code == 200


def test_it_is_missing_to_every_call(service: Service) -> None:
    path = converse(service, "goneWORD", "user")
    run = service.client.get(f"{path}/runs").json()["data"][0]["id"]
    pin = service.client.get(f"{path}/pins").json()["data"][0]["id"]
    rule = service.client.get(f"{path}/rules").json()["data"][0]["id"]
    etag = service.client.get(f"{path}/context").headers["etag"]
    assert service.client.delete(path).status_code == 200
    bodies = {
        "turns": {"messages": [{"role": "user", "content": "Hello"}]},
        "pins": {"seq": 0},
        "restore": {"version": 0},
        "fork": {"through_seq": 0},
        "recall": {"ref": "m0"},
        "comparisons": {"versions": [0, 0], "seq": 0},
        "bisect": {"text": "goneWORD"},
        rule: {"in_force": False},
    }
    paths = service.client.get("/openapi.json").json()["paths"]
    never = f"/v1/conversations/{ids.external('conv', ids.new_id())}"
    calls = [
        (method, found.replace("{conversation_id}", "{}"))
        for found, methods in paths.items()
        if "{conversation_id}" in found
        for method in methods
    ]
    assert len(calls) >= 20
    for method, template in calls:
        if (method, template) == ("delete", "/v1/conversations/{}"):
            continue  # It answers the tombstone again.
        place = re.sub(r"\{(seq|version|position)\}", "1", template).replace("{pin_id}", pin)
        place = place.replace("{rule_id}", rule)
        answers = []
        for each in (path, never):
            url = place.replace("{}", each.rpartition("/")[2])
            last = url.rpartition("/")[2]
            body = bodies.get(last, {}) if method in {"post", "patch"} else None
            headers = {"idempotency-key": "key goneWORD 0"} if last == "turns" else {"if-none-match": etag}
            answer = service.client.request(method, url, json=body, headers=headers)
            answers.append((answer.status_code, {k: v for k, v in answer.json().items() if k != "request_id"}))
        assert answers[0] == answers[1], (method, template)
        assert answers[0][0] == 404, (method, template, answers)
    conversation = path.rpartition("/")[2]
    listed = service.client.get("/v1/conversations", params={"limit": 100}).json()["data"]
    assert conversation not in {row["id"] for row in listed}
    # What was done is told, without a word of it; it can't be done again.
    document = service.client.get(f"/v1/runs/{run}").json()
    assert (document["instructions"], document["error"], document["conversation_id"]) == (None, None, conversation)
    problem(service.client.post(f"/v1/runs/{run}/retry"), 409, "run_not_dead")


CALLS: Final[dict[str, tuple[str, str, Any]]] = {
    "turn": ("POST", "/turns", {"messages": [{"role": "user", "content": "late"}]}),
    "edit": ("POST", "/turns", {"messages": [{"role": "user", "content": "late"}], "replace_from": 0}),
    "change": ("PATCH", "", {"metadata": {"late": "late"}}),
    "pin": ("POST", "/pins", {"seq": 0, "text": "Look."}),
    "run": ("POST", "/compactions", {"instructions": "late"}),
    "overflow": ("POST", "/overflow", {}),
    "restore": ("POST", "/restore", {"version": 0}),
    "fork": ("POST", "/fork", {"through_seq": 0, "external_id": "late"}),
    "erasure": ("DELETE", "", None),
}


@pytest.mark.parametrize("call", CALLS)
def test_a_call_that_an_erasure_overtakes(service: Service, call: str) -> None:
    """It finds the conversation, then has to wait, and then it is gone."""
    method, place, body = CALLS[call]
    path = service.conversation()
    service.append(path, {"role": "user", "content": "Look."}, {"role": "assistant", "content": "Seen."})
    answers: list[httpx2.Response] = []
    late = Thread(target=lambda: answers.append(service.client.request(method, path + place, json=body)))
    with psycopg.connect(service.database_url) as connection:
        connection.execute("set role palimpsest_service")
        connection.execute("select set_config('app.tenant_id', %s, true)", (str(service.tenant_id),))
        erase = "select erase_conversation(%s, %s, 'conversation', null, null)"
        connection.execute(erase, (ids.new_id(), conversation_at(path)))
        late.start()
        waiting = "select from pg_stat_activity where datname = current_database() and wait_event_type = 'Lock'"
        eventually(lambda: owner(service, f"select exists ({waiting}) as some")[0]["some"])
    late.join(30)
    if call == "erasure":
        assert answers[0].status_code == 200
    elif call == "fork":
        problem(answers[0], 422, "invalid", "/through_seq")  # Its messages are missing, for all that the fork can tell.
    else:
        problem(answers[0], 404, "not_found")
    assert not places(service, "late")
    assert all(run["row"]["state"] == "failed" for run in rows_of(service, conversation_at(path))["runs"])


def test_once_more_is_the_same(service: Service) -> None:
    path = converse(service, "twiceWORD", "user")
    first, second = service.client.delete(path), service.client.delete(path)
    assert (second.status_code, second.json()) == (200, first.json())
    body = first.json()
    assert body["erased"]["messages"] == 21
    assert body["erased"]["idempotency_keys"] == 7
    assert min(body["erased"][name] for name in ("snapshots", "runs", "steps", "context_blocks", "pins")) > 0
    assert body["asked_for"] == "conversation"
    assert body["request_id"] == first.headers["request-id"]
    key = owner(service, "select id from api_keys where tenant_id = %s", service.tenant_id)[0]["id"]
    assert body["key_id"] == ids.external("key", key)
    listed = service.client.get("/v1/erasures", params={"conversation_id": body["conversation_id"]}).json()
    assert listed["data"] == [body]
    assert (
        service.stranger.get("/v1/erasures", params={"conversation_id": body["conversation_id"]}).json()["data"] == []
    )


def test_a_name_can_be_given_again(service: Service) -> None:
    body = service.client.post("/v1/conversations", json={"external_id": "the name"}).json()
    assert service.client.delete(f"/v1/conversations/{body['id']}").status_code == 200
    again = service.client.post("/v1/conversations", json={"external_id": "the name"})
    assert again.status_code == 201
    assert again.json()["id"] != body["id"]
    assert again.json()["last_seq"] == -1


def test_what_is_anothers_is_missing(service: Service) -> None:
    path = converse(service, "foreignWORD", "shared name")
    before = rows_of(service, conversation_at(path))
    missing = f"/v1/conversations/{ids.external('conv', ids.new_id())}"
    for each in (path, missing, "/v1/conversations/nonsense"):
        problem(service.stranger.delete(each), 404, "not_found")
    assert service.stranger.delete("/v1/users/shared%20name").json() == {"conversations": 0}
    assert rows_of(service, conversation_at(path)) == before


@pytest.mark.parametrize("scopes", [["turns:write", "context:read", "audit:read"], ["audit:read"]])
def test_it_takes_an_administrator(service: Service, scopes: list[str]) -> None:
    path = service.conversation(user_ref="careful")
    engine = owner_engine(service.database_url)
    with engine.begin() as connection:
        _, key = api_keys.create(connection, service.tenant_id, "reader", scopes=scopes)
    engine.dispose()
    with service.api.client(key) as client:
        problem(client.delete(path), 403, "forbidden")
        problem(client.delete("/v1/users/careful"), 403, "forbidden")
    assert service.client.get(path).status_code == 200


def test_all_of_a_user_goes(service: Service, other_user: str) -> None:
    mine = [service.conversation(user_ref="me & mine") for _ in range(45)]
    mine.append(converse(service, "userWORD", "me & mine"))
    fork = service.client.post(f"{mine[-1]}/fork", json={"through_seq": 4}).json()["id"]
    other = converse(service, "otherWORD", other_user)
    done = service.client.delete("/v1/users/me%20%26%20mine")
    assert (done.status_code, done.json()) == (200, {"conversations": 47})
    assert service.client.delete("/v1/users/me%20%26%20mine").json() == {"conversations": 0}
    assert places(service, "userWORD") == set()
    assert places(service, "me & mine") == set()
    assert {service.client.get(path).status_code for path in [*mine, f"/v1/conversations/{fork}"]} == {404}
    assert service.client.get(other).status_code == 200
    rows = service.client.get("/v1/erasures", params={"limit": 47}).json()["data"]
    assert {(row["asked_for"], row["request_id"]) for row in rows} == {("user", done.headers["request-id"])}


def test_a_fork_stays(service: Service) -> None:
    path = converse(service, "forkWORD", "forker")
    fork = f"/v1/conversations/{service.client.post(f'{path}/fork', json={'through_seq': 12}).json()['id']}"
    before = service.client.get(f"{fork}/context").json()
    rows = rows_of(service, conversation_at(fork))
    assert service.client.delete(path).status_code == 200
    assert service.client.get(f"{fork}/context").json() == before
    assert rows_of(service, conversation_at(fork)) == rows
    run = service.client.get(f"{fork}/snapshots").json()["data"][0]["run_id"]
    assert service.client.get(f"/v1/runs/{run}").status_code == 200


def test_the_proofs_are_a_chain(service: Service) -> None:
    """Computed anew from what the API tells, by whoever wants to check."""
    for _ in range(3):
        assert service.client.delete(service.conversation()).status_code == 200
    answer = service.client.get("/v1/erasures", params={"limit": 2}).json()
    rows: list[dict[str, Any]] = answer["data"]
    while answer["has_more"]:
        query = {"limit": 100, "after_id": answer["last_id"]}
        answer = service.client.get("/v1/erasures", params=query).json()
        rows += answer["data"]
    rows.sort(key=lambda row: int(row["number"]))
    assert [row["number"] for row in rows] == list(range(1, len(rows) + 1))
    previous = ""
    for row in rows:
        moment = datetime.fromisoformat(row["erased_at"]).astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")
        names = ("id", "conversation_id", "key_id", "request_id")
        own, conversation, key, request = (
            str(UUID(row[name].partition("_")[2])) if row[name] else "" for name in names
        )
        counts = [str(count) for count in row["erased"].values()]
        parts = [
            previous,
            str(row["number"]),
            own,
            str(service.tenant_id),
            conversation,
            row["asked_for"],
            key,
            request,
        ]
        previous = hashlib.sha256("|".join([*parts, moment, *counts]).encode()).hexdigest()
        assert row["proof"] == previous


def lines(client: httpx2.Client, user: str) -> list[dict[str, Any]]:
    answer = client.get(f"/v1/users/{user}/export")
    assert answer.status_code == 200
    assert answer.headers["content-type"].startswith("application/jsonl")
    return [json.loads(line) for line in answer.text.split("\n")[:-1]]


def test_an_export_has_everything(service: Service) -> None:
    user = f"user-{uuid4()}"
    path = converse(service, "exportWORD", user)
    odd = b'[ {"type":"text",\n  "text":"\\u00e9 1.0 \xe2\x80\xa8 \xf0\x9f\x99\x82", "n": 1.00} ]'
    body = b'{"messages":[{"role":"assistant","content":"x"},{"role":"user","content":' + odd + b"}]}"
    second = service.conversation(user_ref=user)
    assert service.client.post(f"{second}/turns", content=body).status_code == 201
    service.append(second, {"role": "user", "content": "Instead."}, replace_from=1)
    raw = service.client.get(f"/v1/users/{user}/export").content
    assert b'"content":' + odd.replace(b"\n", b" ") in raw
    told = lines(service.client, user)
    assert told[-1] == {"type": "end", "conversations": 2}
    assert [line["id"] for line in told if line["type"] == "conversation"] == [
        each.rpartition("/")[2] for each in (path, second)
    ]
    for each in (path, second):
        stored = rows_of(service, conversation_at(each))
        conversation = each.rpartition("/")[2]
        kinds = {
            "message": "messages",
            "snapshot": "snapshot_parts",
            "context_block": "context_blocks",
            "pin": "pins",
            "run": "runs",
            "recall": "recall_requests",
        }
        for kind, table in kinds.items():
            items = [line for line in told if line["type"] == kind and line["conversation_id"] == conversation]
            assert len(items) == len(stored[table]), kind
        items = [line for line in told if line["type"] == "message" and line["conversation_id"] == conversation]
        originals = service.client.get(f"{each}/messages", params={"limit": 1_000}).json()["data"]
        assert [line["content"] for line in items] == [original["content"] for original in originals]
        for version in {
            line["version"]
            for line in told
            if line.get("conversation_id") == conversation and line["type"] == "snapshot"
        }:
            (line,) = (
                each_line
                for each_line in told
                if each_line["type"] == "snapshot"
                and (each_line["conversation_id"], each_line["version"]) == (conversation, version)
            )
            assert line["messages"] == service.client.get(f"{each}/snapshots/{version}").json()["messages"]
    assert len([line for line in told if line["type"] == "run_step"]) == len(
        rows_of(service, conversation_at(path))["run_steps"]
    )
    hidden = {"tenant_id", "lease_token", "lease_expires_at", "worker"}
    assert not any(hidden & line.keys() for line in told)
    assert lines(service.stranger, user) == [{"type": "end", "conversations": 0}]
    assert service.client.delete(f"/v1/users/{user}").json() == {"conversations": 2}
    assert lines(service.client, user) == [{"type": "end", "conversations": 0}]


@pytest.mark.parametrize("user", ["a/b", "/export", "..", "100%?&#", "é\u2028", " "])
def test_a_user_of_any_name(service: Service, user: str) -> None:
    path = service.conversation(user_ref=user)
    response = service.client.get("/v1/exports", params={"user_ref": user})
    assert [json.loads(line)["type"] for line in response.text.split("\n")[:-1]] == ["conversation", "end"]
    gone = service.client.delete("/v1/users", params={"user_ref": user})
    assert (gone.status_code, gone.json()) == (200, {"conversations": 1})
    assert service.client.get(path).status_code == 404


def test_a_user_has_to_be_named(service: Service) -> None:
    path = service.conversation()
    for answer in (service.client.delete("/v1/users"), service.client.get("/v1/exports")):
        problem(answer, 422, "invalid", "user_ref")
    assert service.client.delete("/v1/users", params={"user_ref": ""}).json() == {"conversations": 0}
    assert service.client.get(path).status_code == 200


@pytest.fixture(scope="module")
def stored(service: Service) -> None:
    """Rows in every table that is guarded."""
    converse(service, "triggerWORD", "user")
    assert service.client.delete(service.conversation()).status_code == 200


@pytest.mark.usefixtures("stored")
@pytest.mark.parametrize("table", ["messages", "snapshot_parts", "erasures"])
def test_only_the_erasure_removes(service: Service, table: str) -> None:
    """Not even the owner, nor the role that the erasure runs as, without saying which conversation it is."""
    delete = sql.SQL("delete from {}").format(sql.Identifier(table))
    with psycopg.connect(service.database_url) as connection:
        with pytest.raises(RestrictViolation, match="append-only"):
            connection.execute(delete)
        connection.rollback()
        connection.execute("set role palimpsest_background")
        with pytest.raises(InsufficientPrivilege if table == "erasures" else RestrictViolation):
            connection.execute(delete)
