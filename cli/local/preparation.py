"""What a service on one machine needs in its database before its parts start, seen to by a process of its own.

Migrations and SQL take more memory than all else that `serve` does, which would hold it for as long as it runs.
"""

from __future__ import annotations

import json
import subprocess
import sys
from typing import TYPE_CHECKING, NamedTuple

from cli.output import noted

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

_COMMAND = [sys.executable, "-P", "-m", "cli.local.preparing"]


class ServiceError(Exception):
    """The service cannot start or cannot go on; the message is one line for people."""


class Prepared(NamedTuple):
    """What is ready for the service's parts and for people."""

    api_key: str
    console_ticket: str
    """What signs a browser in once, with the key."""
    parts_url: str
    """The database's URL for the parts."""


def prepare(database_url: str, data_dir: Path | None, *, is_own: bool) -> Prepared:
    """Migrate, and have a key; in a database of our own also a login for the parts. Raises ServiceError."""
    asked = {"database_url": database_url, "data_dir": None if data_dir is None else str(data_dir), "is_own": is_own}
    return Prepared(**_told(asked))


def revoke(database_url: str, key: str) -> None:
    """Take the key back; where that cannot be, say which one is left."""
    try:
        _told({"database_url": database_url, "revoke": key})
    except ServiceError as error:
        noted(str(error))


def _told(asked: Mapping[str, object]) -> dict[str, str]:
    # On stdin, as the URL has a password; apart from the terminal's Ctrl-C, so that no migration ends half-way.
    done = subprocess.run(  # noqa: S603 - our own module
        _COMMAND, input=json.dumps(asked), stdout=subprocess.PIPE, text=True, check=False, start_new_session=True
    )
    if done.returncode:
        raise ServiceError(f"the database cannot be prepared: status {done.returncode}")
    told: dict[str, str] = json.loads(done.stdout)
    if error := told.get("error"):
        raise ServiceError(error)
    return told


def one_line(error: Exception) -> str:
    """Return an error's message without line breaks, its kind where it has none."""
    return " ".join(str(error).split()) or type(error).__name__
