"""How far a long command is, on stderr, for whoever sits before it."""

from __future__ import annotations

import os
from contextlib import contextmanager
from typing import IO, TYPE_CHECKING, BinaryIO, cast

from rich.console import Console
from rich.progress import BarColumn, DownloadColumn, Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator


@contextmanager
def reading(file: IO[bytes], what: str) -> Iterator[IO[bytes]]:
    """Yield a file whose reading shows as a bar; going back to its start begins the bar anew."""
    console = Console(stderr=True)
    size = os.fstat(file.fileno()).st_size
    parts = (TextColumn("{task.description}"), BarColumn(), DownloadColumn(), TimeElapsedColumn())
    with Progress(*parts, console=console, transient=True, disable=not console.is_terminal) as progress:
        yield progress.wrap_file(cast("BinaryIO", file), size, description=what)


@contextmanager
def counting(what: str) -> Iterator[Callable[[], None]]:
    """Yield what counts one more line of work whose end is not known."""
    console = Console(stderr=True)
    parts = (SpinnerColumn(), TextColumn("{task.description}: {task.completed:,.0f} lines"), TimeElapsedColumn())
    with Progress(*parts, console=console, transient=True, disable=not console.is_terminal) as progress:
        task = progress.add_task(what, total=None)
        yield lambda: progress.advance(task)
