"""The summarizer that asks a model: what it sends, what each failure is called, and when it asks again."""

from __future__ import annotations

import threading
from decimal import Decimal
from typing import TYPE_CHECKING, Any

import pytest
from structlog.testing import capture_logs

from compaction.policy import Policy
from compaction.summary import PROMPT_VERSION, SYSTEM_PROMPT
from compaction.view import ViewMessage
from store.settings import Settings
from tests.loopback_model import (
    LoopbackModel,
    Step,
    cut,
    empty,
    garbage,
    hang_up,
    html,
    max_tokens,
    ok,
    prompt_too_long,
    refusal,
    slow_headers,
    stall,
    status,
    trickle,
)
from tests.talk import answer, call, request, result
from worker.summarizers import SummaryError, SummaryRequest
from worker.summarizers.anthropic import AnthropicSummarizer, price

if TYPE_CHECKING:
    from collections.abc import Iterator

    from worker.summarizers import Summary

SECRET = "sk-ant-nobody-may-see-this"


@pytest.fixture
def model() -> Iterator[LoopbackModel]:
    with LoopbackModel() as server:
        yield server


def summarizer(model: LoopbackModel, **fields: Any) -> AnthropicSummarizer:
    given: dict[str, Any] = {
        "summarizer_deadline_seconds": 20,
        "ANTHROPIC_API_KEY": SECRET,
        "ANTHROPIC_BASE_URL": model.url,
    }
    return AnthropicSummarizer(Settings(**given | fields))


def asked(*, previous: str | None = None, **policy: Any) -> SummaryRequest:
    messages = [request("the first wish", 30), answer("an answer", 30), call(1), result(1, 600), answer("found it")]
    zone = [ViewMessage(message["role"], message["content"], seq) for seq, message in enumerate(messages, start=1)]
    return SummaryRequest(zone, previous, Policy(**policy))


def fail(model: LoopbackModel, *steps: Step, **fields: Any) -> SummaryError:
    model.then(*steps)
    with pytest.raises(SummaryError) as caught:
        summarizer(model, **fields).summarize(asked())
    assert SECRET not in str(caught.value)
    return caught.value


@pytest.mark.requirement("S8")
def test_one_call_not_streamed_with_temperature_0(model: LoopbackModel) -> None:
    model.then(ok("  The user wishes.  ", output_tokens=7))
    made = summarizer(model).summarize(asked())
    (sent,) = model.requests
    assert sorted(sent.body) == ["max_tokens", "messages", "model", "system", "temperature"]
    assert (sent.body["model"], sent.body["max_tokens"], sent.body["temperature"]) == ("claude-haiku-4-5", 4_096, 0)
    assert sent.body["system"] == SYSTEM_PROMPT
    assert SECRET in sent.headers.get("x-api-key", sent.headers.get("authorization", ""))
    assert made.text == "The user wishes."
    assert (made.model, made.prompt_version) == ("claude-haiku-4-5", PROMPT_VERSION)
    cost = Decimal(sent.input_tokens + 5 * 7) / 1_000_000
    assert made.spent == (1, sent.input_tokens, 7, cost)


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
    shorter = model.requests[1].body["messages"][0]["content"]
    assert len(shorter) < 1_100 < len(prompt)
    for wanted in ("criteri", "decision", "URL", "path", "identifier", "score", "next"):
        assert wanted in SYSTEM_PROMPT


def test_model_tokens_and_temperature_can_be_chosen(model: LoopbackModel) -> None:
    chosen = summarizer(model, summarizer_model="claude-other", summarizer_temperature=None)
    made = chosen.summarize(asked(summary_max_tokens=100))
    (sent,) = model.requests
    assert (sent.body["model"], sent.body["max_tokens"]) == ("claude-other", 100)
    assert "temperature" not in sent.body
    assert made.spent.cost_usd is None  # a price nobody knows is not guessed


def test_cached_input_counts_as_input(model: LoopbackModel) -> None:
    usage = {"input_tokens": 10, "cache_read_input_tokens": 200, "cache_creation_input_tokens": 3, "output_tokens": 1}
    model.then(ok("text", usage=usage))
    assert summarizer(model).summarize(asked()).spent.input_tokens == 213


@pytest.mark.requirement("S10")
@pytest.mark.parametrize(
    ("step", "code"),
    [
        pytest.param(status(401), "model_auth", id="401"),
        pytest.param(status(403), "model_auth", id="403"),
        pytest.param(status(400, "temperature: not supported"), "model_rejected", id="400"),
        pytest.param(prompt_too_long(), "prompt_too_long", id="400 prompt too long"),
        pytest.param(status(413, "Request is too long"), "prompt_too_long", id="413"),
        pytest.param(status(404), "model_rejected", id="404"),
        pytest.param(status(429, retry_after=3_600), "model_rate_limited", id="429 come back in an hour"),
        pytest.param(status(529, retry_after=3_600), "model_overloaded", id="529 come back in an hour"),
        pytest.param(html(200), "model_garbage", id="HTML page with 200"),
        pytest.param(garbage(), "model_garbage", id="bytes that are not JSON"),
        pytest.param(garbage(b"{}"), "model_garbage", id="an empty object"),
        pytest.param(garbage(b'["a", "list"]'), "model_garbage", id="a list"),
        pytest.param(garbage(b'{"content": [null], "usage": 7}'), "model_garbage", id="fields of wrong types"),
        pytest.param(garbage(b"null"), "model_garbage", id="null"),
    ],
)
def test_failures_that_another_try_would_not_mend(model: LoopbackModel, step: Step, code: str) -> None:
    error = fail(model, step)
    assert error.code == code
    assert len(model.requests) == 1
    assert error.spent.calls == 1


@pytest.mark.requirement("S10")
@pytest.mark.parametrize(
    ("step", "code"),
    [
        pytest.param(empty(), "empty_summary", id="no content"),
        pytest.param(ok(" \n "), "empty_summary", id="blank text"),
        pytest.param(refusal(), "model_refused", id="refusal"),
        pytest.param(refusal("I cannot"), "model_refused", id="refusal with text"),
        pytest.param(max_tokens(), "summary_cut", id="cut at its limit"),
    ],
)
def test_answers_that_are_no_summary_cost_money_all_the_same(model: LoopbackModel, step: Step, code: str) -> None:
    error = fail(model, step)
    assert error.code == code
    assert len(model.requests) == 1
    assert error.spent.input_tokens == model.requests[0].input_tokens
    assert error.spent.cost_usd is not None


@pytest.mark.parametrize(
    "step",
    [
        pytest.param(status(429, retry_after=0), id="429 with retry-after"),
        pytest.param(status(429, retry_after="Wed, 21 Oct 2015 07:28:00 GMT"), id="429 with a date"),
        pytest.param(status(500, retry_after=0), id="500"),
        pytest.param(status(529), id="529"),
        pytest.param(html(502), id="a proxy's 502"),
        pytest.param(hang_up(), id="connection closed"),
        pytest.param(hang_up(reset=True), id="connection reset"),
        pytest.param(cut(), id="connection cut in the body"),
    ],
)
def test_what_may_pass_is_tried_again(model: LoopbackModel, step: Step) -> None:
    model.then(step, ok("at last"))
    with capture_logs() as events:
        made = summarizer(model).summarize(asked())
    assert (made.text, made.spent.calls) == ("at last", 2)
    (event,) = [event for event in events if event["event"] == "summary.retried"]
    assert sorted(event) == ["attempt", "error", "event", "log_level", "status", "wait_seconds"]


@pytest.mark.requirement("S10")
@pytest.mark.parametrize(
    ("step", "code"),
    [
        pytest.param(status(429, retry_after=0), "model_rate_limited", id="429"),
        pytest.param(status(529, retry_after=0), "model_overloaded", id="529"),
        pytest.param(status(500, retry_after=0), "model_error", id="500"),
    ],
)
def test_the_tries_are_bounded(model: LoopbackModel, step: Step, code: str) -> None:
    error = fail(model, *[step] * 6)
    assert error.code == code
    assert len(model.requests) == error.spent.calls == 4


def test_the_server_error_shows_in_no_log(model: LoopbackModel) -> None:
    model.then(status(500, "the proxy quotes what the user wrote", retry_after=0))
    with capture_logs() as events:
        summarizer(model).summarize(asked())
    assert "quotes" not in str(events)


@pytest.mark.requirement("S10")
@pytest.mark.parametrize("kind", ["no headers", "half a body", "a byte now and then", "a retry too far away"])
def test_one_deadline_for_all_of_it(model: LoopbackModel, kind: str) -> None:
    never = threading.Event()
    step = {
        "no headers": slow_headers(never),
        "half a body": stall(never),
        "a byte now and then": trickle(),
        "a retry too far away": status(500, retry_after=15),
    }[kind]
    error = fail(model, *[step] * 4, summarizer_deadline_seconds=0.5)
    assert error.code in {"model_timeout", "model_error"}
    assert error.spent.calls == len(model.requests) == 1


def test_a_server_that_is_not_there() -> None:
    with LoopbackModel() as gone:
        pass
    with pytest.raises(SummaryError) as caught:
        summarizer(gone, summarizer_deadline_seconds=1.5).summarize(asked())
    assert caught.value.code in {"model_unreachable", "model_timeout"}


def test_many_threads_ask_at_once(model: LoopbackModel) -> None:
    model.hold()
    shared = summarizer(model)
    made: list[Summary] = []
    threads = [threading.Thread(target=lambda: made.append(shared.summarize(asked()))) for _ in range(8)]
    for thread in threads:
        thread.start()
    model.wait_for_requests(8)
    model.release()
    for thread in threads:
        thread.join(30)
    assert len(made) == 8


def test_prices_are_per_million_tokens() -> None:
    assert price("claude-haiku-4-5-20251001", 1_000_000, 1_000_000) == 6
    assert price("claude-sonnet-4-5", 1_000, 100) == Decimal("0.0045")
    assert price("somebody-else", 1, 1) is None
