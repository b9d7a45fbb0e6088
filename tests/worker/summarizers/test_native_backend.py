"""The API's own compaction as a backend: what is sent, what is kept, and what every later step does with its block."""

from __future__ import annotations

import json
from decimal import Decimal
from functools import partial
from threading import Thread
from typing import TYPE_CHECKING, Any
from uuid import UUID, uuid4

import anthropic
import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from compaction.coverage import Coverage
from compaction.frames.wordings import WORDINGS
from compaction.messages import is_signed_summary, message_facts
from compaction.payload.assembly import History, Layers, assemble
from compaction.pins.pinned import Pin, missing_pins, with_pins, without_pins
from compaction.policy import merge
from compaction.repair import repair
from compaction.shorten.fitting import fit_history
from compaction.shorten.tool_results import cut_tool_results
from compaction.shorten.trimming import drop_oldest
from compaction.steps.rehearsal import plan_run
from compaction.steps.snapshot import Original, Snapshot, build, settle
from compaction.steps.stage import Stage
from compaction.steps.steps import replace_prefix as replace_by_block
from compaction.steps.steps import summarize
from compaction.summary.zone import OPENS, Zone, find_prefix, find_zone, opening_length, rebuild, replace_prefix
from compaction.text.outline import ContextBlock
from compaction.tokens import content_tokens
from compaction.view import MARKER, OPENING, WRITTEN, View, ViewMessage
from runtime.queues import Queue
from runtime.settings import Settings
from store.conversations import conversations, snapshots
from store.runs import requested
from tests.support.messages_api import begins_with_summary, open_calls, problems
from tests.support.servers.loopback_compaction import BETA, compacted, dumped, not_compacted, signed_block
from tests.support.servers.loopback_model import LoopbackModel
from tests.support.servers.loopback_steps import garbage, ok, prompt_too_long, status
from tests.support.service.in_process import SMALL, Chat, Workers, head
from tests.support.strategies import any_conversations
from tests.support.talk import answer, call, exchanges, request, result, rounds
from worker.parts import choose_model, choose_signed, choose_summarizer, native_of
from worker.summarizers.base import SummaryError
from worker.summarizers.native import LEAST_ANSWER_TOKENS, OWN_PROMPT, PROMPT, AnthropicNative, block_of
from worker.summarizers.prices import NO_OWN_PRICES

if TYPE_CHECKING:
    from compaction.steps.snapshot import NewSnapshot
    from tests.support.blocks import Message
    from tests.support.servers.loopback_steps import Step

MODEL = "claude-opus-5-5"
MARK = {"cache_control": {"type": "ephemeral"}}
SYSTEM = [{"type": "text", "text": "You find jobs."} | MARK]
TOOLS = [{"name": "fetch", "description": "Fetch a page.", "input_schema": {"type": "object"}}]
BLOCK = signed_block("The user looks for work. Acme Robotics scored 8/10.")
READABLE = "Asked for jobs; caf\u00e9 \u4e2d at Acme scored 8/10."
ROOMS = st.integers(0, 4_000)


def stored(messages: list[Message]) -> View:
    return tuple(ViewMessage(message["role"], message["content"], seq) for seq, message in enumerate(messages))


def sent(view: View) -> list[Message]:
    return [message.as_message() for message in view]


def compact(view: View, tail: int) -> View | None:
    zone = find_prefix(view, tail)
    return None if zone is None else replace_prefix(view, zone, BLOCK)


def stands_first(view: View) -> bool:
    return view[0] == ViewMessage("assistant", [BLOCK]) and sum(map(is_signed_summary, _blocks(view))) == 1


def _blocks(view: View) -> list[dict[str, Any]]:
    return [block for message in view if isinstance(message.content, list) for block in message.content]


def test_the_prefix_does_not_end_with_thinking() -> None:
    thought = {"role": "assistant", "content": [{"type": "redacted_thinking", "data": "opaque"}]}
    said = {"role": "assistant", "content": "So."}
    asked = {"role": "user", "content": "Go on."}
    view = stored([asked, said, asked, thought, said, asked])
    assert find_prefix(view, 2) == Zone(0, 3)
    assert find_prefix(view, 1) == Zone(0, 5)


@given(any_conversations(), st.integers(1, 8))
def test_the_prefix_ends_where_no_call_is_open(messages: list[Message], tail: int) -> None:
    view, _ = repair(stored(messages))
    zone = find_prefix(view, tail)
    if zone is not None:
        assert zone.start == 0
        assert zone.stop <= len(view) - tail
        assert open_calls(sent(view[: zone.stop])) == []
        assert problems(sent(view[: zone.stop]), allow_open_tail=False) == []


@given(any_conversations(), st.integers(1, 8), ROOMS, st.integers(1, 6))
def test_every_later_step_leaves_the_block_first_and_the_view_valid(
    messages: list[Message], tail: int, room: int, later_tail: int
) -> None:
    before, _ = repair(stored(messages))
    view = compact(before, tail)
    if view is None:
        return
    assert stands_first(view)
    assert repair(view)[0] == view
    assert view[1:] == before[len(before) - len(view) + 1 :]
    steps: list[View] = [
        cut_tool_results(view, 100).view,
        drop_oldest(view, lambda count, _: count <= room % 10).view,
        fit_history(view, room, lambda message: message.tokens, carries_summary=True).view,
    ]
    if zone := find_zone(view, later_tail):
        steps.append(summarized := rebuild(view, zone, "Later they spoke of Acme."))
        assert summarized[1].role == "user"
        steps.append(drop_oldest(summarized, lambda *_: False, carries_summary=True).view)
        assert steps[-1][1] == summarized[1]
        if again := find_zone(summarized, 1):
            assert again.start == 2
            steps.append(rebuild(summarized, again, "Later still.", previous="Later they spoke of Acme."))
    for after in steps:
        assert stands_first(after)
        assert problems(sent(after)) == []
    layers = Layers(
        turn=(ContextBlock("doc", "Doc", "# Part"),), history=view, user_message=ViewMessage("user", "And now?")
    )
    policy = merge({"total_token_budget": 1_000 + room, "reserved_output_tokens": 0})
    steps.append(assemble(layers, policy, History(1, carries_summary=True)).messages)
    pins = (Pin("pin-1", 0, "Never book a flight over 500 EUR."),)
    for after in (view, *steps):
        pinned = with_pins(after, pins)
        assert stands_first(pinned)
        assert problems(sent(pinned)) == []
        assert without_pins(pinned, pins) == after


@given(any_conversations(), st.integers(1, 4), st.integers(1, 4))
def test_a_second_block_takes_the_place_of_the_first_and_what_follows_it(
    messages: list[Message], tail: int, later: int
) -> None:
    view = compact(repair(stored(messages))[0], tail)
    if view is None or (zone := find_prefix(view, later)) is None:
        return
    assert begins_with_summary(sent(view[: zone.stop]))
    newer = signed_block("Newer.")
    after = replace_prefix(view, zone, newer)
    assert after[0].content == [newer]
    assert BLOCK not in _blocks(after)
    assert problems(sent(after)) == []


def test_what_is_left_of_an_agents_loop_after_the_block_is_dropped_round_by_round() -> None:
    view = (ViewMessage("assistant", [BLOCK]), *stored(rounds(4, 50)))
    dropped = drop_oldest(view, lambda count, _: count <= 5)
    assert dropped.view == (view[0], *view[5:])
    everything = drop_oldest(view, lambda *_: False)
    assert everything.view == (view[0], *view[-2:])
    asked = (view[0], ViewMessage("user", "Look.", 0), *view[1:])
    assert drop_oldest(asked, lambda *_: False).view == (*asked[:2], *asked[-2:])


def test_signed_blocks_that_clients_store_are_served_where_the_api_takes_them() -> None:
    own = [{"role": "assistant", "content": [BLOCK]}, *exchanges(1, 5)]
    view, repairs = repair(stored(own))
    assert sent(view) == own
    assert repairs.warnings() == []
    late = [*exchanges(1, 5), {"role": "assistant", "content": [BLOCK]}, *exchanges(1, 5, start=1)]
    mended, repairs = repair(stored(late))
    assert sent(mended) == [*late[:2], *late[3:]]
    assert repairs.dropped_blocks == 1
    assert not message_facts("assistant", [BLOCK]).sound  # so that the database never serves one unseen
    threshold = {"type": "compaction", "content": "So far.", "encrypted_content": "x"}
    asked = [request("a"), {"role": "assistant", "content": [threshold]}, request("b")]
    assert sent(repair(stored(asked))[0]) == asked
    assert message_facts("assistant", [threshold]).sound
    opened, _ = repair(stored(asked[1:]))
    assert opened[0].content == OPENING


def test_a_block_weighs_what_its_summary_does() -> None:
    assert content_tokens([signed_block("x" * 400)]) == 100
    assert content_tokens([{"type": "compaction", "content": None, "encrypted_content": "y" * 400}]) > 100


def test_the_checker_knows_the_documented_rules() -> None:
    tail = exchanges(1, 5)
    first: Message = {"role": "assistant", "content": [BLOCK]}
    assert problems([first]) == problems([first, *tail]) == problems([first, answer("a"), *tail]) == []
    assert problems([{"role": "user", "content": [BLOCK, {"type": "text", "text": "Go on."}]}]) == []
    for broken, reason in (
        ([request("a"), first, *tail], "compaction_block_misplaced"),
        ([{"role": "assistant", "content": [{"type": "text", "text": "x"}, BLOCK]}, *tail], "compaction_block_mis"),
        ([first, {"role": "assistant", "content": [BLOCK]}], "compaction_block_ambiguous"),
        ([{"role": "assistant", "content": [BLOCK | {"citations": None}]}], "Extra inputs are not permitted"),
        ([{"role": "assistant", "content": [BLOCK | {"content": ""}]}], "must be null or a string"),
        ([{"role": "assistant", "content": [{"type": "compaction", "content": "x"}]}], "must be a user message"),
    ):
        assert any(reason in line for line in problems(broken)), (broken, problems(broken))
    assert problems([request("a"), {"role": "assistant", "content": [{"type": "compaction", "content": None}]}]) == []


def _native(model: LoopbackModel, **changes: Any) -> AnthropicNative:
    given: dict[str, Any] = {
        "summarizer": "anthropic-native",
        "ANTHROPIC_API_KEY": "sk-test",
        "ANTHROPIC_BASE_URL": model.url,
        "breaker_failures": 0,
    }
    settings = Settings(**given | changes)
    make, asked = choose_summarizer(settings), choose_model(settings)
    assert make is not None
    assert asked is not None
    assert make().name == asked().name == "anthropic"
    assert choose_signed(settings) is not None
    return native_of(settings)


def _sign(model: LoopbackModel, messages: list[Message], **changes: Any) -> Any:
    return _native(model).sign(stored(messages), MODEL, max_tokens=1_000, **changes)


def test_the_request_carries_nothing_but_the_conversation() -> None:
    with LoopbackModel() as model:
        talk = exchanges(2, 10)
        signed = _native(model).sign(stored(talk), MODEL, SYSTEM, TOOLS, max_tokens=8_000)
        _native(model).sign(stored(talk), MODEL, max_tokens=1_000)
        first, second = model.requests
        assert first.body == {
            "model": MODEL,
            "max_tokens": 8_000,
            "system": SYSTEM,
            "tools": TOOLS,
            "messages": talk,
            "compaction": {"type": "summarize"},
        }
        assert first.headers["anthropic-beta"] == BETA
        assert second.body["max_tokens"] == LEAST_ANSWER_TOKENS
        assert {"system", "tools"}.isdisjoint(second.body)
        assert signed.block == signed_block(signed.block["content"])


def test_the_request_has_no_more_marks_for_the_cache_than_the_api_takes() -> None:
    marked = [message | {"content": [{"type": "text", "text": "x"} | MARK]} for message in exchanges(2, 10)]
    tools = [TOOLS[0] | MARK]
    with LoopbackModel() as model:
        _native(model).sign(stored(marked), MODEL, SYSTEM, tools, max_tokens=8_000)
        (asked,) = model.requests
        assert asked.body["messages"] == marked
        assert (asked.body["tools"], asked.body["system"]) == (TOOLS, [{"type": "text", "text": "You find jobs."}])


def test_wishes_replace_the_apis_prompt_by_one_that_holds_them_within_its_limit() -> None:
    with LoopbackModel() as model:
        assert _sign(model, exchanges(1, 10), wishes="Stress the salaries.").prompt_version == OWN_PROMPT
        assert _sign(model, exchanges(1, 10), wishes="所" * 90_000).prompt_version == OWN_PROMPT
        short, long = (each.body["compaction"]["instructions"] for each in model.requests)
        assert short == PROMPT + "Stress the salaries."
        assert long.startswith(PROMPT + "所所")
        assert len(long) < 16_384


def test_fields_that_no_sdk_knows_come_back_in_the_block_as_they_were() -> None:
    extra: dict[str, Any] = {
        "tool_changes": [],
        "encrypted_content": None,
        "later": {"b": 1, "a": [1.5, "\u00e9\u4e2d"]},
    }
    with LoopbackModel([compacted("So far: caf\u00e9 \u2192 8/10.", **extra)]) as model:
        signed = _sign(model, exchanges(1, 10))
    assert dumped(signed.block) == dumped(signed_block("So far: caf\u00e9 \u2192 8/10.", **extra))


def test_the_usage_of_the_iterations_is_what_it_cost() -> None:
    entry = {
        "type": "compaction",
        "input_tokens": 1_000,
        "output_tokens": 200,
        "cache_creation_input_tokens": 100,
        "cache_read_input_tokens": 10_000,
        "cache_creation": {"ephemeral_5m_input_tokens": 40, "ephemeral_1h_input_tokens": 60},
    }
    usage = {"input_tokens": 0, "output_tokens": 0, "iterations": [entry, entry]}
    message = {"stop_reason": "compaction", "content": [BLOCK], "usage": usage}
    spent, block = block_of(json.dumps(message).encode(), "claude-opus-5", NO_OWN_PRICES)
    assert block == BLOCK
    assert (spent.calls, spent.input_tokens, spent.output_tokens) == (1, 22_200, 400)
    one = Decimal("0.000005") * (1_000 + 40 * Decimal("1.25") + 60 * 2 + 1_000) + Decimal("0.000025") * 200
    assert spent.cost_usd == 2 * one
    plain = {"stop_reason": "compaction", "content": [BLOCK], "usage": {"input_tokens": 7, "output_tokens": 3}}
    assert block_of(json.dumps(plain).encode(), "unheard-of", NO_OWN_PRICES)[0][:4] == (1, 7, 3, None)
    for wrong in (None, {}, {"iterations": [{"input_tokens": "x"}]}, {"iterations": 5}):
        assert block_of(json.dumps(plain | {"usage": wrong}).encode(), MODEL, NO_OWN_PRICES)[0][:4] == (
            1,
            None,
            None,
            None,
        )


@pytest.mark.parametrize(
    ("step", "code", "calls"),
    [
        pytest.param(not_compacted("max_tokens"), "summary_cut", 1, id="max_tokens"),
        pytest.param(not_compacted("model_context_window_exceeded"), "prompt_too_long", 1, id="window"),
        pytest.param(not_compacted("refusal"), "model_refused", 1, id="refusal"),
        pytest.param(not_compacted("tool_use"), "empty_summary", 1, id="tool_use"),
        pytest.param(not_compacted("end_turn"), "empty_summary", 1, id="no text"),
        pytest.param(not_compacted("pause_turn"), "model_garbage", 1, id="unknown stop"),
        pytest.param(not_compacted("compaction"), "model_garbage", 1, id="no block"),
        pytest.param(not_compacted("compaction", blocks=[BLOCK, BLOCK]), "model_garbage", 1, id="two blocks"),
        pytest.param(not_compacted("compaction", blocks=[BLOCK | {"content": None}]), "empty_summary", 1, id="null"),
        pytest.param(not_compacted("compaction", blocks=[BLOCK | {"content": " "}]), "empty_summary", 1, id="blank"),
        pytest.param(not_compacted("compaction", blocks=[BLOCK | {"content": 5}]), "model_garbage", 1, id="number"),
        pytest.param(not_compacted("compaction", blocks=[BLOCK | {"content": "a\0b"}]), "model_garbage", 1, id="nul"),
        pytest.param(not_compacted("compaction", blocks=[BLOCK | {"signature": None}]), "model_garbage", 1, id="bare"),
        pytest.param(ok("A summary in prose."), "empty_summary", 1, id="a server that knows no compaction"),
        pytest.param(garbage(), "model_garbage", 1, id="garbage"),
        pytest.param(prompt_too_long(), "prompt_too_long", 1, id="prompt too long"),
        pytest.param(status(400, "compaction: Extra inputs are not permitted"), "model_rejected", 1, id="400"),
        pytest.param(status(401), "model_auth", 1, id="401"),
    ],
)
def test_what_is_no_summary_has_its_reason_code_and_its_cost(step: Step, code: str, calls: int) -> None:
    with LoopbackModel([step]) as model, pytest.raises(SummaryError) as raised:
        _sign(model, exchanges(1, 10))
    assert raised.value.code == code
    assert raised.value.spent.calls == calls


def test_an_overloaded_server_is_asked_again() -> None:
    with LoopbackModel([status(529, "compaction_unavailable"), compacted("So far.")]) as model:
        signed = _sign(model, exchanges(1, 10))
    assert (signed.block["content"], signed.spent.calls) == ("So far.", 2)


@pytest.mark.parametrize(
    ("changes", "header", "reason"),
    [
        ({}, False, "requires anthropic-beta"),
        ({"context_management": {"edits": []}}, True, "context_management"),
        ({"stop_sequences": ["x"]}, True, "stop_sequences"),
        ({"tool_choice": {"type": "any"}}, True, "tool_choice"),
        ({"messages": [request("a"), call(1)]}, True, "compaction_incomplete_turn"),
        ({"compaction": None, "messages": [{"role": "assistant", "content": [BLOCK]}]}, False, "expected tag"),
        (
            {"compaction": None, "messages": [{"role": "assistant", "content": [BLOCK | {"content": "mine"}]}]},
            True,
            "compaction_content_mismatch",
        ),
    ],
)
def test_the_loopback_server_refuses_what_the_api_does(changes: dict[str, Any], header: bool, reason: str) -> None:
    body: dict[str, Any] = {"model": MODEL, "max_tokens": 99, "compaction": {"type": "summarize"}}
    body |= {"messages": exchanges(1, 5)} | changes
    with LoopbackModel() as model, anthropic.Anthropic(api_key="k", base_url=model.url, max_retries=0) as client:
        post = partial(client.post, "/v1/messages", cast_to=object, body=body)
        with pytest.raises(anthropic.BadRequestError, match=reason):
            post(options={"headers": {"anthropic-beta": BETA}} if header else {})


# The whole way, on the real database.


@pytest.fixture
def native(module_chat: Chat, model: LoopbackModel) -> Chat:
    return module_chat.renew(
        summarizer="anthropic-native",
        ANTHROPIC_API_KEY="sk-test",
        ANTHROPIC_BASE_URL=model.url,
        summarizer_deadline_seconds=30,
        breaker_failures=0,
    )


def begin(chat: Chat, **policy: Any) -> UUID:
    fields = {"policy": SMALL | policy, "model": MODEL, "system": SYSTEM, "tools": TOOLS}
    with chat.database.transaction(chat.tenant_id) as connection:
        row, _ = conversations.create(connection, chat.tenant_id, fields)
    found: UUID = row.id
    return found


def asks(model: LoopbackModel, chat: Chat, conversation: UUID, header: str = BETA) -> int:
    """Return the status that the model answers the chat product's next call with."""
    model.then(ok("I am glad to help."))
    messages = [*chat.context(conversation)["messages"], request("And now?")]
    with anthropic.Anthropic(api_key="k", base_url=model.url, max_retries=0) as client:
        try:
            client.post(
                "/v1/messages",
                cast_to=object,
                body={"model": MODEL, "max_tokens": 99, "messages": messages, "tools": TOOLS},
                options={"headers": {"anthropic-beta": header}},
            )
        except anthropic.APIStatusError as error:
            return error.status_code
    return 200


@pytest.mark.requirement("S13")
def test_the_block_takes_the_place_of_exactly_what_was_sent(native: Chat, model: LoopbackModel) -> None:
    conversation = begin(native)
    native.append(conversation, exchanges(12, 200))
    before = native.context(conversation)["messages"]
    model.then(compacted(READABLE, tool_changes=[], encrypted_content=None))
    Workers(native).settle(conversation)

    (asked,) = model.requests
    assert asked.body["messages"] == before[:18]
    assert (asked.body["model"], asked.body["system"], asked.body["tools"]) == (MODEL, SYSTEM, TOOLS)
    run = native.run(conversation)
    assert (run.state, run.reason, run.snapshot_version) == ("committed", None, 1)
    step = native.steps(run.id)[-1]
    assert (step.name, step.summarizer, step.model, step.prompt_version) == (
        "summary",
        "anthropic-native",
        MODEL,
        "api-default",
    )
    assert step.detail == (
        "Replaced 18 messages; Estimated 4,825 tokens, threshold 4,000; "
        "claims: 0 cited, 0 re-attributed, 1 unsupported, 0 dropped; its messages alone were estimated at 4,800"
    )
    assert (step.messages_before, step.messages_after, step.model_calls) == (24, 7, 1)
    assert step.model_input_tokens == asked.input_tokens
    assert step.cost_usd > 0
    block = signed_block(
        "Asked for jobs; caf\u00e9 \u4e2d at Acme scored 8/10.", tool_changes=[], encrypted_content=None
    )
    snapshot = native.snapshot(conversation, 1)
    assert snapshot.messages == f'[{{"role":"assistant","content":[{dumped(block)}]}}]'
    assert (snapshot.summarizer, snapshot.summary) == ("anthropic-native", block["content"])
    coverage = msgspec.convert(snapshot.coverage, Coverage)
    assert [(span.first, span.last, span.fate) for span in coverage] == [(0, 17, "summarized")]
    served = native.valid_context(conversation)
    assert served == [{"role": "assistant", "content": [block]}, *before[18:]]
    assert asks(model, native, conversation) == 200
    assert asks(model, native, conversation, header="context-1m-2025-08-07") == 400


def picture(name: str) -> Message:
    """Return a request about an image."""
    source = {"type": "url", "url": f"https://files.example.com/{name}.png"}
    return {"role": "user", "content": [{"type": "image", "source": source}, {"type": "text", "text": "Look."}]}


def media_list(served: list[Message]) -> list[str]:
    """Return the lines of the list beside a signed summary."""
    heading, *lines = str(served[1]["content"]).split("\n")
    assert heading == "Images and files that are not shown any more:"
    return lines


def test_media_that_left_are_named_beside_the_block(native: Chat, model: LoopbackModel) -> None:
    conversation = begin(native, total_token_budget=100_000)
    workers = Workers(native)
    native.append(conversation, [picture("first-room"), answer("Seen."), *exchanges(6, 200), picture("second-room")])
    native.append(conversation, [answer("Seen."), *exchanges(6, 200, start=6)])
    workers.settle(conversation)
    served = native.valid_context(conversation)
    block = stored_block(native, conversation, 1)
    assert served[0] == {"role": "assistant", "content": [block]}
    first = media_list(served)
    assert [line.startswith("- image at https://files.example.com/") for line in first] == [True, True]
    assert [line.endswith(f"[m{seq}.0]") for line, seq in zip(first, (0, 14), strict=True)] == [True, True]
    assert '"image"' not in json.dumps(served)
    # The same bytes until the next block, whose list goes on from this one.
    native.append(conversation, exchanges(1, 10, start=12))
    assert native.valid_context(conversation)[:2] == served[:2]
    native.append(conversation, [picture("third-room"), answer("Seen."), *exchanges(12, 200, start=13)])
    workers.settle(conversation)
    later = native.valid_context(conversation)
    assert later[0] == {"role": "assistant", "content": [stored_block(native, conversation, 2)]} != served[0]
    assert media_list(later)[:2] == first
    assert "third-room" in media_list(later)[2]
    assert asks(model, native, conversation) == 200


def stored_block(native: Chat, conversation: UUID, version: int) -> dict[str, Any]:
    """Return the signed block of a snapshot."""
    block: dict[str, Any] = json.loads(native.snapshot(conversation, version).messages)[0]["content"][0]
    assert is_signed_summary(block)
    return block


NOTES = {language: wording.left_out.format(count=2, when="", named="m3-m4") for language, wording in WORDINGS.items()}
MEDIA = ["image, PNG [m0.0]", "file report.pdf [m3.1]"]


@pytest.mark.parametrize("language", list(WORDINGS))
def test_every_later_step_keeps_the_list_of_media_beside_the_block(language: str) -> None:
    before = stored(exchanges(12, 40))
    zone = find_prefix(before, 6)
    assert zone is not None
    view = replace_prefix(before, zone, BLOCK, MEDIA, language)
    listed = view[1]
    assert str(listed.content).split("\n") == [WORDINGS[language].media, *(f"- {each}" for each in MEDIA)]
    assert opening_length(view) == 2
    pins = (Pin("pin-1", 0, "Never book a flight over 500 EUR."), Pin("left out", 3, NOTES[language], "left_out"))
    for after in (
        view,
        drop_oldest(view, lambda *_: False).view,
        fit_history(view, 0, lambda message: message.tokens, carries_summary=True).view,
        cut_tool_results(view, 100).view,
        repair(view)[0],
    ):
        assert after[:2] == view[:2]
        pinned = with_pins(after, pins, language)
        assert pinned[:2] == view[:2]
        assert without_pins(pinned, pins) == after
        assert missing_pins(pinned, pins[:1]) == ()
        assert problems(sent(pinned)) == []
    later = find_zone(view, 2)
    assert later is not None
    assert later.start == 2
    assert replace_prefix(view, Zone(0, 4), BLOCK, ["audio [m9.0]"], language)[1].content == (
        f"{listed.content}\n- audio [m9.0]"
    )


def test_a_summary_by_text_takes_the_list_of_media_over() -> None:
    policy = merge(SMALL)
    talk = [picture("room"), answer("Seen."), *exchanges(20, 200)]
    originals = tuple(Original(seq, m["role"], json.dumps(m["content"])) for seq, m in enumerate(talk))
    stage = Stage(build(Snapshot(), originals, policy))
    zone = find_prefix(stage.view, 20)
    assert zone is not None
    outcome = replace_by_block(stage, zone, BLOCK, policy)
    after = stage.after(outcome.settle(stage, "r"), policy)
    assert after.view[1].content == outcome.view[1].content
    later = find_zone(after.view, 4)
    assert later is not None
    summarized = summarize(after, later, "They went on.", policy).view
    assert stands_first(summarized)
    assert str(summarized[1].content).count("room.png") == 1
    assert [str(each.content).startswith(OPENS) for each in summarized[1:3]] == [True, False]


def test_a_conversation_without_a_model_is_asked_of_the_installations(native: Chat, model: LoopbackModel) -> None:
    conversation = native.begin()
    native.append(conversation, exchanges(12, 200))
    Workers(native).settle(conversation)
    assert model.requests[0].body["model"] == native.settings.model_of("anthropic")
    assert native.steps(native.run(conversation).id)[-1].model == native.settings.model_of("anthropic")


def test_a_call_at_the_boundary_stays_with_its_result(native: Chat, model: LoopbackModel) -> None:
    conversation = begin(
        native, protected_tail_messages=3, input_token_budget=0, prune_soft_share=1, prune_hard_share=1
    )
    talk = [*exchanges(8, 300), request("look"), call(1), result(1, 50), call(2), result(2, 50)]
    native.append(conversation, talk)
    Workers(native).settle(conversation)
    (asked,) = model.requests
    assert asked.status == 200
    assert asked.body["messages"] == talk[:17]
    _, pinned, *rest = native.valid_context(conversation)
    assert talk[16]["content"] in pinned["content"]  # the request is in the block, and its answer is still to come
    assert rest == talk[17:]


def test_turns_that_come_while_the_block_is_written_follow_it(native: Chat, model: LoopbackModel) -> None:
    conversation = begin(native)
    native.append(conversation, exchanges(12, 200))
    workers = Workers(native)
    lease = workers.hand_over(conversation)
    model.hold()
    worker = Thread(target=workers.dispatcher.execute, args=(lease,))
    worker.start()
    model.wait_for_requests(1)
    more = [request("meanwhile"), answer("noted")]
    native.append(conversation, more)
    model.release()
    worker.join(30)
    served = native.valid_context(conversation)
    assert is_signed_summary(served[0]["content"][0])
    assert served[-2:] == more
    assert len(served) == 9


def test_the_second_compaction_sends_the_block_and_keeps_only_the_new_one(native: Chat, model: LoopbackModel) -> None:
    conversation = begin(native)
    workers = Workers(native)
    for start in (0, 12, 24):
        native.append(conversation, exchanges(12, 200, start=start))
        workers.settle(conversation)
    first, second, third = model.requests
    assert {each.status for each in model.requests} == {200}
    stored_first = json.loads(native.snapshot(conversation, 1).messages)[0]
    assert second.body["messages"][0] == stored_first
    assert sum(
        is_signed_summary(b) for m in third.body["messages"] if isinstance(m["content"], list) for b in m["content"]
    )
    served = native.valid_context(conversation)
    assert stored_first not in served
    coverage = msgspec.convert(native.snapshot(conversation, 3).coverage, Coverage)
    assert [(span.first, span.last, span.fate) for span in coverage] == [
        (0, 17, "summarized"),
        (18, 41, "summarized"),
        (42, 65, "summarized"),
    ]
    assert first.body["messages"][0]["role"] == "user"


def test_lines_of_the_block_are_attributed_as_those_without_citations(native: Chat, model: LoopbackModel) -> None:
    conversation = begin(native, unsupported_claims="drop")
    told = "The freight of Kestrel Lines under contract KL-20417 weighs 731 kilograms."
    native.append(conversation, [{"role": "user", "content": told}, {"role": "assistant", "content": "Noted."}])
    native.append(conversation, exchanges(12, 200))
    written = "Facts:\n- Kestrel Lines carries 731 kilograms of freight under KL-20417\n- Osaka pays 99,120 EUR in June"
    model.then(compacted(written), compacted(written))
    workers = Workers(native)
    workers.settle(conversation)
    row = native.snapshot(conversation, 1)
    assert row.summary == written, "signed: nothing of it is left out"
    assert [(claim.seqs, claim.support) for claim in snapshots.claims_of(row) or ()] == [
        ((0,), "values"),
        ((), "unsupported"),
    ]
    native.append(conversation, exchanges(12, 200, start=20))
    workers.settle(conversation)
    assert native.row(conversation).head_version == 2
    again = snapshots.claims_of(native.snapshot(conversation, 2)) or ()
    assert [claim.seqs for claim in again] == [(0,), ()], "by the claims of the block before"


def test_lines_of_a_block_with_an_extract_after_it_are_attributed_by_the_claims_of_both(
    native: Chat, model: LoopbackModel
) -> None:
    conversation = begin(native, unsupported_claims="refuse")
    said = "The freight of Kestrel Lines under contract KL-20417 weighs 731 kilograms."
    native.append(conversation, [{"role": "user", "content": said}, {"role": "assistant", "content": "Noted."}])
    native.append(conversation, exchanges(12, 200))
    written = "- Kestrel Lines carries 731 kilograms of freight under KL-20417"
    later = "The depot in Rotterdam closes on Friday, says order RD-5521."
    model.then(compacted(written), status(403), compacted(f"{written}\n- {later}"))
    workers = Workers(native)
    workers.settle(conversation)
    native.append(conversation, [{"role": "user", "content": later}, {"role": "assistant", "content": "Noted."}])
    native.append(conversation, exchanges(12, 200, start=20))
    workers.settle(conversation)
    assert [native.snapshot(conversation, version).step for version in (1, 2)] == ["summary", "extract"]
    native.append(conversation, exchanges(12, 200, start=40))
    workers.settle(conversation)
    row = native.snapshot(conversation, 3)
    assert (row.step, [claim.seqs for claim in snapshots.claims_of(row) or ()]) == ("summary", [(0,), (26,)])


def block_of_context(chat: Chat, conversation: UUID) -> dict[str, Any]:
    found: dict[str, Any] = chat.valid_context(conversation)[0]["content"][0]
    return found


def compacted_talk(chat: Chat, **policy: Any) -> UUID:
    conversation = begin(chat, **policy)
    chat.append(conversation, exchanges(12, 200))
    Workers(chat).settle(conversation)
    return conversation


def test_tool_results_after_the_block_are_cut_around_it(native: Chat, model: LoopbackModel) -> None:
    conversation = compacted_talk(native, compaction_threshold_tokens=4_500, prune_soft_share=1, prune_hard_share=1)
    block = block_of_context(native, conversation)
    native.append(conversation, [request("look"), *rounds(4, 600)])
    Workers(native).settle(conversation)
    assert len(model.requests) == 1
    assert head(native, conversation).version == 2
    served = native.valid_context(conversation)
    assert served[0]["content"] == [block]
    assert served[-1]["content"] == result(3, 600)["content"]
    assert served[-3]["content"][0]["content"].endswith(MARKER)
    assert native.snapshot(conversation, 2).summary == block["content"]


def test_the_rules_and_the_request_of_the_first_message_stay_word_for_word(native: Chat, model: LoopbackModel) -> None:
    conversation = begin(native, input_token_budget=0, prune_soft_share=1, prune_hard_share=1)
    asked = "Find me a job in Berlin. Never book anything over 417.50 EUR."
    native.append(conversation, [{"role": "user", "content": asked}, *rounds(8, 600)])
    workers = Workers(native)
    workers.settle(conversation)
    for start in (8, 16):
        served = native.valid_context(conversation)
        assert is_signed_summary(served[0]["content"][0])
        assert asked in served[1]["content"]
        assert served[1]["role"] == "user"
        assert served[1]["content"].count(asked) == 1
        native.append(conversation, rounds(8, 600, start=start))
        workers.settle(conversation)
    assert len(model.requests) == 3
    assert {each.status for each in model.requests} == {200}
    assert asked in native.valid_context(conversation)[1]["content"]


@pytest.mark.requirement("S10")
@pytest.mark.parametrize(
    ("step", "code"),
    [
        (not_compacted("compaction", blocks=[BLOCK | {"content": None}]), "empty_summary"),
        (not_compacted("max_tokens"), "summary_cut"),
        (status(403), "model_auth"),
    ],
)
def test_a_failed_compaction_goes_down_the_ladder_and_keeps_the_block(
    native: Chat, model: LoopbackModel, step: Step, code: str
) -> None:
    conversation = compacted_talk(native, max_conversation_messages=10)
    block = block_of_context(native, conversation)
    native.append(conversation, exchanges(12, 200, start=12))
    before = native.context(conversation)["messages"]
    model.then(step)
    Workers(native).settle(conversation)
    run = native.runs(conversation)[-1]
    steps = native.steps(run.id)
    failed = next(step for step in steps if step.state == "failed")
    assert (failed.name, failed.reason, failed.summarizer, failed.model) == ("summary", code, "anthropic-native", MODEL)
    assert failed.model_calls == 1
    served = native.valid_context(conversation)
    assert served[0]["content"] == [block]
    assert len(served) < len(before)
    assert native.snapshot(conversation, head(native, conversation).version).seqs[0] == WRITTEN


def test_an_extract_by_hand_leaves_the_block_and_stands_after_it(native: Chat, model: LoopbackModel) -> None:
    conversation = compacted_talk(native)
    block = block_of_context(native, conversation)
    native.append(conversation, exchanges(8, 60, start=12))
    workers = Workers(native)
    native.query(
        "update conversations set policy = policy || '{\"min_savings_tokens\": 10}' where id = :c", c=conversation
    )
    run_by_hand(native, workers, conversation, "extract")
    served = native.valid_context(conversation)
    assert served[0]["content"] == [block]
    assert served[1]["content"].startswith(OPENS)
    assert "8/10" not in served[1]["content"]
    run_by_hand(native, workers, conversation, "drop")
    assert native.valid_context(conversation)[:2] == served[:2]
    native.append(conversation, exchanges(12, 200, start=20))
    workers.settle(conversation)
    asked = model.requests[-1].body["messages"]
    assert asked[:2] == served[:2]
    after = native.valid_context(conversation)
    assert after[0]["content"][0] != block
    assert OPENS not in str(after)


def run_by_hand(chat: Chat, workers: Workers, conversation: UUID, strategy: Any) -> None:
    row = chat.row(conversation)
    wanted = requested.ManualRun(strategy, None, merge(row.policy))
    with chat.database.transaction(chat.tenant_id) as connection:
        run_id, _ = requested.request(
            connection, chat.tenant_id, conversation, wanted, queue=Queue.CHECKS, request_id=uuid4()
        )
    lease = workers.claim(run_id)
    assert lease is not None
    workers.dispatcher.execute(lease)
    workers.summarize()


def test_thinking_from_before_the_block_is_gone_from_what_follows_it(native: Chat) -> None:
    conversation = begin(native)
    native.append(conversation, exchanges(12, 200))
    thought = [{"type": "thinking", "thinking": "hm", "signature": "s"}, {"type": "text", "text": "Here."}]
    native.append(conversation, [request("and?"), {"role": "assistant", "content": thought}])
    Workers(native).settle(conversation)
    assert "thinking" not in str(native.valid_context(conversation))
    native.append(conversation, [request("more?")])
    native.append(conversation, [{"role": "assistant", "content": thought}], snapshot_version=1)
    assert native.valid_context(conversation)[-1]["content"] == thought


def test_a_dry_run_shows_what_would_be_replaced() -> None:
    originals = tuple(
        Original(seq, message["role"], json.dumps(message["content"])) for seq, message in enumerate(exchanges(12, 200))
    )
    policy = merge(SMALL)
    stage = Stage(build(Snapshot(), originals, policy))
    plan = plan_run(stage, policy, strategy="auto", summaries=True, waits=False, native=True)
    (step,) = [step for step in plan.steps if step.name == "summary"]
    assert step.zone_seqs == tuple(range(18))
    assert [message.seq for message in plan.view] == [WRITTEN, *range(18, 24)]
    assert plan.placeholder


def test_the_stage_after_a_block_offers_its_text_to_nobody() -> None:
    policy = merge(SMALL)
    talk = exchanges(12, 200)
    originals = tuple(Original(seq, m["role"], json.dumps(m["content"])) for seq, m in enumerate(talk))
    stage = Stage(build(Snapshot(), originals, policy))
    view = compact(stage.view, 6)
    assert view is not None
    new: NewSnapshot = settle(stage.working, view, run_id="r", removed="summarized", summary=BLOCK["content"])
    after = stage.after(new, policy)
    assert after.working.snapshot.summary == BLOCK["content"]
    assert after.previous_summary is None
    assert opening_length(after.view) == 1
    # What was summarized by text after it is offered: the next such summary takes its place.
    talk = exchanges(12, 200, start=12)
    added = tuple(Original(24 + seq, m["role"], json.dumps(m["content"])) for seq, m in enumerate(talk))
    grown = Stage(build(after.working.snapshot, (*after.working.tail, *added), policy))
    zone = find_zone(grown.view, 6)
    assert zone is not None
    rebuilt = rebuild(grown.view, zone, "They went on.", previous=grown.previous_summary)
    later = grown.after(
        settle(grown.working, rebuilt, run_id="s", removed="summarized", summary="They went on."), policy
    )
    assert opening_length(later.view) == 2
    assert later.previous_summary == "They went on."
