"""Failures that a command meets with and can do nothing about, each reported in one line instead of a traceback."""

from __future__ import annotations

import errno
import os
import re
import sys
from typing import TYPE_CHECKING, Any

import typer
from typer.core import TyperGroup

from cli.output import failed

if TYPE_CHECKING:
    from types import ModuleType

    from sqlalchemy.exc import DBAPIError

UNDEFINED_TABLE = "42P01"
NOT_PERMITTED = "42501"
"""SQLSTATEs (Postgres documentation, appendix A)."""

_NOT_WRITTEN = {errno.EPIPE, errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO}


class Commands(TyperGroup):
    """The command line's commands; one that cannot reach a service, or write its output, ends with 1 and says so."""

    def main(self, *arguments: Any, **options: Any) -> Any:
        """Read the command line and run it; all that it printed is written when this ends."""
        try:
            try:
                return super().main(*arguments, **options)
            finally:
                sys.stdout.flush()
        except OSError as error:
            if error.errno not in _NOT_WRITTEN:
                raise
            # The interpreter must not flush what is left once more.
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
            if error.errno != errno.EPIPE:  # whoever read a pipe has had enough
                failed(f"the output cannot be written: {error.strerror}")
            sys.exit(1)

    def invoke(self, ctx: Any) -> Any:
        """Run a command."""
        try:
            return super().invoke(ctx)
        except Exception as error:
            if (reason := reason_of(error)) is None:
                raise
            raise typer.Exit(failed(reason)) from None


def reason_of(error: Exception) -> str | None:
    """Return what an error means, None for one that nobody has foreseen."""
    database = _loaded("sqlalchemy.exc")
    if database is not None and isinstance(error, database.DBAPIError):
        return database_fault(error)
    client = _loaded("cli.client.client")
    if client is not None and isinstance(error, client.ServiceError):
        return str(error)
    http = _loaded("httpx2")
    if http is not None and isinstance(error, http.InvalidURL):
        return f"the API's URL cannot be read: {error}"
    if http is not None and isinstance(error, http.TransportError):
        where = error.request.url.copy_with(path="/", query=None) if error._request else ""  # noqa: SLF001 - `request` raises where there is none
        reason = re.sub(r"^\[Errno -?\d+\] ", "", str(error)) or type(error).__name__
        return f"the API at {str(where).rstrip('/')} cannot be reached (--url or PALIMPSEST_URL): {reason}"
    return None


def _loaded(name: str) -> ModuleType | None:
    """Return a module that is in use: an error can only come from one that is."""
    return sys.modules.get(name)


def database_fault(error: DBAPIError) -> str:
    """Return what a command says of a database that did not do as it was told."""
    state = getattr(error.orig, "sqlstate", None)
    lines = str(error.orig).strip().splitlines()
    reason = lines[0] if lines else type(error).__name__
    if state == UNDEFINED_TABLE:
        return f"the database's schema is missing or old: run `palimpsest migrate` ({reason})"
    if state == NOT_PERMITTED:
        return f"the database's login may not do this: use the one that migrates ({reason})"
    if state is None or state.startswith("08"):
        return f"the database cannot be reached (PALIMPSEST_DATABASE_URL): {reason}"
    return f"the database refused: {reason}"
