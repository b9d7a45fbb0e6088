"""Summaries that fit one request to Claude: what is sent, and what is made of the answer."""

from __future__ import annotations

from decimal import Decimal
from typing import TYPE_CHECKING, Any

import pytest

from compaction.policy import Policy
from compaction.summary.transcript import PROMPT_VERSION, SYSTEM_PROMPT
from compaction.view import ViewMessage
from runtime.settings import Settings
from tests.support.encoded import request as encoded
from tests.support.servers.loopback_steps import Step, max_tokens, ok, refusal
from tests.support.talk import answer, call, request, result
from worker.summarizers import SummaryError, SummaryRequest
from worker.summarizers.anthropic import AnthropicModel
from worker.summarizers.staged import StagedSummarizer, finished

if TYPE_CHECKING:
    from tests.support.servers.loopback_model import LoopbackModel

SECRET = "sk-ant-nobody-may-see-this"


def summarizer(model: LoopbackModel, **fields: Any) -> StagedSummarizer:
    given: dict[str, Any] = {
        "summarizer_deadline_seconds": 20,
        "ANTHROPIC_API_KEY": SECRET,
        "ANTHROPIC_BASE_URL": model.url,
    }
    return StagedSummarizer(AnthropicModel(Settings(**given | fields)))


def asked(*, previous: str | None = None, **policy: Any) -> SummaryRequest:
    messages = [request("the first wish", 30), answer("an answer", 30), call(1), result(1, 600), answer("found it")]
    zone = [ViewMessage(message["role"], message["content"], seq) for seq, message in enumerate(messages, start=1)]
    return SummaryRequest(zone, previous, Policy(**policy))


@pytest.mark.requirement("S8")
def test_one_call_not_streamed_with_temperature_0(model: LoopbackModel) -> None:
    model.then(ok("  The user wishes.  ", output_tokens=7))
    summary = summarizer(model).summarize(asked())
    (sent,) = model.requests
    assert sorted(sent.body) == ["max_tokens", "messages", "model", "system", "temperature"]
    assert (sent.body["model"], sent.body["max_tokens"], sent.body["temperature"]) == ("claude-haiku-4-5", 4_096, 0)
    assert sent.body["system"].startswith(SYSTEM_PROMPT)
    assert SECRET in sent.headers.get("x-api-key", sent.headers.get("authorization", ""))
    assert summary.text == finished("The user wishes.", [])
    assert (summary.model, summary.prompt_version) == ("claude-haiku-4-5", PROMPT_VERSION)
    cost = Decimal(sent.input_tokens + 5 * 7) / 1_000_000
    assert summary.spent == (1, sent.input_tokens, 7, cost)


@pytest.mark.requirement("S6", "S7", "S8")
def test_the_prompt_holds_the_zone_as_text_and_the_earlier_summary(model: LoopbackModel) -> None:
    summarizer(model).summarize(asked(previous="what was before"))
    ((message,),) = [each.body["messages"] for each in model.requests]
    prompt = message["content"]
    assert message["role"] == "user"
    assert prompt.index("what was before") < prompt.index("the first wish") < prompt.index("found it")
    page = result(1, 600)["content"][0]["content"]
    assert page[:500] in prompt
    assert page[-200:] in prompt
    assert page not in prompt
    assert "fetch" in prompt

    summarizer(model).summarize(asked(summary_input_max_chars=1_000))
    prompts = [encoded(each.body["messages"][0]["content"]) for each in model.requests[1:]]
    read = [body for prompt in prompts for name, body in prompt.frames if name == "transcript"]
    assert len(read) > 1
    assert max(map(len, read)) <= 1_000
    for wanted in ("criteri", "decision", "URL", "path", "identifier", "score", "next"):
        assert wanted in SYSTEM_PROMPT


def test_model_tokens_and_temperature_can_be_chosen(model: LoopbackModel) -> None:
    chosen = summarizer(model, summarizer_model="claude-other", summarizer_temperature=None)
    summary = chosen.summarize(asked(summary_max_tokens=100))
    (sent,) = model.requests
    assert (sent.body["model"], sent.body["max_tokens"]) == ("claude-other", 100)
    assert "temperature" not in sent.body
    assert summary.spent.cost_usd is None  # a price nobody knows is not guessed


def test_cached_input_counts_as_input(model: LoopbackModel) -> None:
    usage = {"input_tokens": 10, "cache_read_input_tokens": 200, "cache_creation_input_tokens": 3, "output_tokens": 1}
    model.then(ok("text", usage=usage))
    assert summarizer(model).summarize(asked()).spent.input_tokens == 213


@pytest.mark.requirement("S10")
@pytest.mark.parametrize(("step", "code"), [(max_tokens(), "summary_cut"), (refusal(), "model_refused")])
def test_answers_that_are_no_summary_cost_money_all_the_same(model: LoopbackModel, step: Step, code: str) -> None:
    model.then(step, step)
    with pytest.raises(SummaryError) as caught:
        summarizer(model).summarize(asked())
    assert caught.value.code == code
    assert caught.value.spent.input_tokens == sum(each.input_tokens for each in model.requests)
    assert caught.value.spent.cost_usd is not None
