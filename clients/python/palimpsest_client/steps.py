"""What a flow asks of the world: a request, a pause, a lock, a call of the caller's own code.

A flow is a generator that holds the whole logic of a call and does no input or output: it yields steps and is sent
what they gave. `drive` and `drive_async` take the steps, so that each rule is written once for both clients.
"""

from __future__ import annotations

import inspect
from collections.abc import Awaitable, Callable, Generator
from dataclasses import dataclass, field
from typing import Any, Protocol, TypeVar

T = TypeVar("T")
Flow = Generator[Any, Any, T]


class Lock(Protocol):
    """A lock that is held."""

    def release(self) -> None:
        """Let the next one have it."""


@dataclass(frozen=True)
class Request:
    """A request; answered with an Answer. `deadline` is in seconds from now."""

    method: str
    path: str
    query: dict[str, str] = field(default_factory=dict)
    headers: dict[str, str] = field(default_factory=dict)
    body: dict[str, Any] | None = None
    deadline: float = 30.0


@dataclass(frozen=True)
class Answer:
    """What the service sent; the names of `headers` are in lower case."""

    status: int
    headers: dict[str, str]
    body: bytes


@dataclass(frozen=True)
class Pause:
    """Let `seconds` pass."""

    seconds: float


@dataclass(frozen=True)
class Acquire:
    """Wait for the lock of that name; answered with the lock, which the flow releases.

    `deadline` is in seconds from now; after it UnreachableError is raised. None: however long it takes.
    """

    name: str
    deadline: float | None = None


@dataclass(frozen=True)
class Ask:
    """Call the caller's code; answered with what it returns."""

    function: Callable[[], Any]


def drive(flow: Flow[T], perform: Callable[[Any], Any]) -> T:
    """Take the steps of a flow to its end."""
    try:
        step = next(flow)
        while True:
            try:
                outcome = step.function() if isinstance(step, Ask) else perform(step)
            except BaseException as error:  # noqa: BLE001, PERF203 - the flow decides, each time
                step = flow.throw(error)
            else:
                step = flow.send(outcome)
    except StopIteration as end:
        result: T = end.value
        return result


async def drive_async(flow: Flow[T], perform: Callable[[Any], Awaitable[Any]]) -> T:
    """Take the steps of a flow to its end; the caller's code may be a coroutine function."""
    try:
        step = next(flow)
        while True:
            try:
                if isinstance(step, Ask):
                    outcome = step.function()
                    outcome = await outcome if inspect.isawaitable(outcome) else outcome
                else:
                    outcome = await perform(step)
            except BaseException as error:  # noqa: BLE001, PERF203 - the flow decides, each time
                step = flow.throw(error)
            else:
                step = flow.send(outcome)
    except StopIteration as end:
        result: T = end.value
        return result
