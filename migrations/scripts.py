"""SQL scripts of the revisions, kept as files so that editors and linters read them as SQL."""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING, Final

from alembic import context, op
from sqlalchemy import text

if TYPE_CHECKING:
    from collections.abc import Mapping

    from sqlalchemy import Connection

HALF_DONE: Final = "of the revision after this one all is done but what is done outside of transactions"
"""Comment on Alembic's table for as long as that is so."""


def run_script(name: str) -> None:
    """Run a script of several statements on the migration's connection."""
    _execute(_read(name))


def run_concurrently(name: str) -> None:
    """Run a script outside any transaction, statement by statement, as `create index concurrently` demands.

    What its revision has done before is committed with that. Where the script is broken off, the next attempt at the
    revision passes over that and begins with the script, so that its statements have to do with what is there already.
    A revision has one such script.
    """
    bare = re.sub(r"^--.*$", "", _read(name), flags=re.MULTILINE)
    _run(f"comment on table alembic_version is '{HALF_DONE}'")
    with op.get_context().autocommit_block():
        for statement in filter(str.strip, bare.split(";")):
            _run(statement)
    # With the revision's number.
    _run("comment on table alembic_version is null")


def is_half_done(connection: Connection) -> bool:
    """Tell whether the revision after the one that a database is at was broken off outside of its transaction."""
    comment = text("select obj_description(to_regclass('alembic_version'), 'pg_class')")
    return bool(connection.scalar(comment) == HALF_DONE)


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
    if not is_half_done(op.get_bind()):
        _run(statements)


def _run(statements: str) -> None:
    # Without parameters, or the driver takes a % for a placeholder.
    op.get_bind().exec_driver_sql(statements, execution_options={"no_parameters": True})
