"""docs/troubleshooting.md: every warning that an answer can carry is explained, and whatever it names exists."""

from __future__ import annotations

import ast
import re
from typing import TYPE_CHECKING, Final

from runtime.database_faults import DATABASE_FAULTS
from runtime.http.problem_types import PROBLEM_TYPES
from tests.support.places import ROOT

if TYPE_CHECKING:
    from collections.abc import Iterator

PAGE: Final = (ROOT / "docs/troubleshooting.md").read_text()
CARRIERS: Final = {"warnings", "ignored"}
"""Names under which the code hands warnings on."""
FEWEST_WORDS: Final = 3
PLACEHOLDER: Final = re.compile(r"\{\w+\}")


def test_the_page_explains_each_fault_of_the_database() -> None:
    for state, known in DATABASE_FAULTS.items():
        (row,) = [line for line in PAGE.splitlines() if line.startswith(f"| `{known.name}` |")]
        assert state in row
        assert known.words in row
        assert known.action in row


def is_carrier(node: ast.AST) -> bool:
    match node:
        case ast.Name(id=name) | ast.Attribute(attr=name):
            return name in CARRIERS
        case ast.Tuple(elts=parts):
            return any(map(is_carrier, parts))
    return False


def carried(tree: ast.Module) -> Iterator[ast.AST]:
    """Yield what a module hands on as warnings, and its functions that are named for making them."""
    for node in ast.walk(tree):
        match node:
            case ast.Assign(targets=[target], value=value) if is_carrier(target):
                yield value
            case ast.AugAssign(target=target, value=value) if is_carrier(target):
                yield value
            case ast.Call(func=ast.Attribute(value=target, attr="append" | "extend"), args=[value]) if is_carrier(
                target
            ):
                yield value
            case ast.keyword(arg=name, value=value) if name in CARRIERS:
                yield value
            case ast.FunctionDef(name=name) if "warning" in name:
                yield node


def texts(node: ast.AST, named: dict[str, ast.AST]) -> Iterator[str]:
    """Yield the sentences in a node, in the constants that it names and in the functions whose lists it takes over.

    Values are shown as ….
    """
    match node:
        case ast.JoinedStr(values=parts):
            yield "".join(str(part.value) if isinstance(part, ast.Constant) else "…" for part in parts)
            return
        case ast.Constant(value=str(text)):
            yield PLACEHOLDER.sub("…", text)
        case ast.Name(id=name) if name.isupper() and name in named:
            yield from texts(named[name], {})
        case ast.Starred(value=ast.Call(func=ast.Name(id=name))) if name in named:
            yield from texts(named[name], {})
    body = node.body[1:] if isinstance(node, ast.FunctionDef) and ast.get_docstring(node) else None
    for child in ast.iter_child_nodes(node) if body is None else body:
        yield from texts(child, named)


def warnings_of_the_code() -> set[str]:
    trees = [
        ast.parse(file.read_text())
        for package in ("compaction", "actions", "api")
        for file in (ROOT / package).rglob("*.py")
    ]
    names: set[str] = set()
    for tree in trees:
        named: dict[str, ast.AST] = {}
        for node in tree.body:
            match node:
                case ast.FunctionDef(name=name):
                    named[name] = node
                case ast.AnnAssign(target=ast.Name(id=name), value=ast.expr() as value):
                    named[name] = value
        names |= {text for node in carried(tree) for text in texts(node, named)}
    return {text for text in names if len(text.split()) >= FEWEST_WORDS}


def test_every_warning_is_explained() -> None:
    section = PAGE.partition("\n## A warning\n")[2].partition("\n## ")[0]
    explained = set(re.findall(r"^\| `([^`]+)` \|", section, re.MULTILINE))
    assert len(explained) > 10
    assert warnings_of_the_code() == explained


def test_every_code_of_the_statuses_is_named() -> None:
    section = PAGE.partition("\n## 409, 429, 503\n")[2].partition("\n## ")[0]
    codes = {code for code, kind in PROBLEM_TYPES.items() if kind.status in {409, 429, 503}}
    assert {code for code in codes if f"`{code}`" not in section} == set()
