"""Chat products and workers in the test's own process, for whoever asks for one."""

from __future__ import annotations

from tests.support.service.in_process import chat, chat_alone, module_chat

__all__ = ["chat", "chat_alone", "module_chat"]
