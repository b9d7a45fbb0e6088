"""Changed turns against the running API: refused with a pointer and nothing written, or served as a valid context."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Any, Final

from hypothesis import strategies as st

from compaction.policy import merge
from tests.fuzz.turns import as_json, changed_conversations
from tests.support.messages_api import problems
from tests.support.service.in_process_worker import work
from tests.support.service.problem_documents import problem
from tests.support.strategies import policies

if TYPE_CHECKING:
    import httpx2
    from hypothesis.strategies import DrawFn

    from tests.support.service.running_api import Service

COMPACTED_EVERY: Final = 4
"""One conversation in so many is compacted between its turns; that takes most of the time."""


@st.composite
def lives_of_turns(draw: DrawFn) -> list[Any]:
    """Draw a policy, and after it the turns of a conversation, some of whose structure is changed."""
    conversation = draw(changed_conversations())
    policy = draw(policies())
    merge(policy)
    size = draw(st.integers(1, 6))
    turns: list[Any] = [conversation[start : start + size] for start in range(0, len(conversation), size)]
    return [policy, *turns]


class Turns:
    """A client that sends what it likes, and looks at what it is served."""

    def __init__(self, service: Service) -> None:
        self._service = service
        self._client = service.client
        self.statuses: Counter[int] = Counter()

    def live(self, life: list[Any], number: int) -> None:
        """Send a conversation's turns one after another and check each answer and each context."""
        policy, *turns = life
        path = self._service.conversation(policy=policy)
        for turn in turns:
            before = self._client.get(path).json()["last_seq"]
            answer = self._client.post(f"{path}/turns", content=as_json({"messages": turn}))
            self.statuses[answer.status_code] += 1
            if answer.status_code == 201:
                assert self._client.get(path).json()["last_seq"] == before + len(turn)
            else:
                self._refused(answer, path, before)
            self._valid(path)
            if number % COMPACTED_EVERY == 0:
                work(self._service.settings, path)
                self._valid(path)
        payload = self._client.post(f"{path}/context", json={"user_message": "And now?"})
        assert payload.status_code == 200, payload.text
        assert problems(payload.json()["messages"]) == []

    def _refused(self, answer: httpx2.Response, path: str, before: int) -> None:
        assert answer.status_code in {400, 422}, answer.text
        document = answer.json()
        problem(answer, answer.status_code, document["code"], document.get("pointer"))
        assert document["code"] == "malformed_json" or document["pointer"].startswith("/"), document
        assert self._client.get(path).json()["last_seq"] == before

    def _valid(self, path: str) -> None:
        answer = self._client.get(f"{path}/context")
        assert answer.status_code == 200, answer.text
        messages = answer.json()["messages"]
        assert not messages or problems(messages) == [], problems(messages)
