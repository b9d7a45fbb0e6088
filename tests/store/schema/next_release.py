"""The release after this one, as far as the database is concerned: this one's migrations, and a revision on top.

Its revision adds a column with a default and an index, built concurrently, to tables that every append writes, and a
table with row-level security; it replaces a function of the hot path under its signature, by running its file again.
Processes with the migrations of this release are then of the release before.
"""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Final

import pytest

import migrations
from migrations import run as migrations_run
from migrations.revisions import HEAD

NEXT: Final = "0002_appends"
HERE: Final = Path(migrations.__file__).parent

REVISION: Final = """
from alembic import op

from migrations.scripts import run_script

revision = "{next}"
down_revision = "{head}"
branch_labels = None
depends_on = None


def upgrade():
    with op.get_context().autocommit_block():
        # An attempt that was interrupted leaves an invalid index.
        op.execute("drop index concurrently if exists ix_messages_tenant_id")
        op.execute("create index concurrently ix_messages_tenant_id on messages (tenant_id)")
    run_script("{next}.sql")
    run_script("functions/append.sql")
"""
UP: Final = """
alter table conversations add column appends integer not null default 0;
create table appends_seen (
    tenant_id uuid not null,
    seen_at timestamptz not null default now()
);
alter table appends_seen enable row level security;
alter table appends_seen force row level security;
create policy tenant on appends_seen
    using (tenant_id = nullif(current_setting('app.tenant_id', true), '')::uuid)
    with check (tenant_id = nullif(current_setting('app.tenant_id', true), '')::uuid);
grant select, insert on appends_seen to palimpsest_service;
"""
IN_FORCE: Final = "set next_seq = c.next_seq + v_count,"
REPLACED: Final = f"{IN_FORCE}\n        appends = c.appends + 1,"


def write_next_release(folder: Path, *, extra: str = "") -> Path:
    """Write the package `migrations` of the next release into a folder, for PYTHONPATH; return the package's own.

    `extra` are statements that its revision runs besides.
    """
    package = folder / "migrations"
    shutil.copytree(HERE, package, ignore=shutil.ignore_patterns("__pycache__"))
    appends = package / "sql" / "functions" / "append.sql"
    assert appends.read_text().count(IN_FORCE) == 1
    appends.write_text(appends.read_text().replace(IN_FORCE, REPLACED))
    (package / "versions" / f"{NEXT}.py").write_text(REVISION.format(next=NEXT, head=HEAD))
    (package / "sql" / f"{NEXT}.sql").write_text(UP + extra)
    revisions = package / "revisions.py"
    revisions.write_text(revisions.read_text().replace(f'HEAD: Final = "{HEAD}"', f'HEAD: Final = "{NEXT}"'))
    return package


@pytest.fixture
def next_release(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Migrate with the next release from here on; its folder."""
    package = write_next_release(tmp_path / "next")
    monkeypatch.setattr(migrations_run, "SCRIPTS", package)
    return package.parent
