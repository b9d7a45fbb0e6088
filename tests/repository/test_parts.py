"""Parts of the worker that could be taken out again: one place alone knows of what each does."""

from __future__ import annotations

import ast
from functools import cache

import pytest

from tests.support.places import ROOT

PRODUCT = ("api", "bench", "cli", "compaction", "runtime", "store", "worker")


@cache
def imported(path: str) -> tuple[str, ...]:
    """Return the names of modules, and of what is taken from them, that a module imports, for types included."""
    names: list[str] = []
    for node in ast.walk(ast.parse((ROOT / path).read_text())):
        if isinstance(node, ast.Import):
            names += (name.name for name in node.names)
        elif isinstance(node, ast.ImportFrom):
            names += (f"{node.module}.{name.name}" for name in node.names)
    return tuple(names)


PARTS = "worker/parts.py"


@pytest.mark.parametrize(
    ("part", "own", "seam"),
    [
        (("worker.summarizers.native", "worker.summarizers.native_step"), ("worker/summarizers/native",), {PARTS}),
    ],
    ids=["anthropic-native"],
)
def test_one_module_knows_of_a_part(part: tuple[str, ...], own: tuple[str, ...], seam: set[str]) -> None:
    modules = [path.relative_to(ROOT).as_posix() for folder in PRODUCT for path in (ROOT / folder).rglob("*.py")]
    knowing = {
        module
        for module in modules
        if not module.startswith(own)
        and any(f"{name}.".startswith(tuple(f"{each}." for each in part)) for name in imported(module))
    }
    assert knowing == seam
