"""Strategies of other packages, found by their entry points: the example in docs/examples/strategy, and bad ones."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from compaction.policy import Policy
from compaction.repair import repair
from compaction.shorten.strategies import StrategyError, shorten
from compaction.view import WRITTEN, View, ViewMessage
from tests.support.messages_api import problems
from tests.support.service.in_process import Chat, Workers
from tests.support.service.installed_example import install
from tests.support.service.problem_documents import problem
from tests.support.strategies import any_conversations
from tests.support.talk import answer, call, request, result, results_of

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from runtime.settings import Settings
    from tests.conftest import Tenant
    from tests.support.blocks import Message
    from tests.support.service.running_api import Service

NAME = "said-twice"
SAME = "[The same result came again later.]"
OFF = {"input_token_budget": 0, "compaction_threshold_tokens": 1_000_000, "min_savings_tokens": 100}
Messages = Sequence[dict[str, Any]]


@pytest.fixture
def installed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    install("strategy", tmp_path, monkeypatch)


def said_twice() -> list[Message]:
    again = result(2, 500)
    again["content"][0]["content"] = result(1, 500)["content"][0]["content"]
    return [request("look"), call(1), result(1, 500), call(2), again, answer("done")]


@pytest.mark.usefixtures("installed")
def test_the_example_is_a_step_of_the_ladder(make_settings: Callable[..., Settings], tenant: Tenant) -> None:
    with Chat(make_settings(), tenant.id) as chat:
        conversation = chat.begin(
            {"input_token_budget": 800, "tool_result_retention_chars": 100_000, "min_savings_tokens": 100}
            | {"extra_strategies": ["not-there", NAME]}
        )
        chat.append(conversation, said_twice())
        Workers(chat).settle(conversation)
        run = chat.run(conversation)
        assert run.state == "committed"
        step = chat.steps(run.id)[-1]
        assert (step.name, step.state) == ("strategies", "committed")
        assert step.detail == (
            "not-there failed: it is not installed here; said-twice shortened 1 and left out 0 message(s)"
        )
        first, second = results_of(chat.valid_context(conversation))
        assert first == SAME
        assert second.startswith("page 1.0")
        (row,) = chat.query("select coverage from snapshots where conversation_id = :c", c=conversation)
        assert [(first, last, fate) for first, last, fate, _ in row.coverage] == [
            (0, 1, "kept"),
            (2, 2, "truncated"),
        ]


@pytest.mark.usefixtures("installed")
def test_by_hand_and_as_a_dry_run(service: Service, module_settings: Settings) -> None:
    path = service.conversation(policy=OFF)
    service.append(path, *said_twice())
    plan = service.client.post(f"{path}/compactions", json={"strategy": NAME, "dry_run": True}).json()
    (step,) = plan["steps"]
    assert (step["name"], step["state"]) == ("strategies", "committed")
    assert results_of(plan["messages"])[0] == SAME
    assert service.client.post(f"{path}/compactions", json={"strategy": NAME}).status_code == 202
    from tests.support.service.in_process_worker import work  # noqa: PLC0415 - Celery loads only where it is used

    work(module_settings, path)
    assert service.client.get(f"{path}/context").json()["messages"] == plan["messages"]
    (run,) = service.client.get(f"{path}/runs").json()["data"]
    assert (run["strategy"], run["state"]) == (NAME, "committed")


@pytest.mark.usefixtures("installed")
def test_a_strategy_that_nobody_knows_is_refused_with_those_that_are_known(service: Service) -> None:
    path = service.conversation()
    refusal = problem(
        service.client.post(f"{path}/compactions", json={"strategy": "guess"}), 422, "invalid", "/strategy"
    )
    assert NAME in refusal["detail"]


def view_of(*messages: Message) -> View:
    return tuple(ViewMessage(message["role"], message["content"], seq) for seq, message in enumerate(messages))


TALK = view_of(*said_twice())


def without_calls(messages: Sequence[dict[str, Any]], _: Policy) -> list[dict[str, Any] | None]:
    return [
        None if message["role"] == "assistant" and isinstance(message["content"], list) else message
        for message in messages
    ]


@pytest.mark.parametrize(
    ("bad", "why"),
    [
        (lambda messages, _: messages[1:], "it returned 5 answers for 6 messages"),
        (lambda messages, _: [*messages[:-1], None], "it changed message 5 of 6, which has to stay"),
        (lambda messages, _: [{**messages[0], "role": "assistant"}, *messages[1:]], "is no message of the user"),
        (lambda messages, _: ["short", *messages[1:]], "is no message of the user"),
        (lambda messages, _: [{"role": "user", "content": ""}, *messages[1:]], "has no content"),
        (lambda messages, _: [{"role": "user", "content": {1, 2}}, *messages[1:]], "is no JSON"),
        (lambda messages, _: [{"role": "user", "content": [float("nan")]}, *messages[1:]], "is no JSON"),
        (lambda messages, _: 1 / 0, "it raised ZeroDivisionError"),
        (without_calls, "the Messages API would refuse what it left"),
        (None, "it is not installed here"),
    ],
)
def test_what_cannot_stand_is_refused(bad: Any, why: str) -> None:
    with pytest.raises(StrategyError, match=why):
        shorten(TALK, bad, Policy(), carries_summary=False)


def test_a_summary_and_what_the_service_wrote_stay() -> None:
    view = (
        ViewMessage("user", "[CONTEXT SUMMARY]\nso far", 0),
        ViewMessage("assistant", "Understood.", WRITTEN),
        *TALK,
    )
    for index, carries_summary in ((0, True), (1, False)):

        def drop(messages: Messages, _: Policy, at: int = index) -> list[dict[str, Any] | None]:
            return [None if place == at else message for place, message in enumerate(messages)]

        with pytest.raises(StrategyError, match=f"it changed message {index} of 8"):
            shorten(view, drop, Policy(), carries_summary=carries_summary)


def test_what_a_strategy_does_to_its_copies_touches_nothing() -> None:
    def vandal(messages: Messages, _: Policy) -> Messages:
        kept = [dict(message) for message in messages]
        for message in messages:
            if isinstance(message["content"], list):
                message["content"][0]["type"] = "gone"
        return kept

    before = repr(TALK)
    shortened = shorten(TALK, vandal, Policy(), carries_summary=False)
    assert shortened.changed
    assert repr(TALK) == before


@given(any_conversations(max_chars=400), st.randoms(use_true_random=False))
def test_whatever_a_strategy_does_the_rest_is_valid_or_refused(conversation: Messages, random: Any) -> None:
    view = repair(tuple(ViewMessage(m["role"], m["content"], seq) for seq, m in enumerate(conversation)))[0]

    def any_answer(messages: Messages, _: Policy) -> list[dict[str, Any] | None]:
        return [*(random.choice([m, m, m, None, {**m, "content": "short"}]) for m in messages[:-1]), *messages[-1:]]

    try:
        shortened = shorten(view, any_answer, Policy(), carries_summary=False)
    except StrategyError:
        return
    assert not shortened.view or problems([message.as_message() for message in shortened.view]) == []
    assert shortened.view[-1:] == view[-1:]
    assert {*shortened.changed, *shortened.dropped}.isdisjoint({WRITTEN})
    assert {message.seq for message in view} - {message.seq for message in shortened.view} == set(shortened.dropped)
