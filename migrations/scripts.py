"""SQL scripts of the revisions, kept as files so that editors and linters read them as SQL."""

from __future__ import annotations

import re
from pathlib import Path

from alembic import op


def run_script(name: str) -> None:
    """Run a script of several statements on the migration's connection."""
    script = (Path(__file__).parent / "sql" / name).read_text()
    _execute(script)


def run_concurrently(name: str) -> None:
    """Run a script outside any transaction, statement by statement, as `create index concurrently` demands."""
    script = (Path(__file__).parent / "sql" / name).read_text()
    bare = re.sub(r"^--.*$", "", script, flags=re.MULTILINE)
    with op.get_context().autocommit_block():
        for statement in filter(str.strip, bare.split(";")):
            _execute(statement)


def restore_function(script: str, name: str) -> None:
    """Give a function back the body that an earlier revision's script has; its owner and grants stay."""
    text = (Path(__file__).parent / "sql" / script).read_text()
    found = re.search(rf"^create (?:or replace )?function {name}\(.*?^(?:end )?\$\$;$", text, re.DOTALL | re.MULTILINE)
    assert found is not None  # noqa: S101 - scripts of a revision never change
    _execute(re.sub("^create function", "create or replace function", found[0]))


def _execute(statements: str) -> None:
    # Without parameters, or the driver takes a % for a placeholder.
    op.get_bind().exec_driver_sql(statements, execution_options={"no_parameters": True})
