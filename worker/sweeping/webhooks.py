"""Sending webhooks: signed as Standard Webhooks has it, to public addresses only, one attempt at a time."""

from __future__ import annotations

import asyncio
import math
import socket
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime
from functools import cached_property, partial
from ipaddress import IPv4Address, IPv4Network, IPv6Address, IPv6Network, ip_address
from threading import Lock
from typing import TYPE_CHECKING, Final

import httpx2
import structlog
from standardwebhooks import Webhook

from runtime import ids
from store.tenants import webhooks
from worker.metrics import METRICS

if TYPE_CHECKING:
    import ssl
    from uuid import UUID

    from store.tenants.webhooks import Delivery
    from worker.database import Database

log = structlog.get_logger()

TIMEOUT_SECONDS: Final = 10.0
"""Seconds for one attempt in all: a receiver that answers byte by byte must not keep a worker's thread."""
QUICK_SECONDS: Final = 1.0
"""Receivers of whom an attempt takes longer are slow, and so are those that nothing is known of."""
SLOW_FOR_SECONDS: Final = 60.0
"""How long a tenant's receivers are slow after such an attempt."""
PART_OF_SLOW: Final = 2
"""The part of a worker's threads, one in so many, that attempts at slow receivers get; the others are for summaries."""
PART_OF_SLOW_TENANT: Final = 8
"""The same of one tenant's: receivers that take their ten seconds hold up nobody else's."""
LOOKUPS: Final = 64
"""Lookups of addresses at a time; one that is not over in time goes on for as long as the resolver has patience."""
_LAST_PORT: Final = 65_535
_NAT64: Final = IPv6Network("64:ff9b::/96")
_ISATAP: Final = 0x5EFE
_ISATAP_MASK: Final = 0xFDFF_FFFF
"""RFC 5214, section 6.1: an interface identifier `0000:5efe` or `0200:5efe` with an IPv4 address behind it."""
_ROUTED: Final = IPv6Network("2000::/3")
_NOT_PUBLIC: Final = (
    # IANA's special-purpose registries have these whole; which parts `ipaddress` knows differs by version of Python.
    IPv4Network("192.0.0.0/24"),
    IPv4Network("192.88.99.0/24"),
    IPv6Network("2001::/23"),
    IPv6Network("2001:db8::/32"),
    IPv6Network("3fff::/20"),
    # Not in a registry: the host of a virtual machine in Azure, reached from inside alone.
    IPv4Network("168.63.129.16/32"),
)
"""Addresses that represent IPv4 addresses, where a network translates them (RFC 6052)."""


class AddressError(Exception):
    """The webhook's host has no address that may be called."""


class Courier:
    """Makes attempts at deliveries. Safe to use from many threads."""

    def __init__(self, database: Database, *, private_addresses: bool, threads: int) -> None:
        self._database = database
        self._most = max(1, threads // PART_OF_SLOW)
        self._most_of_tenant = max(1, threads // PART_OF_SLOW_TENANT)
        self._private_addresses = private_addresses
        # Not the event loop's own threads: a loop that ends waits for them, and so would the worker for a lookup.
        self._lookups = ThreadPoolExecutor(LOOKUPS, "webhook-lookup")
        self._under_way: Counter[UUID] = Counter()
        self._slow_until: dict[UUID, float] = {}
        self._lock = Lock()

    @cached_property
    def _trusted(self) -> ssl.SSLContext:
        """Whose certificates are trusted; to read them takes longer than an attempt."""
        return httpx2.create_ssl_context(trust_env=False)

    def deliver(self, tenant_id: UUID, delivery_id: UUID) -> None:
        """Make one attempt, if one is due, and write down how it went.

        Where too many are under way at slow receivers it stays due, with no attempt counted: the sweep comes back
        to it. Quick ones are not bounded, since as many deliveries as they take in a second would wait for it too.
        """
        if not self._begin(tenant_id):
            return
        began = time.monotonic()
        try:
            self._deliver(tenant_id, delivery_id)
        finally:
            self._end(tenant_id, time.monotonic() - began)

    def _begin(self, tenant_id: UUID) -> bool:
        with self._lock:
            is_slow = self._slow_until.get(tenant_id, math.inf) > time.monotonic()
            is_full = self._under_way.total() >= self._most or self._under_way[tenant_id] >= self._most_of_tenant
            if is_slow and is_full:
                return False
            self._under_way[tenant_id] += 1
            return True

    def _end(self, tenant_id: UUID, seconds: float) -> None:
        now = time.monotonic()
        with self._lock:
            self._under_way[tenant_id] -= 1
            self._under_way += Counter()  # without those that have none
            if seconds > QUICK_SECONDS:
                self._slow_until[tenant_id] = now + SLOW_FOR_SECONDS
            else:
                self._slow_until.setdefault(tenant_id, now)

    def _deliver(self, tenant_id: UUID, delivery_id: UUID) -> None:
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
            response = asyncio.run(self._send(delivery))
        except AddressError:
            return None, "address_not_allowed"
        except (httpx2.HTTPError, httpx2.InvalidURL, OSError) as error:
            return None, type(error).__name__
        return response.status_code, None if response.is_success else f"status {response.status_code}"

    async def _send(self, delivery: Delivery) -> httpx2.Response:
        url = httpx2.URL(delivery.url)
        host = url.raw_host.decode()
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
        async with asyncio.timeout(TIMEOUT_SECONDS):
            # Called at the address that was checked: a second lookup could answer with another one.
            address = await self._address(host, url.port or (443 if url.scheme == "https" else 80))
            async with (
                httpx2.AsyncClient(
                    timeout=None, follow_redirects=False, trust_env=False, verify=self._trusted
                ) as client,
                client.stream(
                    "POST",
                    url.copy_with(host=address),
                    content=delivery.body.encode(),
                    headers=headers,
                    extensions={"sni_hostname": host},
                ) as response,
            ):
                return response

    async def _address(self, host: str, port: int) -> str:
        if port > _LAST_PORT:
            raise AddressError(host)
        lookup = partial(socket.getaddrinfo, host, port, type=socket.SOCK_STREAM)
        try:
            entries = await asyncio.get_running_loop().run_in_executor(self._lookups, lookup)
        except UnicodeError as error:  # a label that is empty or too long: no name that could be asked for
            raise AddressError(host) from error
        addresses = [str(entry[4][0]) for entry in entries]
        allowed = [each for each in addresses if self._private_addresses or is_public(ip_address(each))]
        # One private address among public ones is a trick as well.
        if not allowed or len(allowed) < len(addresses):
            raise AddressError(host)
        return allowed[0]


def is_public(address: IPv4Address | IPv6Address) -> bool:
    """Tell whether an address is one of the internet's, and so is the IPv4 address that it may represent."""
    if isinstance(address, IPv6Address):
        inner = _inner(address)
        if inner is not None:
            return is_public(inner)
        # Nothing else is routed; among the rest are more ways to write an IPv4 address.
        if address not in _ROUTED:
            return False
    return address.is_global and not address.is_multicast and not any(address in each for each in _NOT_PUBLIC)


def _inner(address: IPv6Address) -> IPv4Address | None:
    """Return the IPv4 address that a gateway, or the host itself, would reach by an IPv6 address."""
    if address in _NAT64 or (int(address) >> 32) & _ISATAP_MASK == _ISATAP:
        return IPv4Address(int(address) & 0xFFFF_FFFF)
    return address.ipv4_mapped or address.sixtofour
