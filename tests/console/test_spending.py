"""The page of spending: the numbers of the API and of `palimpsest stats`, by day and model, and whence they come."""

from __future__ import annotations

import json
import re
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from typing import TYPE_CHECKING, Any

import psycopg
import pytest

from api.console.views.bars import HEIGHT, stacked
from api.console.views.spending import OTHER, spent
from cli.installation.stats import run_stats
from cli.installation.tenants import Changes, run_limits
from runtime.ids import external
from store.console.spending import ModelDay
from store.operations.statistics import Day
from store.tenants.budgets import Budget
from tests.support.service.console_client import key_of, sign_in, signed_in, text_of
from tests.support.spent_days import Call, id_at, spend

if TYPE_CHECKING:
    from datetime import date

    from tests.support.service.running_api import Service

HAIKU, SONNET, OWN = "claude-haiku-4-5", "claude-sonnet-4-5", "own-model <b>"
CALLS = (
    Call(0, HAIKU, 80_000, 2_000, Decimal("0.09"), "small"),
    Call(1, SONNET, 70_000, 2_000, Decimal("0.24"), "large <b>"),
    Call(1, HAIKU, 60_000, 1_000, Decimal("0.065"), "large <b>"),
    Call(6, SONNET, 90_000, 3_000, Decimal("0.315"), "large <b>"),
    Call(6, OWN, 1_000, 100, None, "small"),
    Call(40, SONNET, 50_000, 1_000, Decimal("0.165"), "old"),
    Call(100, SONNET, 999_999, 1, Decimal("9.99"), "ancient"),
)
_TITLE = re.compile(r"<title>(\d{4}-\d\d-\d\d): (?:([^,<]+), )?\$([\d.]+)</title>")


@pytest.fixture(scope="module")
def runs(service: Service, module_within_a_day: None) -> list[str]:
    return [external("run", each) for each in spend(service.database_url, service.tenant_id, CALLS)]


def show(service: Service, days: int) -> str:
    with signed_in(service) as client:
        answer = client.get("/console/spending", params={"days": days})
        assert answer.status_code == 200, answer.text
        return answer.text


def table(page: str, title: str) -> list[list[str]]:
    """Return the cells of the table in the section of that title."""
    section = re.search(rf'<h2 id="{title}">.*?</section>', page, re.DOTALL)
    assert section
    rows = re.findall(r"<tr>(.*?)</tr>", section[0].partition("<tbody>")[2], re.DOTALL)
    return [[text_of(cell) for cell in re.findall(r"<t[hd][^>]*>(.*?)</t[hd]>", row, re.DOTALL)] for row in rows]


def test_it_agrees_with_the_api_and_the_command(
    service: Service, runs: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    page = show(service, 90)
    usage = service.client.get("/v1/tenant/usage", params={"days": 90}).json()["days"]
    since = (datetime.now(UTC) - timedelta(days=89)).date().isoformat()
    told = {day["day"]: day for day in usage if day["day"] >= since}
    assert len(told) == 4
    names = {row[0]: row[1:] for row in table(page, "by-day")}
    assert len(names) == 90
    assert {day: tuple(row[:3]) for day, row in names.items() if row[0] != "0"} == {
        day: tuple(f"{each[name]:,}" for name in ("model_calls", "input_tokens", "output_tokens"))
        for day, each in told.items()
    }
    total = sum(Decimal(day["cost_usd"]) for day in told.values())
    assert total == sum(call.cost or 0 for call in CALLS if call.days_ago < 90)
    assert f"Spent on models ${total:.4f} in 90 days, 6 calls" in text_of(page)
    assert run_stats(service.settings, "acme", 90, as_json=True) == 0
    for day in json.loads(capsys.readouterr().out)["days"]:
        assert names[day["day"]][4:] == [f"{day['runs']:,}", f"{day['tokens_cut']:,}"]
        assert names[day["day"]][1] == f"{day['model_input_tokens']:,}"


def test_models_steps_conversations_and_runs(service: Service, runs: list[str]) -> None:
    page = show(service, 7)
    assert table(page, "by-model") == [
        [SONNET, "2", "160k", "5k", "$0.5550", "78%"],
        [HAIKU, "2", "140k", "3k", "$0.1550", "22%"],
        [OWN, "1", "1k", "100", "unknown", "0%"],
    ]
    assert [row[:2] for row in table(page, "by-step")] == [["summary", "5"]]
    assert [row[0] for row in table(page, "saved-most")] == ["large <b>", "small"]
    (dearest, *others) = table(page, "costliest")
    assert [row[0] for row in (dearest, *others)] == [f"run_…{runs[number][-8:]}" for number in (3, 1, 0, 2, 4)]
    assert dearest[4:8] == [SONNET, "90,000", "3,000", "$0.3150"]
    assert f'href="/console/runs/{runs[3]}"' in page
    assert "<b>" not in page.partition("<main")[2].replace("&lt;b&gt;", "").replace("<b></b>", "")
    drawn = {(day, name): Decimal(cost) for day, name, cost in _TITLE.findall(page)}
    assert sum(drawn.values()) == Decimal("0.71")
    assert {name for _, name in drawn} == {SONNET, HAIKU}


def test_the_budget_is_a_line_and_its_end_is_told(service: Service, runs: list[str]) -> None:
    assert run_limits(service.settings, "acme", Changes(daily_model_cost_usd="0.5"), as_json=True) == 0
    page = show(service, 7)
    assert page.count("threshold-total_token_budget") == 1
    assert "Today $0.0900 of $0.5000" in text_of(page)
    assert "budget is spent" not in page
    assert run_limits(service.settings, "acme", Changes(daily_model_cost_usd="0.05"), as_json=True) == 0
    assert "Today's budget is spent" in text_of(show(service, 7))
    assert run_limits(service.settings, "acme", Changes(daily_model_cost_usd="default"), as_json=True) == 0


def test_what_was_imported_was_paid_for_elsewhere(service: Service, runs: list[str]) -> None:
    """Its steps are there, the usage is not: the conversation's id is younger than they."""
    before = table(show(service, 7), "by-model")
    with psycopg.connect(service.database_url) as connection:
        connection.execute("select set_config('app.tenant_id', %s, true)", (str(service.tenant_id),))
        young = id_at(datetime.now(UTC))
        connection.execute("insert into conversations (id, tenant_id) values (%s, %s)", (young, service.tenant_id))
        connection.execute("alter table runs disable trigger user")
        moved = connection.execute(
            "update runs set conversation_id = %s where id = %s returning 1", (young, runs[3].removeprefix("run_"))
        )
        assert moved.fetchall() == [(1,)]
        connection.execute("alter table runs enable trigger user")
    after = table(show(service, 7), "by-model")
    assert before != after
    # The day's usage still counts it here: nothing of it is told by a step any more.
    assert after[-1][:5] == [OTHER, "1", "90k", "3k", "$0.3150"]


def test_others_see_nothing_of_it(service: Service, runs: list[str]) -> None:
    with sign_in(service, key_of(service.stranger)) as client:
        page = client.get("/console/spending").text
        assert "No model was asked" in page
        assert HAIKU not in page
        assert client.get("/console/spending", params={"days": "8"}).status_code == 422
    with signed_in(service, {"audit:read"}) as reader:
        assert reader.get("/console/spending").status_code == 200


def day(ago: int, **fields: Any) -> Day:
    at: date = (datetime.now(UTC) - timedelta(days=ago)).date()
    nothing = dict.fromkeys(Day._fields[1:-1], 0)
    return Day(**{"day": at, **nothing, "cost_usd": Decimal(0), **fields})


def test_what_no_step_tells_of_is_other() -> None:
    days = [day(0, model_calls=3, model_input_tokens=300, cost_usd=Decimal(3)), day(1)]
    items = [ModelDay(days[0].day, HAIKU, 2, 250, 0, Decimal(2), 0)]
    found = spent(days, items, Budget())
    assert [(model.name, model.calls, model.input_tokens, model.cost_usd, model.kind) for model in found.models] == [
        (HAIKU, 2, 250, Decimal(2), "model-1"),
        (OTHER, 1, 50, Decimal(1), OTHER),
    ]
    assert found.cost_of_cut_million is None
    assert [[part.name for part in bar.parts] for bar in found.money.bars] == [[], [HAIKU, OTHER]]


@pytest.mark.parametrize("limit", [None, 0, 1, 900, 1_000, 10**9])
def test_bars_stay_within_their_drawing(limit: int | None) -> None:
    start = datetime.now(UTC).date()
    days = [(start + timedelta(days=n), [("a", n * 11), ("b", 0), ("c", n * 3)]) for n in range(90)]
    found = stacked(days, limit)
    assert all(0 <= part.y <= HEIGHT for bar in found.bars for part in bar.parts)
    assert all(part.value for bar in found.bars for part in bar.parts)
    assert (found.line is not None) == (limit is not None and 0 < limit <= 2 * 89 * 14)
    assert sum(1 for bar in found.bars if bar.label) <= 7
    assert stacked([]).bars == []
