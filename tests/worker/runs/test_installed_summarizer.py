"""A summarizer of another package, found by its entry point: the example in docs/examples/summarizer."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from pydantic import ValidationError

from runtime.settings import Settings
from tests.support.service.in_process import Chat, Workers
from tests.support.service.installed_example import install
from tests.support.talk import exchanges

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from tests.conftest import Tenant


@pytest.fixture
def installed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    install("summarizer", tmp_path, monkeypatch)


@pytest.mark.usefixtures("installed")
def test_the_example_summarizes(make_settings: Callable[..., Settings], tenant: Tenant) -> None:
    with Chat(make_settings(summarizer="first-words"), tenant.id) as chat:
        conversation = chat.begin({"input_token_budget": 0})
        chat.append(conversation, exchanges(12, 200))
        Workers(chat).settle(conversation)
        run = chat.run(conversation)
        assert (run.state, run.reason) == ("committed", None)
        assert chat.steps(run.id)[-1].summarizer == "first-words"
        first, *_ = chat.valid_context(conversation)
        assert "user: request 3: lorem ipsum dolor sit amet lorem" in first["content"]


def test_a_summarizer_that_is_not_installed_is_refused_with_those_that_are() -> None:
    with pytest.raises(ValidationError, match=r"there are anthropic, .*, extractive, none"):
        Settings(summarizer="first-words")
