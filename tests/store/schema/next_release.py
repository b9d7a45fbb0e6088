"""The release after this one, as far as the database is concerned: this one's migrations, and a revision on top.

The revision does what revisions do, by the rules of docs/operations.md: a column with a default and an index built
concurrently on tables that every append writes, a table with row-level security, a function of the hot path replaced
under its signature, and the way back. What runs with the migrations of this release is then the release before.
"""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Final

import pytest

import migrations
from migrations import run as migrations_run
from migrations.revisions import HEAD
from migrations.scripts import function_in

NEXT: Final = f"{int(HEAD) + 1:04}"
HERE: Final = Path(migrations.__file__).parent

REVISION: Final = """
from migrations.scripts import restore_function, run_concurrently, run_script

revision = "{next}"
down_revision = "{head}"
branch_labels = None
depends_on = None


def upgrade():
    run_concurrently("{next}_indexes.sql")
    run_script("{next}_appends.sql")


def downgrade():
    restore_function("{next}_before.sql", "append_turn")
    run_script("{next}_down.sql")
"""
INDEXES: Final = """
-- Outside a transaction, one statement at a time. One that was broken off before is there already and no good.
drop index concurrently if exists ix_messages_tenant_id;
create index concurrently ix_messages_tenant_id on messages (tenant_id) where superseded_at is null;
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

{append_turn}
"""
DOWN: Final = """
drop index ix_messages_tenant_id;
drop table appends_seen;
alter table conversations drop column appends;
"""
IN_FORCE: Final = "set next_seq = c.next_seq + v_count,"
REPLACED: Final = f"{IN_FORCE}\n        appends = c.appends + 1,"


def write_next_release(folder: Path, *, extra: str = "") -> Path:
    """Write the package `migrations` of the next release into a folder, for PYTHONPATH; return the package's own.

    `extra` are statements that its revision runs besides.
    """
    package = folder / "migrations"
    shutil.copytree(HERE, package, ignore=shutil.ignore_patterns("__pycache__"))
    schema = (package / "schema.sql").read_text()
    # An older signature of the same name stands before it.
    append_turn = function_in(schema[schema.rindex("create function", 0, schema.index(IN_FORCE)) :], "append_turn")
    assert append_turn.count(IN_FORCE) == 1
    replaced = append_turn.replace(IN_FORCE, REPLACED).replace("create function", "create or replace function", 1)
    files = {
        f"versions/{NEXT}_appends.py": REVISION.format(next=NEXT, head=HEAD),
        f"sql/{NEXT}_indexes.sql": INDEXES,
        f"sql/{NEXT}_appends.sql": UP.format(append_turn=replaced) + extra,
        f"sql/{NEXT}_before.sql": append_turn,
        f"sql/{NEXT}_down.sql": DOWN,
    }
    for name, text in files.items():
        (package / name).write_text(text)
    revisions = package / "revisions.py"
    revisions.write_text(revisions.read_text().replace(f'HEAD: Final = "{HEAD}"', f'HEAD: Final = "{NEXT}"'))
    return package


@pytest.fixture
def next_release(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Migrate with the next release from here on; its folder."""
    package = write_next_release(tmp_path / "next")
    monkeypatch.setattr(migrations_run, "SCRIPTS", package)
    return package.parent
