"""`palimpsest retention`: what `message_retention_days` is about to erase."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, NamedTuple

from cli.output import failed, noted, print_json
from cli.tables import columns, print_table
from runtime import ids
from store.archive import retention
from store.archive.retention import FIRST
from store.engine import owner_engine, transaction
from store.tenants import tenants

if TYPE_CHECKING:
    from collections.abc import Iterator

    from sqlalchemy import Engine

    from runtime.settings import Settings
    from store.archive.retention import ExpiredConversation, TenantWithRetention

PAGE: Final = 1_000


class _Listed(NamedTuple):
    tenant: str
    conversation: ExpiredConversation


def run_retention(settings: Settings, tenant: str | None, *, as_json: bool) -> int:
    """List the conversations that the next rounds of housekeeping erase; 1 if there is no such tenant."""
    days: int = settings.policy.get("message_retention_days", 0)
    engine = owner_engine(settings.database_url.get_secret_value())
    try:
        with engine.begin() as connection:
            names = {each.id: each.name for each in tenants.named(connection, tenant)}
            concerned = retention.tenants_with_retention(connection, days)
        if tenant is not None and not names:
            return failed(f"there is no tenant {tenant!r}")
        listed = [
            _Listed(names[each.id], conversation)
            for each in concerned
            if each.id in names
            for conversation in _expired(engine, each, days)
        ]
    finally:
        engine.dispose()
    archive = settings.retention_archive_dir
    if as_json:
        print_json({"archive_dir": archive and str(archive), "conversations": [_document(each) for each in listed]})
        return 0
    table = columns(("tenant", "conversation", "newest message", "messages", "bytes"), numbers=("messages", "bytes"))
    for name, each in listed:
        newest = f"{each.newest_at:%Y-%m-%d %H:%M}"
        table.add_row(name, ids.external("conv", each.id), newest, f"{each.messages:,}", f"{each.bytes:,}")
    print_table(table)
    kept = f"after an archive in {archive}" if archive else "without an archive (PALIMPSEST_RETENTION_ARCHIVE_DIR)"
    count, messages = len(listed), sum(each.conversation.messages for each in listed)
    conversations = "a conversation" if count == 1 else f"{count:,} conversations"
    noted(f"the sweep will erase {conversations} with {messages:,} messages, {kept}; nothing is erased here")
    return 0


def _expired(engine: Engine, tenant: TenantWithRetention, days: int) -> Iterator[ExpiredConversation]:
    after = FIRST
    while True:
        with transaction(engine, tenant.id) as connection:
            page = retention.expired_page(connection, tenant, days, after, PAGE)
            yield from retention.describe(connection, tenant.id, page.expired)
        if page.last_seen is None:
            return
        after = page.last_seen


def _document(listed: _Listed) -> dict[str, Any]:
    each = listed.conversation
    return {
        "tenant": listed.tenant,
        "conversation_id": ids.external("conv", each.id),
        "newest_message_at": each.newest_at,
        "messages": each.messages,
        "bytes": each.bytes,
    }
