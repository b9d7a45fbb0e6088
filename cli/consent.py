"""Asking before something is done that a command's words alone do not ask for."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Mapping

STORES: Final = {
    "PALIMPSEST_DATABASE_URL": "migrates the database {place} and writes to it",
    "PALIMPSEST_BROKER_URL": "takes messages from the Redis {place}",
}
"""Variables that let a service be started on what exists already, and what becomes of it."""


class RefusedError(Exception):
    """Nobody agreed; the message is one line for people."""


def agree(question: str, *, yes: bool) -> None:
    """Return if `yes`, or once somebody says so, on whatever stdin is; raise RefusedError otherwise.

    The question goes to stderr: stdout is the command's output.
    """
    if yes:
        return
    sys.stderr.write(f"{question} [y/N]: ")
    sys.stderr.flush()
    answer = sys.stdin.readline()
    if not answer:
        sys.stderr.write("\n")
        raise RefusedError("left as it was: nobody answered; --yes does it without asking")
    if answer.strip().lower() not in {"y", "yes"}:
        raise RefusedError("left as it was")


def agree_to_stores(environ: Mapping[str, str], command: str, *, yes: bool) -> None:
    """Say which of the environment's stores a command would use, and ask; without a terminal only `yes` will do.

    Nothing is said or asked where the command's servers are its own. Raises RefusedError.
    """
    named = {name: environ[name] for name in STORES if environ.get(name)}
    if not named:
        return
    for name, url in named.items():
        does = STORES[name].format(place=place_of(url))
        sys.stderr.write(f"palimpsest: {command} {does}, as {name} says\n")
    sys.stderr.flush()
    if not yes and not sys.stdin.isatty():
        raise RefusedError(f"nobody can be asked here: --yes agrees, and without {' and '.join(named)} it has its own")
    agree("Go on?", yes=yes)


def place_of(url: str) -> str:
    """Return where a URL leads, without its password."""
    # Only where there is a URL: nothing else of what starts by this needs it.
    from sqlalchemy import make_url  # noqa: PLC0415
    from sqlalchemy.exc import ArgumentError  # noqa: PLC0415

    from runtime.addresses.database_url import hosts_of  # noqa: PLC0415

    try:
        places = hosts_of(url) if url.startswith("postgres") else (make_url(url),)
    except (ArgumentError, ValueError):
        return "of a URL that cannot be read"
    shown = [each.set(query={}).render_as_string(hide_password=True).partition("://")[2] for each in places]
    return " or ".join(shown).replace(":***@", "@")
