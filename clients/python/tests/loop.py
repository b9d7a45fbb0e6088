"""What the tests have in common: the running service, the model on the loopback interface, long tool results."""

from __future__ import annotations

import os
import uuid
from typing import TYPE_CHECKING, Any, Final

import httpx2
import pytest

from palimpsest_client import Client

if TYPE_CHECKING:
    from collections.abc import Iterator

URL, KEY, MODEL = (os.environ[f"PALIMPSEST_{name}"] for name in ("URL", "KEY", "MODEL_URL"))
POLICY: Final[dict[str, Any]] = {
    "input_token_budget": 1_500,
    "compaction_threshold_tokens": 3_000,
    "min_savings_tokens": 50,
    "protected_tail_messages": 2,
}
"""Of conversations that are compacted after a few rounds."""
ASKED: Final = ("Look it up in 3 rounds.", "Again, 2 rounds at once.", "Once more, 2 rounds.", "And now?")
ANSWERED: Final = ("Done after 3.", "Done after 4.", "Done after 2.", "Done after 0.")
"""What the model says to each of them."""


def looked_up(key: str) -> str:
    """Return a row that is long enough to be cut."""
    return f"Row {key}: " + "lorem ipsum dolor sit amet " * 60


def check(conversation: str) -> None:
    """Have the workers do what is due for a conversation."""
    httpx2.post(f"{MODEL}/check", json={"conversation": conversation}, timeout=60).raise_for_status()


@pytest.fixture
def client() -> Iterator[Client]:
    with Client(URL, KEY) as made:
        yield made


@pytest.fixture
def name() -> str:
    return uuid.uuid4().hex
