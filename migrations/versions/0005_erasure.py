"""Erasure: every text of a conversation gone, and a tombstone that tells of it.

Revision ID: 0005
Revises: 0004
"""

from __future__ import annotations

from migrations.scripts import restore_function, run_concurrently, run_script

revision = "0005"
down_revision = "0004"
branch_labels = None
depends_on = None


def upgrade() -> None:
    # First: this part can be broken off and begun again.
    run_concurrently("0005_indexes.sql")
    run_script("0005_erasure.sql")


def downgrade() -> None:
    restore_function("0001_guards.sql", "guard_messages")
    run_script("0005_down.sql")
