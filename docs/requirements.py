#!/usr/bin/env python3
"""Prints docs/requirements.md: each requirement beside the tests that show it; `make docs` writes it."""

from __future__ import annotations

import ast
import sys
from collections import defaultdict
from pathlib import Path
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Iterator

ROOT: Final = Path(__file__).resolve().parent.parent

REQUIREMENTS: Final[dict[str, dict[str, str]]] = {
    "Tool results over a budget": {
        "T1": "Nothing is cut unless the budget is above 0 and the input tokens are strictly above the budget.",
        "T2": "The budget is 40,000 input tokens by default; 0 turns the step off.",
        "T3": "A tool-result message is a user message whose content has at least one `tool_result` block.",
        "T4": "The newest tool-result message is left alone, all of its results included.",
        "T5": "A result is passed over when its content has no text, already ends with the marker, or is no "
        "longer than the retention limit. A list with text blocks counts as one text.",
        "T6": "Any other result becomes its first `tool_result_retention_chars` characters (500 by default) "
        "and the marker `[truncated for context management]`.",
        "T7": "A second pass over the same messages changes nothing and adds no second marker.",
        "T8": "Log and run tell how many results were cut, the input tokens and the budget, with thousands separators.",
        "T9": "The step calls no model and needs no library.",
        "T10": "The start of every older result survives, and the newest results survive whole.",
    },
    "Compaction by summary": {
        "S1": "Tokens are estimated from characters: text, a tool call's name and input JSON, the text "
        "inside a tool result; four characters a token.",
        "S2": "The check comes after user messages and after tool results.",
        "S3": "Up to 80,000 tokens nothing happens; over it, with summaries disabled the old trimming "
        "applies, and with fewer than 2 messages in the zone the large context is accepted.",
        "S4": "The first message and the last 6 stay; the zone is what lies between them.",
        "S5": "The zone's end moves back until no tool call is parted from its result.",
        "S6": "The summarizer reads the zone as text, each tool result as its first 500 and last 200 characters.",
        "S7": "A request holds at most 100,000 characters of it. More is several requests, merged; what is too "
        "large for one by itself is cut in the middle, with a marker at the cut.",
        "S8": "One request, not streamed, at temperature 0 with 4,096 tokens to answer: the request and its "
        "criteria, decisions with reasons, data points, URLs, paths, identifiers, scores and "
        "rankings, status and next steps, as a concise narrative without raw tool output.",
        "S9": "The new view is the first message with the summary between markers, an acknowledgement only "
        "where the roles would not alternate, and the tail unchanged.",
        "S10": "When the request fails, the failure is recorded and trimming takes its place.",
        "S11": "After a summary, `max_conversation_messages` (50) still caps the number of messages.",
        "S12": "With `compaction_enabled` off, trimming alone is at work.",
        "S13": "The run shows estimate, threshold and messages compacted, the summary's size and the tokens "
        "freed, or the error and what was done instead.",
        "S14": "A job search of one round stays as it is; after two or three rounds, about 85,000 tokens, it "
        "comes down to about 10,000 with criteria, scores and URLs still there.",
        "S15": "The view shows at most 40,000 characters of one tool result; the original stays stored.",
    },
    "One budget over the whole payload": {
        "P1": "Every layer counts against the total: system and tools, carried and new context, history, the user's "
        "message, and the output that is reserved.",
        "P2": "One place enforces the total, where all layers meet.",
        "P3": "One total that the user sets does for every model.",
        "P4": "Context blocks are held against the total less the system prompt: a large one shrinks them earlier.",
        "P5": "History gets the total less everything else.",
        "P6": "The oldest whole exchanges go until the rest fits.",
        "P7": "The most recent exchange is always there.",
        "P8": "What was left out is told.",
        "P9": "Every way of building a payload is held to it: both context calls, overflow and replay.",
        "P10": "The number of turns is no limit.",
        "P11": "Exchanges first, then long responses lose their middle, then a warning and on with it.",
        "P12": "No model is called on this path, no worker and no broker.",
        "P13": "The other steps stay beside it: the guard is the last net.",
        "P14": "The answer tells the tokens of each layer, the total, and whether exchanges were left out.",
        "P18": "A payload several times the budget fits or says by how much it does not.",
    },
    "Trimming that knows the token count": {
        "K1": "The last count is carried on; for the trim it is gone after a new request without one.",
        "K2": "No count, or 0, is no data: the bytes decide.",
        "K3": "A count under the threshold skips the trim, and nothing is serialized.",
        "K4": "A count at or over the threshold lets the bytes decide.",
        "K5": "The window is 200,000 tokens and the threshold 60 % of it.",
        "K6": "The trim drops whole exchanges, as few as it takes to get under 720 KB.",
        "K7": "The byte net holds however the counting fails.",
        "K8": "The count is the sum of uncached, written and read input tokens.",
        "K9": "A retry's or a continuation's success updates the count, a failed attempt never does.",
    },
    "Context that is not history": {
        "P15": "Context blocks over 50,000 characters are split on their structure, part by part; the user's own "
        "message is never touched.",
        "P16": "What is carried over to the next turn is reduced to headings and about 500 characters a section, "
        "without a model.",
        "P17": "Tool output pasted into an assistant's text as named elements is cut; the rest is verbatim.",
    },
    "Summaries that can be trusted": {
        "O1": "Tokens are estimated message by message and added up.",
        "O2": "What does not fit into one request is summarized in parts, by a share of the window and with a margin.",
        "O3": "Summaries of parts are merged, keeping decisions, to-dos, open questions and constraints.",
        "O4": "A summary that fails is tried without oversized messages, then in part; an extract stands in for it.",
        "O6": "Every request leaves room for its answer.",
        "O9": "Fields of tool results that are for the application alone reach no summarizer.",
        "O10": "The end of every run is told to whoever asked, signed.",
    },
    "Windows and pruning": {
        "O5": "A model's window is 200,000 tokens unless it is known to be another; under 16,000 is refused, under "
        "32,000 warned of.",
        "O7": "Oversized tool results keep head and tail; where their share is still too high, a placeholder.",
        "O8": "A prompt that the model refused as too long is made smaller at once, up to three times in a row.",
    },
}


def _ids(node: ast.AST) -> Iterator[str]:
    """Yield the ids in every `pytest.mark.requirement(...)` below `node`, marks of parameters included."""
    for call in ast.walk(node):
        match call:
            case ast.Call(func=ast.Attribute(value=ast.Attribute(attr="mark"), attr="requirement"), args=args):
                for argument in args:
                    yield ast.literal_eval(argument)


def _marked(body: list[ast.stmt], prefix: str) -> Iterator[tuple[str, str]]:
    """Yield (requirement id, test id) for the tests in a module's or a class's body."""
    for node in body:
        match node:
            case ast.Assign(targets=[ast.Name(id="pytestmark")], value=value):
                yield from ((id_, prefix) for id_ in _ids(value))
            case ast.ClassDef(name=name, decorator_list=decorators) if name.startswith("Test"):
                yield from ((id_, f"{prefix}::{name}") for mark in decorators for id_ in _ids(mark))
                yield from _marked(node.body, f"{prefix}::{name}")
            case ast.FunctionDef(name=name) | ast.AsyncFunctionDef(name=name) if name.startswith("test_"):
                yield from ((id_, f"{prefix}::{name}") for mark in node.decorator_list for id_ in _ids(mark))


def tests_by_requirement() -> dict[str, list[str]]:
    """Return, for every id that a test in tests/ carries, the pytest ids of those tests, sorted."""
    tests: dict[str, set[str]] = defaultdict(set)
    for path in sorted((ROOT / "tests").rglob("test_*.py")):
        for id_, test in _marked(ast.parse(path.read_text()).body, path.relative_to(ROOT).as_posix()):
            tests[id_].add(test)
    return {id_: sorted(tests) for id_, tests in tests.items()}


def page() -> str:
    """Return the page; a requirement that no test shows has an empty last cell."""
    tests = tests_by_requirement()
    lines = [
        "# Requirements",
        "",
        "What compaction has to do, and the tests that show it. A test names its rows with",
        '`@pytest.mark.requirement("T1", …)`. `make docs` writes this page.',
    ]
    for title, rows in REQUIREMENTS.items():
        lines += ["", f"## {title}", "", "| id | requirement | shown by |", "|---|---|---|"]
        for id_, text in rows.items():
            cell = "<br>".join(f"`{test.removeprefix('tests/')}`" for test in tests.get(id_, []))
            lines.append(f"| {id_} | {text} | {cell} |")
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    sys.stdout.write(page())
