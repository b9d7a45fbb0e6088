"""Logs: one event a line on stderr, ids and counts only, with the request or run they belong to."""

from __future__ import annotations

import logging
import sys
from contextlib import suppress
from traceback import walk_tb
from typing import TYPE_CHECKING, Any, Final
from uuid import UUID

import structlog

from runtime import ids
from runtime.database_faults import find_fault, sqlstate

if TYPE_CHECKING:
    from collections.abc import Mapping, MutableMapping

    from structlog.typing import Processor

    from runtime.settings import Settings


_KINDS: Final[Mapping[str, ids.Prefix]] = {
    "run_id": "run",
    "conversation_id": "conv",
    "conversation": "conv",
    "tenant_id": "ten",
    "key_id": "key",
    "by": "key",
    "webhook_id": "hook",
    "delivery_id": "evt",
}
"""What the ids of events are of."""
_NOT_LET_IN: Final = ("08", "22023", "28", "3D", "53", "57")
"""SQLSTATEs: connection, no such role, authorization, no such database, no resources, shut down."""
_MOST_CHARACTERS: Final = 200
"""Of what is said of a connection."""
_MOST_FRAMES: Final = 20
"""Of a traceback, the innermost."""
_DASHES: Final = 4
"""Of a UUID as the database writes it."""


def as_clients_see(_logger: Any, _method: str, event: MutableMapping[str, Any]) -> MutableMapping[str, Any]:
    """Write ids as answers and commands have them, so that whoever has one finds its lines, and the other way round."""
    for name, prefix in _KINDS.items():
        value = event.get(name)
        if isinstance(value, str) and value.count("-") == _DASHES:
            with suppress(ValueError):  # a name that somebody chose
                event[name] = ids.external(prefix, UUID(value))
    return event


def fault(error: BaseException) -> str:
    """Return an error's type; of a database's error also its SQLSTATE and what that means, as its text may quote a row.

    Of a refused connection the database's own words are returned, which no row is in: a wrong password, no such
    database, nobody there.
    """
    kind, said = type(error).__name__, getattr(error, "orig", None)
    state = sqlstate(error)
    if (
        said is not None
        and getattr(error, "statement", "") is None
        and (state is None or state.startswith(_NOT_LET_IN))
    ):
        (line, *_) = str(said).splitlines() or [""]
        return f"{kind}: {line[:_MOST_CHARACTERS]} (PALIMPSEST_DATABASE_URL)"
    if state is None:
        return kind
    known = find_fault(state)
    return f"{kind}: {state}" if known is None else f"{kind}: {state} {known.words}"


def where_raised(_logger: Any, _method: str, event: MutableMapping[str, Any]) -> MutableMapping[str, Any]:
    """Say of the exception in a library's event what it is and where it was raised, the innermost frame last.

    What it says, and the values around it, may be content.
    """
    given = event.pop("exc_info", None)
    error = given[1] if isinstance(given, tuple) else given
    if isinstance(error, BaseException):
        event["error"] = fault(error)
        frames = [(frame.f_globals.get("__name__"), line) for frame, line in walk_tb(error.__traceback__)]
        event["raised_at"] = [f"{module}:{line}" for module, line in frames[-_MOST_FRAMES:]]
    return event


def configure_logging(settings: Settings) -> None:
    """Send this process's events, and those of the libraries it uses, to stderr: JSON, or lines for a terminal."""
    level = logging.getLevelNamesMapping()[settings.log_level.upper()]
    shared: list[Processor] = [
        structlog.contextvars.merge_contextvars,
        as_clients_see,
        structlog.processors.add_log_level,
        structlog.processors.TimeStamper(fmt="iso", utc=True),
    ]
    renderer = structlog.dev.ConsoleRenderer() if sys.stderr.isatty() else structlog.processors.JSONRenderer()
    structlog.configure(
        processors=[*shared, renderer],
        wrapper_class=structlog.make_filtering_bound_logger(level),
        logger_factory=structlog.PrintLoggerFactory(sys.stderr),
        cache_logger_on_first_use=True,
    )
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(
        structlog.stdlib.ProcessorFormatter(
            foreign_pre_chain=[*shared, structlog.stdlib.add_logger_name, where_raised],
            processors=[structlog.stdlib.ProcessorFormatter.remove_processors_meta, renderer],
        )
    )
    # Libraries speak of themselves (connections, retries); below warnings that is noise, and may show what they carry.
    logging.basicConfig(handlers=[handler], level=max(level, logging.WARNING), force=True)
