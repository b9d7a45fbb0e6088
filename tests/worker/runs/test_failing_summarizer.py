"""A thousand turns with a summarizer that always fails: no loop, and a context that stays in bounds."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from compaction.policy import merge
from compaction.steps.ladder import growth_margin
from tests.support.service.in_process import SMALL, Chat, Workers
from tests.support.service.stub_summarizer import refusing
from tests.support.talk import answer, request

if TYPE_CHECKING:
    from uuid import UUID

TURNS = 1_000
TOKENS = 60
"""Of each message."""
POLICY = merge(SMALL)


@pytest.mark.slow
def test_a_thousand_turns_without_a_single_summary(chat: Chat) -> None:
    conversation: UUID = chat.begin()
    stub = refusing()
    workers = Workers(chat, stub)
    largest = 0
    for number in range(TURNS):
        chat.append(conversation, [request(f"request {number}", TOKENS), answer(f"answer {number}", TOKENS)])
        workers.settle(conversation)
        largest = max(largest, chat.row(conversation).context_tokens)
        if number % 50 == 0:
            served = chat.valid_context(conversation)
            assert served[-1]["content"].startswith(f"answer {number}:")
    margin = growth_margin(POLICY.compaction_threshold_tokens, POLICY)
    assert largest <= POLICY.compaction_threshold_tokens + margin + 4 * TOKENS
    runs = chat.runs(conversation)
    # One attempt for every so many tokens that the conversation has grown by, and never two for the same.
    assert 10 < len(stub.requests) <= TURNS * 2 * TOKENS // margin
    assert len(runs) <= len(stub.requests) + 2
    assert {(run.state, run.reason) for run in runs} <= {
        ("degraded", "summary_failed_extract_committed"),
        ("skipped", "nothing_to_prune"),
    }
    assert max(run.attempts for run in runs) == 1
    assert chat.row(conversation).check_due_at is None
    assert len(chat.originals(conversation)) == 2 * TURNS
