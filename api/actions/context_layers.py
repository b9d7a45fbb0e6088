"""The context layers of a payload: what the request says, and where it says nothing what the conversation stores."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from compaction.messages import is_request
from compaction.text.outline import ContextBlock
from store.conversations import context_blocks
from store.conversations.context_blocks import Exchange, Stored

_SURELY_TOO_LARGE: Final = 2
"""Budgets; a block estimated at more cannot fit one, since no estimate is corrected by more than half."""

if TYPE_CHECKING:
    from collections.abc import Sequence
    from uuid import UUID

    from api.schema.types import ContextBlockIn, PayloadIn
    from api.services import Services
    from compaction.policy import Policy
    from compaction.view import ViewMessage
    from store.tables import AnyRow


async def context_layers(
    services: Services, tenant_id: UUID, row: AnyRow, wanted: PayloadIn, user: ViewMessage | None, policy: Policy
) -> Stored:
    """Return prior context and turn context of the payload for a conversation (`row`).

    Prior context is by default what is carried over, as outlines, without what this turn brings anew. Turn context is
    by default what came with the current exchange; a new request (`user`) begins another, which has none of its own
    yet. Its blocks come whole, with the shorter forms that are stored of them.
    """
    begins = user is not None and is_request(user.role, user.content)
    exchange = None if begins else Exchange(row.last_request, keeps_prefix=row.in_loop and row.loop_has_thinking)
    stored = Stored()
    if (row.carried_tokens or row.turn_context_tokens) and (
        wanted.prior_context is None or wanted.turn_context is None
    ):
        stored = await services.run(
            tenant_id, context_blocks.stored, row.id, exchange, max_tokens=_SURELY_TOO_LARGE * policy.total_token_budget
        )
    turn = stored.turn
    if wanted.turn_context is not None:
        turn = await _given(services, tenant_id, row.id, exchange, wanted.turn_context, policy)
    if wanted.prior_context is not None:
        return Stored(_blocks(wanted.prior_context), turn)
    renewed = {block.source for block in turn}
    return Stored(tuple(block for block in stored.prior if block.source not in renewed), turn)


async def _given(
    services: Services,
    tenant_id: UUID,
    conversation_id: UUID,
    exchange: Exchange | None,
    given: Sequence[ContextBlockIn],
    policy: Policy,
) -> tuple[ContextBlock, ...]:
    """Return this turn's context as it is given, large blocks with the summaries that are stored of their texts."""
    large = [block.text for block in given if len(block.text) > policy.context_block_compact_chars]
    if not large:
        return _blocks(given)
    known = await services.run(tenant_id, context_blocks.summaries_of, conversation_id, exchange, large)
    return tuple(block._replace(summary=known.get(block.text)) for block in _blocks(given))


def _blocks(given: Sequence[ContextBlockIn]) -> tuple[ContextBlock, ...]:
    return tuple(ContextBlock(block.source, block.title, block.text) for block in given)
