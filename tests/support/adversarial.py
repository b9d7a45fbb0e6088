"""Text and conversations that make careless code slow: each of a kind, of about as many characters as asked for."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from collections.abc import Callable

Message = tuple[str, Any]
"""Role and content."""


def _again(text: str) -> Callable[[int], str]:
    return lambda chars: (text * (chars // len(text) + 1))[:chars]


def _series(form: str, joint: str = " ") -> Callable[[int], str]:
    each = len(form.format(10_000)) + len(joint)
    return lambda chars: joint.join(form.format(number + 10_000) for number in range(chars // each))


TEXTS: Final[dict[str, Callable[[int], str]]] = {
    "distinct identifiers": _series("ID{}x"),
    "one identifier": _again("ID0000001x "),
    "codes of mixed case": _series("aB{}Zz"),
    "dates": _series("2031-01-{}"),
    "addresses": _series("https://a.example/{}/b"),
    "table": _series("| r{} | 12 | a@b.example |", "\n"),
    "rows of values": _series("{},2031-01-01,10.0.0.1,x@y.example", "\n"),
    "listing": _series("{}: x = 1", "\n"),
    "short lines": _series("w{}", "\n"),
    "digits apart": _again("1 2 3 4 "),
    "one number": _again("7"),
    "thousands": _again("1,000"),
    "one word": _again("x"),
    "one path": _again("a/"),
    "dots": _again("a."),
    "underscores": _again("_"),
    "blank": lambda chars: f"{' ' * chars}x",
    "empty lines": lambda chars: "\n" * chars + "x",
    "sentences": _again("It is so. "),
    "rules": _series("Always use {}.", "\n"),
    "a rule without end": _again("always "),
    "stops": _again("."),
    "gaps": _again(" \u2026 "),
    "combining characters": _again("a\u0301\u0302"),
    "invisible characters": _again("a\u200b\u2060"),
    "dense script": _again("\u4e2d\u6587"),
    "escapes": _again("\x1b["),
    "open angles": _again("<"),
    "open tags": _again("<a href='"),
    "closed tags": _again("<table><tr><td>a 12</td></tr>"),
    "open comments": _again("<!--"),
    "open scripts": _again("<script>"),
    "nested results": lambda chars: "<result>" * (chars // 17) + "</result>" * (chars // 17),
    "open sections": _again("<![CDATA["),
    "code fences": _again("```\n"),
    "headings": _again("# h\n"),
    "modifiers": _again("static "),
    "list marks": _again("> - * "),
    "brackets": _again("["),
    "markers": _again("[END CONTEXT SUMMARY]"),
    "pins": _again("[PIN 1 of 1: x, 5 characters]\n"),
    "frames": _again("\n\n[PINNED]\n"),
    "speakers": _again("user:\nassistant:\n"),
    "open pictures": _again("![]("),
    "open names": _again("\n["),
    "exclamation marks before a link": lambda chars: f"{'!' * chars} a](b",
    "marks that write vowels": _again("\u0938\u092e\u091d\u094c\u0924\u093e "),
    "blank lines": lambda chars: "x" + "\n " * chars + "x",
    "blank tag": lambda chars: "<" + " " * chars,
    "wrapped blank": lambda chars: f"<summary>{' ' * chars}x",
    "open JSON": _again('{"a":'),
    "broken JSON": lambda chars: "{" + _again('"k":1,')(chars),
    "quotation marks": lambda chars: "{" + _again('"')(chars),
    "nested JSON": lambda chars: "[" * (chars // 2) + "]" * (chars // 2),
    "rows of JSON": lambda chars: json.dumps([{"id": f"ID{n}x", "v": n} for n in range(chars // 24)]),
    "long key": lambda chars: json.dumps({"k" * (chars // 2): [{"v": n} for n in range(chars // 24)]}),
    "JSON in JSON": lambda chars: json.dumps({"a": json.dumps({"secret": "x" * chars})}),
}
"""Texts by their kind."""


def _call(number: int) -> dict[str, Any]:
    return {"type": "tool_use", "id": f"c{number}", "name": "w", "input": {}}


def _result(number: int, content: Any = "ok") -> dict[str, Any]:
    return {"type": "tool_result", "tool_use_id": f"c{number}", "content": content}


def _words(text: str = "so") -> dict[str, Any]:
    return {"type": "text", "text": text}


def _signed() -> dict[str, Any]:
    return {"type": "thinking", "thinking": "so", "signature": "c2ln"}


def _many(count: int, *round_: Callable[[int], Message]) -> list[Message]:
    return [each(number) for number in range(count // len(round_)) for each in round_]


CONVERSATIONS: Final[dict[str, Callable[[int], list[Message]]]] = {
    "short messages": lambda count: _many(count, lambda n: ("user", f"ID{n}x"), lambda _: ("assistant", "ok")),
    "one role": lambda count: _many(count, lambda n: ("user", f"ID{n}x")),
    "calls of one id": lambda count: _many(
        count, lambda _: ("assistant", [_call(1)]), lambda _: ("user", [_result(1)])
    ),
    "calls of one id, answered late": lambda count: [
        *_many(count // 2, lambda _: ("assistant", [_call(1)]), lambda _: ("user", "hi")),
        *_many(count // 2, lambda _: ("user", [_result(1)])),
    ],
    "calls of one id, answered early": lambda count: [
        ("user", [_result(1) for _ in range(count // 2)]),
        *_many(count // 2, lambda _: ("assistant", [_call(1)]), lambda _: ("user", "hi")),
    ],
    "calls answered at the end": lambda count: [
        *_many(count // 2, lambda n: ("assistant", [_signed(), _call(n)]), lambda _: ("user", "hi")),
        ("assistant", "ok"),
        ("user", [_result(n) for n in range(count // 2)]),
    ],
    "calls of one message": lambda count: [
        ("user", "hi"),
        ("assistant", [_call(n) for n in range(count // 2)]),
        ("user", [_result(n) for n in range(count // 2)]),
    ],
    "open calls": lambda count: _many(count, lambda n: ("assistant", [_call(n)]), lambda _: ("user", "hi")),
    "results of no call": lambda count: _many(count, lambda n: ("user", [_result(n)]), lambda _: ("assistant", "ok")),
    "thinking": lambda count: _many(count, lambda _: ("assistant", [_signed()])),
    "thinking of one message": lambda count: [("user", "hi"), ("assistant", [_signed() for _ in range(count)])],
    "blocks of one message": lambda count: [("user", [_words(f"ID{n}x") for n in range(count)])],
    "results in blocks": lambda count: [
        ("user", "hi"),
        ("assistant", [_call(1)]),
        ("user", [_result(1, [_words() for _ in range(count)])]),
    ],
    "searches of the API": lambda count: _many(
        count,
        lambda n: ("assistant", [{**_call(n), "type": "server_tool_use"}]),
        lambda _: ("user", "hi"),
        lambda n: ("assistant", [{"type": "web_search_tool_result", "tool_use_id": f"c{n}", "content": []}]),
    ),
}
"""Conversations by their kind, of about as many messages or blocks as asked for."""


def value_of_long_key(chars: int) -> dict[str, Any]:
    """Return the input of a call whose key is half of it."""
    return {"k" * (chars // 2): [{"v": number} for number in range(chars // 24)]}
