"""The first schema.

Revision ID: 0001
Revises: None
"""

from __future__ import annotations

from alembic import op

from migrations.scripts import run_script

revision = "0001"
down_revision = None
branch_labels = None
depends_on = None

TABLES = (
    "snapshots",
    "run_steps",
    "runs",
    "idempotency_keys",
    "messages",
    "conversations",
    "api_keys",
    "tenants",
)
FUNCTIONS = (
    "find_api_key(uuid)",
    "check_states(uuid[], boolean)",
    "clear_checks(uuid[], bigint[])",
    "overdue_checks(double precision, integer)",
    "stranded_runs(double precision, integer)",
    "append_turn",
    "read_context",
    "tail_start",
    "supersede",
    "newest_version_below",
    "snapshot_chain",
    "recount_end",
    "move_head",
    "median",
    "learn_ratio",
    "tokens_over_cap",
)


def upgrade() -> None:
    run_script("0001_tables.sql")
    run_script("0001_guards.sql")
    run_script("0001_hot_path.sql")
    run_script("0001_edits.sql")
    run_script("0001_security.sql")


def downgrade() -> None:
    # The two roles stay: other databases of the same server may use them.
    for function in FUNCTIONS:
        op.execute(f"drop function {function}")
    for table in TABLES:
        op.execute(f"drop table {table}")
    op.execute("drop function guard_messages()")
    op.execute("drop function guard_snapshots()")
    op.execute("revoke usage on schema public from palimpsest_service, palimpsest_background")
