"""One answer out of several: a model that recalled is asked again, and its client sees one answer without the calls."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import TYPE_CHECKING, Any, ClassVar

if TYPE_CHECKING:
    from collections.abc import Mapping

    from gateway.answers.events import StreamEvent
    from gateway.answers.reading import AnswerOfShape
    from store.gateway.histories import ResponseIds


def summed(one: Mapping[str, Any] | None, other: Mapping[str, Any] | None) -> dict[str, Any]:
    """Return the usage of two calls together: counts are added, what is none is the later one's."""
    total = dict(one or {})
    for name, count in (other or {}).items():
        before = total.get(name)
        if isinstance(count, dict):
            total[name] = summed(before if isinstance(before, dict) else None, count)
        elif isinstance(count, int | float) and not isinstance(count, bool) and isinstance(before, int | float):
            total[name] = before + count
        elif count is not None or name not in total:
            total[name] = count
    return total


class Splice(ABC):
    """What a client is shown of the answers to one request.

    Each answer is a round. A part of it that is a call of recall is hidden, the places of the others follow on those
    before them. An answer that has such calls and none for the client does not end: the next round goes on.
    """

    answer: ClassVar[type[AnswerOfShape]]

    def __init__(self) -> None:
        self.round = 0
        self.said: AnswerOfShape = self.answer()
        """What the model said in this round."""
        self.shown: AnswerOfShape = self.answer()
        """What the client was shown in all of them."""
        self.usage: dict[str, Any] = {}
        """Of the rounds before this one."""
        self.hidden: set[int] = set()
        """Places of this round's parts that the client is not shown."""
        self.places: dict[int, int] = {}
        """Where the client has the others."""
        self.next_place = 0
        self.has_own_calls = False
        """Whether this round calls what the client has to answer."""
        self.goes_on = False
        """Whether this round ended with calls of recall alone."""

    def next_round(self) -> None:
        """Begin with what the model answers to what it recalled."""
        self.usage = summed(self.usage, self.said.usage)
        self.said = self.answer()
        self.round += 1
        self.hidden, self.places = set(), {}
        self.has_own_calls = self.goes_on = False

    def place_of(self, place: int) -> int:
        """Return where the client has a part of this round."""
        if place not in self.places:
            self.places[place] = self.next_place
            self.next_place += 1
        return self.places[place]

    def event(self, event: StreamEvent) -> bytes:
        """Return what the client gets of an event: itself, where nothing of it changes."""
        if event.value is None:
            return b"" if event.is_done and self.goes_on else event.raw
        return self.changed(event, event.value)

    @property
    def response_ids(self) -> ResponseIds | None:
        """By which client and provider have the answer; None where nobody goes on from that."""
        return None

    @abstractmethod
    def changed(self, event: StreamEvent, value: dict[str, Any]) -> bytes:
        """Return what the client gets of an event."""

    @abstractmethod
    def thinks(self, words: str) -> bytes:
        """Return events by which the client sees what was recalled as thinking."""

    @abstractmethod
    def close(self) -> bytes:
        """Return the events that end an answer which was to go on, and will not."""

    @abstractmethod
    def failed(self, body: Any) -> bytes:
        """Return the event that ends an answer whose provider refused to go on; `body` is its error."""

    @abstractmethod
    def whole(self, body: dict[str, Any], words: str = "") -> None:
        """Take an answer that came in one piece, and before it what was recalled, if that is shown as thinking."""

    @abstractmethod
    def together(self) -> dict[str, Any]:
        """Return the pieces as one answer."""
