"""How processes of the service ended: read from what their supervisor says, as it says it."""

from __future__ import annotations

import io
import re
import time
from typing import TYPE_CHECKING, Final, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

STARTING_SECONDS: Final = 15.0
"""A process that was started no longer ago may have met a server that a fault had taken away; it is started again."""
KILLED: Final = "signal SIGKILL"
_ENDED: Final = re.compile(r"serve +\| (?P<part>\S+) ended with (?P<how>.+?); again")


class End(NamedTuple):
    """A process that ended; `at` is monotonic time."""

    at: float
    part: str
    how: str


class ServiceLog(io.TextIOWrapper):
    """The log of a service's parts; it notes the end of each."""

    def __init__(self, path: Path) -> None:
        super().__init__(path.open("wb"), encoding="utf-8", errors="replace")
        self.ends: list[End] = []

    def write(self, text: str) -> int:
        """Write, and look for an end in it; the supervisor writes a line at a time."""
        if ended := _ENDED.match(text):
            self.ends.append(End(time.monotonic(), ended["part"], ended["how"]))
        return super().write(text)


def unexplained(ends: Sequence[End]) -> list[End]:
    """Return those that no fault explains: soaks kill processes, so whoever ends in another way gave itself up."""
    return [
        end
        for number, end in enumerate(ends)
        if end.how != KILLED
        and not any(before.part == end.part and before.at > end.at - STARTING_SECONDS for before in ends[:number])
    ]
