"""The invariants over lives of conversations that mix shapes: the model changes between them, in tool loops as well.

Contexts are served in every shape and held to the rules of its API by the checkers that stand apart from the product.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import msgspec
from hypothesis import given, settings
from hypothesis import strategies as st

from compaction.messages import THINKING, blocks
from compaction.pieces import count_messages
from compaction.shapes import codecs
from compaction.shorten.fitting import fit_history
from compaction.shorten.trimming import exchanges
from compaction.view import WRITTEN, view_tokens
from tests.support.shapes.mixed import STEPS, MixedLife, lived, mixed_lives

if TYPE_CHECKING:
    from tests.support.shapes.mixed import MixedConversation


def every_context(conversation: MixedConversation) -> str:
    return json.dumps([conversation.served_in(shape) for shape in codecs.SHAPES])


def said(content: Any) -> list[str]:
    """Return the texts in a message, and the ids of its calls and results: these may stand beside others in a view."""
    named = {"text": "text", "tool_use": "id", "tool_result": "tool_use_id"}
    every = [str(block[named[kind]]) for block in blocks(content) if (kind := str(block["type"])) in named]
    return [text for text in every if text.strip()]


@settings(max_examples=settings().max_examples // 2)
@given(mixed_lives())
def test_contexts_are_valid_in_every_shape_fresh_and_account_for_everything(life: MixedLife) -> None:
    stored: list[object] = []
    for event, conversation in lived(life):
        for shape in codecs.SHAPES:
            assert conversation.refused(shape) == [], (event, shape)
        # Nothing is lost: what was stored stays as it was, and what was sent as it came.
        assert conversation.originals[: len(stored)] == stored
        stored = list(conversation.originals)
        assert all(codecs.read_sent(each.text, shape) == each for shape, sent in conversation.sent.items()
                   for each in sent.values())  # fmt: skip
        # Covered without gaps: each original once, and what is kept is shown.
        view = conversation.working().view
        coverage = conversation.snapshot.coverage
        covered = [seq for span in coverage for seq in range(span.first, span.last + 1)]
        assert covered == list(range(conversation.covers_through + 1)), event
        names = {message.seq for message in view if message.seq != WRITTEN}
        lost = [span for span in coverage if span.fate in {"dropped", "summarized"}]
        gone = {seq for span in lost for seq in range(span.first, span.last + 1)}
        assert names.isdisjoint(gone), event
        # Fresh: the newest message ends it.
        newest = said(json.loads(conversation.originals[-1].content))
        assert not newest or set(newest) <= set(said(view[-1].content)), event
        # What another model thought is shown to nobody else.
        assert not any(
            block.get("type") in THINKING
            for message in view
            if message.seq <= conversation.other_model_through
            for block in blocks(message.content)
        ), event


@settings(max_examples=settings().max_examples // 2)
@given(mixed_lives())
def test_a_step_changes_nothing_until_it_is_committed_then_what_it_said_and_once(life: MixedLife) -> None:
    for _, conversation in lived(life):
        for number, name in enumerate(STEPS):
            before, contexts = conversation.working(), every_context(conversation)
            new = conversation.take(name, number)
            assert every_context(conversation) == contexts
            if new is None:
                continue
            head, through = conversation.head, conversation.strip_thinking_through
            promised = new.tokens + view_tokens(each for each in before.view if each.seq > new.covers_through)
            conversation.commit(new)
            after = conversation.working().view
            assert view_tokens(after) <= promised, name
            if name == "drop":
                limit = conversation.policy.max_conversation_messages
                assert count_messages(after, in_pieces=True) <= count_messages(before.view, in_pieces=True)
                assert count_messages(after, in_pieces=True) <= limit or len(exchanges(after)) <= 2
            once = every_context(conversation)
            assert conversation.take(name, number) is None, name
            assert every_context(conversation) == once
            conversation.head, conversation.strip_thinking_through = head, through


@settings(max_examples=settings().max_examples // 2)
@given(mixed_lives(), st.sampled_from([0, 20, 100, 400, 2_000]))
def test_what_is_fitted_is_bounded_full_and_valid_in_every_shape(life: MixedLife, room: int) -> None:
    for event, conversation in lived(life):
        view = conversation.working().view
        summarized = conversation.snapshot.summary is not None
        fitted = fit_history(view, room, lambda message: message.tokens, carries_summary=summarized)
        if view_tokens(view) <= room:
            assert fitted.view == view
        elif fitted.tokens > room:
            assert len(exchanges(fitted.view)) <= 1 + summarized, event
        for shape in codecs.SHAPES:
            assert conversation.refused(shape, fitted.view) == [], (event, shape)
        again = fit_history(fitted.view, room, lambda message: message.tokens, carries_summary=summarized)
        assert msgspec.json.encode(again.view) == msgspec.json.encode(fitted.view), event
