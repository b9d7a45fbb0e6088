"""The samples of docs/existing-conversations.md, run as they stand there."""

from __future__ import annotations

import json
import re
import sqlite3
from typing import TYPE_CHECKING, Any, Final

import psycopg
import pytest
from palimpsest_client import Client, UnexpectedSeqError

from cli.client.client import ServiceClient
from compaction.policy import merge
from tests.support.places import ROOT
from tests.support.talk import exchanges

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from tests.support.service.running_api import Service

PAGE: Final = (ROOT / "docs/existing-conversations.md").read_text()


def samples(language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```$", PAGE, re.MULTILINE | re.DOTALL)


@pytest.fixture(scope="module")
def names() -> dict[str, Any]:
    defined: dict[str, Any] = {}
    for sample in samples("python"):
        exec(compile(sample, "docs/existing-conversations.md", "exec"), defined)  # noqa: S102 - the page's own code
    return defined


@pytest.fixture
def client(service: Service) -> Iterator[Client]:
    key = str(service.client.headers["authorization"]).removeprefix("Bearer ")
    with Client(service.api.url, key) as made:
        yield made


def stored(client: Client, external_id: str) -> list[Any]:
    (listed,) = client.list_conversations(external_id=external_id).data
    return [(each["role"], each["content"]) for each in client.list_messages(listed["id"], limit=100).data]


def forget_keys(service: Service) -> None:
    """Do what a day does to idempotency keys."""
    with psycopg.connect(service.database_url) as connection:
        assert connection.execute("delete from idempotency_keys").rowcount > 0


def test_a_table_is_brought_in_once(service: Service, client: Client, names: dict[str, Any]) -> None:
    names["AT_A_TIME"] = 8
    said = exchanges(10, 20)
    with sqlite3.connect(":memory:") as table:
        table.execute("create table chats (id text, user_name text)")
        table.execute("create table chat_messages (chat text, number integer, role text, content text)")
        table.execute("insert into chats values ('chat-1', 'anna')")
        rows = [("chat-1", n, each["role"], json.dumps(each["content"])) for n, each in enumerate(said)]
        table.executemany("insert into chat_messages values (?, ?, ?, ?)", rows)
        (policy,) = map(json.loads, samples("json"))
        for day in range(3):
            names["bring_in"](client, table, policy["policy"])
            assert stored(client, "chat-1") == [(each["role"], each["content"]) for each in said]
            if day == 1:
                forget_keys(service)
        (listed,) = client.list_conversations(external_id="chat-1").data
        assert listed["user_ref"] == "anna"
        assert merge(policy["policy"]) == merge(client.get_conversation(listed["id"])["policy"])
        client.append(listed["id"], said[:1])
        table.executemany(
            "insert into chat_messages values (?, ?, ?, ?)", [("chat-1", 20 + n, *rows[n][2:]) for n in (0, 1)]
        )
        with pytest.raises(UnexpectedSeqError):
            names["bring_in"](client, table)


def test_a_log_is_brought_in_once(service: Service, client: Client, names: dict[str, Any], tmp_path: Path) -> None:
    file = tmp_path / "log.json"
    call = {"id": "c1", "function": {"name": "look", "arguments": "{}"}}
    said = [
        {"role": "system", "content": "Be brief."},
        {"role": "user", "content": "Look."},
        {"role": "assistant", "content": None, "tool_calls": [call]},
        {"role": "tool", "tool_call_id": "c1", "content": "a cat"},
        {"role": "assistant", "content": "A cat."},
    ]
    file.write_text(json.dumps({"id": "log-1", "messages": said}))
    key = str(service.client.headers["authorization"]).removeprefix("Bearer ")
    for _ in range(2):
        with ServiceClient(service.api.url, key) as commands:
            names["bring_in_file"](commands, file)
        (listed,) = client.list_conversations(external_id="log-1").data
        originals = service.client.get(f"/v1/conversations/{listed['id']}/messages?after=-1").json()["data"]
        assert [each["original"] for each in originals] == said
