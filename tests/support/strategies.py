"""Hypothesis strategies for conversations, as clients really send them and as broken clients send them.

Long texts are built by repeating a short unit, so that a 60,000 character tool result costs a few draws
and shrinks to a short one. Most texts carry a serial number, so that a test can tell which one it looks at.
"""

from __future__ import annotations

from functools import cache, lru_cache
from itertools import count, pairwise
from typing import TYPE_CHECKING, Any, Final, TypeVar

from hypothesis import strategies as st

from tests.support.blocks import document_block, image_block, text_block, unknown_block
from tests.support.client_faults import Fault, inflict

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from hypothesis.strategies import DrawFn, SearchStrategy

    from tests.support.blocks import Block, Message

T = TypeVar("T")

MARKER: Final = "[truncated for context management]"
"""What the product appends to a tool result it has cut (requirement T6); some clients send it back."""

SIZES: Final = (8, 1, 40, 120, 499, 500, 501, 700, 701, 3_000, 12_000, 40_000, 40_001, 60_000)
"""Characters. Just below, at and above the default limits; the simplest first: shrinking goes that way."""

UNITS: Final = (
    "lorem ipsum ",
    "Acme Robotics, Berlin, EUR 85,000, https://jobs.example.com/view/4711?ref=a&b=2 score 8/10. ",
    "日本語の長い文章です。",
    "🦜🧵✅ ",
    '{"path": "src/app/main.py", "line": 42, "error": "exit code 1"}\n',
    "<div class='row'><a href=\"/x\">y</a></div>",
    'Traceback (most recent call last):\n  File "a.py", line 3\nValueError: no\n',
    "مرحبا بالعالم ",
    '\t\n- [ ] item & <tag> \\ "quote" ',
)

TOOL_NAMES: Final = ("search_jobs", "read_file", "bash", "mcp__crm__lookup-customer")

# To make a strategy takes longer than to draw from it, so each is made once.
between = cache(st.integers)
_EITHER: Final = st.booleans()
_sampled_from = lru_cache(maxsize=None, typed=True)(lambda *options: st.sampled_from(options))
_lists_of = cache(lambda options, most: st.lists(st.sampled_from(options), max_size=most))
_cuts_of = cache(lambda messages: st.sets(st.integers(1, max(1, messages - 1)), max_size=12))


def one_of(*options: T) -> SearchStrategy[T]:
    """Draw one of the options."""
    strategy: SearchStrategy[T] = _sampled_from(*options)
    return strategy


@cache
@st.composite
def texts(draw: DrawFn, *, max_chars: int = 60_000) -> str:
    """Text with something to read in it, 1..`max_chars` characters: any script, tiny to huge."""
    size = draw(one_of(*(size for size in SIZES if size <= max_chars)))
    unit = draw(one_of(*UNITS))
    serial = draw(between(0, 999))
    text = f"#{serial} " + unit * (size // len(unit) + 1)
    return text[:size]


@cache
@st.composite
def valid_conversations(
    draw: DrawFn,
    *,
    max_exchanges: int = 5,
    max_rounds: int = 4,
    max_chars: int = 60_000,
    thinking: bool = True,
) -> list[Message]:
    """Draw conversations that the Messages API accepts, open tool calls at the very end included.

    Some have same-role neighbours (legal: the API combines them) and ids that start over in every round.
    """
    build = _Build(draw, max_chars=max_chars, thinking=thinking)
    messages: list[Message] = []
    for _ in range(draw(between(1, max_exchanges))):
        messages += build.exchange(draw(between(0, max_rounds)))
    tail = draw(one_of("as it is", "open call", "request"))
    if tail != "as it is":
        messages.append(build.request())
    if tail == "open call":
        messages.append(build.call()[0])
    if draw(_EITHER):
        return [part for message in messages for part in _split(draw, message)]
    return messages


@st.composite
def any_conversations(
    draw: DrawFn,
    *,
    faults: Sequence[Fault] = tuple(Fault),
    max_faults: int = 3,
    max_exchanges: int = 5,
    max_rounds: int = 4,
    max_chars: int = 60_000,
    thinking: bool = True,
) -> list[Message]:
    """Draw conversations with 0..`max_faults` of `faults` in them; at least one message, each with a role."""
    messages = draw(
        valid_conversations(max_exchanges=max_exchanges, max_rounds=max_rounds, max_chars=max_chars, thinking=thinking)
    )
    for fault in draw(_lists_of(tuple(faults), max_faults)):
        inflict(fault, draw, messages)
    return messages


@cache
def policies() -> SearchStrategy[dict[str, Any]]:
    """Policy overrides, each key present or not, with limits so low that every rung triggers."""
    return st.fixed_dictionaries(
        {},
        optional={
            "input_token_budget": st.sampled_from([1, 0, 50, 500, 5_000]),
            "tool_result_retention_chars": st.sampled_from([500, 0, 1, 35, 120]),
            "max_tool_result_chars": st.sampled_from([200, 1, 600, 5_000, 40_000]),
            "compaction_enabled": st.booleans(),
            "compaction_threshold_tokens": st.sampled_from([1, 100, 1_000, 10_000]),
            "protected_tail_messages": st.integers(1, 8),
            "tool_preview_head_chars": st.sampled_from([500, 0, 20]),
            "tool_preview_tail_chars": st.sampled_from([200, 0, 10]),
            "summary_input_max_chars": st.sampled_from([1_000, 5_000, 100_000]),
            "summary_max_tokens": st.sampled_from([64, 512, 4_096]),
            "max_conversation_messages": st.integers(2, 12),
            "model_context_tokens": st.sampled_from([16_000, 32_000, 200_000]),
            "trim_threshold_ratio": st.sampled_from([0.01, 0.6, 1.0]),
            "max_context_bytes": st.sampled_from([10_000, 50_000, 737_280]),
            "total_token_budget": st.sampled_from([1_000, 4_000, 20_000, 128_000]),
            "reserved_output_tokens": st.sampled_from([0, 100, 999]),
            "context_block_compact_chars": st.sampled_from([1_000, 50_000]),
            "carry_forward_section_chars": st.sampled_from([1, 50, 500]),
            "min_savings_tokens": st.sampled_from([0, 1, 100, 1_000]),
            "recall_handles": st.booleans(),
        },
    ).map(_consistent)


@st.composite
def split_into_turns(draw: DrawFn, conversation: Sequence[Message]) -> list[list[Message]]:
    """Cut a conversation into non-empty turns, in order: all at once, one by one, or anywhere."""
    style = draw(one_of("one by one", "all at once", "anywhere"))
    if style == "one by one":
        return [[message] for message in conversation]
    cuts: set[int] = set()
    if style == "anywhere":
        cuts = draw(_cuts_of(len(conversation)))
    edges = [0, *sorted(cut for cut in cuts if cut < len(conversation)), len(conversation)]
    turns = [list(conversation[start:end]) for start, end in pairwise(edges)]
    return [turn for turn in turns if turn]


def _consistent(policy: dict[str, Any]) -> dict[str, Any]:
    # The default of 4,096 reserved tokens contradicts a smaller total.
    if policy.get("total_token_budget", 128_000) <= policy.get("reserved_output_tokens", 4_096):
        return policy | {"reserved_output_tokens": 100}
    return policy


class _Build:
    """Draws the parts of one conversation; numbers the tool calls as one provider or another does."""

    def __init__(self, draw: DrawFn, *, max_chars: int, thinking: bool) -> None:
        self.draw = draw
        self.text = texts(max_chars=max_chars)
        self.prose = texts(max_chars=min(max_chars, 701))
        self.thinking = thinking
        self.serial = count()
        self.restarting = draw(_EITHER)

    def pick(self, *options: str) -> str:
        return self.draw(one_of(*options))

    def exchange(self, rounds: int) -> list[Message]:
        messages = [self.request()]
        for _ in range(rounds):
            messages += self.programmatic_call() if self.pick(*["plain"] * 3, "by code") == "by code" else self.call()
        if self.pick("no answer", "answer") == "answer":
            messages.append(self.answer())
        return messages

    def request(self) -> Message:
        shape = self.pick("string", "blocks", "image", "document", "unknown")
        text = self.draw(self.text)
        if shape == "string":
            return {"role": "user", "content": text}
        extra = {"image": image_block, "document": document_block, "unknown": unknown_block}
        content = [extra[shape]()] if shape in extra else []
        content.append(text_block(text))
        if shape == "blocks" and self.draw(_EITHER):
            content.append(text_block(self.draw(self.prose)) | {"cache_control": {"type": "ephemeral"}})
        return {"role": "user", "content": content}

    def answer(self) -> Message:
        shape = self.pick("string", "blocks", "thinking", "server tool", "unknown")
        text = self.draw(self.text)
        if shape == "string":
            return {"role": "assistant", "content": text}
        content = [text_block(text)]
        if shape == "thinking" and self.thinking:
            content.insert(0, self.thought())
        elif shape == "server tool":
            content[:0] = self.server_call()
        elif shape == "unknown":
            content.append(unknown_block())
        return {"role": "assistant", "content": content}

    def thought(self) -> Block:
        if self.draw(_EITHER):
            return {"type": "redacted_thinking", "data": f"opaque{next(self.serial)}"}
        return {"type": "thinking", "thinking": self.draw(self.prose), "signature": f"sig{next(self.serial)}"}

    def server_call(self) -> list[Block]:
        call_id = f"srvtoolu_{next(self.serial)}"
        hit = {
            "type": "web_search_result",
            "url": "https://example.com/a",
            "title": "A",
            "encrypted_content": "x",
        }
        return [
            {"type": "server_tool_use", "id": call_id, "name": "web_search", "input": {"query": "jobs"}},
            {"type": "web_search_tool_result", "tool_use_id": call_id, "content": [hit]},
        ]

    def call(self) -> list[Message]:
        """Draw one round: an assistant message with 1..4 tool calls, and the results that answer it."""
        content: list[Block] = []
        if self.thinking and self.draw(_EITHER):
            content.append(self.thought())
        if self.draw(_EITHER):
            content.append(text_block(self.draw(self.prose)))
        ids = [self.call_id(place) for place in range(self.draw(between(1, 4)))]
        for call_id in ids:
            name = self.pick(*TOOL_NAMES)
            given: dict[str, Any] = {"query": self.draw(self.prose)} if name == "search_jobs" else {}
            content.append({"type": "tool_use", "id": call_id, "name": name, "input": given})
        if self.draw(_EITHER):
            ids.reverse()
        results = [self.result(call_id) for call_id in ids]
        if self.pick("results only", "with a remark") == "with a remark":
            results.append(text_block(self.draw(self.prose)))
        return [{"role": "assistant", "content": content}, {"role": "user", "content": results}]

    def programmatic_call(self) -> list[Message]:
        """Draw a call of a server tool whose code calls a tool of the client twice, its answer, and a request."""
        server_id = f"srvtoolu_{next(self.serial)}"
        caller = {"type": "code_execution_20250825", "tool_id": server_id}
        code = {"type": "server_tool_use", "id": server_id, "name": "code_execution", "input": {"code": "await f()"}}
        done = {"type": "code_execution_tool_result", "tool_use_id": server_id, "content": {"stdout": "42"}}
        messages: list[Message] = []
        before = [code]
        for place in range(2):
            call_id = self.call_id(place)
            call = {"type": "tool_use", "id": call_id, "name": TOOL_NAMES[0], "input": {}, "caller": caller}
            messages.append({"role": "assistant", "content": [*before, call]})
            messages.append({"role": "user", "content": [self.result(call_id)]})
            before = []
        answer = {"role": "assistant", "content": [done, text_block(self.draw(self.prose))]}
        return [*messages, answer, self.request()]

    def call_id(self, place: int) -> str:
        return f"call_{place}" if self.restarting else f"toolu_{next(self.serial):04d}"

    def result(self, call_id: str) -> Block:
        block: Block = {"type": "tool_result", "tool_use_id": call_id}
        shape = self.pick("string", "blocks", "marked", "error", "image", "empty", "empty list", "absent")
        if shape in {"string", "error"}:
            block["content"] = self.draw(self.text)
        elif shape == "marked":
            block["content"] = self.draw(self.text) + MARKER
        elif shape in {"blocks", "image"}:
            block["content"] = [text_block(self.draw(self.text)), text_block(self.draw(self.prose))]
            if shape == "image":
                block["content"].insert(1, image_block())
        elif shape != "absent":
            block["content"] = "" if shape == "empty" else []
        if shape == "error":
            block["is_error"] = True
        return block


def _split(draw: DrawFn, message: Message) -> Iterator[Message]:
    content = message["content"]
    if isinstance(content, list) and len(content) > 1 and draw(_EITHER):
        at = draw(between(1, len(content) - 1))
        yield message | {"content": content[:at]}
        yield message | {"content": content[at:]}
    else:
        yield message
