"""The client of the Messages API: what it sends, what an answer costs, how long it waits, and its circuit."""

from __future__ import annotations

import time
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime
from decimal import Decimal
from email.utils import format_datetime
from typing import TYPE_CHECKING, Any

import pytest
from structlog.testing import capture_logs

from compaction.windows import LOW_CONTEXT_WINDOW
from tests.support.servers.loopback_steps import Step, hang_up, max_tokens, ok, refusal, status
from tests.worker.summarizers.models import QUESTION, SHORT, ask, fail, waits_of
from tests.worker.summarizers.models import anthropic_model as model
from worker.summarizers import asking
from worker.summarizers.api_errors import retry_after
from worker.summarizers.asking import ATTEMPTS, LONGEST_WAIT_SECONDS
from worker.summarizers.base import Spent
from worker.summarizers.breaker import CircuitBreaker

if TYPE_CHECKING:
    from tests.support.servers.loopback_model import LoopbackModel
    from worker.summarizers.base import Model


def test_forms_of_patience() -> None:
    soon = format_datetime(datetime.fromtimestamp(time.time() + 90, UTC), usegmt=True)
    assert retry_after({"retry-after": "7"}) == 7
    assert retry_after({"retry-after-ms": "1500", "retry-after": "7"}) == 1.5
    assert retry_after({"retry-after-ms": "soon", "retry-after": "7"}) == 7
    assert retry_after({"retry-after": "-7"}) == 0
    assert 80 < (retry_after({"retry-after": soon}) or 0) <= 90
    assert retry_after({"retry-after": "Wed, 21 Oct 2015 07:28:00 GMT"}) == 0
    by_its_clock = {"retry-after": "Wed, 21 Oct 2015 07:28:00 GMT", "date": "Wed, 21 Oct 2015 07:27:48 GMT"}
    assert retry_after(by_its_clock) == 12
    assert retry_after(by_its_clock | {"date": "now"}) == 0
    for nothing in ("", "nan", "tomorrow", "Wed, 99 Oct 2015 07:28:00 GMT"):
        assert retry_after({"retry-after": nothing}) is None
    assert retry_after({}) is None


def test_waits_without_a_header_grow_and_are_spread(server: LoopbackModel) -> None:
    server.then(hang_up(), hang_up(), ok("there"))
    with capture_logs() as events:
        assert ask(model(server)).text == "there"
    first, second = waits_of(events)
    assert 0.5 <= first <= 1.5
    assert 1.0 <= second <= 2.0


def test_a_wait_that_outlasts_the_deadline_is_named_after_what_failed(
    server: LoopbackModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(asking, "FIRST_WAIT_SECONDS", 60.0)
    monkeypatch.setattr(asking, "LONGEST_BACKOFF_SECONDS", 60.0)
    server.then(status(529), status(503, retry_after=15))
    asked = model(server, summarizer_deadline_seconds=SHORT)
    for code in ("model_overloaded", "model_error"):
        error = fail(asked)
        assert (error.code, error.spent) == (code, Spent(1))
    assert len(server.requests) == 2


@pytest.mark.requirement("S8")
def test_an_answer_with_what_it_cost(server: LoopbackModel) -> None:
    server.then(ok(" the text \n", output_tokens=9), max_tokens("half a te"))
    asked: Model = model(server)
    answer = ask(asked)
    (sent,) = server.requests
    assert sorted(sent.body) == ["max_tokens", "messages", "model", "system", "temperature"]
    assert (sent.body["max_tokens"], sent.body["temperature"]) == (300, 0)
    assert (sent.body["system"], sent.body["messages"][0]["content"]) == ("Write the summary.", QUESTION)
    price = Decimal(sent.input_tokens + 5 * 9) / 1_000_000
    assert answer == ("the text", "end_turn", Spent(1, sent.input_tokens, 9, price))
    assert ask(asked)[:2] == ("half a te", "max_tokens")
    assert (asked.name, asked.model) == ("anthropic", "claude-haiku-4-5")


def test_answers_without_text_cost_all_the_same(server: LoopbackModel) -> None:
    server.then(refusal(), ok(""), ok("wait", stop_reason="pause_turn"))
    asked = model(server)
    for code in ("model_refused", "empty_summary", "model_garbage"):
        error = fail(asked)
        assert error.code == code
        assert (error.spent.input_tokens, error.spent.cost_usd is None) == (server.requests[-1].input_tokens, False)


def test_many_threads_ask_at_once(server: LoopbackModel, broker_url: str) -> None:
    server.hold()
    shared = model(server, circuit(broker_url, Clock()))
    with ThreadPoolExecutor(8) as pool:
        answers = [pool.submit(ask, shared) for _ in range(8)]
        server.wait_for_requests(8)
        server.release()
        assert all(answer.result().text for answer in answers)


def test_text_that_nothing_could_store_is_replaced(server: LoopbackModel) -> None:
    server.then(ok("a\x00b \ud83d\ude00 \ud800c"))
    assert ask(model(server)).text == "a\ufffdb \U0001f600 \ufffdc"


def test_thinking_is_no_part_of_the_answer(server: LoopbackModel) -> None:
    blocks = [{"type": "thinking", "thinking": "hm", "signature": "s"}, {"type": "text", "text": "so"}]
    server.then(ok("", content=blocks), ok("<think>\nhm\n</think>\n\nso"), ok("hm\n</think>\n\nso"))
    assert [ask(model(server)).text for _ in range(3)] == ["so"] * 3


@pytest.mark.parametrize(
    ("fields", "tokens"),
    [
        ({"summarizer_model": "claude-haiku-4-5"}, 200_000),
        ({"summarizer_model": "claude-sonnet-5"}, 1_000_000),
        ({"summarizer_model": "gemma-3-270m"}, 32_768),
        ({"summarizer_model": "our-own"}, LOW_CONTEXT_WINDOW),
        ({"summarizer_model": "gemma-3-270m", "summarizer_context_tokens": 4_096}, 4_096),
    ],
)
def test_the_window(server: LoopbackModel, fields: dict[str, Any], tokens: int) -> None:
    assert model(server, **fields).context_tokens == tokens


# The circuit ---------------------------------------------------------------------------------------------------------


class Clock:
    now = 1_700_000_000.0

    def __call__(self) -> float:
        return self.now


def circuit(url: str, clock: Clock, failures: int = 2) -> CircuitBreaker:
    return CircuitBreaker(
        url, "key", failures=failures, cooldown=30, longest=600, probe_seconds=50, clock=clock, jitter=lambda: 0.0
    )


def test_a_service_that_is_down_is_not_asked_again_by_any_worker(server: LoopbackModel, broker_url: str) -> None:
    clock = Clock()
    one, two = (model(server, circuit(broker_url, clock)) for _ in range(2))
    server.then(*[status(529, retry_after=0)] * (2 * ATTEMPTS), status(500, headers={"x-should-retry": "false"}))
    assert {fail(each).code for each in (one, two)} == {"model_overloaded"}
    for asked in (one, two):
        error = fail(asked)
        assert (error.code, error.spent) == ("circuit_open", Spent(0))
    assert len(server.requests) == 2 * ATTEMPTS
    clock.now += 30
    assert fail(two).code == "model_error", "one call tries whether it is back"
    assert fail(one).code == "circuit_open"
    clock.now += 60
    assert ask(one).text
    assert ask(two).text
    assert len(server.requests) == 2 * ATTEMPTS + 3


@pytest.mark.parametrize(
    ("step", "seconds"),
    [
        pytest.param(status(401), 600, id="a refused key"),
        pytest.param(status(402), 600, id="an unpaid account"),
        pytest.param(status(429, retry_after=240), 240, id="come back in four minutes"),
        pytest.param(status(529, retry_after=7_200), 600, id="come back in two hours"),
    ],
)
def test_what_every_call_would_meet_with_opens_it_at_once(
    server: LoopbackModel, broker_url: str, step: Step, seconds: int
) -> None:
    server.then(step)
    one, two = (model(server, circuit(broker_url, Clock(), failures=9)) for _ in range(2))
    fail(one)
    assert fail(two).detail == f"the model is not asked for another {seconds} s"
    assert len(server.requests) == 1


def test_what_is_wrong_with_a_request_leaves_it_closed(server: LoopbackModel, broker_url: str) -> None:
    asked = model(server, circuit(broker_url, Clock()))
    server.then(status(400), status(404), status(413), refusal(), ok(""))
    for _ in range(5):
        assert fail(asked).code != "circuit_open"
    assert ask(asked).text


def test_patience_within_bounds_says_nothing_of_later_calls(server: LoopbackModel, broker_url: str) -> None:
    asked = model(server, circuit(broker_url, Clock()), summarizer_deadline_seconds=SHORT)
    server.then(status(429, retry_after=LONGEST_WAIT_SECONDS))
    assert fail(asked).code == "model_rate_limited"
    assert ask(asked).text
