"""Messages: the originals, read for the audit."""

from __future__ import annotations

from datetime import UTC, datetime
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import msgspec
from sqlalchemy import Connection, Uuid, bindparam, case, func, select, text

from compaction.text.dates import TIME_UNKNOWN
from compaction.text.names import name_in
from store.bytes_held import MOST_READ_BYTES, announce, page_of_sizes
from store.conversations.names import SENT_WITH_NAME
from store.tables import SAID_AT, messages, said_at

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from uuid import UUID

    from store.tables import AnyRow

_m = messages.c
_SENT = case((_m.shape.is_not(None), func.as_sent(_m.role, _m.content, _m.sent))).label("sent")
_ORIGINS: Final = text(f"""
    select m.seq, {SAID_AT} as created_at, {SENT_WITH_NAME} as sent
    from messages as m where m.conversation_id = :conversation and m.seq between :first and :last
""").bindparams(bindparam("conversation", type_=Uuid))  # noqa: S608 - constants
_ORIGINAL = (_m.seq, _m.role, _m.content, _m.tokens, said_at(), _m.superseded_at, _m.shape, _SENT)


class Origins(NamedTuple):
    """When messages came, RFC 3339, and who wrote them where they say so, both by seq."""

    times: Mapping[int, str] = MappingProxyType({})
    names: Mapping[int, str] = MappingProxyType({})


class Beside(NamedTuple):
    """Seqs of the messages before and after one; None where it is the first, or the last."""

    before: int | None
    after: int | None


def page(
    connection: Connection, tenant_id: UUID, conversation_id: UUID, *, after: int, limit: int
) -> tuple[Sequence[AnyRow], bool]:
    """Return originals with a seq over `after`, superseded ones included, and whether there are more.

    Up to `limit`, and up to PAGE_BYTES.
    """
    own = (_m.tenant_id == tenant_id, _m.conversation_id == conversation_id)
    sizes = connection.execute(select(_m.seq, _m.bytes).where(*own, _m.seq > after).order_by(_m.seq).limit(limit + 1))
    rows = sizes.all()
    chosen = page_of_sizes(rows, limit)
    if not chosen:
        return (), False
    originals = select(*_ORIGINAL).where(*own, _m.seq.between(chosen[0].seq, chosen[-1].seq))
    return connection.execute(originals.order_by(_m.seq)).all(), len(chosen) < len(rows)


def origins(connection: Connection, conversation_id: UUID, first_seq: int, last_seq: int) -> Origins:
    """Return when messages came, and who wrote them where they say so."""
    values = {"conversation": conversation_id, "first": first_seq, "last": last_seq}
    rows = connection.execute(_ORIGINS, values).all()
    names = ((row.seq, name_in(row.sent)) for row in rows)
    return Origins(
        {row.seq: _written(row.created_at) for row in rows},
        {seq: name for seq, name in names if name},
    )


def _written(time: datetime | None) -> str:
    return TIME_UNKNOWN if time is None else time.astimezone(UTC).isoformat(timespec="seconds")


def contents(connection: Connection, conversation_id: UUID, seqs: Sequence[int]) -> dict[int, Any]:
    """Return the decoded contents of messages by seq: of the newest MOST_READ_BYTES of them."""
    own = (_m.conversation_id == conversation_id, _m.seq.in_(seqs))
    before = func.sum(_m.bytes).over(order_by=_m.seq.desc()) - _m.bytes
    sizes = select(_m.seq, _m.bytes, before.label("before")).where(*own).subquery()
    chosen = connection.execute(select(sizes.c.seq, sizes.c.bytes).where(sizes.c.before < MOST_READ_BYTES)).all()
    announce(sum(row.bytes for row in chosen))
    rows = connection.execute(select(_m.seq, _m.content).where(own[0], _m.seq.in_([row.seq for row in chosen])))
    return {row.seq: msgspec.json.decode(row.content) for row in rows}


def get(connection: Connection, tenant_id: UUID, conversation_id: UUID, seq: int) -> AnyRow | None:
    """Return one original."""
    own = (_m.tenant_id == tenant_id, _m.conversation_id == conversation_id, _m.seq == seq)
    announce(connection.scalar(select(_m.bytes).where(*own)) or 0)
    return connection.execute(select(*_ORIGINAL).where(*own)).one_or_none()


def beside(connection: Connection, conversation_id: UUID, seq: int) -> Beside:
    """Return the messages before and after one; in a fork there is none for what edits had replaced before."""
    own = _m.conversation_id == conversation_id
    before = select(func.max(_m.seq)).where(own, _m.seq < seq).scalar_subquery()
    after = select(func.min(_m.seq)).where(own, _m.seq > seq).scalar_subquery()
    return Beside(*connection.execute(select(before, after)).one())
