"""What compaction saved of the chat's own calls: from the usage of turns to the console and `palimpsest stats`."""

from __future__ import annotations

import json
import re
from typing import TYPE_CHECKING, Any

import psycopg
from psycopg.rows import dict_row

from cli.installation.stats import run_stats
from tests.support.eventually import eventually
from tests.support.service.console_client import signed_in, text_of
from tests.support.service.running_api import conversation_at
from worker.database import Database
from worker.sweeping.reckoning import Reckoning

if TYPE_CHECKING:
    from uuid import UUID

    import pytest

    from tests.support.service.running_api import Service

MESSAGES = {"input_tokens": 100, "cache_read_input_tokens": 3_000, "cache_creation_input_tokens": 900}
CHAT = {"prompt_tokens": 5_000, "completion_tokens": 20, "prompt_tokens_details": {"cached_tokens": 3_500}}
RESPONSES = {"input_tokens": 6_000, "output_tokens": 20, "input_tokens_details": {"cached_tokens": 0}}


def turn(service: Service, path: str, usage: dict[str, Any] | None, shape: str = "messages", **fields: Any) -> int:
    body = {"messages": [{"role": "assistant", "content": "So."}, {"role": "user", "content": "And?"}], "shape": shape}
    answer = service.client.post(f"{path}/turns", json=body | fields | ({"usage": usage} if usage else {}))
    assert answer.status_code == 201, answer.text
    first: int = answer.json()["first_seq"]
    return first


def rows_of(service: Service, conversation: UUID) -> list[dict[str, Any]]:
    with psycopg.connect(service.database_url, row_factory=dict_row) as connection:
        statement = "select * from turn_usages where conversation_id = %s order by seq"
        return connection.execute(statement, (conversation,)).fetchall()


def test_usages_of_turns_come_to_the_page_and_the_command(service: Service, capsys: pytest.CaptureFixture[str]) -> None:
    path = service.conversation(model="claude-opus-5-5", external_id="ticket <b>")
    service.client.post(f"{path}/turns", json={"messages": [{"role": "user", "content": "Go."}]})
    seqs = [
        turn(service, path, {"input_tokens": 3_000, "output_tokens": 10}),
        turn(service, path, MESSAGES | {"output_tokens": 10}, snapshot_version=0),
        turn(service, path, CHAT, "chat"),
        turn(service, path, RESPONSES, "responses"),
        turn(service, path, MESSAGES | {"output_tokens": 10}, replace_from=5),
    ]
    turn(service, path, None)
    identifier = conversation_at(path)

    def kept() -> list[dict[str, Any]]:
        rows = rows_of(service, identifier)
        return rows if len(rows) == len(seqs) else []

    rows = eventually(kept)
    assert [row["seq"] for row in rows] == seqs
    counted = [(row["input_tokens"], row["cached_tokens"], row["written_tokens"]) for row in rows]
    said = (4_000, 3_000, 900)
    # That a cache had nothing is said as well; what nobody counts is not.
    assert counted == [(3_000, None, None), said, (5_000, 3_500, None), (6_000, 0, None), said]
    assert [row["is_edit"] for row in rows] == [False, False, False, False, True]
    database = Database(service.settings, "test")
    Reckoning(service.settings, database).reckon()
    database.close()
    rows = rows_of(service, identifier)
    assert [row["prefix_tokens"] for row in rows] == [0, 3_000, 4_000, 5_000, None]
    with signed_in(service) as client:
        page = client.get("/console/spending", params={"days": 7}).text
    section = re.search(r'<h2 id="calls">.*?</section>', page, re.DOTALL)
    assert section
    cells = [text_of(cell) for cell in re.findall(r"<t[hd][^>]*>(.*?)</t[hd]>", section[0], re.DOTALL)]
    assert cells[9 + 1 : 9 + 3] == ["5", "22,000"]
    assert run_stats(service.settings, "acme", 7, as_json=True) == 0
    calls = json.loads(capsys.readouterr().out)["calls"]
    assert (calls["calls"], calls["input_tokens"], calls["cached_tokens"]) == (5, 22_000, 9_500)
    assert calls["saved_tokens"] == 0
    assert float(calls["cost_usd"]) > 0
    assert run_stats(service.settings, "acme", 7, as_json=False) == 0
    assert "0 tokens of 5 calls with a usage, 0.000000 USD" in " ".join(capsys.readouterr().out.split())


def test_unknown_price_is_said_with_the_way_to_set_one(service: Service, capsys: pytest.CaptureFixture[str]) -> None:
    path = service.conversation(model="model-nobody-lists")
    service.client.post(f"{path}/turns", json={"messages": [{"role": "user", "content": "Go."}]})
    turn(service, path, {"input_tokens": 3_000, "output_tokens": 10})
    eventually(lambda: rows_of(service, conversation_at(path)))
    database = Database(service.settings, "test")
    Reckoning(service.settings, database).reckon()
    database.close()
    with signed_in(service) as client:
        page = text_of(client.get("/console/spending", params={"days": 7}).text)
    said = re.search(
        r"No price for (\d+) of (\d+) calls?, so that money leaves them out: model-nobody-lists \(1\)", page
    )
    assert said, page
    assert "model_prices" in page
    assert run_stats(service.settings, "acme", 7, as_json=False) == 0
    printed = " ".join(capsys.readouterr().out.split())
    assert f"no price for {said[1]} of {said[2]} call" in printed
    assert "name the conversation's `model`" in printed
