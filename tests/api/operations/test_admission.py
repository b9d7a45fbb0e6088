"""Turns at a connection: calls have them in the order in which they come, as long as others end."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any, Final

import pytest
from sqlalchemy.exc import TimeoutError as PoolTimeoutError

from store.admission import Admission

if TYPE_CHECKING:
    from collections.abc import Coroutine

STEP: Final = 0.1
"""Seconds that a call takes here, by the loop's own clock."""


class Hurried(asyncio.SelectorEventLoop):
    """A loop whose clock goes on to what is due next while nothing is ready, however long this machine takes."""

    _now = 0.0

    def time(self) -> float:
        return self._now

    def _run_once(self) -> None:
        scheduled: Any = self._scheduled  # type: ignore[attr-defined] # asyncio's own
        if scheduled and not self._ready:  # type: ignore[attr-defined] # as above
            self._now = max(self._now, min(each.when() for each in scheduled))
        super()._run_once()  # type: ignore[misc] # as above


def run(main: Coroutine[Any, Any, Any]) -> Any:
    with asyncio.Runner(loop_factory=Hurried) as runner:
        return runner.run(main)


async def call(admission: Admission, served: list[int], name: int) -> None:
    async with admission:
        served.append(name)
        await asyncio.sleep(STEP)


def test_a_burst_is_served_in_order_however_long_its_line() -> None:
    served: list[int] = []

    async def main() -> None:
        admission = Admission(2, patience=2.5 * STEP)
        await asyncio.gather(*(call(admission, served, name) for name in range(16)))

    run(main())
    assert served == list(range(16))


def test_nobody_waits_for_long_where_no_call_ends() -> None:
    async def main() -> None:
        admission, over = Admission(1, patience=STEP), asyncio.Event()

        async def stuck() -> None:
            async with admission:
                await over.wait()

        holds = asyncio.create_task(stuck())
        refused = await asyncio.gather(*(call(admission, [], name) for name in range(3)), return_exceptions=True)
        assert [type(error) for error in refused] == [PoolTimeoutError] * 3
        over.set()
        await holds
        served: list[int] = []
        await call(admission, served, 1)
        assert served == [1]

    run(main())


def test_a_line_that_is_too_long_is_cut() -> None:
    served: list[int] = []

    async def main() -> list[BaseException | None]:
        admission = Admission(1, patience=3 * STEP, most=4.5 * STEP)
        calls = (call(admission, served, name) for name in range(12))
        return await asyncio.gather(*calls, return_exceptions=True)

    outcomes = run(main())
    assert served == list(range(len(served)))
    assert len(served) == 5
    assert [type(outcome) for outcome in outcomes[len(served) :]] == [PoolTimeoutError] * (12 - len(served))


@pytest.mark.parametrize("has_turn", [False, True])
def test_a_caller_who_goes_away_takes_no_turn(*, has_turn: bool) -> None:
    served: list[int] = []

    async def main() -> None:
        admission, over = Admission(1, patience=60.0), asyncio.Event()

        async def first() -> None:
            async with admission:
                await over.wait()
            if has_turn:
                # Its turn has come, and it has not gone on yet.
                goes.cancel()

        holds = asyncio.create_task(first())
        await asyncio.sleep(0)
        goes = asyncio.create_task(call(admission, served, 1))
        stays = asyncio.create_task(call(admission, served, 2))
        await asyncio.sleep(0)
        if not has_turn:
            goes.cancel()
        over.set()
        await asyncio.gather(holds, stays)
        assert goes.cancelled()
        await call(admission, served, 3)

    run(main())
    assert served == [2, 3]
