"""Ending what runs beside the requests."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from asyncio import Task

AGAIN_SECONDS: Final = 1.0
"""Seconds after which a task that goes on is cancelled again."""


async def end(task: Task[Any] | None) -> None:
    """Cancel a task, if there is one, and return once it has ended; what it raises then is nobody's business.

    SQLAlchemy takes a cancellation for a failure where it is just closing a connection that failed: a task that goes on
    after failures would do so for good.
    """
    while task is not None and not task.done():
        task.cancel()
        await asyncio.wait((task,), timeout=AGAIN_SECONDS)
