"""Times in what a summarizer reads: when a message was said, or that nobody knows."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import pytest

from store.conversations import conversations
from tests.support.servers.loopback_model import LoopbackModel
from tests.support.service.in_process import SMALL, Chat, Workers
from tests.support.talk import exchanges

if TYPE_CHECKING:
    from collections.abc import Iterator

MONDAY: Final = "2025-06-02T10:00:00Z"


@pytest.fixture
def model() -> Iterator[LoopbackModel]:
    with LoopbackModel() as running:
        yield running


TOLD: Final = [(MONDAY, "2025-06-02T10:00:00", "time unknown"), (None, "time unknown", "2025-06-02")]


@pytest.mark.parametrize(("given", "shown", "hidden"), TOLD)
def test_prompt_tells_when_messages_were_said(
    chat: Chat, model: LoopbackModel, given: str | None, shown: str, hidden: str
) -> None:
    product = chat.renew(
        summarizer="anthropic", breaker_failures=0, ANTHROPIC_BASE_URL=model.url, ANTHROPIC_API_KEY="sk-test"
    )
    fields: dict[str, Any] = {"policy": SMALL}
    with product.database.transaction(product.tenant_id) as connection:
        conversation = conversations.create(connection, product.tenant_id, fields)[0].id
    talk = exchanges(12, 200)
    product.append(conversation, talk, created_at=[given] * len(talk))
    Workers(product).settle(conversation)
    read = str(model.requests[0].body["messages"])
    assert shown in read
    assert hidden not in read
