"""Values used later: whether context and one recall have what people and the model are going to say.

A conversation is stored up to a point and compacted as it grows; then its context is read, and one recall asks for
what the next message of the user says together with the last call of a tool; and for each value that the context has
not, one asks the same where that value is first used again. The measure is that of
bench/fidelity/recall.py: of the exact values of the past that are used after the point, the share that stands in what
the model would see.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any, Final

import msgspec

from bench.fidelity.recall import characters, cut, find, spoken, text_of, values
from bench.measure import progress
from bench.reach.baselines import PlainSearch
from bench.reach.evidence import CHARS_PER_TOKEN, TOKENS, stored_row
from bench.reach.goals import LATER, LATER_TOKENS, least

if TYPE_CHECKING:
    from collections.abc import Sequence

    from bench.fidelity.recall import Message
    from bench.fidelity.sources import Source
    from bench.reach.goals import Row
    from bench.reach.service import Measured

CUTS: Final = 12
POLICY: Final = {"compaction_threshold_tokens": 12_500}
"""Leaves a seventh of long conversations in the context; everything else is as it comes."""
_QUERY_CHARS: Final = 16_000


def later(measured: Measured, source: Source, *, cuts: int = CUTS) -> tuple[list[Row], Row]:
    """Return a row for each number of tokens, summed over every point of every conversation; and what is stored."""
    seen = dict.fromkeys(("context", *(f"{way} {tokens}" for way in ("recall", "BM25") for tokens in TOKENS)), 0)
    needed = dict.fromkeys(TOKENS, 0)
    wanted = past = context_size = text = 0
    before = measured.stored_bytes()
    for number, messages in enumerate(source.conversations, 1):
        conversation, at = measured.store((), policy=POLICY), 0
        for point in range(1, cuts + 1):
            stored, at = at, max(8, len(messages) * point // (cuts + 1))
            measured.append(conversation, messages[stored:at], turn=40)
            measured.client.wait_settled(conversation)
            split = cut(messages[:at], messages[at:])
            context = _context(measured, conversation)
            wanted += len(split.wanted)
            past += characters(split.past)
            context_size += characters(context)
            asked = question(messages, at)
            for name, more in _ways(measured, conversation, messages[:at], asked).items():
                seen[name] += len(find(split, [*context, *more]).kept)
            for value in split.wanted - find(split, context).kept:
                asked = _asked_where_used(messages, at, value)
                for tokens in TOKENS:
                    needed[tokens] += value in values("\n".join(_recalled(measured, conversation, asked, tokens)))
        text += sum(len(text_of(each).encode()) for each in messages[: measured.prepared_through(conversation) + 1])
        progress(f"values used later: {source.name}, conversation {number}: {len(messages):,} messages, {cuts} points")
    rows = []
    for tokens in TOKENS:
        left = max(1, wanted - seen["context"])
        recalled = seen[f"recall {tokens}"]
        row = {
            "of": source.name,
            "values": wanted,
            "context's share": round(context_size / max(1, past), 3),
            "context": round(seen["context"] / wanted, 3),
            "tokens": tokens,
            "and one recall": round(recalled / wanted, 3),
            "and BM25": round(seen[f"BM25 {tokens}"] / wanted, 3),
            "of what left": round((recalled - seen["context"]) / left, 3),
            "where it is needed": round((seen["context"] + needed[tokens]) / wanted, 3),
        }
        rows.append(row | least(recalled / wanted, LATER if tokens == LATER_TOKENS else None))
    return rows, stored_row(source.name, text, measured.stored_bytes() - before)


def question(messages: Sequence[Message], at: int) -> str:
    """Return what the next message of the user says, and the last call before it was stored."""
    said = next((text for each in messages[at:] if (text := _said(each))), "")
    called = next((call for each in reversed(messages[:at]) if (call := _called(each))), "")
    return f"{said}\n{called}"[:_QUERY_CHARS].strip() or "?"


def _asked_where_used(messages: Sequence[Message], at: int, value: str) -> str:
    """Return the last words of the user and the last call before a value is first used after a point."""
    used = next(place for place in range(at, len(messages)) if value in spoken(messages[place]))
    said = next((text for each in reversed(messages[: used + 1]) if (text := _said(each))), "")
    called = next((call for each in reversed(messages[:used]) if (call := _called(each))), "")
    return f"{said}\n{called}"[:_QUERY_CHARS].strip() or "?"


def _recalled(measured: Measured, conversation: str, asked: str, tokens: int) -> list[str]:
    recalled = measured.client.recall(conversation, {"query": asked, "max_tokens": tokens})
    return [part.text for each in recalled.passages for part in each.parts]


def _said(message: Message) -> str:
    if message["role"] != "user":
        return ""
    content = message["content"]
    if isinstance(content, str):
        return content
    return "\n".join(str(block["text"]) for block in content if block.get("type") == "text")


def _called(message: Message) -> str:
    content = message["content"]
    calls = [] if isinstance(content, str) else [block for block in content if block.get("type") == "tool_use"]
    return "\n".join(f"{call['name']} {json.dumps(call['input'], ensure_ascii=False)}" for call in calls)


def _context(measured: Measured, conversation: str) -> list[Message]:
    context = measured.client.context(conversation)
    messages: list[Message] = msgspec.json.decode(context.messages) if context else []
    return messages


def _ways(measured: Measured, conversation: str, past: Sequence[Message], asked: str) -> dict[str, list[Message]]:
    """Return what is there beside the context: nothing, or what a search gave back."""
    ways: dict[str, list[Message]] = {"context": []}
    texts = [text_of(message) for message in past]
    plain = PlainSearch(texts)
    for tokens in TOKENS:
        ways[f"recall {tokens}"] = [*map(_quoted, _recalled(measured, conversation, asked, tokens))]
        ways[f"BM25 {tokens}"] = [dict(past[seq]) for seq in plain.search(asked, tokens * CHARS_PER_TOKEN)]
    return ways


def _quoted(text: str) -> dict[str, Any]:
    return {"role": "user", "content": text}
