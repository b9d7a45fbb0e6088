"""Finding what an id identifies, whatever shows it: the console, the API, the command or a log line.

Everything is of one tenant, but for processes, which are nobody's. A short id is searched for among the newest rows of
the kinds that are shown so: no index is kept by an id's end.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final, Literal, NamedTuple
from uuid import UUID

from sqlalchemy import Connection, text

if TYPE_CHECKING:
    from datetime import datetime

Kind = Literal[
    "conversation",
    "run",
    "key",
    "webhook",
    "delivery",
    "action",
    "pin",
    "context_block",
    "erasure",
    "process",
    "tenant",
]

LOOKED_THROUGH: Final = 10_000
"""Newest rows of each kind among which a short id is searched for, and rows since a request among which its own are."""
FOUND_AT_MOST: Final = 50
SHORTEST: Final = 8
"""Hexadecimal digits of a short id, as lists show them."""
_ID: Final = re.compile(r"(?:([a-z]{3,4})_)?(?:\u2026|\.\.\.)?([0-9a-f-]{8,36})", re.IGNORECASE)
_WHOLE: Final = 32
_KIND_OF: Final = {
    "conv": ("conversation", "erasure"),
    "run": ("run",),
    "key": ("key",),
    "hook": ("webhook",),
    "evt": ("delivery",),
    "act": ("action",),
    "pin": ("pin",),
    "era": ("erasure",),
    "ten": ("tenant",),
}
_REQUEST: Final = "req"


class Wanted(NamedTuple):
    """An id as somebody typed it: `digits` are all of its hexadecimal digits, or only the last ones."""

    prefix: str | None
    digits: str

    @property
    def id(self) -> UUID | None:
        """The whole id, None where only its end is known."""
        return UUID(hex=self.digits) if len(self.digits) == _WHOLE else None


class Match(NamedTuple):
    """What an id identifies: a row, or what the request of that id did."""

    kind: Kind
    id: UUID
    conversation_id: UUID | None
    run_id: UUID | None
    at: datetime | None
    name: str | None
    by_request: bool
    """Whether the id is that of the request that led to it."""


class _Source(NamedTuple):
    """Where rows of a kind are, by their own id or by that of the request that they came of."""

    kind: Kind
    table: str
    column: str = "id"
    conversation: str = "null::uuid"
    run: str = "null::uuid"
    at: str = "x.created_at"
    name: str = "null"
    of_tenant: str = "x.tenant_id = :tenant"
    is_shortened: bool = True
    """Whether lists show it by the end of its id; only rows that a tenant's newest are found fast of."""


_SOURCES: Final = (
    _Source("conversation", "conversations", conversation="x.id", name="x.external_id"),
    _Source("run", "runs", conversation="x.conversation_id", run="x.id", name="x.trigger"),
    _Source("run", "runs", "request_id", conversation="x.conversation_id", run="x.id", name="x.trigger"),
    _Source("key", "api_keys", name="x.name"),
    _Source("webhook", "webhooks", name="x.url"),
    _Source("delivery", "webhook_deliveries", run="x.run_id", name="x.event"),
    _Source("action", "operator_actions", conversation="x.conversation_id", run="x.run_id", name="x.action"),
    _Source(
        "action", "operator_actions", "request_id", conversation="x.conversation_id", run="x.run_id", name="x.action"
    ),
    _Source("pin", "pins", conversation="x.conversation_id", is_shortened=False),
    _Source("pin", "pins", "request_id", conversation="x.conversation_id", is_shortened=False),
    _Source("context_block", "context_blocks", conversation="x.conversation_id", name="x.source", is_shortened=False),
    _Source("erasure", "erasures", at="x.erased_at"),
    _Source("erasure", "erasures", "request_id", at="x.erased_at"),
    _Source("erasure", "erasures", "conversation_id", at="x.erased_at"),
    _Source("process", "processes", at="x.started_at", name="x.kind || ' on ' || x.host", of_tenant="true"),
    _Source("tenant", "tenants", name="x.name", of_tenant="x.id = :tenant"),
)


def wanted(words: str) -> Wanted | None:
    """Return the id that somebody typed: with its prefix or without, with dashes, or only its end; None for no id."""
    match = _ID.fullmatch(words.strip().strip("\"'`"))
    if match is None:
        return None
    digits = match[2].replace("-", "").lower()
    prefix = match[1].lower() if match[1] else None
    is_known = prefix in {None, _REQUEST, *_KIND_OF}
    return Wanted(prefix, digits) if is_known and SHORTEST <= len(digits) <= _WHOLE else None


def find_matches(connection: Connection, tenant_id: UUID, sought: Wanted) -> list[Match]:
    """Return what an id identifies: the rows of that id first, then what its request did."""
    values = {"tenant": tenant_id, "id": sought.id, "digits": sought.digits, "rows": LOOKED_THROUGH}
    matches = [
        Match(source.kind, row[0], row[1], row[2], row[3], row[4], source.column == "request_id")
        for source in _SOURCES
        if _is_meant(source, sought.prefix) and (source.is_shortened or sought.id is not None)
        for row in connection.execute(text(_statement(source, is_whole=sought.id is not None)), values)
    ]
    return sorted(matches, key=lambda match: match.by_request)[:FOUND_AT_MOST]


def _is_meant(source: _Source, prefix: str | None) -> bool:
    if prefix is None:
        return True
    if prefix == _REQUEST:
        return source.column == "request_id"
    return source.column != "request_id" and source.kind in _KIND_OF[prefix]


def _statement(source: _Source, *, is_whole: bool) -> str:
    columns = f"x.id, {source.conversation}, {source.run}, {source.at}, {source.name}"
    if is_whole and source.column == "id":
        return f"select {columns} from {source.table} as x where {source.of_tenant} and x.id = :id"  # noqa: S608
    # Ids are in the order of time: what a request led to has a younger one.
    since = " and x.id >= :id" if is_whole and source.column == "request_id" else ""
    order = "x.id" if since else "x.id desc"
    matches = (
        f"x.{source.column} = :id"
        if is_whole
        else f"right(replace(x.{source.column}::text, '-', ''), length(:digits)) = :digits"
    )
    rows = f"select * from {source.table} as x where {source.of_tenant}{since} order by {order} limit :rows"  # noqa: S608
    return f"select {columns} from ({rows}) as x where {matches} order by x.id desc limit {FOUND_AT_MOST}"  # noqa: S608
