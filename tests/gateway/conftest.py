"""A gateway on a database of a module's own, before providers on loopback."""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import psycopg
import pytest
from psycopg.rows import dict_row
from pydantic import SecretStr

from runtime import ids
from store.archive import erasures
from store.engine import service_engine, transaction
from store.operations.operator_actions import Operator
from tests.conftest import Tenant, make_tenant
from tests.gateway.running_gateway import running_gateway
from tests.support.eventually import eventually
from tests.support.servers.loopback_providers import LoopbackProviders
from tests.support.service.in_process_worker import work
from tests.support.service.running_api import conversation_at

if TYPE_CHECKING:
    from collections.abc import Iterator

    import httpx2

    from runtime.settings import Settings
    from tests.gateway.running_gateway import RunningGateway

PROVIDER_KEY = "sk-provider"

OUTCOME: Final = "x-palimpsest-outcome"


class Room(NamedTuple):
    """A running gateway, its database, its providers, and a tenant."""

    gateway: RunningGateway
    settings: Settings
    providers: LoopbackProviders
    tenant: Tenant
    client: httpx2.Client

    def stored(self, conversation: str) -> list[dict[str, Any]]:
        """Return the messages of a conversation that are in force."""
        rows = self.query(
            "select seq, role, content, superseded_at from messages where conversation_id = %s order by seq",
            ids.parse("conv", conversation),
        )
        return [row for row in rows if row["superseded_at"] is None]

    def eventually_stored(self, conversation: str, count: int) -> list[dict[str, Any]]:
        """Return the messages of a conversation once it has so many in force."""
        eventually(lambda: len(self.stored(conversation)) == count, 20)
        return self.stored(conversation)

    def eventually_back(self) -> None:
        """Return once the gateway knows that the database is back."""
        body = {"model": "m", "messages": [{"role": "user", "content": "?"}]}
        with self.gateway.client(self.tenant.key) as client:
            eventually(lambda: client.post("/v1/messages", json=body).headers[OUTCOME] == "unchanged")

    def query(self, statement: str, *values: object) -> list[dict[str, Any]]:
        """Ask the database as its owner."""
        url = self.settings.database_url.get_secret_value()
        with psycopg.connect(url, row_factory=dict_row) as connection:
            return connection.execute(statement.encode(), values).fetchall()

    def erase(self, conversation: str) -> None:
        """Erase a conversation, as the API does."""
        asking = Operator(self.tenant.id, ids.new_id(), ids.new_id())
        engine = service_engine(self.settings, "test")
        with transaction(engine, self.tenant.id) as connection:
            assert erasures.erase(connection, asking, conversation_at(conversation)) is not None
        engine.dispose()

    def conversation_of_tenant(self, name: str) -> str:
        """Return the conversation that the original of a name is in."""
        statement = "select conversation_id from gateway_prefixes where key = %s and tenant_id = %s"
        (row,) = self.query(statement, bytes.fromhex(name), self.tenant.id)
        return ids.external("conv", row["conversation_id"])

    def compact(self, conversation: str) -> None:
        """Do what is due for a conversation."""
        work(self.settings, conversation)


def gateway_settings(settings: Settings, providers: LoopbackProviders, **fields: Any) -> Settings:
    """Return settings of a gateway before providers on loopback, patient enough for a busy machine."""
    return settings.model_copy(
        update={
            "anthropic_base_url": providers.url,
            "openai_base_url": providers.openai_url,
            "anthropic_api_key": SecretStr(PROVIDER_KEY),
            "openai_api_key": SecretStr(PROVIDER_KEY),
            "gateway_patience_seconds": 20.0,
            **fields,
        }
    )


@contextmanager
def room_on(settings: Settings, tenant: Tenant, **fields: Any) -> Iterator[Room]:
    """Run a gateway of its own."""
    with LoopbackProviders() as providers:
        own = gateway_settings(settings, providers, **fields)
        with running_gateway(own) as gateway, gateway.client(tenant.key) as client:
            yield Room(gateway, own, providers, tenant, client)


@pytest.fixture(scope="module")
def shared(module_settings: Settings) -> Iterator[Room]:
    """A gateway of the module's own, whose tests keep to histories of their own."""
    tenant = make_tenant(module_settings.database_url.get_secret_value(), "acme")
    with room_on(module_settings, tenant) as room:
        yield room


@pytest.fixture
def room(shared: Room) -> Iterator[Room]:
    """The module's gateway, its providers as they are at first."""
    fresh = LoopbackProviders()
    providers = shared.providers
    providers.asked.clear()
    providers.model = fresh.model
    providers.hold_after = providers.cut_after = None
    providers.held.clear()
    providers.go_on.clear()
    fresh._server.server_close()
    yield shared
    providers.go_on.set()
