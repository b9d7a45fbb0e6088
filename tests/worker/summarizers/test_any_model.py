"""The client of either provider's model: every fault of the script, how often it asks, and what it tells of it."""

from __future__ import annotations

import socket
import threading
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from types import SimpleNamespace
from typing import TYPE_CHECKING, Final

import pytest
import stamina
from structlog.testing import capture_logs

from tests.support.eventually import PATIENCE_SECONDS
from tests.support.servers.loopback_chat import CHAT_FAULTS
from tests.support.servers.loopback_faults import FAULTS, Fault
from tests.support.servers.loopback_model import LoopbackModel
from tests.support.servers.loopback_steps import ok, slow_headers, status
from tests.worker.summarizers.models import SHORT, anthropic_model, ask, fail, openai_model, waits_of
from worker.summarizers.asking import ATTEMPTS, MOST_BYTES
from worker.summarizers.base import Spent

if TYPE_CHECKING:
    from collections.abc import Callable

    from worker.summarizers.base import Model

TOLD: Final = (
    "confidence",
    "nobody-may-see",
    "loopback 4",
    "loopback 5",
    "credit balance",
    "quota",
    "available context",
    "COMPROMISED",
    "org-x",
)
"""What of a request, an answer or an error must not get into a detail or a log."""
FAULTY: Final = {
    f"{kind}-{name}": (model, fault)
    for kind, model, faults in (("anthropic", anthropic_model, FAULTS), ("openai", openai_model, FAULTS | CHAT_FAULTS))
    for name, fault in faults.items()
}
either = pytest.mark.parametrize("model", [anthropic_model, openai_model])


@pytest.mark.requirement("S10")
@pytest.mark.fault("F17", "F18", "F19", "F20")
@pytest.mark.parametrize(("model", "fault"), FAULTY.values(), ids=FAULTY)
def test_the_fault_script(server: LoopbackModel, model: Callable[..., Model], fault: Fault) -> None:
    server.then(*(fault.step() for _ in range(ATTEMPTS + 1)))
    asked = model(server, summarizer_deadline_seconds=SHORT if fault.hangs else 60)
    with capture_logs() as events, stamina.set_testing(True, attempts=ATTEMPTS):
        if fault.code is None:
            answer = ask(asked)
            spent, said = answer.spent, answer.stop_reason or ""
        else:
            error = fail(asked)
            assert error.code == fault.code
            spent, said = error.spent, str(error)
    assert spent.calls == len(server.requests) == (ATTEMPTS if fault.again else 1)
    assert Counter(event["event"] for event in events) == +Counter(
        {"model.requested": spent.calls, "summary.retried": spent.calls - 1}
    )
    assert not [told for told in TOLD if told in said + str(events)]


@pytest.mark.parametrize(("model", "fault"), [each for each in FAULTY.values() if each[1].again])
def test_what_may_pass_is_answered_in_the_end(server: LoopbackModel, model: Callable[..., Model], fault: Fault) -> None:
    server.then(*(fault.step() for _ in range(ATTEMPTS - 1)), ok("at last", output_tokens=3))
    with stamina.set_testing(True, attempts=ATTEMPTS):
        answer = ask(model(server))
    assert (answer.text, answer.stop_reason, answer.spent.calls) == ("at last", "end_turn", ATTEMPTS)
    assert answer.spent.output_tokens == 3


@either
def test_an_answer_that_is_far_too_long_is_not_read_to_its_end(
    server: LoopbackModel, model: Callable[..., Model]
) -> None:
    server.then(ok("a" * MOST_BYTES))
    error = fail(model(server, summarizer_deadline_seconds=120))
    assert (error.code, error.spent.calls) == ("model_garbage", 1)


@pytest.mark.parametrize(("model", "header"), [(anthropic_model, "request-id"), (openai_model, "x-request-id")])
def test_a_detail_names_the_request_for_support(
    server: LoopbackModel, model: Callable[..., Model], header: str
) -> None:
    server.then(status(403), status(403, headers={header: "<script>"}))
    asked = model(server)
    assert fail(asked).detail == "status 403, request req_loopback_000000"
    assert fail(asked).detail == "status 403"


@either
@pytest.mark.parametrize(("header", "wait"), [("retry-after", "0.05"), ("retry-after-ms", "50")])
def test_a_server_is_given_the_patience_it_asks_for(
    server: LoopbackModel, model: Callable[..., Model], header: str, wait: str
) -> None:
    server.then(status(429, headers={header: wait}), ok("thanks"))
    with capture_logs() as events:
        assert ask(model(server)).text == "thanks"
    assert waits_of(events) == [0.05]


@either
def test_the_deadline_is_one_for_all_attempts(server: LoopbackModel, model: Callable[..., Model]) -> None:
    server.then(status(500, retry_after=0), slow_headers(threading.Event()))
    error = fail(model(server, summarizer_deadline_seconds=SHORT))
    assert (error.code, error.spent) == ("model_timeout", Spent(2))


@either
def test_a_lookup_that_takes_longer_than_the_deadline_is_not_waited_for(
    model: Callable[..., Model], monkeypatch: pytest.MonkeyPatch
) -> None:
    begun, answered = threading.Event(), threading.Event()

    def patient(*_: object, **__: object) -> list[object]:
        begun.set()
        answered.wait(PATIENCE_SECONDS)
        raise socket.gaierror(socket.EAI_AGAIN)

    monkeypatch.setattr(socket, "getaddrinfo", patient)
    elsewhere = SimpleNamespace(url="http://models.example")
    with ThreadPoolExecutor(1) as threads:
        asking = threads.submit(fail, model(elsewhere, summarizer_deadline_seconds=SHORT))
        try:
            error = asking.result(PATIENCE_SECONDS / 2)
        finally:
            answered.set()
    assert begun.is_set()
    assert error.code == "model_timeout"


@either
def test_a_server_that_is_not_there(model: Callable[..., Model]) -> None:
    with LoopbackModel() as gone:
        pass
    with stamina.set_testing(True, attempts=ATTEMPTS):
        error = fail(model(gone))
    assert (error.code, error.spent) == ("model_unreachable", Spent(ATTEMPTS))
