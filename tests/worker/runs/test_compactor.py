"""Summaries and what stands in for them, as a worker of the queue `summaries` makes them."""

from __future__ import annotations

import json
from datetime import timedelta
from decimal import Decimal
from typing import TYPE_CHECKING, Any, Final

import pytest
import stamina
from structlog.testing import capture_logs

from compaction.claims.claim import Claim
from compaction.extract.extractive import TITLE
from compaction.policy import merge
from compaction.summary.transcript import SECTIONS
from compaction.summary.zone import CLOSES, OPENS
from runtime import ids
from store.conversations import pins
from store.conversations.repinning import repin
from tests.support.blocks import call, result, user
from tests.support.messages_api import alternates
from tests.support.servers.loopback_model import LoopbackModel
from tests.support.servers.loopback_steps import longer_than_input, ok, status
from tests.support.service.in_process import SMALL, Chat, Workers, check_state, head, view_of
from tests.support.service.stub_summarizer import StubSummarizer, refusing
from tests.support.talk import answer, exchanges, request, rounds
from worker.summarizers import SummaryError
from worker.summarizers.anthropic import AnthropicModel

if TYPE_CHECKING:
    from collections.abc import Iterator
    from uuid import UUID

    from tests.support.blocks import Message
    from worker.summarizers import Summary, SummaryRequest


def long_talk(chat: Chat, policy: dict[str, Any] | None = None, *, count: int = 12, tokens: int = 200) -> UUID:
    """Return a conversation that is over the threshold of a summary by its text alone."""
    conversation = chat.begin(policy)
    chat.append(conversation, exchanges(count, tokens))
    return conversation


@pytest.mark.requirement("S3", "S4", "S9", "S13")
def test_the_extractive_summary_says_what_it_is_in_snapshot_and_run(chat: Chat) -> None:
    conversation = long_talk(chat)
    sent = chat.context(conversation)["messages"]
    workers = Workers(chat)
    workers.settle(conversation)

    run = chat.run(conversation)
    assert (run.state, run.queue, run.reason, run.attempts) == ("committed", "summaries", None, 1)
    cut, step = chat.steps(run.id)
    assert (cut.name, cut.state, cut.reason) == ("tool_results", "skipped", "nothing_to_cut")
    assert (step.name, step.state, step.summarizer, step.model) == ("summary", "committed", "extractive", None)
    assert step.detail == (
        "Summarized 17 messages; Estimated 4,800 tokens, threshold 4,000; "
        "claims: 17 cited, 0 re-attributed, 0 unsupported, 0 dropped"
    )
    assert (step.messages_before, step.messages_after) == (24, 8)
    assert step.tokens_before == run.tokens_before == 4_800
    assert step.tokens_after == run.tokens_after == chat.context(conversation)["tokens"]["context"] < 4_000
    assert (step.model_calls, step.cost_usd) == (0, None)
    snapshot = chat.snapshot(conversation, 1)
    assert (snapshot.summarizer, snapshot.step, snapshot.run_id) == ("extractive", "summary", run.id)
    assert "extract" in snapshot.summary.lower()

    served = chat.valid_context(conversation)
    assert served[0]["content"].startswith(sent[0]["content"])
    assert served[0]["content"].count(OPENS) == served[0]["content"].count(CLOSES) == 1
    assert served[-6:] == sent[-6:]
    assert alternates(served)
    assert check_state(chat, conversation) is None


def test_a_result_without_a_place_is_read_by_the_summary_of_what_is_around_it(chat: Chat) -> None:
    conversation = chat.begin({"summary_max_tokens": 1_000})
    asked = [user("Ask Kestrel for a permit and for a crane."), call("toolu_permit", "ask", what="permit")]
    crane = [call("toolu_crane", "ask", what="crane"), result("toolu_crane", "Pending.")]
    chat.append(conversation, [*asked, user("And the crane?"), *crane, answer("I did."), *exchanges(12, 200)])
    workers = Workers(chat)
    workers.settle(conversation)
    assert chat.row(conversation).head_version == 1

    late = [result("toolu_permit", "Permit KL-20417 is granted."), answer("Good.")]
    again = [user("Any news?"), result("toolu_crane", "Crane QX-5512 comes on Monday."), answer("Yes.")]
    chat.append(conversation, [*late, *again, *exchanges(14, 200, start=20)])
    workers.settle(conversation)
    summary = chat.snapshot(conversation, 2).summary
    assert "KL-20417" in summary
    assert "QX-5512" in summary
    chat.valid_context(conversation)


@pytest.mark.requirement("S3", "S12")
@pytest.mark.parametrize("switch", ["policy", "settings"])
def test_the_kill_switch_drops_the_oldest_instead(chat: Chat, switch: str) -> None:
    policy = {"max_conversation_messages": 10, "compaction_enabled": switch != "policy"}
    conversation = long_talk(chat, policy)
    sent = chat.context(conversation)["messages"]
    workers = Workers(chat, None if switch == "settings" else StubSummarizer())
    workers.check(conversation)

    assert not workers.woken  # nobody is asked: the worker of the check does it
    run = chat.run(conversation)
    assert (run.state, run.queue, run.reason) == ("committed", "checks", "summaries_disabled")
    step = chat.steps(run.id)[-1]
    assert (step.name, step.state, step.messages_before, step.messages_after) == ("fallback", "committed", 24, 10)
    assert step.summarizer is None
    assert chat.valid_context(conversation) == sent[-10:]
    assert [row[0] for row in chat.originals(conversation)] == list(range(24))


@pytest.mark.requirement("S11", "S12")
def test_the_kill_switch_leaves_as_many_messages_of_one_long_exchange_as_may_stay(chat: Chat) -> None:
    conversation = chat.begin({"compaction_enabled": False, "input_token_budget": 0})
    chat.append(conversation, [request("fix it"), *rounds(40, 100), answer("done"), request("yes")])
    Workers(chat, None).settle(conversation)
    served = chat.valid_context(conversation)
    assert len(served) in {49, 50}
    assert (served[0], served[-2:]) == (request("fix it"), [answer("done"), request("yes")])
    assert chat.context(conversation)["warnings"] == ["dropped without a summary: messages 1-34"]


@pytest.mark.requirement("S11")
@pytest.mark.parametrize("tail", ["an exchange", "an answer too long"])
def test_the_byte_trim_fills_its_limit(chat: Chat, tail: str) -> None:
    conversation = chat.begin(
        {"input_token_budget": 0, "compaction_threshold_tokens": 100_000, "max_context_bytes": 20_000}
        | {"model_context_tokens": 200_000}
    )
    talk = [*exchanges(2, 500), request("fix it"), *rounds(40, 250), answer("done")]
    long = [*exchanges(2, 500), request("write"), answer("it begins", 9_000)]
    chat.append(conversation, [*(talk if tail == "an exchange" else long), request("yes")])
    Workers(chat, None).settle(conversation)
    context = chat.context(conversation)
    served = chat.valid_context(conversation)
    assert 20_000 - 1_400 < len(json.dumps(served, separators=(",", ":"))) <= 20_000
    assert served[-1] == request("yes")
    assert context["warnings"][0].startswith("dropped without a summary: messages 0-3")


def test_a_run_that_waits_for_a_worker_of_summaries_has_not_begun(chat: Chat) -> None:
    """What it waited for lies between being asked for and having begun; its first steps were done before."""
    conversation = chat.begin()
    chat.append(conversation, exchanges(12, 200))
    workers = Workers(chat, StubSummarizer())
    workers.check(conversation)
    assert (chat.run(conversation).state, chat.run(conversation).started_at) == ("queued", None)
    earlier = "created_at = created_at - interval '1 minute', queued_at = queued_at - interval '1 minute'"
    chat.query(f"update runs set {earlier} where conversation_id = :c", c=conversation)  # noqa: S608 - a constant
    workers.summarize()
    run = chat.run(conversation)
    assert run.started_at - run.created_at >= timedelta(minutes=1)
    assert run.started_at <= run.finished_at


@pytest.mark.requirement("S3")
def test_a_zone_too_small_is_accepted_with_its_reason(chat: Chat) -> None:
    conversation = chat.begin()
    chat.append(conversation, exchanges(4, 600))  # 8 messages: the first, one between, the last 6
    stub = StubSummarizer()
    workers = Workers(chat, stub)
    workers.settle(conversation)
    run = chat.run(conversation)
    assert (run.state, run.reason, run.snapshot_version) == ("skipped", "zone_too_small", None)
    assert stub.requests == []
    assert head(chat, conversation).version == 0
    chat.append(conversation, [request("small")])
    workers.settle(conversation)
    assert len(chat.runs(conversation)) == 1  # not again until it has grown
    chat.append(conversation, [answer("large", 1_000)])
    workers.settle(conversation)
    assert [run.state for run in chat.runs(conversation)] == ["skipped", "committed"]


@pytest.mark.requirement("S3")
def test_a_context_at_the_threshold_is_not_over_it(chat: Chat) -> None:
    conversation = long_talk(chat, {"input_token_budget": 0}, count=10, tokens=200)
    assert chat.row(conversation).context_tokens == 4_000
    workers = Workers(chat)
    workers.settle(conversation)
    assert chat.runs(conversation) == []


@pytest.mark.requirement("O4", "S13")
def test_an_extract_takes_the_place_of_a_failed_summary(chat: Chat) -> None:
    conversation = long_talk(chat, {"max_conversation_messages": 10})
    sent = chat.context(conversation)["messages"]
    Workers(chat, refusing()).settle(conversation)
    run = chat.run(conversation)
    assert (run.state, run.reason) == ("degraded", "summary_failed_extract_committed")
    assert run.error == "model_refused: the model declined to summarize"
    failed, extract = chat.steps(run.id)[-2:]
    assert (failed.name, failed.state, failed.reason) == ("summary", "failed", "model_refused")
    assert (extract.name, extract.state, extract.summarizer) == ("extract", "committed", "extractive")
    served = chat.valid_context(conversation)
    assert TITLE in served[0]["content"]
    assert served[-6:] == sent[-6:]
    assert chat.snapshot(conversation, 1).step == "extract"


def dashes(count: int) -> list[Message]:
    """Return exchanges without a word: no extract can be made of them."""
    text = "- " * 1_600
    return [{"role": role, "content": text} for _ in range(count) for role in ("user", "assistant")]


@pytest.mark.requirement("S10", "S13")
def test_a_failed_summary_is_recorded_and_the_oldest_are_dropped(chat: Chat) -> None:
    conversation = chat.begin({"input_token_budget": 0, "max_conversation_messages": 4, "protected_tail_messages": 2})
    chat.append(conversation, dashes(4))
    sent = chat.context(conversation)["messages"]
    workers = Workers(chat, refusing())
    with capture_logs() as events:
        workers.settle(conversation)
    run = chat.run(conversation)
    assert (run.state, run.reason) == ("degraded", "summary_failed_fallback_committed")
    assert run.error == "model_refused: the model declined to summarize"
    failed, extract, fallback = chat.steps(run.id)[-3:]
    assert (extract.name, extract.state, extract.reason) == ("extract", "failed", "empty_summary")
    assert (failed.name, failed.state, failed.reason) == ("summary", "failed", "model_refused")
    assert (failed.error, failed.snapshot_version) == ("the model declined to summarize", None)
    assert (failed.model, failed.model_calls, failed.model_input_tokens) == ("stub-model", 1, 1_000)
    assert failed.tokens_after == failed.tokens_before
    assert (fallback.name, fallback.state, fallback.snapshot_version) == ("fallback", "committed", 1)
    assert run.snapshot_version == 1
    assert chat.valid_context(conversation) == sent[-4:]
    assert {"summary.failed", "context.dropped"} <= {event["event"] for event in events}


def test_run_that_cut_results_before_its_summary_failed_is_degraded(chat: Chat) -> None:
    conversation = chat.begin({"input_token_budget": 1_000, "compaction_threshold_tokens": 1_000})
    chat.append(conversation, [request("go"), *rounds(2, 4_000), *dashes(4)])
    Workers(chat, refusing()).settle(conversation)
    run = chat.run(conversation)
    steps = {(step.name, step.state) for step in chat.steps(run.id)}
    assert steps >= {("tool_results", "committed"), ("summary", "failed")}
    assert run.state == "degraded"
    assert run.snapshot_version is not None


@pytest.mark.requirement("S10")
def test_a_failed_summary_with_nothing_to_drop_leaves_the_context_as_it_is(chat: Chat) -> None:
    conversation = chat.begin({"input_token_budget": 0})
    chat.append(conversation, dashes(5))
    workers = Workers(chat, refusing())
    before = chat.context(conversation)
    workers.settle(conversation)
    run = chat.run(conversation)
    assert (run.state, run.reason, run.snapshot_version) == ("failed", "summary_failed_nothing_dropped", None)
    assert chat.context(conversation)["messages"] == before["messages"]
    workers.settle(conversation)
    chat.append(conversation, [request("small")])
    workers.settle(conversation)
    assert len(chat.runs(conversation)) == 1  # a model that is down is not asked at every turn


@pytest.mark.requirement("S10")
def test_a_summarizer_with_a_bug_is_a_failed_summary(chat: Chat) -> None:
    conversation = long_talk(chat, {"max_conversation_messages": 10})
    Workers(chat, StubSummarizer(error=KeyError("the text of a message"))).settle(conversation)
    run = chat.run(conversation)
    assert (run.state, run.reason) == ("degraded", "summary_failed_extract_committed")
    assert run.error == "summarizer_error: KeyError"


@pytest.mark.requirement("S11")
def test_the_count_cap_holds_after_a_summary(chat: Chat) -> None:
    conversation = long_talk(chat, {"max_conversation_messages": 8, "protected_tail_messages": 14}, count=15)
    sent = chat.context(conversation)["messages"]
    workers = Workers(chat, StubSummarizer())
    workers.settle(conversation)
    run = chat.run(conversation)
    steps = [(step.name, step.state, step.snapshot_version) for step in chat.steps(run.id)]
    assert steps[1:] == [("prune", "skipped", None), ("summary", "committed", 1), ("backstop", "committed", 2)]
    assert (run.state, run.snapshot_version) == ("committed", 2)
    served = chat.valid_context(conversation)
    assert len(served) <= 8
    assert OPENS in served[0]["content"]
    assert served[-6:] == sent[-6:]
    spans = chat.snapshot(conversation, 2).coverage
    assert {span[2] for span in spans} == {"kept", "summarized", "dropped"}


def test_a_second_summary_folds_the_first_in(chat: Chat) -> None:
    conversation = long_talk(chat)
    stub = StubSummarizer("FIRST summary")
    workers = Workers(chat, stub)
    workers.settle(conversation)
    stub.text = "SECOND summary, which has the first in it"
    chat.append(conversation, exchanges(12, 200, start=12))
    workers.settle(conversation)

    assert [asked.previous for asked in stub.requests] == [None, "FIRST summary"]
    assert not any("FIRST" in str(message.content) for message in stub.requests[1].zone)
    served = chat.valid_context(conversation)
    assert served[0]["content"].count(OPENS) == 1
    assert "SECOND summary" in served[0]["content"]
    assert "FIRST" not in str(served)
    snapshot = chat.snapshot(conversation, 2)
    assert (snapshot.parent_version, snapshot.summary) == (1, stub.text)
    assert [run.state for run in chat.runs(conversation)] == ["committed", "committed"]


@pytest.mark.requirement("S8", "S13")
def test_what_the_model_cost_is_recorded(asking: Chat, model: LoopbackModel) -> None:
    model.then(status(529), ok("Request 0 to request 8 were answered."))
    conversation = long_talk(asking)
    Workers(asking).settle(conversation)
    step = asking.steps(asking.run(conversation).id)[-1]
    _, answered = model.requests
    assert (step.summarizer, step.model, step.prompt_version) == ("anthropic", "claude-haiku-4-5", "summary-7")
    assert (step.model_calls, step.model_input_tokens) == (2, answered.input_tokens)
    assert step.cost_usd == Decimal(answered.input_tokens + 5 * step.model_output_tokens) / 1_000_000
    summary = asking.snapshot(conversation, 1).summary
    assert f"{SECTIONS[0]}\nRequest 0 to request 8 were answered." in summary


STRANGE: Final[tuple[Any, ...]] = (2**31, 10**30, -1, 1.5, 1e308, True, "12", None, [], {}, float("nan"), float("inf"))
"""What a server may say in the place of a number of tokens."""
FIELDS: Final = ("input_tokens", "output_tokens", "cache_creation_input_tokens", "cache_read_input_tokens")


def usages(strange: Any) -> Iterator[Any]:
    """Yield what a server may say of an answer's tokens that has something strange in it."""
    for field in FIELDS:
        yield {"input_tokens": 10, "output_tokens": 5, field: strange}
    yield {"input_tokens": 10, "output_tokens": 5, "cache_creation": {"ephemeral_1h_input_tokens": strange}}
    yield strange


def test_no_count_that_a_provider_answers_ends_the_run(asking: Chat, model: LoopbackModel) -> None:
    asked = AnthropicModel(asking.settings)
    for usage in (each for strange in STRANGE for each in usages(strange)):
        model.then(ok("So it was.", usage=usage))
        spent = asked.ask("Write.", "a question", max_tokens=300).spent
        assert spent.input_tokens is None or 0 <= spent.input_tokens < 2**31, usage
        assert spent.output_tokens is None or 0 <= spent.output_tokens < 2**31, usage
    for usage in (*usages(2**31), *usages(float("nan"))):
        model.then(ok("Request 0 to request 8 were answered.", usage=usage))
        conversation = long_talk(asking)
        Workers(asking).settle(conversation)
        run = asking.run(conversation)
        assert (run.state, run.attempts) == ("committed", 1), (usage, run)


STOPS: Final[tuple[Any, ...]] = (2**70, [], {}, 1.5, "x" * 10_000)
CONTENTS: Final[tuple[Any, ...]] = (None, 7, "text", [None], [{"type": "text", "text": 2**70}], [{"type": 5}])


def test_whatever_else_a_provider_answers_an_extract_follows(asking: Chat, model: LoopbackModel) -> None:
    asked = AnthropicModel(asking.settings)
    answers = [{"stop_reason": each} for each in STOPS] + [{"content": each} for each in CONTENTS]
    for changes in (*answers, {"id": {}, "model": 2**70, "type": None, "role": []}, {"type": "error", "content": []}):
        model.default = ok("", **{"stop_reason": "end_turn"} | changes)
        with pytest.raises(SummaryError) as caught:
            asked.ask("Write.", "a question", max_tokens=300)
        assert caught.value.code in {"model_garbage", "empty_summary"}, changes
    conversation = long_talk(asking)
    Workers(asking).settle(conversation)
    run = asking.run(conversation)
    assert (run.state, run.reason, run.attempts) == ("degraded", "summary_failed_extract_committed", 1)
    assert TITLE in asking.snapshot(conversation, 1).summary


def test_a_summary_longer_than_what_it_replaces_is_not_taken(asking: Chat, model: LoopbackModel) -> None:
    model.then(*[longer_than_input()] * 6)
    conversation = long_talk(asking)
    workers = Workers(asking)
    workers.settle(conversation)
    run = asking.run(conversation)
    assert (run.state, run.reason) == ("degraded", "summary_failed_extract_committed")
    failed = asking.steps(run.id)[-2]
    assert (failed.reason, failed.model_calls) == ("summary_too_long", len(model.requests))  # paid for all the same
    asked = len(model.requests)
    asking.append(conversation, [request("small")])
    workers.settle(conversation)
    assert len(model.requests) == asked


def test_a_summary_inside_a_running_exchange_keeps_its_pairs(chat: Chat) -> None:
    conversation = chat.begin({"input_token_budget": 0})
    chat.append(conversation, [request("find a job"), *rounds(15, 300)])
    Workers(chat, StubSummarizer()).settle(conversation)
    served = chat.valid_context(conversation)
    assert alternates(served)
    assert len(served) == 7
    kept = [seq for seq, _ in view_of(chat, conversation, 1)]
    assert kept == [0]  # the tail is where it was
    assert head(chat, conversation).covers_through == 24


def test_an_extract_tells_the_next_summarizer_nothing_private(asking: Chat, model: LoopbackModel) -> None:
    conversation = asking.begin({"private_result_fields": ["margin_note"]})
    talk = [request("Help me with orders."), answer("Gladly.")]
    for number in range(6):
        order = {"order": f"OR-{number}4711", "margin_note": f"SECRET-{number}9931"}
        looked_up = call(f"toolu_{number}", "orders", number=number), result(f"toolu_{number}", json.dumps(order))
        talk += [request(f"order {number}"), *looked_up, answer("Shipped.")]
    asking.append(conversation, [*talk, *exchanges(12, 200)])
    model.default = ok("I'm sorry, I cannot help with that.")
    Workers(asking).settle(conversation)
    extract = asking.snapshot(conversation, 1)
    assert (extract.step, "OR-24711" in extract.summary) == ("extract", True)
    asking.append(conversation, exchanges(14, 200, start=20))
    asked = len(model.requests)
    Workers(asking).settle(conversation)
    assert "OR-24711" in model.requests[asked].prompt
    assert all("SECRET" not in each.prompt for each in model.requests)


@pytest.mark.parametrize("pinned", [False, True])
def test_after_an_outage_a_summary_is_made_from_the_originals_and_once(
    asking: Chat, model: LoopbackModel, *, pinned: bool
) -> None:
    port = int(model.url.rpartition(":")[2])
    conversation = long_talk(asking)
    model.close()
    workers = Workers(asking)
    with stamina.set_testing(True, attempts=1):
        for number in range(20, 30):
            workers.settle(conversation)
            asking.append(conversation, [request(f"request {number}", 200), answer(f"answer {number}", 200)])
        workers.settle(conversation)
    extracts = [run for run in asking.runs(conversation) if run.reason == "summary_failed_extract_committed"]
    assert len(extracts) >= 2
    assert TITLE in asking.valid_context(conversation)[0]["content"]
    if pinned:
        with asking.database.transaction(asking.tenant_id) as connection:
            pins.add(connection, asking.tenant_id, conversation, 4, request("request 2", 200)["content"], ids.new_id())
            repin(connection, asking.tenant_id, conversation, policy=merge(SMALL), request_id=ids.new_id())
        assert head(asking, conversation).version == asking.row(conversation).last_version
    with LoopbackModel(default=ok("Request 0 to request 30 were answered."), port=port) as back:
        for number in range(40, 60):
            asking.append(conversation, [request(f"request {number}", 200), answer(f"answer {number}", 200)])
            workers.settle(conversation)
            if back.requests:
                break
        (asked,) = back.requests
        assert TITLE not in asked.prompt
        for number in (1, 5, 11, 20, 27):
            assert request(f"request {number}", 200)["content"][:200] in asked.prompt
        taken = [step for run in asking.runs(conversation) for step in asking.steps(run.id)]
        step = next(each for each in taken if each.model_calls and each.state == "committed")
        assert (step.name, step.state, step.detail) == (
            "summary",
            "committed",
            "From the originals of what extracts stood for; claims: 0 cited, 0 re-attributed, 1 unsupported, 0 dropped",
        )
        served = asking.valid_context(conversation)
        assert TITLE not in served[0]["content"]
        assert "Request 0 to request 30 were answered." in served[0]["content"]
        assert step.tokens_after < step.tokens_before
        for number in range(60, 90):
            asking.append(conversation, [request(f"request {number}", 200), answer(f"answer {number}", 200)])
            workers.settle(conversation)
            if len(back.requests) > 1:
                break
        again = back.requests[1]
        assert "Request 0 to request 30 were answered." in again.prompt
        assert request("request 5", 200)["content"][:200] not in again.prompt


class Citing(StubSummarizer):
    """A summarizer whose lines rest on a message that is not there."""

    def summarize(self, request: SummaryRequest) -> Summary:
        return super().summarize(request)._replace(claims=(Claim(self.text, (10_000,), "verbatim"),))


def test_a_snapshot_with_text_of_messages_that_it_does_not_cover_is_a_failed_step(chat: Chat) -> None:
    conversation = long_talk(chat)
    Workers(chat, Citing()).settle(conversation)
    (run,) = chat.runs(conversation)
    reasons = {step.name: (step.state, step.reason, step.error) for step in chat.steps(run.id)}
    error = "it holds text of messages that it does not cover: 10000"
    assert reasons["summary"] == ("failed", "not_covered", error)
    # What a failed summary leaves to do is done by the steps after it.
    assert chat.row(conversation).head_version == 1
    assert chat.snapshot(conversation, 1).step == "extract"
