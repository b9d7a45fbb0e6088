"""What was saved, spent and stored is one number each: in the console, the command, SQL, the API and the metrics."""

from __future__ import annotations

import json
import re
from collections import Counter
from decimal import Decimal
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import pytest
from prometheus_client.parser import text_string_to_metric_families

from cli.conversations.inspect import run_inspect
from cli.installation.stats import run_stats
from tests.support import talk
from tests.support.service.console_client import key_of, query, signed_in, text_of
from tests.support.service.in_process import Chat, Workers
from tests.support.service.running_api import conversation_at
from tests.support.service.stub_summarizer import StubSummarizer
from worker.metrics import METRICS
from worker.summarizers import SummaryError
from worker.summarizers.base import Spent

if TYPE_CHECKING:
    from collections.abc import Mapping

    from prometheus_client.registry import Collector

    from tests.support.service.running_api import Service
    from worker.summarizers import Summary, SummaryRequest

DAYS: Final = 7
POLICY: Final = {
    "input_token_budget": 2_000,
    "compaction_threshold_tokens": 4_000,
    "min_savings_tokens": 100,
    "model_context_tokens": 16_000,
    "max_tool_result_chars": 4_000,
}
SPENT: Final = Spent(calls=1, input_tokens=4_000, output_tokens=150, cost_usd=Decimal("0.014250"))
_HISTORY: Final = "select coalesce(sum(tokens_saved), 0), coalesce(sum(cost_usd), 0) from compaction_history"
_INPUT: Final = re.compile(r"(?:input tokens \(|Estimated )([\d,]+)")


class Paid(StubSummarizer):
    """Answers for money; every other time the model declines, for money too."""

    def summarize(self, request: SummaryRequest) -> Summary:
        done = super().summarize(request)
        if len(self.requests) % 2:
            raise SummaryError("model_refused", "the model declined to summarize", SPENT)
        return done._replace(spent=SPENT)


class Busy(NamedTuple):
    """A busy installation: its conversations' paths, and what its processes counted."""

    paths: list[str]
    saved_by_metrics: int
    cost_by_metrics: Decimal


def counted(name: str, families: Any) -> float:
    return sum(float(sample.value) for family in families for sample in family.samples if sample.name == name)


def all_counted(service: Service) -> Counter[str]:
    worker: Collector = METRICS.registry
    api = list(text_string_to_metric_families(service.api.client().get("/metrics").text))
    names = ("palimpsest_compaction_tokens_saved_total", "palimpsest_model_cost_usd_total")
    # The API tells of model costs what the audit does, over all processes.
    return Counter(
        {
            names[0]: counted(names[0], worker.collect()) + counted(names[0], api),
            names[1]: counted(names[1], worker.collect()),
        }
    )


@pytest.fixture(scope="module")
def busy(service: Service, module_within_a_day: None) -> Busy:
    before = all_counted(service)
    client = service.client
    paths = []
    with Chat(service.settings, service.tenant_id) as chat:
        workers = Workers(chat, Paid())
        for number in range(5):
            system = talk.prose("You help", 400) if number % 2 else None
            path = service.conversation(policy=POLICY, external_id=f"busy {number}", system=system)
            paths.append(path)
            for turn in range(6):
                messages = [
                    *talk.exchanges(2, 150, start=2 * turn),
                    talk.request(f"look {turn}"),
                    talk.call(turn),
                    talk.result(turn, 1_500),  # more than a context shows of one result
                    talk.answer(f"seen {turn}"),
                ]
                service.append(path, *messages)
                workers.settle(conversation_at(path))
            last = client.get(path).json()["last_seq"]
            service.append(path, talk.answer("another answer", 300), replace_from=last)
            assert client.post(f"{path}/pins", json={"seq": 1}).status_code < 300
            if number == 0:
                assert client.post(f"{path}/overflow", json={}).status_code == 200
            if number == 4:
                assert client.delete(path).status_code == 200
                paths.pop()
    after = all_counted(service)
    saved, cost = (after[name] - before[name] for name in before)
    return Busy(paths, round(saved), Decimal(str(round(cost, 6))))


def cells(page: str, title: str) -> list[list[str]]:
    """Return the cells of the table after the heading with that text."""
    after = page[page.index(title) :]
    rows = re.findall(r"<tr>(.*?)</tr>", after[: after.index("</table>")].partition("<tbody>")[2], re.DOTALL)
    return [[text_of(cell) for cell in re.findall(r"<t[hd][^>]*>(.*?)</t[hd]>", row, re.DOTALL)] for row in rows]


def whole(text: str) -> int:
    return int(text.replace(",", ""))


def dollars(text: str) -> Decimal:
    return Decimal(0) if text == "nothing" else Decimal(text.removeprefix("$").replace(",", ""))


def stats(service: Service, capsys: pytest.CaptureFixture[str]) -> Mapping[str, Any]:
    assert run_stats(service.settings, "acme", DAYS, as_json=True) == 0
    document: Mapping[str, Any] = json.loads(capsys.readouterr().out)
    return document


def test_what_was_saved_is_one_number(service: Service, busy: Busy, capsys: pytest.CaptureFixture[str]) -> None:
    ((in_sql, _),) = query(service, _HISTORY)
    ((of_failed,),) = query(service, "select sum(tokens_saved) from compaction_history where run_state = 'degraded'")
    assert of_failed > 0, "an extract has to have stood in for a summary"
    told = stats(service, capsys)
    with signed_in(service) as console:
        overview = console.get("/console", params={"days": DAYS}).text
        spending = console.get("/console/spending", params={"days": DAYS}).text
    saved = {
        "sql": in_sql,
        "command": told["tokens_cut"],
        "command, by day": sum(day["tokens_cut"] for day in told["days"]),
        "overview, by day": sum(whole(row[2]) for row in cells(overview, "Tokens cut, by day")),
        "spending, by day": sum(whole(row[6]) for row in cells(spending, 'id="by-day"')),
        "spending, by step": sum(whole(row[3]) for row in cells(spending, 'id="by-step"')),
        "metrics": busy.saved_by_metrics,
    }
    assert set(saved.values()) == {in_sql}, saved
    erased = query(
        service,
        f"{_HISTORY} as h where not exists (select from messages as m where m.conversation_id = h.conversation_id)",
    )[0][0]
    assert sum(whole(row[2]) for row in cells(spending, 'id="saved-most"')) == in_sql - erased


def test_what_was_spent_is_one_number(service: Service, busy: Busy, capsys: pytest.CaptureFixture[str]) -> None:
    ((_, in_sql),) = query(service, _HISTORY)
    ((of_failed,),) = query(service, "select sum(cost_usd) from compaction_history where step_state = 'failed'")
    assert of_failed > 0, "a summary that failed has to have cost something"
    told = stats(service, capsys)
    usage = service.client.get("/v1/tenant/usage", params={"days": DAYS}).json()["days"]
    with signed_in(service) as console:
        overview = text_of(console.get("/console", params={"days": DAYS}).text)
        spending = console.get("/console/spending", params={"days": DAYS}).text
    match = re.search(r"Spent on models \$([\d.]+)", overview)
    assert match
    assert Decimal(match[1]) == in_sql.quantize(Decimal("0.0001"))
    spent = {
        "sql": in_sql,
        "api": sum(Decimal(day["cost_usd"]) for day in usage),
        "command": sum(Decimal(day["cost_usd"]) for day in told["days"]),
        "metrics": busy.cost_by_metrics,
    }
    assert set(spent.values()) == {in_sql}, spent
    by_step = {row[0]: (row[1], row[2], dollars(row[4])) for row in cells(spending, 'id="by-step"')}
    assert by_step["summary"][2] == in_sql.quantize(Decimal("0.0001"))
    assert by_step["summary"][1] != ""
    ((erased,),) = query(
        service, "select coalesce(sum(cost_usd), 0) from conversation_costs where erased_at is not null"
    )
    rounding = Decimal("0.0001") * len(busy.paths)
    most_saved = sum(dollars(row[3]) for row in cells(spending, 'id="saved-most"'))
    assert abs(most_saved - (in_sql - erased)) <= rounding


def test_what_is_stored_is_one_number(service: Service, busy: Busy, capsys: pytest.CaptureFixture[str]) -> None:
    stored = []
    for path in busy.paths:
        ((in_sql, superseded),) = query(
            service,
            "select tokens_stored, messages_superseded from conversation_costs where conversation_id = %s",
            conversation_at(path),
        )
        assert superseded == 1
        run_inspect(path.rpartition("/")[2], url=service.api.url, key=key_of(service.client), as_json=True)
        document = json.loads(capsys.readouterr().out)
        with signed_in(service) as console:
            html = console.get(f"/console{path.removeprefix('/v1')}").text
        page = text_of(html)
        held = re.search(r"the conversation holds ([\d,]+) tokens", html)
        assert held
        # The plot is of whole inputs: with the system prompt, where there is one.
        fixed = 400 if busy.paths.index(path) % 2 else 0
        assert abs(whole(held[1]) - fixed - in_sql) <= fixed // 20
        match = re.search(r"Stored ([\d,]+) tokens in", page)
        assert match
        assert (whole(match[1]), document["tokens_stored"]) == (in_sql, in_sql)
        stored.append(in_sql)
    assert stats(service, capsys)["tokens_stored"] == sum(stored)


def test_a_steps_reason_and_its_column_name_the_same_number(service: Service, busy: Busy) -> None:
    steps = query(
        service, "select detail, tokens_before from run_steps where detail is not null and name <> 'overflow'"
    )
    items = [(detail, tokens, whole(found[1])) for detail, tokens in steps if (found := _INPUT.search(detail))]
    assert any(tokens != counted for _, tokens, counted in items), "the system prompt has to weigh something"
    for detail, tokens, _ in items:
        assert f"{tokens:,}" in detail
