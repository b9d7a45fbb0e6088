"""Playing the demo's conversation on an empty installation, so that the console has something to show."""

from __future__ import annotations

import asyncio
from contextlib import asynccontextmanager
from datetime import UTC, datetime
from functools import cache, partial
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import msgspec
import structlog

from actions.append_turn import store_turn, wake_up
from actions.input.turn_bodies import read_turn
from api.console.demo.story import job_search
from store.conversations import messages

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from uuid import UUID

    from litestar import Litestar
    from sqlalchemy import Connection

    from actions.caller import Caller
    from api.console.demo.story import Story
    from store.hot_path import Appended
    from store.tables import AnyRow

EXTERNAL_ID: Final = "demo-contract-search"
"""A tenant has one conversation of this name, so that it is played once."""
USER: Final = "demo"
PACE_SECONDS: Final = 0.3
"""Time between turns: slow enough to watch, and for workers to compact meanwhile."""
QUIET_SECONDS: Final = 10.0
"""Time without a message after which no process plays any more: many times the pace, on a slow day too."""

_log: Final = structlog.get_logger(__name__)


class Playing(NamedTuple):
    """On whose behalf a conversation is played, and which."""

    caller: Caller
    conversation_id: UUID
    next_seq: int = 0
    """The turns before it are stored already."""


class DemoPlayer:
    """Appends the demo's turns in the background; a process that ends leaves off, and any other may go on.

    Each turn names the seq that it expects: of two processes that play by mistake one is refused, and leaves off.
    """

    def __init__(self) -> None:
        self._tasks: dict[UUID, asyncio.Task[None]] = {}

    def start(self, playing: Playing) -> None:
        """Play the turns that a conversation lacks, unless that is being done here already."""
        if self.is_playing(playing.conversation_id):
            return
        task = asyncio.create_task(self._play(playing))
        self._tasks[playing.conversation_id] = task
        task.add_done_callback(partial(self._end, playing.conversation_id))

    def is_playing(self, conversation_id: UUID) -> bool:
        """Tell whether this process plays into a conversation."""
        return conversation_id in self._tasks

    async def stop(self) -> None:
        """Leave off."""
        tasks = list(self._tasks.values())
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def _play(self, playing: Playing) -> None:
        script = await asyncio.to_thread(story)
        seq = 0
        for turn in script.turns:
            if seq >= playing.next_seq:
                done = await self._append(playing, turn.messages, seq)
                if done.outcome != "appended":
                    # It was deleted, or somebody else writes to it: then it is theirs.
                    _log.info("demo.left_off", outcome=done.outcome)
                    return
                await asyncio.sleep(PACE_SECONDS)
            seq += len(turn.messages)

    def _end(self, conversation_id: UUID, task: asyncio.Task[None]) -> None:
        """Forget a task. Nobody awaits it: what went wrong is logged, and what is stored stays."""
        self._tasks.pop(conversation_id, None)
        if not task.cancelled() and (error := task.exception()) is not None:
            _log.error("demo.failed", exc_info=error)

    async def _append(self, playing: Playing, said: tuple[dict[str, Any], ...], seq: int) -> Appended:
        caller = playing.caller
        body = msgspec.json.encode({"messages": said, "expected_next_seq": seq})
        turn = await asyncio.to_thread(read_turn, body, caller.principal.policy, caller.services.strict)
        appended = await store_turn(caller, playing.conversation_id, turn)
        if appended.queued:
            wake_up(caller, playing.conversation_id, queued=True)
        return appended


@asynccontextmanager
async def demo_player(app: Litestar) -> AsyncIterator[None]:
    """Keep a player in the application's state for as long as it runs; the services know nothing of it."""
    app.state.demo = player = DemoPlayer()
    try:
        yield
    finally:
        await player.stop()


@cache
def story() -> Story:
    """Return what is played, the same each time."""
    return job_search()


def is_cut_off(connection: Connection, tenant_id: UUID, row: AnyRow) -> bool:
    """Tell whether a conversation is the demo's, ends before the story does, and has heard nothing for a while."""
    if row.external_id != EXTERNAL_ID:
        return False
    last = messages.get(connection, tenant_id, row.id, row.next_seq - 1)
    quiet = datetime.now(UTC) - (last.created_at if last else row.created_at)
    if quiet.total_seconds() < QUIET_SECONDS:
        return False
    return ends_between_turns(row.next_seq, msgspec.json.decode(last.content) if last else None)


def ends_between_turns(next_seq: int, last: Any) -> bool:
    """Tell whether what is stored is the story's beginning, up to a turn's end but not to its own.

    `last` is the content of the newest message, None where there is none.
    """
    seq, ending = 0, None
    for turn in story().turns:
        if seq == next_seq:
            return bool(last == ending)
        seq += len(turn.messages)
        ending = turn.messages[-1]["content"]
    return False


def conversation_values(script: Story) -> dict[str, Any]:
    """Return what the demo's conversation is made with."""
    return {
        "external_id": EXTERNAL_ID,
        "user_ref": USER,
        "system": script.system,
        "tools": list(script.tools),
        "policy": {},
        "metadata": {"scenario": "job-search"},
    }
