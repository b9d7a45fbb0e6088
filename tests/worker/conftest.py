"""Chat products and workers in the test's own process, for whoever asks for one."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.support.service.in_process import chat, chat_alone, module_chat

if TYPE_CHECKING:
    from tests.support.servers.loopback_model import LoopbackModel
    from tests.support.service.in_process import Chat

__all__ = ["chat", "chat_alone", "module_chat"]


@pytest.fixture
def asking(module_chat: Chat, model: LoopbackModel) -> Chat:
    """The same product with a model to ask."""
    return module_chat.renew(
        summarizer="anthropic",
        ANTHROPIC_API_KEY="sk-test",
        ANTHROPIC_BASE_URL=model.url,
        summarizer_deadline_seconds=30,
    )
