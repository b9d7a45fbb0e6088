"""What is the oldest is found by its time, however long rows have come and gone; a run whose summary waits stays.

Revision ID: 0121
Revises: 0120
"""

from __future__ import annotations

from typing import Final

from migrations.scripts import amend_function, restore_function, run_concurrently, run_script

revision = "0121"
down_revision = "0120"
branch_labels = None
depends_on = None

_KEYS: Final = ("0100_housekeeping.sql", "expire_idempotency_keys")
_USAGES: Final = ("0111_usages.sql", "expire_turn_usages")
_RUNS: Final = ("0100_housekeeping.sql", "expire_runs")
_DELIVERY: Final = "and not exists (select from public.webhook_deliveries as d where d.run_id = r.id)"
_WAITS: Final = "(select from public.waiting_summaries as w where w.run_id = r.id and w.done_at is null)"
_OLDEST_KEYS: Final = {"limit p_limit for update": "order by o.created_at limit p_limit for update"}
_OLDEST_USAGES: Final = {
    # Tenant by tenant, as the index is that their figures are made by.
    """from public.turn_usages as o
            where o.answered_at < now() - make_interval(secs => p_seconds)
            limit p_limit for update skip locked);""": """from public.tenants as t cross join lateral (
                select e.conversation_id, e.seq from public.turn_usages as e
                where e.tenant_id = t.id and e.answered_at < now() - make_interval(secs => p_seconds)
                order by e.answered_at limit p_limit for update skip locked) as o
            limit p_limit);"""
}


def upgrade() -> None:
    amend_function(*_KEYS, _OLDEST_KEYS)
    amend_function(*_USAGES, _OLDEST_USAGES)
    amend_function(*_RUNS, {_DELIVERY: f"{_DELIVERY}\n            and not exists {_WAITS}"})
    run_concurrently("0121_indexes.sql")


def downgrade() -> None:
    run_script("0121_down.sql")
    restore_function(*_RUNS)
    restore_function(*_USAGES)
    restore_function(*_KEYS)
