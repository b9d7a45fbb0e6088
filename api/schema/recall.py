"""What recall is asked and answers."""

from __future__ import annotations

from datetime import datetime
from typing import Annotated, Any, Final, Literal

from litestar.params import QueryParameter
from msgspec import UNSET, Meta, Struct, UnsetType

from api.schema.types import Number, Strict
from compaction.recall.patterns import MOST_CHARS as PATTERN_CHARS

MOST_TOKENS: Final = 20_000
QUERY_CHARS: Final = 16_000
_WITHOUT_CONTROLS: Final = r"^[^\x00-\x08\x0b\x0c\x0e-\x1f\x7f]*$"


class RecallIn(Strict):
    """What to give back, by exactly one of `query` (words), `ref` (`m12`, `m12.1`, `m12-m18`) and `pattern` (RE2).

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


class RecalledPart(Struct):
    """One block of an original: `text` stands at `offset` of its `characters`."""

    ref: str
    seq: int
    role: str
    kind: str
    tool: str | None
    created_at: datetime
    text: str
    offset: int
    characters: int


class RecalledPassage(Struct):
    """Messages in a row; `in_context` tells whether the context shows all of them as they are."""

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


class RecallToolOut(Struct):
    """The tool's definition in one of the shapes: each has some of the fields."""

    type: str | UnsetType = UNSET
    name: str | UnsetType = UNSET
    description: str | UnsetType = UNSET
    input_schema: dict[str, Any] | UnsetType = UNSET
    parameters: dict[str, Any] | UnsetType = UNSET
    function: dict[str, Any] | UnsetType = UNSET


Shape = Annotated[
    Literal["messages", "chat", "responses"],
    QueryParameter(description="The API that the tool is declared to."),
]
