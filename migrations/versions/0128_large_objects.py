"""Only superusers create large objects: no tenant's limit, erasure or retention reaches them.

Revision ID: 0128
Revises: 0127
"""

from __future__ import annotations

from migrations.scripts import run_script

revision = "0128"
down_revision = "0127"
branch_labels = None
depends_on = None


def upgrade() -> None:
    run_script("0128_large_objects.sql")


def downgrade() -> None:
    run_script("0128_down.sql")
