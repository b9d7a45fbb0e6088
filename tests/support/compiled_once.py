"""Statements are compiled once a process: each test has engines of its own, which would compile all of theirs anew."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from sqlalchemy.dialects.postgresql.asyncpg import PGDialect_asyncpg
from sqlalchemy.dialects.postgresql.psycopg import PGDialect_psycopg
from sqlalchemy.util import LRUCache

if TYPE_CHECKING:
    from sqlalchemy import Dialect, Engine

_STATEMENTS: Final = 2_000
_compiled: LRUCache[Any, Any] = LRUCache(_STATEMENTS)


def compile_once() -> None:
    """Have all engines of a driver, whose dialects differ in nothing, keep what they compile in one place."""
    for dialect in (PGDialect_asyncpg, PGDialect_psycopg):
        dialect.__eq__ = _is_of_the_same_driver  # type: ignore[method-assign, assignment]
        dialect.__hash__ = _hash_of_driver  # type: ignore[method-assign, assignment]
        dialect.engine_created = classmethod(_share)  # type: ignore[method-assign, assignment]


def _is_of_the_same_driver(one: Dialect, other: object) -> bool:
    return type(one) is type(other)


def _hash_of_driver(one: Dialect) -> int:
    return hash(type(one))


def _share(_: type[Dialect], engine: Engine) -> None:
    engine._compiled_cache = _compiled
