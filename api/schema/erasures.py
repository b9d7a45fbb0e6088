"""What answers tell of erasures."""

from __future__ import annotations

from datetime import datetime
from typing import Literal

from msgspec import Struct


class ErasedOut(Struct, kw_only=True):
    """How many rows were removed, or had their texts removed (runs, steps and batches: their numbers stay)."""

    messages: int
    snapshots: int
    context_blocks: int
    pins: int
    runs: int
    steps: int
    batches: int
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
    asked_for: Literal["conversation", "user"]
    key_id: str | None
    request_id: str | None
    erased_at: datetime
    erased: ErasedOut
    proof: str


class UserErasureOut(Struct, kw_only=True):
    """How many conversations of a user this request found, and saw erased; 0 when there was nothing left."""

    conversations: int
