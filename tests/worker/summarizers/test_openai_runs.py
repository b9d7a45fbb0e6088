"""Whole runs whose summaries are written by a server of Chat Completions: what is asked, committed and paid."""

from __future__ import annotations

from decimal import Decimal
from typing import TYPE_CHECKING, Any

import pytest

from compaction.policy import Policy
from tests.support.messages_api import problems
from tests.support.servers.loopback_chat import CHAT, Dialect, choice
from tests.support.servers.loopback_model import LoopbackModel
from tests.support.servers.loopback_steps import ok, status
from tests.support.service.in_process_worker import work
from tests.support.service.paid_workers import counted
from tests.support.talk import exchanges, request
from worker.parts import choose_model, choose_summarizer
from worker.summarizers.openai import OpenAIModel

if TYPE_CHECKING:
    from uuid import UUID

    from runtime.settings import Settings
    from store.tables import AnyRow
    from tests.support.service.in_process import Chat

MODEL = "ours-7b"


def settings_of(chat: Chat, server: LoopbackModel, **fields: Any) -> Settings:
    given = {"summarizer": "openai", "summarizer_model": MODEL, "openai_base_url": f"{server.url}/v1"}
    return chat.settings.model_copy(update=given | fields)


def long(chat: Chat, **policy: Any) -> UUID:
    conversation = chat.begin(policy)
    chat.append(conversation, [*exchanges(12, 200), request("and then?")])
    return conversation


def summary_step(chat: Chat, conversation: UUID) -> AnyRow:
    (step,) = [step for run in chat.runs(conversation) for step in chat.steps(run.id) if step.name == "summary"]
    return step


def test_a_run_is_summarized_by_the_server(chat: Chat, server: LoopbackModel) -> None:
    conversation = long(chat)
    work(settings_of(chat, server), conversation)
    step = summary_step(chat, conversation)
    (sent,) = server.requests
    assert (sent.path, sent.body["model"], sent.body["max_tokens"]) == (CHAT, MODEL, Policy().summary_max_tokens)
    assert (step.state, step.summarizer, step.model) == ("committed", "openai", MODEL)
    assert (step.model_calls, step.model_input_tokens, step.cost_usd) == (1, sent.input_tokens, None)
    context = chat.context(conversation)["messages"]
    assert problems(context) == []
    assert "Summary of the conversation so far." in str(context[0])
    assert len(context) < len(exchanges(12, 200))


@pytest.mark.parametrize(
    "dialect", [Dialect(limits=frozenset({"max_completion_tokens"}), temperature=False, system=False), Dialect()]
)
def test_a_server_that_knows_less_writes_one_all_the_same(chat: Chat, dialect: Dialect) -> None:
    conversation = long(chat)
    with LoopbackModel(default=ok("In short.\n" + "Summary. " * 20), dialect=dialect) as server:
        work(settings_of(chat, server), conversation)
        assert summary_step(chat, conversation).model_calls == len(server.requests)
    assert summary_step(chat, conversation).state == "committed"


def test_a_window_that_is_smaller_than_was_thought_is_filled_part_by_part(chat: Chat) -> None:
    conversation = long(chat)
    with LoopbackModel(context_tokens=2_600) as server:
        work(settings_of(chat, server, summarizer_context_tokens=32_000), conversation)
        step = summary_step(chat, conversation)
        refused = [each for each in server.requests if each.status == 400]
        assert refused
        assert len(server.requests) - len(refused) > 1
    assert (step.state, step.reason) == ("committed", None)
    assert step.model_calls == len(server.requests)


@pytest.mark.parametrize(
    ("fault", "reason"),
    [
        pytest.param(status(401), "model_auth", id="a refused key"),
        pytest.param(status(404, error_type="model_not_found"), "model_rejected", id="no such model"),
        pytest.param(status(429, error_type="insufficient_quota"), "model_billing", id="an unpaid account"),
        pytest.param(choice({"refusal": "No.", "content": None}), "model_refused", id="a refusal"),
        pytest.param(choice({"content": "half"}, "content_filter"), "model_refused", id="a filter"),
        pytest.param(choice({"content": None, "reasoning_content": "hm"}), "empty_summary", id="thoughts alone"),
    ],
)
def test_without_an_answer_an_extract_takes_its_place(
    chat: Chat, server: LoopbackModel, fault: Any, reason: str
) -> None:
    server.default = fault
    conversation = long(chat)
    work(settings_of(chat, server, breaker_failures=0), conversation)
    step = summary_step(chat, conversation)
    assert (step.state, step.reason) == ("failed", reason)
    (run,) = chat.runs(conversation)
    assert [each.name for each in chat.steps(run.id) if each.state == "committed"] == ["extract"]
    assert problems(chat.context(conversation)["messages"]) == []


def test_thoughts_that_take_the_room_cost_one_question_more(chat: Chat, server: LoopbackModel) -> None:
    server.then(choice({"content": "", "reasoning_content": "hm"}, "length"))
    conversation = long(chat)
    work(settings_of(chat, server, summarizer_model="thinks-first"), conversation)
    first, second = (each.body["max_tokens"] for each in server.requests)
    assert second > first
    assert summary_step(chat, conversation).state == "committed"


def test_each_tenant_may_have_a_model_of_its_own_and_its_prices(chat: Chat, server: LoopbackModel) -> None:
    usage = {"input_tokens": 1_000, "output_tokens": 100}
    server.default = ok("In short.\n" + "Summary. " * 20, usage=usage)
    settings = settings_of(chat, server, summarizer_models=["ours-70b"])
    prices = {"ours-70b": {"input": 2, "output": 8}}
    chosen, plain, refused = (
        long(chat, **policy)
        for policy in ({"summarizer_model": "ours-70b", "model_prices": prices}, {}, {"summarizer_model": "theirs"})
    )
    for conversation in (chosen, plain, refused):
        work(settings, conversation)
    step = summary_step(chat, chosen)
    assert (step.state, step.model, step.cost_usd) == ("committed", "ours-70b", step.model_calls * Decimal("0.0028"))
    assert (summary_step(chat, plain).model, summary_step(chat, plain).cost_usd) == (MODEL, None)
    step = summary_step(chat, refused)
    assert (step.state, step.reason, step.model, step.model_calls) == ("failed", "model_rejected", "theirs", 0)
    assert {each.body["model"] for each in server.requests} == {MODEL, "ours-70b"}


@pytest.mark.parametrize("price", [None, 1_000])
def test_a_budget_in_money_counts_by_the_tenants_price_where_nobody_has_another(
    chat: Chat, server: LoopbackModel, price: int | None
) -> None:
    policy = {} if price is None else {"model_prices": {MODEL: {"input": price, "output": price}}}
    settings = settings_of(chat, server, daily_model_cost_usd=Decimal("0.01"))
    states = []
    for conversation in (long(chat, **policy), long(chat, **policy)):
        work(settings, conversation)
        states.append((summary_step(chat, conversation).state, summary_step(chat, conversation).reason))
    assert states == [("committed", None), ("committed", None) if price is None else ("skipped", "budget_spent")]
    assert counted(chat).calls == len(server.requests)


def test_what_the_settings_name_is_what_a_worker_has(chat: Chat, server: LoopbackModel) -> None:
    settings = settings_of(chat, server)
    make_summarizer, make_model = choose_summarizer(settings), choose_model(settings)
    assert make_summarizer is not None
    assert make_model is not None
    assert (make_summarizer().name, make_summarizer().model) == ("openai", MODEL)
    assert isinstance(make_model(), OpenAIModel)
