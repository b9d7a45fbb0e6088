"""Webhooks: what an address has to be, and the problems of those that are made or retried."""

from __future__ import annotations

from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from actions.errors import ConflictError, InvalidError
from store.tenants import webhooks
from store.tenants.webhooks import EVENTS

if TYPE_CHECKING:
    from collections.abc import Collection
    from uuid import UUID

    from sqlalchemy import Connection

    from actions.types.webhooks import WebhookIn
    from store.tables import AnyRow


def add_webhook(connection: Connection, tenant_id: UUID, wanted: WebhookIn) -> tuple[AnyRow, str]:
    """Make a webhook; return its row and its secret, or raise the problem of one too many."""
    row_and_secret = webhooks.add(connection, tenant_id, wanted.url, wanted.events or EVENTS)
    if row_and_secret is None:
        raise ConflictError("too_many_webhooks", f"A tenant has at most {webhooks.MAXIMUM} webhooks.")
    return row_and_secret


def check_url(url: str, *, insecure: bool) -> None:
    """Raise the problem of an address that nothing can be sent to; with `insecure` it need not be HTTPS."""
    if not _can_be_called(url, {"https", "http"} if insecure else {"https"}):
        raise InvalidError("Expected an https URL with a host that can be, and without credentials.", "/url")


def _can_be_called(url: str, schemes: Collection[str]) -> bool:
    try:
        parts = urlsplit(url)
        host, port = (parts.hostname or "").encode("idna"), parts.port
    except ValueError:  # a name that no lookup takes, or a port that is none
        return False
    is_written_right = url.isprintable() and " " not in url
    return is_written_right and bool(host) and port != 0 and parts.scheme in schemes and "@" not in parts.netloc
