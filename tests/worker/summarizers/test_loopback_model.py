"""The loopback server is understood by the real SDK: answers, errors, and connections that go wrong."""

from __future__ import annotations

import json
import socket
import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any

import anthropic
import pytest

from tests.support.places import ROOT
from tests.support.servers.loopback_model import LoopbackModel
from tests.support.servers.loopback_steps import (
    INVENTED,
    Step,
    cut,
    echoed_injection,
    empty,
    empty_body,
    garbage,
    hang_up,
    html,
    invented,
    longer_than_input,
    max_tokens,
    ok,
    prompt_too_long,
    refusal,
    slow_headers,
    stall,
    status,
    trickle,
)

if TYPE_CHECKING:
    from collections.abc import Callable

    from anthropic.types import Message, MessageParam

REQUEST: list[MessageParam] = [{"role": "user", "content": "Shorten this, please."}]


def connect(model: LoopbackModel, read_timeout: float = 30) -> anthropic.Anthropic:
    timeout = anthropic.Timeout(30, read=read_timeout)
    return anthropic.Anthropic(base_url=model.url, api_key="any", max_retries=0, timeout=timeout)


def ask(model: LoopbackModel, messages: list[MessageParam] = REQUEST, read_timeout: float = 30, **more: Any) -> Message:
    with connect(model, read_timeout) as client:
        answer: Message = client.messages.create(model="claude-test", max_tokens=1_000, messages=messages, **more)
        return answer


def text_of(answer: Message) -> str:
    return "".join(block.text for block in answer.content if block.type == "text")


def test_default_answer_quotes_the_request_and_every_link(model: LoopbackModel) -> None:
    messages: list[MessageParam] = [
        {"role": "user", "content": "\n  Find me a job in Berlin.\nRemote is fine."},
        {"role": "assistant", "content": [{"type": "tool_use", "id": "t", "name": "search", "input": {}}]},
        {
            "role": "user",
            "content": [
                {
                    "type": "tool_result",
                    "tool_use_id": "t",
                    "content": [{"type": "text", "text": "see https://a.example/1?b=2, (http://b.example/x)"}],
                }
            ],
        },
    ]
    answer = ask(model, messages, system="Summarize. https://c.example")
    assert "Request: Find me a job in Berlin." in text_of(answer)
    for url in ("https://a.example/1?b=2", "http://b.example/x", "https://c.example"):
        assert url in text_of(answer).replace(",", "").splitlines()
    assert answer.stop_reason == "end_turn"
    assert answer.model == "claude-test"
    assert answer.usage.input_tokens > len("Find me a job in Berlin.") // 4
    assert answer.usage.output_tokens == len(text_of(answer)) // 4
    assert answer._request_id == "req_loopback_000000"


def test_default_answer_is_bounded(model: LoopbackModel) -> None:
    links = " ".join(f"https://example.com/{number:04}/" + "x" * 200 for number in range(500))
    assert len(text_of(ask(model, [{"role": "user", "content": links}]))) <= 4_000


def test_script_runs_in_order_of_arrival_then_the_default(model: LoopbackModel) -> None:
    model.then(ok("one"), status(500))
    model.then(ok("two"))
    assert text_of(ask(model)) == "one"
    with pytest.raises(anthropic.InternalServerError):
        ask(model)
    assert text_of(ask(model)) == "two"
    assert text_of(ask(model)).startswith("Summary")
    assert [each.status for each in model.requests] == [200, 500, 200, 200]


def test_requests_are_recorded(model: LoopbackModel) -> None:
    ask(model, system="be brief", extra_body={"temperature": 0}, extra_headers={"X-Trace": "abc"})
    (request,) = model.wait_for_answers(1)
    assert request.headers["x-trace"] == "abc"
    assert request.headers["authorization"] == "Bearer any"
    assert request.body["temperature"] == 0
    assert request.body["messages"] == REQUEST
    assert request.prompt == "be brief\nShorten this, please."


def test_one_connection_serves_many_calls(model: LoopbackModel) -> None:
    with connect(model) as client:
        for _ in range(20):
            client.messages.create(model="m", max_tokens=10, messages=REQUEST)
    assert len(model.requests) == 20


def test_count_tokens_takes_no_step(model: LoopbackModel) -> None:
    model.then(ok("the step"))
    with connect(model) as client:
        count = client.messages.count_tokens(model="m", messages=REQUEST, system="be brief")
    answer = ask(model, system="be brief")
    assert text_of(answer) == "the step"
    assert count.input_tokens == answer.usage.input_tokens
    assert len(model.counted) == len(model.requests) == 1


ERRORS: dict[str, tuple[Step, type[anthropic.APIStatusError], str]] = {
    "invalid": (status(400), anthropic.BadRequestError, "invalid_request_error"),
    "too long": (prompt_too_long(), anthropic.BadRequestError, "invalid_request_error"),
    "key": (status(401), anthropic.AuthenticationError, "authentication_error"),
    "permission": (status(403), anthropic.PermissionDeniedError, "permission_error"),
    "unknown model": (status(404), anthropic.NotFoundError, "not_found_error"),
    "too large": (status(413), anthropic.ContentTooLargeError, "request_too_large"),
    "rate": (status(429, retry_after=7), anthropic.RateLimitError, "rate_limit_error"),
    "server": (status(500), anthropic.InternalServerError, "api_error"),
    "overloaded": (status(529), anthropic.OverloadedError, "overloaded_error"),
    "own type": (status(503, error_type="maintenance"), anthropic.ServiceUnavailableError, "maintenance"),
}


@pytest.mark.parametrize(("step", "error", "kind"), ERRORS.values(), ids=ERRORS)
def test_status(step: Step, error: type[anthropic.APIStatusError], kind: str) -> None:
    with LoopbackModel([step]) as model, pytest.raises(error) as caught:
        ask(model)
    assert type(caught.value) is error
    assert isinstance(caught.value.body, dict)
    assert caught.value.body["error"]["type"] == kind
    assert caught.value.request_id == "req_loopback_000000"


@pytest.mark.parametrize("given", [7, 0.5, "Wed, 21 Oct 2026 07:28:00 GMT"])
def test_retry_after(given: float | str) -> None:
    limited = pytest.raises(anthropic.RateLimitError)
    with LoopbackModel([status(429, retry_after=given)]) as model, limited as caught:
        ask(model)
    assert caught.value.response.headers["retry-after"] == str(given)


def test_the_sdk_retries_when_the_header_says_so() -> None:
    steps = [status(529, headers={"retry-after-ms": "1"}), ok("second try")]
    with LoopbackModel(steps) as model:
        client = anthropic.Anthropic(base_url=model.url, api_key="any", max_retries=1)
        answer = client.messages.create(model="m", max_tokens=10, messages=REQUEST)
        client.close()
    assert text_of(answer) == "second try"


def test_prompt_over_the_window() -> None:
    with LoopbackModel([ok("small")], context_tokens=100) as model:
        with pytest.raises(anthropic.BadRequestError, match=r"prompt is too long: \d+ tokens > 100 maximum"):
            ask(model, [{"role": "user", "content": "x" * 500}])
        assert text_of(ask(model)) == "small"


STOPS: dict[str, tuple[Step, str, Callable[[str], bool]]] = {
    "empty": (empty(), "end_turn", lambda text: not text),
    "blank": (ok(" \n"), "end_turn", str.isspace),
    "refusal": (refusal(), "refusal", lambda text: not text),
    "refusal with text": (refusal("I cannot."), "refusal", lambda text: text == "I cannot."),
    "max tokens": (max_tokens(), "max_tokens", bool),
    "longer than input": (longer_than_input(2), "end_turn", lambda text: len(text) > 40),
    "NUL": (ok("a\x00b"), "end_turn", lambda text: text == "a\x00b"),
    "window": (ok("a", stop_reason="model_context_window_exceeded"), "model_context_window_exceeded", bool),
}


@pytest.mark.parametrize(("step", "reason", "expected"), STOPS.values(), ids=STOPS)
def test_poor_answers(step: Step, reason: str, expected: Callable[[str], bool]) -> None:
    with LoopbackModel([step]) as model:
        answer = ask(model)
    assert answer.stop_reason == reason
    assert expected(text_of(answer))
    assert (answer.stop_details is not None) == (reason == "refusal")


def test_not_an_answer_at_all() -> None:
    with LoopbackModel([garbage(), html(200), html(502), hang_up(), hang_up(reset=True)]) as model:
        with pytest.raises((anthropic.APIError, ValueError)):
            ask(model)
        page: object = ask(model)
        assert isinstance(page, str)  # the SDK hands a page with status 200 through as text
        assert "<html>" in page
        with pytest.raises(anthropic.InternalServerError, match="Bad Gateway"):
            ask(model)
        for _ in range(2):
            with pytest.raises(anthropic.APIConnectionError):
                ask(model)


@pytest.mark.parametrize("reset", [False, True])
def test_connection_cut_in_the_body(reset: bool) -> None:
    with LoopbackModel([cut(reset=reset)]) as model, pytest.raises(anthropic.APIConnectionError) as caught:
        ask(model)
    assert not isinstance(caught.value, anthropic.APITimeoutError)


def test_answers_that_cannot_be_trusted(model: LoopbackModel) -> None:
    model.then(invented(), invented(["in the request", "made up"]), echoed_injection("Obey."))
    values = text_of(ask(model)).splitlines()[2:]
    assert values == list(INVENTED)
    known = text_of(ask(model, [{"role": "user", "content": "this is in the request"}]))
    assert ("in the request" in known, "made up" in known) == (False, True)
    echo = text_of(ask(model, system="A rule of mine."))
    assert "Obey." in echo
    assert "A rule of mine." in echo


def test_nothing_but_headers(model: LoopbackModel) -> None:
    model.then(empty_body(), empty_body(500), empty_body(content_type="text/plain"))
    with pytest.raises(ValueError, match="Expecting value"):
        ask(model)
    with pytest.raises(anthropic.InternalServerError):
        ask(model)
    page: object = ask(model)
    assert page == ""


def test_slow_headers_time_out_or_arrive(model: LoopbackModel) -> None:
    never, soon = threading.Event(), threading.Event()
    model.then(slow_headers(never), slow_headers(soon, ok("late")))
    with pytest.raises(anthropic.APITimeoutError):
        ask(model, read_timeout=0.2)
    with ThreadPoolExecutor() as pool:
        answer = pool.submit(ask, model)
        model.wait_for_requests(2)
        assert not answer.done()
        soon.set()
        assert text_of(answer.result()) == "late"


def test_stalled_body_times_out_or_arrives(model: LoopbackModel) -> None:
    never, soon = threading.Event(), threading.Event()
    model.then(stall(never), stall(soon, "both halves"))
    with pytest.raises(anthropic.APITimeoutError):
        ask(model, read_timeout=0.2)
    soon.set()
    assert text_of(ask(model)) == "both halves"


def test_trickle_arrives_in_the_end(model: LoopbackModel) -> None:
    model.then(trickle("whole", interval=0.001, padding=20))
    assert text_of(ask(model)) == "whole"


def test_endless_trickle_ends_when_the_client_leaves(model: LoopbackModel) -> None:
    model.then(trickle(interval=0.001))
    body = json.dumps({"model": "m", "max_tokens": 9, "messages": REQUEST}).encode()
    head = f"POST /v1/messages HTTP/1.1\r\nx-api-key: k\r\nanthropic-version: 1\r\ncontent-length: {len(body)}"
    host, _, port = model.url.removeprefix("http://").partition(":")
    with socket.create_connection((host, int(port))) as connection, connection.makefile("rb") as stream:
        connection.sendall(head.encode() + b"\r\n\r\n" + body)
        lines = iter(stream.readline, b"\r\n")
        assert next(lines) == b"HTTP/1.1 200 Loopback\r\n"
        assert list(lines)
        assert stream.read(5) == b"     "
        assert not model.requests[0].answered.is_set()
    model.wait_for_answers(1)


def test_endless_trickle_ends_when_the_server_closes(model: LoopbackModel) -> None:
    model.then(trickle())
    with ThreadPoolExecutor() as pool:
        answer = pool.submit(ask, model)
        model.wait_for_requests(1)
        model.close()
        assert isinstance(answer.exception(), anthropic.APIConnectionError)
    assert model.requests[0].answered.is_set()


def test_calls_can_be_held_in_flight(model: LoopbackModel) -> None:
    model.then(ok("first"), ok("second"), ok("third"))
    model.hold()
    with ThreadPoolExecutor() as pool:
        answers = []
        for number in range(3):
            answers.append(pool.submit(ask, model))
            model.wait_for_requests(number + 1)
        assert not any(answer.done() for answer in answers)
        model.release(1)
        model.wait_for_answers(1)
        assert sum(each.answered.is_set() for each in model.requests) == 1
        model.release()
        assert [text_of(answer.result()) for answer in answers] == ["first", "second", "third"]
    assert text_of(ask(model)).startswith("Summary")


def test_waiting_in_vain_says_how_many_came(model: LoopbackModel) -> None:
    ask(model)
    with pytest.raises(TimeoutError, match="1 of 2 requests"):
        model.wait_for_requests(2, timeout=0.01)


def test_close_ends_held_and_stuck_calls() -> None:
    before = set(threading.enumerate())
    model = LoopbackModel([slow_headers(threading.Event()), stall(threading.Event())]).start()
    with ThreadPoolExecutor() as pool:
        answers = [pool.submit(ask, model) for _ in range(2)]
        model.wait_for_requests(2)
        model.hold()
        answers.append(pool.submit(ask, model))
        model.wait_for_requests(3)
        model.close()
        assert all(isinstance(answer.exception(), anthropic.APIConnectionError) for answer in answers)
    assert set(threading.enumerate()) <= before  # an earlier test's threads may end meanwhile
    model.close()


def test_what_the_api_refuses_is_refused_and_takes_no_step(model: LoopbackModel) -> None:
    model.then(ok("kept"))
    with pytest.raises(anthropic.BadRequestError, match="first message must be a user message"):
        ask(model, [{"role": "assistant", "content": "hi"}])
    with pytest.raises(anthropic.BadRequestError, match="max_tokens"), connect(model) as client:
        client.post("/v1/messages", body={"model": "m", "messages": REQUEST}, cast_to=object)
    with pytest.raises(anthropic.NotFoundError), connect(model) as client:
        client.models.list()
    assert text_of(ask(model)) == "kept"


def test_refusing_can_be_switched_off() -> None:
    with LoopbackModel([ok("fine")], validate=False) as model:
        assert text_of(ask(model, [{"role": "assistant", "content": "hi"}])) == "fine"


def test_module_fails_as_it_is_told_to() -> None:
    command = [sys.executable, "-m", "tests.support.servers.loopback_model", "--fault", "529"]
    with subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        try:
            url = json.loads(process.stdout.readline())["url"]
            with anthropic.Anthropic(base_url=url, api_key="any", max_retries=0) as client:
                for _ in range(2):
                    with pytest.raises(anthropic.OverloadedError):
                        client.messages.create(model="m", max_tokens=100, messages=REQUEST)
        finally:
            process.terminate()
        assert process.wait() == 0


def test_module_runs_by_itself() -> None:
    command = [sys.executable, "-m", "tests.support.servers.loopback_model", "--port", "0"]
    with subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        try:
            url = json.loads(process.stdout.readline())["url"]
            with anthropic.Anthropic(base_url=url, api_key="any", max_retries=0) as client:
                answer = client.messages.create(model="m", max_tokens=100, messages=REQUEST)
            assert "Shorten this" in text_of(answer)
        finally:
            process.terminate()
        assert process.wait() == 0
