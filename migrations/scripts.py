"""SQL scripts of the revisions, kept as files so that editors and linters read them as SQL."""

from __future__ import annotations

from pathlib import Path

from alembic import op


def run_script(name: str) -> None:
    """Run a script of several statements on the migration's connection."""
    script = (Path(__file__).parent / "sql" / name).read_text()
    # Past SQLAlchemy: with parameters, even none, the driver takes a % for a placeholder.
    cursor = op.get_bind().connection.cursor()
    try:
        cursor.execute(script)
    finally:
        cursor.close()
