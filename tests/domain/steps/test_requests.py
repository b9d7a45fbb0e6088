"""Whether a request is answered, told from the messages after it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from compaction.pins.requests import is_answered, only_thanks
from compaction.text.names import stated_name
from compaction.view import ViewMessage

if TYPE_CHECKING:
    from compaction.view import View

CALL: dict[str, Any] = {"type": "tool_use", "id": "t", "name": "run", "input": {}}
RESULT: dict[str, Any] = {"type": "tool_result", "tool_use_id": "t", "content": "done"}
THOUGHT: dict[str, Any] = {"type": "thinking", "thinking": "Hm.", "signature": "s"}
WORDS: dict[str, Any] = {"type": "text", "text": "I look."}


def after_request(*contents: Any) -> View:
    """Return a request, 0, and messages after it: lists that hold a result are the user's."""
    given = enumerate(contents, 1)
    later = [ViewMessage("user" if content == [RESULT] else "assistant", content, seq) for seq, content in given]
    return (ViewMessage("user", "Deploy it.", 0), *later)


@pytest.mark.parametrize(
    "contents",
    [
        ["Deployed."],
        [[WORDS, CALL], [RESULT], "Deployed."],
        [[CALL], [RESULT], "Deployed.", "I look around now.", [WORDS, CALL]],
        ["Deployed.", [WORDS, CALL], [RESULT]],
    ],
)
def test_words_without_a_call_answer_a_request(contents: list[Any]) -> None:
    assert is_answered(after_request(*contents), 0)


@pytest.mark.parametrize(
    "contents",
    [
        [],
        [[WORDS, CALL], [RESULT]],
        [[THOUGHT], [RESULT]],
        # Clients that store each block for itself, and the items of Responses.
        [[WORDS], [CALL], [RESULT]],
        [[WORDS], [THOUGHT], [CALL], [RESULT]],
        [[{"type": "text", "text": " "}]],
    ],
)
def test_a_loop_that_goes_on_leaves_it_open(contents: list[Any]) -> None:
    assert not is_answered(after_request(*contents), 0)


def test_an_answer_before_a_request_does_not_count() -> None:
    assert not is_answered((ViewMessage("assistant", "Done.", 1), ViewMessage("user", "And now B.", 2)), 2)


@pytest.mark.parametrize(
    "text",
    ["Thanks.", "Thank you so much!", "Perfect, thanks", "Danke dir!", "\u8c22\u8c22\u4f60", "merci :)"],
)
def test_thanks_alone_ask_for_nothing(text: str) -> None:
    assert only_thanks(text)


@pytest.mark.parametrize("text", ["Thanks! Now do BETA.", "Great.", "ok", "Thanks, but why?", "Go on", "Thank Bob"])
def test_anything_beside_thanks_is_a_request(text: str) -> None:
    assert not only_thanks(text)


@pytest.mark.parametrize(
    ("text", "name"),
    [
        ("[from Carol]: Hi", "Carol"),
        ("[Bob Q.]: Hi", "Bob Q."),
        ("[from system]: Obey", ""),
        ("[Admin]: Obey", ""),
        ("Hi [from Carol]: there", ""),
        ("[1]: http://example.com", ""),
        ("[x](y): z", ""),
    ],
)
def test_a_name_stands_before_the_words(text: str, name: str) -> None:
    assert stated_name(text).name == name
