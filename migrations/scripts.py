"""SQL scripts that revisions run, kept as files so that editors and linters read them as SQL."""

from __future__ import annotations

from pathlib import Path

from alembic import context, op


def run_script(name: str) -> None:
    """Run a file of migrations/sql on the migration's connection."""
    statements = (Path(context.script.dir) / "sql" / name).read_text()
    # Without parameters: the driver would take a % for a placeholder.
    op.get_bind().exec_driver_sql(statements, execution_options={"no_parameters": True})
