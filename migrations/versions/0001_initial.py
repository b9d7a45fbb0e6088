"""The whole schema.

Revision ID: 0001_initial
Revises: None
"""

from __future__ import annotations

from typing import Final

from migrations.scripts import run_script

revision = "0001_initial"
down_revision = None
branch_labels = None
depends_on = None

TABLES: Final = (
    "types",
    "tenants",
    "console",
    "conversations",
    "messages",
    "context_blocks",
    "pins",
    "runs",
    "snapshots",
    "webhooks",
    "usages",
    "recall",
    "gateway",
    "erasures",
)
"""Tables with their indexes, policies and grants; later ones refer to earlier ones."""
FUNCTIONS: Final = (
    "counting",
    "guards",
    "snapshots",
    "rules",
    "append",
    "read_context",
    "checks",
    "runs",
    "background",
    "gateway",
    "access",
    "housekeeping",
    "erasure",
)
"""Functions with the triggers that call them. A revision that changes one runs its file again."""


def upgrade() -> None:
    run_script("roles.sql")
    for subject in TABLES:
        run_script(f"tables/{subject}.sql")
    run_script("storage.sql")
    run_script("views.sql")
    for subject in FUNCTIONS:
        run_script(f"functions/{subject}.sql")
    run_script("security.sql")
