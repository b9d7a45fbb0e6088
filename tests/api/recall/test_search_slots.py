"""Search slots: one tenant's searches wait for each other and for nobody else's."""

from __future__ import annotations

import asyncio
from contextlib import AsyncExitStack
from typing import TYPE_CHECKING
from uuid import uuid4

import pytest

from actions.background.search_slots import SearchSlots
from runtime.errors import RequestError

if TYPE_CHECKING:
    from contextlib import AbstractAsyncContextManager
    from uuid import UUID

    from tests.support.service.running_api import Service

TENANT, OTHER = uuid4(), uuid4()


def test_a_tenant_waits_for_its_own_searches_alone() -> None:
    async def run() -> None:
        slots = SearchSlots(at_once=2)
        async with AsyncExitStack() as stack:
            for _ in range(2):
                await stack.enter_async_context(slots.acquire(TENANT))
            third = asyncio.create_task(stack.enter_async_context(slots.acquire(TENANT)))
            async with slots.acquire(OTHER):
                pass
            assert not third.done()
            third.cancel()
            await asyncio.gather(third, return_exceptions=True)
        async with slots.acquire(TENANT), slots.acquire(TENANT):
            pass

    asyncio.run(run())


def test_a_search_that_waits_too_long_is_answered_429_and_leaves_no_slot_taken() -> None:
    async def run() -> None:
        slots = SearchSlots(at_once=1, wait_seconds=0.01)
        async with slots.acquire(TENANT):
            with pytest.raises(RequestError) as refused:
                await AsyncExitStack().enter_async_context(slots.acquire(TENANT))
        assert refused.value.code == "rate_limited"
        assert refused.value.retry_after
        async with slots.acquire(TENANT):
            pass

    asyncio.run(run())


def test_a_comparison_waits_for_the_searches_of_its_tenant(service: Service, monkeypatch: pytest.MonkeyPatch) -> None:
    taken: list[object] = []
    acquire = SearchSlots.acquire

    def counted(slots: SearchSlots, tenant_id: UUID) -> AbstractAsyncContextManager[None]:
        taken.append(tenant_id)
        return acquire(slots, tenant_id)

    monkeypatch.setattr(SearchSlots, "acquire", counted)
    path = service.conversation()
    service.append(path, {"role": "user", "content": "Hello."})
    answer = service.client.post(f"{path}/comparisons", json={"versions": [0, 0], "seq": 0})
    assert answer.status_code == 200
    assert len(taken) == 1
