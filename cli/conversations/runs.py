"""`palimpsest runs`: runs of one tenant or of all, for whoever may administer the database; dead ones begun over."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any, NamedTuple

from cli.conversations.run_detail import show_run
from cli.output import failed, print_json
from cli.tables import columns, print_table
from runtime import ids
from runtime.broker import RUN_TASK, celery_app
from store.engine import act_for, owner_engine
from store.runs import runs, stranded
from store.tenants import tenants

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from uuid import UUID

    from sqlalchemy import Engine

    from runtime.queues import Queue
    from runtime.settings import Settings
    from store.tables import AnyRow
    from store.tenants.tenants import Tenant

PAGE = 100
"""Runs that are read, or retried, at a time."""


class Wanted(NamedTuple):
    """What is asked: of whom, and which runs; `retry` has ids, `retry_all` means every dead one."""

    tenant: str | None = None
    state: str | None = None
    conversation: str | None = None
    run: str | None = None
    """One run, to be shown in full."""
    limit: int = 20
    retry: Sequence[str] = ()
    retry_all: bool = False


def run_runs(settings: Settings, wanted: Wanted, *, as_json: bool) -> int:
    """List runs, show one, or retry dead ones; 1 if what was named is not there, or could not be retried."""
    engine = owner_engine(settings.database_url.get_secret_value())
    try:
        with engine.begin() as connection:
            owners = tenants.named(connection, wanted.tenant)
        if wanted.tenant is not None and not owners:
            return failed(f"there is no tenant {wanted.tenant!r}")
        if wanted.retry or wanted.retry_all:
            return _retry(engine, settings, owners, wanted, as_json=as_json)
        if wanted.run is not None:
            return _show(engine, owners, wanted.run, as_json=as_json)
        return _list(engine, owners, wanted, as_json=as_json)
    finally:
        engine.dispose()


def _list(engine: Engine, owners: Sequence[Tenant], wanted: Wanted, *, as_json: bool) -> int:
    conversation = ids.parse("conv", wanted.conversation) if wanted.conversation is not None else None
    if wanted.conversation is not None and conversation is None:
        return failed(f"{wanted.conversation!r} is no id of a conversation")
    owned_rows: list[tuple[Tenant, AnyRow]] = []
    for owner in owners:
        with engine.begin() as connection:
            act_for(connection, owner.id)
            rows = runs.page(connection, owner.id, conversation_id=conversation, limit=wanted.limit, state=wanted.state)
        owned_rows += [(owner, row) for row in rows]
    owned_rows = sorted(owned_rows, key=lambda each: each[1].id, reverse=True)[: wanted.limit]
    if as_json:
        print_json([_as_json(owner, row) for owner, row in owned_rows])
        return 0
    table = columns(("run", "tenant", "state", "ended", "attempts", "reason", "error"), numbers=("attempts",))
    for owner, row in owned_rows:
        ended = f"{row.finished_at:%Y-%m-%d %H:%M}" if row.finished_at else ""
        cells = (row.state, ended, str(row.attempts), row.reason or "", row.error or "")
        table.add_row(ids.external("run", row.id), owner.name, *cells)
    print_table(table)
    return 0


def _show(engine: Engine, owners: Sequence[Tenant], name: str, *, as_json: bool) -> int:
    identifier = ids.parse("run", name)
    place = _find(engine, owners, identifier) if identifier else None
    if place is None:
        return failed(f"there is no run {name!r}")
    owner, run_id = place
    with engine.begin() as connection:
        act_for(connection, owner.id)
        row, steps = runs.get(connection, owner.id, run_id), runs.steps_of(connection, [run_id])
    if row is None:
        return failed(f"there is no run {name!r}")
    show_run(_as_json(owner, row), row, steps, as_json=as_json)
    return 0


def _as_json(owner: Tenant, row: AnyRow) -> dict[str, Any]:
    fields = ("trigger", "state", "queue", "reason", "error", "attempts", "created_at", "started_at", "finished_at")
    return {
        "id": ids.external("run", row.id),
        "tenant": owner.name,
        "conversation_id": ids.external("conv", row.conversation_id),
        **{name: getattr(row, name) for name in fields},
    }


def _retry(engine: Engine, settings: Settings, owners: Sequence[Tenant], wanted: Wanted, *, as_json: bool) -> int:
    chosen = _all_dead(engine, owners) if wanted.retry_all else _chosen(owners, engine, wanted.retry)
    outcomes: dict[str, str] = {}
    queued: list[tuple[UUID, UUID, Queue]] = []
    for name, place in chosen:
        if place is None:
            outcomes[name] = "missing"
            continue
        owner, run_id = place
        with engine.begin() as connection:
            act_for(connection, owner.id)
            retried = stranded.retry(connection, owner.id, run_id)
        outcomes[name] = retried.outcome
        if retried.queue is not None:
            queued.append((owner.id, run_id, retried.queue))
    _wake(settings, queued)
    if as_json:
        print_json([{"id": name, "outcome": outcome} for name, outcome in outcomes.items()])
    else:
        for name, outcome in outcomes.items():
            print(f"{name}  {outcome.replace('_', ' ')}")  # noqa: T201 - the command's output
    return int(bool(wanted.retry) and set(outcomes.values()) != {"queued"})


def _chosen(
    owners: Sequence[Tenant], engine: Engine, names: Sequence[str]
) -> Iterator[tuple[str, tuple[Tenant, UUID] | None]]:
    for name in dict.fromkeys(names):
        identifier = ids.parse("run", name)
        yield name, _find(engine, owners, identifier) if identifier else None


def _find(engine: Engine, owners: Sequence[Tenant], run_id: UUID) -> tuple[Tenant, UUID] | None:
    for owner in owners:
        with engine.begin() as connection:
            act_for(connection, owner.id)
            if runs.get(connection, owner.id, run_id) is not None:
                return owner, run_id
    return None


def _all_dead(engine: Engine, owners: Sequence[Tenant]) -> Iterator[tuple[str, tuple[Tenant, UUID]]]:
    """Yield every dead run that can be retried; the caller retries each before it asks for the next."""
    for owner in owners:
        seen: set[UUID] = set()
        while batch := [each for each in _retriable(engine, owner) if each not in seen]:
            seen.update(batch)
            yield from ((ids.external("run", each), (owner, each)) for each in batch)


def _retriable(engine: Engine, owner: Tenant) -> list[UUID]:
    with engine.begin() as connection:
        act_for(connection, owner.id)
        return stranded.retriable(connection, owner.id, PAGE)


def _wake(settings: Settings, queued: Sequence[tuple[UUID, UUID, Queue]]) -> None:
    """Tell the workers; where the broker cannot be reached, the sweep will."""
    app = celery_app(settings, "palimpsest-cli")
    try:
        for tenant_id, run_id, queue in queued:
            app.send_task(RUN_TASK, args=[str(tenant_id), str(run_id)], queue=queue)
    except Exception as error:  # noqa: BLE001 - whatever the broker's client raises, the runs are queued
        print(f"palimpsest: the broker was not told ({type(error).__name__}); the sweep will do it", file=sys.stderr)  # noqa: T201
    finally:
        app.close()
