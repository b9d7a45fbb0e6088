"""Real servers for the tests: one embedded Postgres and Redis a test process, one database a test.

Every database is cloned from a template that the migrations made, and is dropped after the test. Services connect to
it exactly as in production: in the role that row-level security is forced on.
"""

from __future__ import annotations

import base64
import gc
import hashlib
import hmac
import importlib
import os
import shutil
import sys
import tempfile
import time
from contextlib import contextmanager, suppress
from datetime import UTC, datetime, timedelta
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NamedTuple
from uuid import uuid4

import httpcore2
import psycopg
import pytest
import structlog
from hypothesis import HealthCheck, Phase
from hypothesis import settings as hypothesis_settings
from psycopg import sql
from pydantic import SecretStr
from sqlalchemy import make_url
from sqlalchemy.dialects.postgresql.asyncpg import PGDialect_asyncpg
from sqlalchemy.dialects.postgresql.psycopg import PGDialect_psycopg
from sqlalchemy.util import LRUCache

from cli.local.embedded import EmbeddedPostgres, EmbeddedRedis
from migrations.run import upgrade
from runtime.settings import Settings
from store import engine, hot_path
from store.engine import owner_engine
from store.tenants import api_keys, tenants
from tests.support.places import ROOT
from tests.support.servers.loopback_model import LoopbackModel
from tests.support.service.running_api import Service, running_api

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Generator, Iterator
    from uuid import UUID

hypothesis_settings.register_profile(
    "suite",
    deadline=None,
    max_examples=20,
    derandomize=True,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large, HealthCheck.function_scoped_fixture],
)
hypothesis_settings.register_profile("thorough", parent=hypothesis_settings.get_profile("suite"), max_examples=60)
hypothesis_settings.register_profile(
    "search",
    parent=hypothesis_settings.get_profile("suite"),
    derandomize=False,
    max_examples=1_000,
    phases=[Phase.explicit, Phase.reuse, Phase.generate, Phase.target, Phase.shrink],
)
hypothesis_settings.load_profile(os.environ.get("PALIMPSEST_HYPOTHESIS", "suite"))


SERVERS: Final = {"postgres", "redis_server"}
"""Fixtures that start one; a test that has neither is one for `make unit`."""

MEMORY: Final = Path("/dev/shm")  # noqa: S108 - a file system, not a file
ROOM: Final = 2 << 30
"""Bytes that have to be free for a Postgres of the tests, which takes a small part of them."""


PATIENCE: Final = 20.0
"""Seconds that an API in the tests' own process waits for a connection: one core may be all that it has."""


class Tenant(NamedTuple):
    """A tenant of the test's database and a key with every scope."""

    id: UUID
    key: str


class Furnished(NamedTuple):
    """A database to clone that has a tenant."""

    template: str
    tenant: Tenant


_KEPT: Final[dict[str, psycopg.Connection]] = {}
"""Connections to servers on which databases are made and dropped all the time."""


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark what needs a server, so that it can be left out."""
    for item in items:
        if SERVERS & set(getattr(item, "fixturenames", ())):
            item.add_marker(pytest.mark.server)


@pytest.hookimpl(wrapper=True)
def pytest_collection(session: pytest.Session) -> Generator[None, object, object]:
    """Look for no garbage while tests are loaded, which makes little and takes a third longer, nor among them later."""
    gc.disable()
    _begin_elsewhere(session.config)
    try:
        return (yield)
    finally:
        gc.freeze()
        gc.enable()


def _begin_elsewhere(config: pytest.Config) -> None:
    """Load other tests first than the other processes do: each compiles what none of them has yet."""
    process = getattr(config, "workerinput", None)
    if process and config.args == config.getini("testpaths"):
        files = sorted((ROOT / "tests").rglob("test_*.py"))
        first = len(files) * int(process["workerid"].removeprefix("gw")) // process["workercount"]
        for path in files[first:] + files[:first]:
            importlib.import_module(".".join(path.relative_to(ROOT).with_suffix("").parts))


@pytest.fixture(scope="session")
def postgres() -> Iterator[EmbeddedPostgres]:
    """A Postgres server, without the durability that tests do not need.

    Its files are kept in memory where there is room: a database is a thousand files, and each test makes one.
    """
    server = EmbeddedPostgres(durable=False)
    with pytest.MonkeyPatch.context() as patch:
        if MEMORY.is_dir() and shutil.disk_usage(MEMORY).free > ROOM:
            patch.setattr(tempfile, "tempdir", str(MEMORY))
        server.start()
    _make_signing_in_cheap(server.url)
    with psycopg.connect(server.url, autocommit=True) as connection:
        _KEPT[server.url] = connection
        yield server
        del _KEPT[server.url]
    server.stop()


def _make_signing_in_cheap(url: str) -> None:
    """Derive what the login's password is held against in one round instead of 4,096 (RFC 5802, section 3).

    The exchange stays the same. A run of the tests signs in thousands of times, half of which is those rounds.
    """
    login = make_url(url)
    salt, rounds = os.urandom(16), 1
    salted = hashlib.pbkdf2_hmac("sha256", str(login.password).encode(), salt, rounds)
    stored = hashlib.sha256(hmac.digest(salted, b"Client Key", "sha256")).digest()
    salt64, stored64, server64 = (
        base64.b64encode(part).decode() for part in (salt, stored, hmac.digest(salted, b"Server Key", "sha256"))
    )
    verifier = f"SCRAM-SHA-256${rounds}:{salt64}${stored64}:{server64}"
    with psycopg.connect(url, autocommit=True) as connection:
        connection.execute(
            sql.SQL("alter role {} password {}").format(sql.Identifier(str(login.username)), sql.Literal(verifier))
        )


@pytest.fixture(scope="session")
def redis_server() -> Iterator[EmbeddedRedis]:
    """A Redis server of this test process."""
    with EmbeddedRedis() as server:
        yield server


@pytest.fixture(scope="session")
def template(postgres: EmbeddedPostgres) -> str:
    """The name of a migrated database to clone."""
    name = "template_palimpsest"
    url = create_database(postgres.url, name)
    upgrade(url)
    return name


@pytest.fixture(scope="session")
def furnished(postgres: EmbeddedPostgres, template: str) -> Furnished:
    """A database to clone that has a tenant: to make one anew in every clone takes as long as to clone it."""
    name = f"{template}_with_tenant"
    return Furnished(name, make_tenant(create_database(postgres.url, name, template), "acme"))


@pytest.fixture
def database_url(
    request: pytest.FixtureRequest, postgres: EmbeddedPostgres, template: str, furnished: Furnished
) -> Iterator[str]:
    """A fresh, migrated database of the test's own: URL of the login that owns it.

    It has the tenant where the test asks for one, and is empty otherwise.
    """
    name = f"test_{uuid4().hex}"
    url = create_database(postgres.url, name, furnished.template if "tenant" in request.fixturenames else template)
    yield url
    drop_database(postgres.url, name)


@pytest.fixture
def empty_database_url(postgres: EmbeddedPostgres) -> Iterator[str]:
    """A fresh database that no migration has touched."""
    name = f"test_{uuid4().hex}"
    url = create_database(postgres.url, name)
    yield url
    drop_database(postgres.url, name)


@pytest.fixture
def broker_url(redis_server: EmbeddedRedis) -> str:
    """A flushed Redis."""
    import redis  # noqa: PLC0415 - only these tests need it

    with redis.Redis.from_url(redis_server.url) as client:
        client.flushall()
    return redis_server.url


@pytest.fixture
def within_a_day() -> None:
    """Let a UTC day end first that is about to: what is counted by the day begins anew at midnight."""
    _let_a_day_end()


@pytest.fixture(scope="module")
def module_within_a_day() -> None:
    """Let a UTC day end first, for a module of seconds that counts by the day from its beginning."""
    _let_a_day_end()


def _let_a_day_end() -> None:
    now = datetime.now(UTC)
    midnight = datetime.combine(now + timedelta(days=1), datetime.min.time(), UTC)
    if midnight - now < timedelta(minutes=1):
        time.sleep((midnight - now).total_seconds())


@pytest.fixture
def make_settings(database_url: str) -> Callable[..., Settings]:
    """Return settings for the test's database; keyword arguments override fields."""

    def make(**fields: Any) -> Settings:
        return Settings(**{"database_url": database_url, "summarizer": "extractive", **fields})

    return make


@pytest.fixture
def tenant(database_url: str, furnished: Furnished) -> Tenant:
    """The tenant of the test's database, with a key."""
    return furnished.tenant


@pytest.fixture(scope="module")
def module_settings(postgres: EmbeddedPostgres, template: str, redis_server: EmbeddedRedis) -> Iterator[Settings]:
    """Settings for a database of the module's own, for tests that keep to conversations of their own."""
    name = f"test_{uuid4().hex}"
    url = create_database(postgres.url, name, template)
    yield Settings(
        database_url=SecretStr(url),
        broker_url=SecretStr(redis_server.url),
        summarizer="extractive",
        max_body_bytes=1 << 20,
    )
    drop_database(postgres.url, name)


@pytest.fixture
def model() -> Iterator[LoopbackModel]:
    """A server that answers as models' APIs do."""
    with LoopbackModel() as server:
        yield server


@pytest.fixture(scope="module")
def service(module_settings: Settings) -> Iterator[Service]:
    """A running API on the module's database."""
    url = module_settings.database_url.get_secret_value()
    tenant, other = make_tenants(url, "acme", "rival")
    with running_api(module_settings) as api, api.client(tenant.key) as client, api.client(other.key) as stranger:
        yield Service(api, module_settings, url, tenant.id, client, stranger)


def make_tenant(database_url: str, name: str, scopes: Collection[str] = api_keys.USUAL) -> Tenant:
    """Make a tenant and a key, with every scope that is usual unless others are named."""
    (made,) = make_tenants(database_url, name, scopes=scopes)
    return made


def make_tenants(database_url: str, *names: str, scopes: Collection[str] = api_keys.USUAL) -> list[Tenant]:
    """Make tenants, each with a key, through one connection: to open one takes as long as all the rest."""
    engine = owner_engine(database_url)
    with engine.begin() as connection:
        ids = [tenants.create_tenant(connection, name).id for name in names]
        made = [Tenant(each, api_keys.create(connection, each, "test", scopes)[1]) for each in ids]
    engine.dispose()
    return made


def create_database(server_url: str, name: str, template: str | None = None) -> str:
    """Create a database and return its URL."""
    statement = sql.SQL("create database {}").format(sql.Identifier(name))
    if template:
        # To copy its files costs less than to log every page of it, and so does dropping what was never logged.
        statement += sql.SQL(" template {} strategy file_copy").format(sql.Identifier(template))
    with _administering(server_url) as connection:
        connection.execute(statement)
        if template:
            # What the migrations took from everybody: a copy has the template's tables, not its own privileges.
            connection.execute(sql.SQL("revoke temporary on database {} from public").format(sql.Identifier(name)))
    return make_url(server_url).set(database=name).render_as_string(hide_password=False)


def drop_database(server_url: str, name: str) -> None:
    """Drop a database, whoever is still connected to it."""
    with _administering(server_url) as connection:
        connection.execute(sql.SQL("drop database {} with (force)").format(sql.Identifier(name)))


@contextmanager
def _administering(server_url: str) -> Iterator[psycopg.Connection]:
    """Yield the connection that is kept to a server, or one for the moment."""
    if server_url in _KEPT:
        yield _KEPT[server_url]
    else:
        with psycopg.connect(server_url, autocommit=True) as connection:
            yield connection


# Each client would read all certificates that this machine trusts, which takes longer than most tests that have one.
httpcore2.default_ssl_context = cache(httpcore2.default_ssl_context)

_COMPILED: Final[LRUCache[Any, Any]] = LRUCache(2_000)


def _compile_once(dialect: Any) -> None:
    """Have all engines of a driver compile a statement once: each test has engines of its own, of one server."""
    dialect.__eq__ = lambda self, other: type(self) is type(other)
    dialect.__hash__ = lambda self: hash(type(self))
    dialect.engine_created = lambda engine: setattr(engine, "_compiled_cache", _COMPILED)


_compile_once(PGDialect_asyncpg)
_compile_once(PGDialect_psycopg)

engine.CONNECT_SECONDS = hot_path.ACQUIRE_SECONDS = PATIENCE  # type: ignore[misc] # not on a machine this slow

_configure = structlog.configure


def _configure_uncached(**given: Any) -> None:
    """Configure logging as a command does that a test runs in its own process, but for no longer than that test."""
    _configure(**given | {"cache_logger_on_first_use": False})


structlog.configure = _configure_uncached  # type: ignore[assignment] # takes what the other takes


class _Output:
    """Standard error as it is at each write, held for the length of it.

    `print`, which structlog logs by, does not hold it before Python 3.13.3 (CPython's issue 130163): where pytest
    replaces it while the API logs in its thread, the process ends by a segmentation fault.
    """

    def write(self, text: str) -> None:
        output = sys.stderr
        with suppress(ValueError):  # pytest has closed it
            output.write(text)

    def flush(self) -> None:
        """Do nothing: pytest reads what was written from memory or a file."""


def _restore_logging() -> None:
    structlog.reset_defaults()
    _configure(logger_factory=structlog.WriteLoggerFactory(_Output()))  # type: ignore[arg-type] # it writes no more


_restore_logging()


@pytest.fixture(autouse=True)
def _own_logging() -> Iterator[None]:
    """Restore logging as it was before the test."""
    yield
    _restore_logging()
