"""What answers tell of erasures."""

from __future__ import annotations

from datetime import datetime
from typing import TYPE_CHECKING, Literal

from msgspec import Struct

from runtime import ids

if TYPE_CHECKING:
    from store.tables import AnyRow


class ErasedOut(Struct, kw_only=True):
    """How many rows were removed, or had their texts removed (runs and steps: their numbers stay)."""

    messages: int
    snapshots: int
    context_blocks: int
    pins: int
    runs: int
    steps: int
    deliveries: int
    idempotency_keys: int


class ErasureOut(Struct, kw_only=True):
    """The tombstone of a conversation: who had it erased, when, and how much of it there was.

    `number` counts a tenant's erasures from 1. `proof` is a SHA-256, in hexadecimal, over this tombstone and the proof
    of the one before it.
    """

    id: str
    number: int
    conversation_id: str
    asked_for: Literal["conversation", "user", "retention"]
    key_id: str | None
    request_id: str | None
    erased_at: datetime
    erased: ErasedOut
    proof: str


class UserErasureOut(Struct, kw_only=True):
    """How many conversations of a user this request found, and saw erased; 0 when there was nothing left."""

    conversations: int


def erasure_out(row: AnyRow) -> ErasureOut:
    """Return a tombstone as clients see it."""
    return ErasureOut(
        id=ids.external("era", row.id),
        number=row.number,
        conversation_id=ids.external("conv", row.conversation_id),
        asked_for=row.asked_for,
        key_id=ids.external("key", row.key_id) if row.key_id else None,
        request_id=ids.external("req", row.request_id) if row.request_id else None,
        erased_at=row.erased_at,
        erased=ErasedOut(
            messages=row.message_count,
            snapshots=row.snapshot_count,
            context_blocks=row.context_block_count,
            pins=row.pin_count,
            runs=row.run_count,
            steps=row.step_count,
            deliveries=row.delivery_count,
            idempotency_keys=row.idempotency_key_count,
        ),
        proof=row.proof.hex(),
    )
