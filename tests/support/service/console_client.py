"""A browser's side of the console, without a browser: a client that keeps cookies and says where it comes from."""

from __future__ import annotations

import html
import re
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Final

import httpx2
import psycopg

from store.console.sessions import issue_ticket
from store.engine import owner_engine, transaction
from store.tenants import api_keys
from tests.support.service.running_api import TIMEOUT

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator
    from uuid import UUID

    from tests.support.service.running_api import Service

COOKIE: Final = "palimpsest_console"
CSP: Final = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; connect-src 'self'; "
    "form-action 'self'; frame-ancestors 'none'; base-uri 'none'"
)
_TAG: Final = re.compile(r"<[^>]*>")
_LINK: Final = re.compile(r'(?:href|hx-get)="(/console[^"#]*)"')


def visitor(service: Service) -> httpx2.Client:
    """Return a client that nobody has signed in with."""
    client = service.api.client()
    client.headers.update(_same_origin(service.api.url))
    return client


def _same_origin(url: str) -> dict[str, str]:
    return {"origin": url, "sec-fetch-site": "same-origin"}


def make_key(service: Service, scopes: Collection[str] = api_keys.SCOPES) -> tuple[UUID, str]:
    """Make a key of the service's tenant."""
    engine = owner_engine(service.database_url)
    with transaction(engine, service.tenant_id) as connection:
        key_row, key = api_keys.create(connection, service.tenant_id, "console", scopes)
    engine.dispose()
    return key_row.id, key


def make_ticket(service: Service, key_id: UUID) -> str:
    """Issue a ticket for a key of the service's tenant."""
    engine = owner_engine(service.database_url)
    with transaction(engine, service.tenant_id) as connection:
        ticket = issue_ticket(connection, service.tenant_id, key_id)
    engine.dispose()
    return ticket


@contextmanager
def sign_in(service: Service, key: str) -> Iterator[httpx2.Client]:
    """Yield a client that is signed in with a key."""
    with sign_in_to(service.api.url, key) as client:
        yield client


@contextmanager
def sign_in_to(url: str, key: str) -> Iterator[httpx2.Client]:
    """Yield a client that is signed in to the API at `url`."""
    with httpx2.Client(base_url=url, headers=_same_origin(url), timeout=TIMEOUT) as client:
        done = client.post("/console/sign-in", data={"key": key})
        assert done.status_code == 303, done.text
        yield client


@contextmanager
def signed_in(service: Service, scopes: Collection[str] = api_keys.SCOPES) -> Iterator[httpx2.Client]:
    """Yield a client that is signed in with a new key of the service's tenant."""
    with sign_in(service, make_key(service, scopes)[1]) as client:
        yield client


def key_of(client: httpx2.Client) -> str:
    """Return the key that a client of the API presents."""
    return client.headers["authorization"].removeprefix("Bearer ")


def text_of(page: str) -> str:
    """Return what a page says, without its tags."""
    return " ".join(html.unescape(_TAG.sub(" ", page)).split())


def links(page: str) -> list[str]:
    """Return the pages of the console that a page leads to."""
    return [html.unescape(link) for link in _LINK.findall(page) if "/static/" not in link]


def query(service: Service, statement: str, *values: Any) -> list[tuple[Any, ...]]:
    """Read the database as its owner does."""
    with psycopg.connect(service.database_url, autocommit=True) as connection:
        connection.execute("select set_config('app.tenant_id', %s, false)", (str(service.tenant_id),))
        return connection.execute(statement.encode(), values).fetchall()
