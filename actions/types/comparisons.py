"""Comparisons of versions, and where a text was lost, as requests ask for them and answers show them."""

from __future__ import annotations

from typing import Annotated, Any

from msgspec import Meta, Struct

from actions.types.core import Number, RulesOut, Strict
from actions.types.snapshots import ClaimOut


class ComparisonIn(Strict):
    """Two versions, 0 for no compaction, and the message that was the newest."""

    versions: Annotated[list[Number], Meta(min_length=2, max_length=2)]
    seq: Number


class ComparedContext(Struct, kw_only=True):
    """The context of the turn under a version, in the Messages API's shape, fitted to the budget as it is served."""

    version: int
    covers_through: int
    tokens: int
    messages: list[dict[str, Any]]
    rules: RulesOut


class OnlySeqs(Struct):
    """Messages that one of the contexts shows and the other does not."""

    first: list[int]
    second: list[int]


class OnlyTexts(Struct):
    """What one of the contexts has and the other has not."""

    first: list[str]
    second: list[str]


class OnlyClaims(Struct):
    """Claims of one summary that the other does not make of the same messages."""

    first: list[ClaimOut]
    second: list[ClaimOut]


class DifferencesOut(Struct):
    """What the two contexts differ in: messages shown, ids of rules, exact values (200 of each at most), claims.

    `claims` is null where those of one of the summaries are not known.
    """

    messages: OnlySeqs
    rules: OnlyTexts
    values: OnlyTexts
    claims: OnlyClaims | None


class ComparisonOut(Struct):
    """One turn's context under two versions, in the order that was asked for."""

    seq: int
    contexts: list[ComparedContext]
    differences: DifferencesOut


class BisectIn(Strict):
    """The text or value to follow, spelled as it was said."""

    text: Annotated[str, Meta(min_length=1, max_length=10_000)]


class FateOut(Struct):
    """What became of an original that had the text."""

    seq: int
    fate: str


class LossOut(Struct, kw_only=True):
    """The snapshot from which on the text did not stand any more, the last of several; what made it, and why."""

    version: int
    parent_version: int
    run_id: str
    trigger: str | None
    step: str | None
    detail: str | None
    summarizer: str | None
    messages: list[FateOut]
    back_in: int | None
    """The version in which it stands again, null for none."""


class BisectOut(Struct):
    """Where a text was said, whether the context has it now, and what took it out, null for nothing."""

    seqs: list[int]
    in_context: bool
    searched_versions: list[int]
    loss: LossOut | None
