"""The system's clock of single processes, moved while they run: libfaketime (Debian's package libfaketime)."""

from __future__ import annotations

import contextlib
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Final

import pytest

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

LIBRARIES: Final = ("/usr/lib", "/usr/local/lib", "/lib")
SHARED: Final = Path("/dev/shm")  # noqa: S108 - where libfaketime leaves a file of each process that was killed


class Clock:
    """A clock that agrees with the machine's until it is moved; processes with its `env` go by it.

    What tells the time of day is moved, and not what counts seconds (CLOCK_MONOTONIC): as when somebody sets the clock.
    """

    def __init__(self, library: Path, file: Path) -> None:
        self._file = file
        self.env: Mapping[str, str] = {
            "LD_PRELOAD": str(library),
            "FAKETIME_TIMESTAMP_FILE": str(file),
            # Looked up again after a second at the latest.
            "FAKETIME_CACHE_DURATION": "1",
            "FAKETIME_DONT_FAKE_MONOTONIC": "1",
        }
        self.move(0)

    def move(self, hours: int) -> None:
        """Set it so many hours ahead of the machine's, or behind it."""
        new = self._file.with_suffix(".new")
        new.write_text(f"{hours:+d}h")
        new.replace(self._file)


@contextmanager
def moved_clock(folder: Path) -> Iterator[Clock]:
    """Make a clock; the test is skipped where there is no libfaketime."""
    found = (path for place in LIBRARIES for path in Path(place).glob("**/faketime/libfaketimeMT.so.1"))
    library = next(found, None)
    if library is None:
        pytest.skip("libfaketime is not installed (Debian's package libfaketime)")
    try:
        yield Clock(library, folder / "clock")
    finally:
        for left in SHARED.glob("*faketime_*_[0-9]*"):
            if not Path("/proc", left.name.rpartition("_")[2]).exists():
                with contextlib.suppress(OSError):
                    left.unlink()
