"""On whose behalf an action is carried out, and what it may use for it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Concatenate, NamedTuple, ParamSpec, TypeVar

from actions.errors import or_not_found
from store.conversations import conversations
from store.operations.operator_actions import Operator

if TYPE_CHECKING:
    from collections.abc import Callable
    from uuid import UUID

    from sqlalchemy import Connection

    from actions.auth.principals import Principal
    from actions.services import Services
    from runtime.held_bytes import HeldBytes

P = ParamSpec("P")
R = TypeVar("R")


class Caller(NamedTuple):
    """Who sent a request, and what this process answers it with."""

    services: Services
    principal: Principal
    request_id: UUID
    hold: HeldBytes
    """The bytes that the request has in memory."""

    @property
    def tenant_id(self) -> UUID:
        """The tenant that everything is read and written for."""
        return self.principal.tenant_id

    @property
    def operator(self) -> Operator:
        """Who acts, as it is written down what operators did."""
        return Operator(self.tenant_id, self.principal.key_id, self.request_id)

    async def run(self, query: Callable[Concatenate[Connection, UUID, P], R], *args: P.args, **kwargs: P.kwargs) -> R:
        """Run a query of the store, which begins with the tenant, in a transaction of its own."""
        return await self.services.run(self.tenant_id, query, self.tenant_id, *args, **kwargs)

    async def run_and_wake(
        self,
        query: Callable[Concatenate[Connection, UUID, UUID, P], R],
        conversation_id: UUID,
        *args: P.args,
        **kwargs: P.kwargs,
    ) -> R:
        """Run a query that may make a check of a conversation due, then wake the workers for it.

        Without the wake-up the next turn would find a check due already and send none, so that only the sweep would
        find it.
        """
        result = await self.services.run(self.tenant_id, query, self.tenant_id, conversation_id, *args, **kwargs)
        self.services.wakeups.add(conversation_id, self.tenant_id)
        return result

    async def run_in(
        self,
        conversation_id: UUID,
        query: Callable[Concatenate[Connection, UUID, UUID, P], R],
        *args: P.args,
        **kwargs: P.kwargs,
    ) -> R:
        """Run a query about a conversation; raise the problem that there is no such one."""

        def query_existing(connection: Connection) -> R:
            or_not_found(conversations.get(connection, self.tenant_id, conversation_id))
            return query(connection, self.tenant_id, conversation_id, *args, **kwargs)

        return await self.services.run(self.tenant_id, query_existing)
