"""The first schema.

Revision ID: 0100
Revises: None
"""

from __future__ import annotations

from migrations.scripts import run_script

revision = "0100"
down_revision = None
branch_labels = None
depends_on = None

SCRIPTS = (
    "tables",
    "snapshots",
    "guards",
    "head",
    "append",
    "context",
    "checks",
    "runs",
    "batches",
    "access",
    "housekeeping",
    "erasure",
    "views",
    "security",
)


def upgrade() -> None:
    for script in SCRIPTS:
        run_script(f"0100_{script}.sql")


def downgrade() -> None:
    run_script("0100_down.sql")
