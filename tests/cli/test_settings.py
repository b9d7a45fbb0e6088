"""The settings of a process: policy defaults from the environment."""

from __future__ import annotations

import os
from typing import Any

import pytest
from pydantic import ValidationError

from compaction.policy import Policy, merge
from runtime.settings import Settings


@pytest.fixture(autouse=True)
def bare_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [name for name in os.environ if name.startswith("PALIMPSEST_")]:
        monkeypatch.delenv(name)


@pytest.mark.parametrize(
    ("key", "text", "value"),
    [
        ("input_token_budget", "20000", 20_000),
        ("input_token_budget", " 0 ", 0),
        ("compaction_enabled", "FALSE", False),
        ("trim_threshold_ratio", "0.75", 0.75),
        ("prune_soft_share", ".25", 0.25),
        ("prune_hard_share", "1", 1.0),
        ("inline_tool_tags", "readNote,localSearch", ("readNote", "localSearch")),
        ("inline_tool_tags", " readNote , ", ("readNote",)),
        ("inline_tool_tags", '["readNote", "localSearch"]', ("readNote", "localSearch")),
        ("inline_tool_tags", "", ()),
        ("inline_tool_tags", "[]", ()),
        ("prune_allow", "web_*", ("web_*",)),
        ("prune_deny", "Read,[!a]*", ("Read", "[!a]*")),
    ],
)
def test_every_policy_key_is_a_variable(monkeypatch: pytest.MonkeyPatch, key: str, text: str, value: Any) -> None:
    monkeypatch.setenv(f"PALIMPSEST_{key.upper()}", text)
    found = getattr(merge(Settings().policy), key)
    assert found == value
    assert type(found) is type(value)


@pytest.mark.parametrize(
    ("key", "text"),
    [
        ("input_token_budget", "many"),
        ("input_token_budget", ".5"),
        ("input_token_budget", "nan"),
        ("trim_threshold_ratio", "nan"),
        ("prune_soft_share", "0.9"),
        ("inline_tool_tags", "read note"),
        ("inline_tool_tags", '["readNote"'),
        ("inline_tool_tags", '{"readNote": 1}'),
        ("model_context_tokens", "15999"),
    ],
)
def test_an_impossible_default_is_refused_by_name(monkeypatch: pytest.MonkeyPatch, key: str, text: str) -> None:
    monkeypatch.setenv(f"PALIMPSEST_{key.upper()}", text)
    with pytest.raises(ValidationError, match=key):
        Settings()


def test_several_keys_come_as_one_object_and_a_single_one_adds_to_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PALIMPSEST_POLICY", '{"inline_tool_tags": ["readNote"], "prune_soft_share": 0.2}')
    monkeypatch.setenv("PALIMPSEST_PRUNE_DENY", "Read")
    assert merge(Settings().policy) == Policy(
        inline_tool_tags=("readNote",), prune_soft_share=0.2, prune_deny=("Read",)
    )


def test_the_summarizer_of_message_batches_is_refused_with_the_one_to_use(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PALIMPSEST_SUMMARIZER", "anthropic-batch")
    with pytest.raises(ValidationError, match="use `anthropic`"):
        Settings()
