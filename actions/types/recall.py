"""What recall is asked and answers."""

from __future__ import annotations

from datetime import datetime
from typing import TYPE_CHECKING, Annotated, Any, Final, Literal

from msgspec import UNSET, Meta, Struct, UnsetType, json

from actions.types.core import Number, Page, Strict
from compaction.policy import Policy
from compaction.recall.patterns import MOST_CHARS as PATTERN_CHARS
from compaction.recall.references import message, parse
from runtime import ids

if TYPE_CHECKING:
    from store.recall.requests import Regret
    from store.tables import AnyRow

MOST_TOKENS: Final = 20_000
QUERY_CHARS: Final = 16_000
_DEFAULTS: Final[dict[str, Any]] = json.decode(json.encode(Policy()))
"""As a run's policy comes out of the database: with lists, which no tuple equals."""
_WITHOUT_CONTROLS: Final = r"^[^\x00-\x08\x0b\x0c\x0e-\x1f\x7f]*$"


class RecallIn(Strict):
    """What to give back, by exactly one of `query` (words), `ref` (a place, `m12`) and `pattern` (RE2).

    A `ref` names a message (`m12`), a block of one (`m12.1`), a range (`m12-m18`) or a context block (`c12.0`).
    `max_tokens` bounds the texts, `limit` the passages, `from_seq` and `through_seq` the messages that are searched.
    `offset` is in characters, with the `ref` of one message or block. With `framed`, the answer has the text that a
    model is given as the tool's result.
    """

    query: Annotated[str, Meta(min_length=1, max_length=QUERY_CHARS, pattern=_WITHOUT_CONTROLS)] | None = None
    ref: Annotated[str, Meta(min_length=2, max_length=64)] | None = None
    pattern: Annotated[str, Meta(min_length=1, max_length=PATTERN_CHARS, pattern=_WITHOUT_CONTROLS)] | None = None
    max_tokens: Annotated[int, Meta(ge=1, le=MOST_TOKENS)] = 2_000
    offset: Number = 0
    from_seq: Number | None = None
    through_seq: Number | None = None
    limit: Annotated[int, Meta(ge=1, le=1_000)] = 1_000
    framed: bool = False


class UserRecallIn(Strict):
    """What to give back of a user's conversations, by exactly one of `query`, `ref` (`conv_…:m12`) and `pattern`.

    `max_tokens` bounds the texts, `limit` the passages, `offset` is in characters, with the `ref` of one message or
    block. With `framed`, the answer has the text that a model is given as the tool's result.
    """

    query: Annotated[str, Meta(min_length=1, max_length=QUERY_CHARS, pattern=_WITHOUT_CONTROLS)] | None = None
    ref: Annotated[str, Meta(min_length=2, max_length=128)] | None = None
    pattern: Annotated[str, Meta(min_length=1, max_length=PATTERN_CHARS, pattern=_WITHOUT_CONTROLS)] | None = None
    max_tokens: Annotated[int, Meta(ge=1, le=MOST_TOKENS)] = 2_000
    offset: Number = 0
    limit: Annotated[int, Meta(ge=1, le=1_000)] = 1_000
    framed: bool = False


class RecalledPart(Struct):
    """One block of an original: `text` stands at `offset` of its `characters`.

    A context block has the kind `context_block`, and where it comes from as its `tool`. `name` is that of who wrote the
    message, where it says so.
    """

    ref: str
    seq: int
    role: str
    kind: str
    tool: str | None
    created_at: datetime | None
    """When it was said; null where nobody knows."""
    text: str
    offset: int
    characters: int
    name: str | UnsetType = UNSET


class RecalledPassage(Struct):
    """Messages in a row, or a context block; `in_context` tells whether the context shows all of it as it came."""

    ref: str
    first_seq: int
    last_seq: int
    score: float
    in_context: bool
    parts: list[RecalledPart]


class RecallOut(Struct):
    """What was found: the best passage first, with `ref` in the conversation's order.

    `tokens` are those of the texts, `searched` is how many messages were searched, `more` says that there was no room
    for something.
    """

    passages: list[RecalledPassage]
    tokens: int
    searched: int
    more: bool
    framed: str | UnsetType = UNSET


class UserPassage(RecalledPassage):
    """Messages of one conversation in a row; every `ref` has its conversation before it."""

    conversation_id: str


class UserRecallOut(Struct):
    """What was found in the `conversations` that were searched, the best passage first.

    `tokens` are those of the texts, `searched` is how many messages were searched. `more` says that there was no room
    for something, or that the user has more than is searched at a time.
    """

    passages: list[UserPassage]
    tokens: int
    searched: int
    conversations: int
    more: bool
    framed: str | UnsetType = UNSET


class RecallToolOut(Struct):
    """The tool's definition in one of the shapes: each has some of the fields."""

    type: str | UnsetType = UNSET
    name: str | UnsetType = UNSET
    description: str | UnsetType = UNSET
    input_schema: dict[str, Any] | UnsetType = UNSET
    parameters: dict[str, Any] | UnsetType = UNSET
    function: dict[str, Any] | UnsetType = UNSET


class AskedRefOut(Struct):
    """A passage that came back; `left_by` are the steps that had taken messages of it out of the context."""

    ref: str
    in_context: bool
    left_by: list[str]


class RecallRecordOut(Struct, kw_only=True):
    """One recall: who asked what, and what came back. With `of_user` all conversations of the user were asked."""

    id: str
    kind: Literal["query", "ref", "pattern"]
    asked: str
    origin: Literal["api", "console"]
    of_user: bool
    refs: list[AskedRefOut]
    searched: int
    tokens: int
    key_id: str
    request_id: str
    created_at: datetime


class WantedOut(Struct, kw_only=True):
    """A message that was asked back: how often, and how often the context did not show it as it came.

    `left_by` is the step that had taken it out, the last time that it was missing.
    """

    ref: str
    seq: int
    times: int
    times_out_of_context: int
    left_by: str | None
    last_at: datetime


class RegretOut(Struct, kw_only=True):
    """What compaction should have kept: messages that were asked back after a step had taken them out.

    `policy` is what was in force for the step, as far as it is not the default; `strategy` what was asked for by hand.
    """

    step: str
    strategy: str | None
    policy: dict[str, Any]
    messages: int
    recalls: int


class RecallsOut(Page[RecallRecordOut]):
    """A page of recalls, newest first.

    `wanted` are the messages that were asked back most, `regret` what had taken out of the context what came back: both
    of the newest 10,000 recalls of the API, whatever the page is.
    """

    wanted: list[WantedOut]
    regret: list[RegretOut]


def recall_record_out(row: AnyRow) -> RecallRecordOut:
    """Return a recall as clients see it."""
    left = {seq: step for seq, step in zip(row.seqs, row.left_by, strict=True) if step is not None}
    refs = []
    for ref in row.refs:
        reference = parse(ref)
        steps = [step for seq, step in left.items() if reference.first <= seq <= reference.last]
        in_context = not steps and not reference.is_context
        refs.append(AskedRefOut(ref, in_context=in_context, left_by=list(dict.fromkeys(steps))))
    return RecallRecordOut(
        id=ids.external("rcl", row.id),
        kind=row.kind,
        asked=row.asked,
        origin=row.origin,
        of_user=row.of_user,
        refs=refs,
        searched=row.searched,
        tokens=row.tokens,
        key_id=ids.external("key", row.key_id),
        request_id=ids.external("req", row.request_id),
        created_at=row.created_at,
    )


def wanted_out(row: AnyRow) -> WantedOut:
    """Return a message that was asked back as clients see it."""
    return WantedOut(ref=message(row.seq), **row._asdict())


def regret_out(row: Regret) -> RegretOut:
    """Return what a step is regretted for as clients see it."""
    changed = {key: value for key, value in row.policy.items() if _DEFAULTS.get(key) != value}
    return RegretOut(step=row.step, strategy=row.strategy, policy=changed, messages=row.messages, recalls=row.recalls)
