"""The metrics of an API that has several processes: any of them answers a scrape, for all of them.

prometheus-client's own way: each process writes its numbers to files of a directory, and a scrape adds them up. Those
of a process that has ended stay, so that no counter goes back; only what it was at goes with it.
"""

from __future__ import annotations

import os
import tempfile
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Final

from prometheus_client import CollectorRegistry
from prometheus_client.multiprocess import MultiProcessCollector, mark_process_dead

if TYPE_CHECKING:
    from collections.abc import Iterator

DIRECTORY: Final = "PROMETHEUS_MULTIPROC_DIR"
"""The library's own variable, read when it is loaded: so in the processes that are started after it is set."""


@contextmanager
def shared_metrics() -> Iterator[None]:
    """Have the processes that are started in the block count together."""
    with tempfile.TemporaryDirectory(prefix="palimpsest-metrics-", ignore_cleanup_errors=True) as folder:
        os.environ[DIRECTORY] = folder
        try:
            yield
        finally:
            del os.environ[DIRECTORY]


def registry_of_all() -> CollectorRegistry | None:
    """Return the metrics of all processes together, None where this is the only one."""
    folder = os.environ.get(DIRECTORY)
    if folder is None:
        return None
    for pid in {path.stem.rpartition("_")[2] for path in Path(folder).glob("gauge_live*.db")}:
        if not _is_alive(int(pid)):
            mark_process_dead(int(pid), folder)  # type: ignore[no-untyped-call] # the library has no types here
    registry = CollectorRegistry()
    MultiProcessCollector(registry)  # type: ignore[no-untyped-call] # as above
    return registry


def _is_alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        pass
    return True
