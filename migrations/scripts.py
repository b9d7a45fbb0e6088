"""SQL scripts of the revisions, kept as files so that editors and linters read them as SQL."""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING

from alembic import context, op

if TYPE_CHECKING:
    from collections.abc import Mapping


def run_script(name: str) -> None:
    """Run a script of several statements on the migration's connection."""
    _execute(_read(name))


def run_concurrently(name: str) -> None:
    """Run a script outside any transaction, statement by statement, as `create index concurrently` demands."""
    bare = re.sub(r"^--.*$", "", _read(name), flags=re.MULTILINE)
    with op.get_context().autocommit_block():
        for statement in filter(str.strip, bare.split(";")):
            _execute(statement)


def restore_function(script: str, name: str) -> None:
    """Give a function back the body that an earlier revision's script has; its owner and grants stay."""
    _execute(re.sub("^create function", "create or replace function", function_in(_read(script), name)))


def amend_function(script: str, name: str, passages: Mapping[str, str]) -> None:
    """Give a function the body that an earlier revision's script has, some passages replaced; owner and grants stay.

    Raises ValueError for a passage that is not there once.
    """
    body = re.sub("^create function", "create or replace function", function_in(_read(script), name))
    for before, after in passages.items():
        if body.count(before) != 1:
            raise ValueError(f"{name} does not have once: {before}")
        body = body.replace(before, after)
    _execute(body)


def function_in(script: str, name: str) -> str:
    """Return the statement of a script that creates a function. Raises ValueError for none."""
    statement = re.search(
        rf"^create (?:or replace )?function {name}\(.*?^(?:end )?\$\$;$", script, re.DOTALL | re.MULTILINE
    )
    if statement is None:
        raise ValueError(f"no function {name} in this script")
    return statement[0]


def _read(name: str) -> str:
    # Beside the revisions that are running.
    return (Path(context.script.dir) / "sql" / name).read_text()


def _execute(statements: str) -> None:
    # Without parameters, or the driver takes a % for a placeholder.
    op.get_bind().exec_driver_sql(statements, execution_options={"no_parameters": True})
