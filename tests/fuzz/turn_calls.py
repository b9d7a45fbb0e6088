"""Changed turns against the running API: refused with a pointer and nothing written, or served as a valid context."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Any, Final

from hypothesis import strategies as st

from compaction.policy import merge
from compaction.shapes.codecs import SHAPES
from compaction.shapes.serving import KEYS
from tests.fuzz.structure import changed_documents
from tests.fuzz.turns import as_json, changed_conversations
from tests.support import messages_api
from tests.support.service.in_process_worker import work
from tests.support.service.problem_documents import problem
from tests.support.shapes import chat_api, responses_api
from tests.support.shapes.generated import chat_conversations, response_conversations
from tests.support.strategies import policies

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    import httpx2
    from hypothesis.strategies import DrawFn

    from compaction.shapes.inner import Shape
    from tests.support.service.running_api import Service

CHECKERS: Final[Mapping[Shape, Callable[[list[Any]], Sequence[str]]]] = {
    "messages": messages_api.problems,
    "chat": chat_api.problems,
    "responses": responses_api.problems,
}
COMPACTED_EVERY: Final = 4
"""One conversation in so many is compacted between its turns; that takes most of the time."""


@st.composite
def lives_of_turns(draw: DrawFn) -> list[Any]:
    """Draw a shape, a policy, and after them the turns of a conversation, some of whose structure is changed."""
    shape = draw(st.sampled_from(["messages", "messages", "chat", "responses"]))
    match shape:
        case "chat":
            conversation = draw(changed_documents(chat_conversations()))
        case "responses":
            conversation = draw(changed_documents(response_conversations()))
        case _:
            conversation = draw(changed_conversations())
    policy = draw(policies())
    merge(policy)
    size = draw(st.integers(1, 6))
    turns: list[Any] = [conversation[start : start + size] for start in range(0, len(conversation), size)]
    return [shape, policy, *turns]


class Turns:
    """A client that sends what it likes, and looks at what it is served."""

    def __init__(self, service: Service) -> None:
        self._service = service
        self._client = service.client
        self.statuses: Counter[int] = Counter()
        self._looks = 0

    def live(self, life: list[Any], number: int) -> None:
        """Send a conversation's turns one after another and check each answer and each context."""
        shape, policy, *turns = life
        path = self._service.conversation(policy=policy)
        for turn in turns:
            before = self._client.get(path).json()["last_seq"]
            answer = self._client.post(f"{path}/turns", content=as_json({"shape": shape, "messages": turn}))
            self.statuses[answer.status_code] += 1
            if answer.status_code == 201:
                assert self._client.get(path).json()["last_seq"] == before + len(turn)
            else:
                self._refused(answer, path, before)
            self._valid(path, shape)
            if number % COMPACTED_EVERY == 0:
                work(self._service.settings, path)
                self._valid(path, shape)
        for target, problems in CHECKERS.items():
            payload = self._client.post(f"{path}/context", json={"user_message": "And now?", "shape": target})
            assert payload.status_code == 200, payload.text
            assert _is_as_sent(target, shape) or problems(payload.json()[KEYS[target]]) == []

    def _refused(self, answer: httpx2.Response, path: str, before: int) -> None:
        assert answer.status_code in {400, 422}, answer.text
        document = answer.json()
        problem(answer, answer.status_code, document["code"], document.get("pointer"))
        assert document["code"] == "malformed_json" or document["pointer"].startswith("/"), document
        assert self._client.get(path).json()["last_seq"] == before

    def _valid(self, path: str, own: str) -> None:
        """Check the context in the shape whose turn it is, so that each is looked at as often."""
        self._looks += 1
        shape = SHAPES[self._looks % len(SHAPES)]
        answer = self._client.get(f"{path}/context", params={"shape": shape})
        assert answer.status_code == 200, answer.text
        messages = answer.json()[KEYS[shape]]
        problems = CHECKERS[shape](messages) if messages and not _is_as_sent(shape, own) else []
        assert problems == [], (shape, problems)


def _is_as_sent(shape: str, own: str) -> bool:
    """Tell whether messages are served as they came: parts that only a newer API knows are no fault then."""
    return shape == own != "messages"
