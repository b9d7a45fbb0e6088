"""Sending webhooks: signed as Standard Webhooks has it, to public addresses only, one attempt at a time."""

from __future__ import annotations

import ipaddress
import socket
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Final

import httpx2
import structlog
from standardwebhooks import Webhook

from store import ids, webhooks
from worker.metrics import METRICS

if TYPE_CHECKING:
    from uuid import UUID

    from store.webhooks import Delivery
    from worker.database import Database

log = structlog.get_logger()

TIMEOUT_SECONDS: Final = 10.0
"""Seconds for connecting and for each wait while the answer comes; what is slower is tried again later."""


class AddressError(Exception):
    """The webhook's host has no address that may be called."""


class Courier:
    """Makes attempts at deliveries. Safe to use from many threads."""

    def __init__(self, database: Database, *, private_addresses: bool) -> None:
        self._database = database
        self._private_addresses = private_addresses

    def deliver(self, tenant_id: UUID, delivery_id: UUID) -> None:
        """Make one attempt, if one is due, and write down how it went."""
        with self._database.transaction(tenant_id) as connection:
            delivery = webhooks.claim(connection, tenant_id, delivery_id)
        if delivery is None:
            return
        status, error = self._attempt(delivery)
        with self._database.transaction(tenant_id) as connection:
            if error is None and status is not None:
                webhooks.delivered(connection, delivery, status)
                dead = None
            else:
                dead = webhooks.refused(connection, delivery, status, error or f"status {status}")
        METRICS.delivered("delivered" if dead is None else "dead" if dead else "refused")
        if dead is None:
            return
        log.warning(
            "webhook.refused",
            delivery_id=str(delivery_id),
            attempt=delivery.attempt,
            status=status,
            error=error,
            dead=dead,
        )

    def _attempt(self, delivery: Delivery) -> tuple[int | None, str | None]:
        """Return the status of the answer and what was wrong, None for nothing. What the receiver says is not kept."""
        try:
            response = self._send(delivery)
        except AddressError:
            return None, "address_not_allowed"
        except (httpx2.HTTPError, httpx2.InvalidURL, OSError) as error:
            return None, type(error).__name__
        return response.status_code, None if response.is_success else f"status {response.status_code}"

    def _send(self, delivery: Delivery) -> httpx2.Response:
        url = httpx2.URL(delivery.url)
        # Called at the address that was looked at: a second lookup could answer with another one.
        address = self._address(url.host, url.port or (443 if url.scheme == "https" else 80))
        now = datetime.now(UTC)
        event = ids.external("evt", delivery.id)
        headers = {
            "host": url.netloc.decode(),
            "content-type": "application/json",
            "user-agent": "palimpsest-webhooks",
            "webhook-id": event,
            "webhook-timestamp": str(int(now.timestamp())),
            "webhook-signature": Webhook(delivery.secret).sign(event, now, delivery.body),
        }
        with (
            httpx2.Client(timeout=TIMEOUT_SECONDS, follow_redirects=False, trust_env=False) as client,
            client.stream(
                "POST",
                url.copy_with(host=address),
                content=delivery.body.encode(),
                headers=headers,
                extensions={"sni_hostname": url.host},
            ) as response,
        ):
            return response

    def _address(self, host: str, port: int) -> str:
        found = [str(entry[4][0]) for entry in socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)]
        allowed = [address for address in found if self._private_addresses or ipaddress.ip_address(address).is_global]
        # One private address among public ones is a trick as well.
        if not allowed or len(allowed) < len(found):
            raise AddressError(host)
        return allowed[0]
