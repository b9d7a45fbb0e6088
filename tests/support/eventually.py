"""Waiting for what another thread, process or server brings about."""

from __future__ import annotations

import time
from threading import Event
from typing import TYPE_CHECKING, Final, TypeVar

if TYPE_CHECKING:
    from collections.abc import Callable

T = TypeVar("T")

LOOK_SECONDS: Final = 0.02
PATIENCE_SECONDS: Final = 60.0
"""A bound for a loaded machine: to load a library may take half a minute there."""


def eventually(condition: Callable[[], T], timeout: float = PATIENCE_SECONDS) -> T:
    """Return the first true value of `condition`, asked again and again; fail after `timeout` seconds."""
    deadline = time.monotonic() + timeout
    never = Event()
    while not (value := condition()):
        if time.monotonic() > deadline:
            raise AssertionError(f"still {value!r} after {timeout} seconds: {condition}")
        never.wait(LOOK_SECONDS)
    return value
