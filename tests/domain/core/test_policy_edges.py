"""Every policy that is accepted can be run: all steps, at the edges of every key."""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING, Any

import msgspec
import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from compaction.payload import block_summary
from compaction.payload.assembly import History, Layers, assemble
from compaction.payload.context_blocks import prepare
from compaction.pins.pinned import Pin
from compaction.policy import Policy, PolicyError, merge
from compaction.steps.catalogue import PRUNE, STRATEGY_NAMES, SUMMARY
from compaction.steps.overflow import shrink
from compaction.steps.rehearsal import plan_run
from compaction.steps.snapshot import Original, Snapshot, build
from compaction.steps.stage import Stage
from compaction.summary.staging import WindowTooSmallError, plan
from compaction.text.outline import ContextBlock
from compaction.tokens import json_text
from store.conversations import branches
from tests.support.messages_api import problems
from tests.support.service.in_process import Chat, Workers, chat, module_chat
from tests.support.talk import answer, request, rounds

if TYPE_CHECKING:
    from collections.abc import Callable
    from uuid import UUID

__all__ = ["chat", "module_chat"]

BUSY: dict[str, Any] = {
    "input_token_budget": 300,
    "compaction_threshold_tokens": 600,
    "max_conversation_messages": 4,
    "max_context_bytes": 2_000,
    "min_savings_tokens": 10,
    "model_context_tokens": 16_000,
}
"""Every step is due at once; what a policy sets itself goes before."""
TEXTS: dict[str, list[Any]] = {
    "inline_tool_tags": [["t"], ["a.b:c"] * 100],
    "summary_instructions": ["Short.", "x" * 2_000],
    "private_result_fields": [["f"], ["f" * 200] * 100],
    "prune_allow": [["*"], ["[!a]?*"], ["none"]],
    "prune_deny": [["*"], ["["]],
    "extra_strategies": [["not-installed"]],
    "unsupported_claims": ["mark", "drop", "refuse"],
    "html_results": ["text", "raw"],
    "secrets": ["mask", "keep"],
    "frame_language": ["auto", "en"],
    "swap": ["at_once", "when_it_pays"],
    "summarizer_model": ["", "m" * 200],
    "model_prices": [{}, {"m" * 200: {"input": 0, "output": 1e6, "cache_read": 0, "cache_write": 1e6}}],
}


def edges() -> dict[str, list[Any]]:
    """Return the least and the largest values that each key takes."""
    values_by_key = dict(TEXTS)
    for field in msgspec.inspect.type_info(Policy).fields:  # type: ignore[attr-defined]
        match field.type:
            case msgspec.inspect.BoolType():
                values_by_key[field.encode_name] = [False, True]
            case msgspec.inspect.IntType(ge=int(least), le=most):
                values_by_key[field.encode_name] = [least, least + 1, most]
            case msgspec.inspect.FloatType(gt=None, ge=least, le=most):
                values_by_key[field.encode_name] = [least, most]
            case msgspec.inspect.FloatType(le=most):
                values_by_key[field.encode_name] = [5e-324, 1e-6, 0.999_999, most]
    return values_by_key


EDGES = edges()


def is_accepted(policy: dict[str, Any]) -> bool:
    try:
        merge(BUSY, policy)
    except PolicyError:
        return False
    return True


def extremes() -> st.SearchStrategy[dict[str, Any]]:
    """Policies in which any number of keys is at an edge."""
    each = {key: st.sampled_from(values) for key, values in EDGES.items()}
    return st.fixed_dictionaries({}, optional=each).filter(is_accepted)


def test_the_edges_are_those_of_every_key() -> None:
    assert EDGES.keys() == set(Policy.__struct_fields__)
    for key, values in EDGES.items():
        for value in values:
            beside = {"prune_hard_share": 1.0} if key == "prune_soft_share" else {}
            beside |= {"prune_soft_share": value} if key == "prune_hard_share" else {}
            beside |= {"total_token_budget": 10**8} if key == "reserved_output_tokens" and value < 10**8 else {}
            beside |= {"reserved_output_tokens": 0} if key == "total_token_budget" else {}
            assert value == 10**8 or is_accepted({key: value, **beside}), (key, value)


def live(chat: Chat, workers: Workers, policy: dict[str, Any]) -> UUID:
    """Let a conversation live under a policy: turns, checks, a step of each sort by hand, a restore."""
    conversation = chat.begin(BUSY | policy)
    chat.append(conversation, [request("look", 40), *rounds(4, 200), answer("found", 120)])
    workers.settle(conversation)
    chat.append(conversation, [request("more", 300), *rounds(3, 150), answer("so", 500), request("and", 20)])
    workers.settle(conversation)
    assert_ended(chat, conversation, policy)
    with chat.database.transaction(chat.tenant_id) as connection:
        in_force = merge(BUSY, policy)
        branches.restore(connection, chat.tenant_id, conversation, 0, in_force, conversation)
    chat.append(conversation, [answer("yes", 30), request("go on", 30)])
    workers.settle(conversation)
    return conversation


def assert_ended(chat: Chat, conversation: UUID, policy: dict[str, Any]) -> None:
    for run in chat.runs(conversation):
        assert run.state in {"committed", "skipped", "failed"}, (policy, run.state, run.reason, run.error)
        assert run.attempts <= 1


def assert_well(chat: Chat, conversation: UUID, policy: dict[str, Any]) -> None:
    assert_ended(chat, conversation, policy)
    served = chat.context(conversation)
    assert problems(served["messages"]) == []
    assert served["messages"][-1]["role"] == "user"
    assert served["last_seq"] == chat.row(conversation).next_seq - 1


def rehearse(policy: Policy) -> None:
    """Take every step that is made of messages and a policy alone."""
    talk = [request("look", 40), *rounds(4, 200), answer("found", 120), request("more", 300), *rounds(2, 150)]
    tail = [Original(seq, each["role"], json_text(each["content"])) for seq, each in enumerate(talk)]
    working = build(Snapshot(), tail, policy, pinned=[Pin("p", 0, "look", "pinned")])
    stage = Stage(working, bytes=sum(len(row.content) for row in tail))
    for strategy in (*STRATEGY_NAMES, "not-installed"):
        plan_run(stage, policy, strategy=strategy, summaries=policy.compaction_enabled, waits=False)
    for native in (False, True):
        plan_run(stage, policy, strategy="auto", summaries=True, waits=True, native=native)
    shrink(stage, policy, factor=1.0, overflows=1, refusal=None)
    for window in (16_000, 200_000):
        with suppress(WindowTooSmallError):
            plan(working.view, "before", policy, window, instructions="short", pins=["look"], strip_fields=["f"])
    block = ContextBlock("notes.md", "Notes", "# One\n\n" + "word " * 3_000)
    (prepared,) = prepare([block], policy)
    for part in block_summary.split(block.text, policy, 16_000)[:2]:
        block_summary.part_prompt(block.source, block.title, part, 1, 2, policy)
    layers = Layers("Be brief.", None, (block._replace(text=prepared.outline),), (block,), working.view)
    assembly = assemble(layers, policy, History(2))
    assert problems([message.as_message() for message in assembly.messages]) == []


@pytest.mark.parametrize("key", sorted(EDGES))
def test_each_key_at_its_edges(key: str) -> None:
    for value in EDGES[key]:
        policy = {key: value}
        if not is_accepted(policy):
            policy |= {"total_token_budget": 10**8, "prune_soft_share": min(0.3, value or 1), "prune_hard_share": 1.0}
            policy[key] = value
        if is_accepted(policy):
            rehearse(merge(BUSY, policy))


@given(extremes())
def test_many_keys_at_their_edges(policy: dict[str, Any]) -> None:
    rehearse(merge(BUSY, policy))


def at_once(pick: Callable[[list[Any]], Any]) -> dict[str, Any]:
    return {key: pick(values) for key, values in EDGES.items()} | {
        "total_token_budget": 10**8,
        "compaction_enabled": True,
        "extra_strategies": [],
    }


LEAST, MOST = at_once(lambda values: values[0]), at_once(lambda values: values[-1]) | {"reserved_output_tokens": 0}


@given(extremes())
@example(LEAST)
@example(LEAST | {"compaction_enabled": False, "prune_soft_share": 0.999, "prune_hard_share": 1.0})
@example(MOST)
@example({"min_savings_tokens": MOST["min_savings_tokens"]})
@settings(max_examples=settings().max_examples // 10, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_a_conversation_lives_at_the_edges(chat: Chat, policy: dict[str, Any]) -> None:
    assert_well(chat, live(chat, Workers(chat), policy), policy)


def test_pruning_that_is_always_due_beside_a_budget_that_is_off(chat: Chat) -> None:
    """Each is accepted by itself; together they left no threshold to hold a step back by."""
    policy = {"input_token_budget": 0, "prune_soft_share": 1e-6}
    conversation = live(chat, Workers(chat), policy)
    assert_well(chat, conversation, policy)
    assert {step.name for run in chat.runs(conversation) for step in chat.steps(run.id)} >= {PRUNE.name, SUMMARY.name}
