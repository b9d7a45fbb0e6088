"""Context blocks: stored with a turn, carried over as outlines, summarized by a worker, read for payload and audit."""

from __future__ import annotations

import hashlib
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import msgspec
from sqlalchemy import Connection, case, exists, func, insert, literal, select, text, tuple_, update

from compaction.recall.handles import context_block_note
from compaction.text.outline import ContextBlock
from runtime import ids
from store.bytes_held import announce
from store.tables import context_blocks, messages, runs
from store.turn_context import TurnContext

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence
    from uuid import UUID

    from sqlalchemy import ColumnElement

    from compaction.payload.context_blocks import PreparedBlock
    from compaction.policy import Policy
    from compaction.text.outline import Form
    from store.tables import AnyRow

_b = context_blocks.c
_live = _b.superseded_at.is_(None)
_BRIEF: Final = (
    _b.seq,
    _b.position,
    _b.source,
    _b.title,
    _b.tokens,
    _b.outline_tokens,
    _b.summary.is_not(None).label("has_summary"),
    _b.carried_until,
    _b.superseded_at,
    _b.created_at,
)
RUNS_WITH_BLOCKS: Final = select(
    runs, _b.seq.label("block_seq"), _b.position.label("block_position"), _b.source.label("block_source")
).outerjoin_from(runs, context_blocks, _b.id == runs.c.block_id)
"""Runs, and for those about a context block which one that is."""


class NewBlocks(NamedTuple):
    """The context of a turn on its way to the database, and the runs that it may queue."""

    context: TurnContext
    run_ids: tuple[UUID, ...]


class Stored(NamedTuple):
    """Context blocks that a payload takes from the conversation."""

    prior: tuple[ContextBlock, ...] = ()
    turn: tuple[ContextBlock, ...] = ()


class Exchange(NamedTuple):
    """The exchange that the conversation is in, by the seq of its request."""

    request: int
    keeps_prefix: bool
    """It is a tool loop with signed thinking, which is valid only while everything before it stays as it is."""


class BlockText(NamedTuple):
    """What a run that summarizes a block reads of it; `wanted` is false once an edit has replaced every such block."""

    source: str
    title: str
    text: str
    summary: str | None
    tokens: int
    seq: int
    wanted: bool


def new_blocks(prepared: Iterable[PreparedBlock], policy: Policy) -> NewBlocks:
    """Return the context of a turn: its blocks with ids, and runs for the large ones."""
    rows: list[dict[str, Any]] = []
    run_ids: list[UUID] = []
    for block in prepared:
        run_id = ids.new_id() if block.is_large else None
        rows.append(
            {
                "id": ids.new_id(),
                "run_id": run_id,
                "source": block.source,
                "title": block.title,
                "text": block.text,
                "outline": block.outline,
                "tokens": block.tokens,
                "outline_tokens": block.outline_tokens,
            }
        )
        if run_id is not None:
            run_ids.append(run_id)
    encoded = msgspec.json.encode
    context = TurnContext(encoded(rows).decode(), policy.carried_context_max_tokens, encoded(policy).decode())
    return NewBlocks(context, tuple(run_ids))


def stored(
    connection: Connection, conversation_id: UUID, exchange: Exchange | None, *, max_tokens: int, handles: bool = False
) -> Stored:
    """Return what is carried over, as outlines, and the blocks of the current exchange, oldest first.

    Without an `exchange` the next message begins one, and nothing is of the current one. Its blocks over `max_tokens`,
    which could not be shown whole, come as their summaries, or as their outlines while there is none. With `handles`
    they say by what name the whole can be had back.
    """
    current = literal(False) if exchange is None else _b.seq >= exchange.request
    rows = connection.execute(
        select(
            _b.seq,
            _b.position,
            _b.source,
            _b.title,
            _b.tokens,
            _b.outline,
            (_named(current) if handles else literal(False)).label("is_named"),
            case((current & _usable(conversation_id, exchange), _b.summary)).label("summary"),
            case((current & (_b.tokens <= max_tokens), _b.text)).label("text"),
            current.label("is_current"),
        )
        .where(_b.conversation_id == conversation_id, _live, _b.carried_until.is_(None) | current)
        .order_by(_b.seq, _b.position)
    ).all()
    return Stored(
        tuple(_carried(row) for row in rows if not row.is_current),
        tuple(_current(row) for row in rows if row.is_current),
    )


def _named(current: ColumnElement[bool]) -> ColumnElement[bool]:
    """Tell blocks that have a handle: what is carried over of them is not the whole.

    One of the current exchange has none if the model had been asked before it was stored: the call that it came with
    knew no place of it, and what that call began with stays as it is.
    """
    asked_before = exists().where(
        messages.c.conversation_id == _b.conversation_id,
        messages.c.seq.between(_b.seq, _b.seq + 1),
        messages.c.created_at == _b.created_at,
        messages.c.role == "assistant",
    )
    # Texts of different lengths are distinguished without being read.
    return case((current, ~asked_before), else_=_b.outline != _b.text)


def _handle(row: AnyRow) -> str:
    return context_block_note(row.seq, row.position, row.tokens) if row.is_named else ""


def _carried(row: AnyRow) -> ContextBlock:
    return ContextBlock(row.source, row.title, row.outline, handle=_handle(row), is_carried=True, seq=row.seq)


def _current(row: AnyRow) -> ContextBlock:
    form: Form = "whole" if row.text else "summary" if row.summary else "outline"
    text = row.text or row.summary or row.outline
    return ContextBlock(row.source, row.title, text, row.summary, row.outline, form, _handle(row), seq=row.seq)


def summaries_of(
    connection: Connection, conversation_id: UUID, exchange: Exchange | None, texts: Iterable[str]
) -> dict[str, str]:
    """Return the summaries that the conversation stores of these texts, by text; `exchange` as in `stored`."""
    digests = {hashlib.sha256(text.encode()).digest(): text for text in texts}
    rows = connection.execute(
        select(_b.digest, _b.summary).where(
            _b.conversation_id == conversation_id,
            _b.digest.in_(list(digests)),
            _b.summary.is_not(None),
            _usable(conversation_id, exchange),
        )
    )
    return {digests[row.digest]: row.summary for row in rows}


def _usable(conversation_id: UUID, exchange: Exchange | None) -> ColumnElement[bool]:
    """Tell summaries that may be shown: all, but in a loop that must keep its prefix those that it began with."""
    if exchange is None or not exchange.keeps_prefix:
        return literal(True)
    began = select(messages.c.created_at).where(
        messages.c.conversation_id == conversation_id, messages.c.seq == exchange.request
    )
    return _b.summarized_at <= began.scalar_subquery()


def material(connection: Connection, block_id: UUID) -> BlockText:
    """Read a block that is to be summarized."""
    other = context_blocks.alias()
    wanted = exists().where(
        other.c.conversation_id == _b.conversation_id, other.c.digest == _b.digest, other.c.superseded_at.is_(None)
    )
    announce(connection.scalar(select(func.octet_length(_b.text)).where(_b.id == block_id)) or 0)
    row = connection.execute(
        select(_b.source, _b.title, _b.text, _b.summary, _b.tokens, _b.seq, wanted).where(_b.id == block_id)
    ).one()
    return BlockText(*row)


def set_summary(connection: Connection, block_id: UUID, summary: str) -> None:
    """Store the summary of a block with every block of its conversation that has the same text and none yet."""
    same = select(_b.conversation_id, _b.digest).where(_b.id == block_id)
    connection.execute(
        update(context_blocks)
        .where(tuple_(_b.conversation_id, _b.digest).in_(same), _b.summary.is_(None))
        .values(summary=summary, summarized_at=func.now())
    )


def copy(connection: Connection, conversation_id: UUID, new_id: UUID, through: int) -> None:
    """Copy a conversation's blocks up to seq `through` to a fork, carried over as they were then."""
    columns = list(context_blocks.c)
    changed: dict[str, Any] = {
        "id": func.gen_random_uuid(),
        "conversation_id": literal(new_id, _b.conversation_id.type),
        "carried_until": case((_b.carried_until <= through, _b.carried_until)),
    }
    rows = select(*(changed.get(column.name, column) for column in columns)).where(
        _b.conversation_id == conversation_id, _b.seq <= through, _live
    )
    connection.execute(insert(context_blocks).from_select([column.name for column in columns], rows))


def recount(connection: Connection, conversation_id: UUID) -> None:
    """Count anew what is carried over, and what the current exchange's blocks have beyond it."""
    connection.execute(text("select recount_carried(:conversation)"), {"conversation": conversation_id})


def page(
    connection: Connection,
    tenant_id: UUID,
    conversation_id: UUID,
    *,
    limit: int,
    after: tuple[int, int] | None = None,
    before: tuple[int, int] | None = None,
) -> Sequence[AnyRow]:
    """Return up to `limit` blocks without their texts, newest first, superseded ones included.

    `after` and `before` are (seq, position): the one continues to older blocks, the other to newer.
    """
    place = tuple_(_b.seq, _b.position)
    query = select(*_BRIEF).where(_b.tenant_id == tenant_id, _b.conversation_id == conversation_id)
    if before is not None:
        newer = query.where(place > before).order_by(_b.seq, _b.position).limit(limit)
        return list(reversed(connection.execute(newer).all()))
    if after is not None:
        query = query.where(place < after)
    return connection.execute(query.order_by(_b.seq.desc(), _b.position.desc()).limit(limit)).all()


def get(connection: Connection, tenant_id: UUID, conversation_id: UUID, seq: int, position: int) -> AnyRow | None:
    """Return one block in full."""
    return connection.execute(
        select(*_BRIEF, _b.text, _b.outline, _b.summary).where(
            _b.tenant_id == tenant_id,
            _b.conversation_id == conversation_id,
            _b.seq == seq,
            _b.position == position,
        )
    ).one_or_none()
