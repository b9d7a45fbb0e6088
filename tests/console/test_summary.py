"""The page of a summary shows the very prompt that the model was sent, what it answered, and what the guard missed."""

from __future__ import annotations

import html
import re
from typing import TYPE_CHECKING, Final, NamedTuple

import pytest

from runtime.ids import external
from tests.console.test_pages import HOSTILE
from tests.support import talk
from tests.support.service.console_client import key_of, query, sign_in, signed_in, text_of
from tests.support.service.in_process import Chat, Workers
from tests.support.service.running_api import conversation_at
from worker.summarizers import SummaryError
from worker.summarizers.base import Answer, Spent
from worker.summarizers.guard import QualityGuard
from worker.summarizers.staged import StagedSummarizer

if TYPE_CHECKING:
    from tests.support.service.running_api import Service

MODEL: Final = "claude-haiku-4-5"
WINDOW: Final = 200_000
ORDER: Final = "ORD-2026-88417"
POLICY: Final = {
    "input_token_budget": 0,
    "compaction_threshold_tokens": 3_000,
    "min_savings_tokens": 100,
    "protected_tail_messages": 4,
}
ANSWER: Final = """## Goal
The user asked about parcels and orders. <b>
## Facts and identifiers
lorem ipsum dolor sit amet, request and answer.
## Decisions
Nothing was decided.
## Open questions
None.
## Current state
The parcels were looked at; the user goes on to ask.
## Next steps
Go on.
"""


class Recorded(NamedTuple):
    """A request as the model got it."""

    system: str
    text: str


class Model:
    """Answers without the values that matter; what it was asked is remembered."""

    name = "anthropic"
    model = MODEL
    context_tokens = WINDOW

    def __init__(self) -> None:
        self.asked: list[Recorded] = []
        self.fails = False

    def ask(self, system: str, prompt: str, *, max_tokens: int) -> Answer:
        assert max_tokens > 0
        self.asked.append(Recorded(system, prompt))
        if self.fails:
            raise SummaryError("model_overloaded", "529 <b>", Spent(1))
        return Answer(ANSWER, "end_turn", Spent(1, 1_000, 100))


class Told(NamedTuple):
    """A conversation with a summary by a model, another on top of it, one in whose place an extract stands, and another
    that has made good for that."""

    path: str
    runs: list[str]
    asked: list[list[Recorded]]
    """By run, those that ask for the summary first."""


@pytest.fixture(scope="module")
def told(service: Service) -> Told:
    model = Model()
    path = service.conversation(policy=POLICY)
    identifier = conversation_at(path)
    asked = []
    with Chat(service.settings, service.tenant_id) as chat:
        workers = Workers(chat, StagedSummarizer(model, QualityGuard))
        for number in range(4):
            model.fails = number == 2
            before = len(model.asked)
            messages = talk.exchanges(7, 220, start=7 * number)
            messages[4] = {"role": "user", "content": f"Where is {ORDER}-{number}? {HOSTILE}".replace("\ud7ff", "")}
            messages += [*talk.rounds(2, 150, start=2 * number), talk.answer(f"looked {number}")]
            service.append(path, *messages)
            workers.settle(identifier)
            asked.append(model.asked[before:])
    rows = query(
        service,
        "select distinct run_id from run_steps where name in ('summary', 'extract') and run_id in"
        " (select id from runs where conversation_id = %s) order by run_id",
        identifier,
    )
    return Told(path, [external("run", row[0]) for row in rows], asked)


def prompts(page: str) -> list[str]:
    return [html.unescape(each) for each in re.findall(r'<pre class="prompt"[^>]*>(.*?)</pre>', page, re.DOTALL)]


def as_text(content: str) -> str:
    # Browsers and templates leave a text as it is, but for a line break at its very end.
    return content.strip("\n")


@pytest.mark.parametrize("number", [0, 1, 3])
def test_the_prompt_is_the_one_that_was_sent(service: Service, told: Told, number: int) -> None:
    with signed_in(service, {"audit:read"}) as client:
        page = client.get(f"/console/runs/{told.runs[number]}/summary").text
        assert (
            f'href="/console/runs/{told.runs[number]}/summary"' in client.get(f"/console/runs/{told.runs[number]}").text
        )
    sent = told.asked[number][0]
    rules, text = prompts(page)
    assert as_text(rules) == as_text(sent.system)
    assert as_text(text) == as_text(sent.text)
    for hostile in ("<script>alert", "<img src=x", "asked about parcels and orders. <b>"):
        assert hostile not in page


def test_what_the_guard_missed_and_what_it_added(service: Service, told: Told) -> None:
    with signed_in(service) as client:
        page = client.get(f"/console/runs/{told.runs[0]}/summary").text
    written = text_of(page.partition("What stands in the context")[2])
    answer, _, guard = written.partition("Exact values")
    assert "asked about parcels and orders. <b>" in answer
    added = answer.partition("Added by the quality guard, word for word")[2]
    assert f"{ORDER}-0" in added
    missed = guard.partition("Missed by the answer, and wanted by the guard")[2]
    assert f"{ORDER}-0" in missed.partition("Still missing")[0]


def test_what_stays_before_a_summary_was_not_missed(service: Service) -> None:
    path = service.conversation(policy=POLICY)
    opening = [
        {"role": "system", "content": "You look after parcels."},
        {"role": "user", "content": f"I am customer {ORDER}-7, by the way."},
        {"role": "assistant", "content": f"Noted, you are {ORDER}-7."},
        {"role": "user", "content": f"And what of {ORDER}-8?"},
        {"role": "assistant", "content": f"{ORDER}-8 is on its way."},
    ]
    service.append(path, *opening, *talk.exchanges(12, 200), shape="chat")
    with Chat(service.settings, service.tenant_id) as chat:
        Workers(chat, StagedSummarizer(Model(), QualityGuard)).settle(conversation_at(path))
        run = external("run", chat.run(conversation_at(path)).id)
    with signed_in(service) as client:
        guard = text_of(client.get(f"/console/runs/{run}/summary").text).rpartition("Exact values")[2]
    missed = guard.partition("Missed by the answer, and wanted by the guard")[2].partition("In the summary")[0]
    assert f"{ORDER}-8" in missed
    assert f"{ORDER}-7" not in missed


def test_where_an_extract_stands_in_its_prompt_is_shown_and_its_failure_told(service: Service, told: Told) -> None:
    with signed_in(service) as client:
        page = client.get(f"/console/runs/{told.runs[2]}/summary").text
    assert "model overloaded" in text_of(page)
    assert "529 &lt;b&gt;" in page
    assert as_text(prompts(page)[1]) == as_text(told.asked[2][0].text)


def test_nothing_of_it_is_kept_and_nobody_else_sees_it(service: Service, told: Told) -> None:
    ((columns,),) = query(
        service,
        "select count(*) from information_schema.columns where table_schema = 'public' and column_name ~ 'prompt'"
        " and column_name <> 'prompt_version'",
    )
    assert columns == 0
    with sign_in(service, key_of(service.stranger)) as stranger:
        assert stranger.get(f"/console/runs/{told.runs[0]}/summary").status_code == 404
    with signed_in(service) as client:
        for odd in ("run_x", external("run", service.tenant_id), told.runs[0][4:]):
            assert client.get(f"/console/runs/{odd}/summary").status_code == 404
        asked = service.client.post(f"{told.path}/compactions", json={"strategy": "trim"}).json()["run_id"]
        assert client.get(f"/console/runs/{asked}/summary").status_code == 404
        assert f"{asked}/summary" not in client.get(f"/console/runs/{asked}").text
        assert service.client.delete(told.path).status_code == 200
        for run in told.runs:
            gone = client.get(f"/console/runs/{run}/summary")
            assert gone.status_code == 404
            assert ORDER not in gone.text
