"""Joins the answers of several recall rounds into one, without the calls of recall."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import TYPE_CHECKING, Any, ClassVar

if TYPE_CHECKING:
    from collections.abc import Mapping

    from gateway.answers.events import StreamEvent
    from gateway.answers.reading import AnswerOfShape
    from store.gateway.histories import ResponseIds


def sum_usage(one: Mapping[str, Any] | None, other: Mapping[str, Any] | None) -> dict[str, Any]:
    """Return the usage of two calls together. Counts are added; other values are the later call's."""
    total = dict(one or {})
    for name, count in (other or {}).items():
        before = total.get(name)
        if isinstance(count, dict):
            total[name] = sum_usage(before if isinstance(before, dict) else None, count)
        elif isinstance(count, int | float) and not isinstance(count, bool) and isinstance(before, int | float):
            total[name] = before + count
        elif count is not None or name not in total:
            total[name] = count
    return total


class Splice(ABC):
    """The client's view of the answers to one request.

    Each answer is a round. Calls of recall are hidden, and other parts continue the places of earlier rounds. An answer
    with calls of recall and no calls for the client does not end: the next round continues it.
    """

    answer: ClassVar[type[AnswerOfShape]]

    def __init__(self) -> None:
        self.round = 0
        self.said: AnswerOfShape = self.answer()
        """The model's rows of this round."""
        self.shown: AnswerOfShape = self.answer()
        """Rows shown to the client in all rounds."""
        self.usage: dict[str, Any] = {}
        """Usage of earlier rounds."""
        self.hidden: set[int] = set()
        """Places of this round's hidden parts."""
        self.places: dict[int, int] = {}
        """The client's places of the other parts."""
        self.next_place = 0
        self.has_own_calls = False
        """Whether this round has calls for the client."""
        self.goes_on = False
        """Whether this round ended with calls of recall only."""

    def next_round(self) -> None:
        """Start the round after recall."""
        self.usage = sum_usage(self.usage, self.said.usage)
        self.said = self.answer()
        self.round += 1
        self.hidden, self.places = set(), {}
        self.has_own_calls = self.goes_on = False

    def place_of(self, place: int) -> int:
        """Return the client's place of a part of this round."""
        if place not in self.places:
            self.places[place] = self.next_place
            self.next_place += 1
        return self.places[place]

    def process_event(self, event: StreamEvent) -> bytes:
        """Return the client's bytes of an event, which are its own if nothing changes."""
        if event.value is None:
            return b"" if event.is_done and self.goes_on else event.raw
        return self.rewrite_event(event, event.value)

    @property
    def response_ids(self) -> ResponseIds | None:
        """The ids of the answer for the client and the provider, or None if it cannot be continued by id."""
        return None

    @abstractmethod
    def rewrite_event(self, event: StreamEvent, value: dict[str, Any]) -> bytes:
        """Return the client's bytes of an event."""

    @abstractmethod
    def thinking_events(self, words: str) -> bytes:
        """Return events that show recalled text as thinking."""

    @abstractmethod
    def closing_events(self) -> bytes:
        """Return the events that end an answer without a next round."""

    @abstractmethod
    def error_event(self, body: Any) -> bytes:
        """Return the event that ends an answer after a refusal of the provider, whose error is `body`."""

    @abstractmethod
    def add_whole(self, body: dict[str, Any], words: str = "") -> None:
        """Add an answer without a stream, after recalled text if that is shown as thinking."""

    @abstractmethod
    def combined_body(self) -> dict[str, Any]:
        """Return all rounds as one answer."""
