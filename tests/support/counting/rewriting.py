"""The package `compaction` loaded once more, rewritten so that it counts what it does.

Every call, every step of a loop, every character that a search, a copy or a comparison handles counts one; a regular
expression counts the steps of `patterns`. What C code does inside a call is taken for linear in what it is given and
returns, which holds for all that `compaction` calls.
"""

from __future__ import annotations

import ast
import bisect
import builtins
import heapq
import importlib.abc
import importlib.util
import re
import sys
from collections.abc import Iterator, Mapping
from collections.abc import Set as AbstractSet
from functools import cache, partial
from types import BuiltinFunctionType, FunctionType, MethodType
from typing import TYPE_CHECKING, Any, Final

from tests.support.counting.patterns import Attempt
from tests.support.places import ROOT

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable
    from importlib.machinery import ModuleSpec
    from pathlib import Path
    from types import ModuleType

COUNTED: Final = "counted_compaction"
SOURCE: Final = ROOT / "compaction"

_CONSTANT: Final[frozenset[Any]] = frozenset({
    len, isinstance, getattr, type, next, iter, id, ord, chr, range, bool, callable, abs, round, hash, map, filter, zip,
    enumerate, reversed, issubclass, divmod,
    heapq.heappush, heapq.heappop, bisect.bisect_left, bisect.bisect_right,
})  # fmt: skip
_SIZED: Final = (str, bytes, list, tuple, dict, set, frozenset)
_AT_ONCE: Final = {each.__name__ for each in _CONSTANT - {map, filter} if hasattr(builtins, each.__name__)}
_QUICK: Final[dict[type, frozenset[str]]] = {
    str: frozenset({"isascii"}),
    bytes: frozenset({"isascii"}),
    list: frozenset({"append", "clear"}),
    dict: frozenset({"get", "setdefault", "pop", "items", "keys", "values", "__contains__", "__getitem__"}),
    set: frozenset({"add", "discard", "remove", "pop"}),
}
"""Methods that take no longer for a larger object."""


class TooMuchError(Exception):
    """More was done than the limit allows."""


class Counter:
    """What was done so far."""

    def __init__(self) -> None:
        self.done = 0
        self.limit = 10**12
        self._patterns: dict[tuple[re.Pattern[str], str, str, int, int], int] = {}

    def add(self, amount: int = 1) -> None:
        """Count `amount`; raise TooMuchError over the limit. A single step of many is counted without looking at it."""
        self.done += amount
        if self.done > self.limit:
            raise TooMuchError

    def of(self, work: Callable[[], object], limit: int) -> int:
        """Return what `work` does; raise TooMuchError where that is more than `limit`."""
        self.done, self.limit = 0, limit
        try:
            work()
            return self.done
        finally:
            self.limit = 10**12

    # What the rewritten code calls.

    def quick(self, function: Any, *given: Any, **named: Any) -> Any:
        """Call what costs the same whatever it is given, as most calls do."""
        self.done += 1
        return function(*given, **named)

    def call(self, function: Any, *given: Any, **named: Any) -> Any:
        """Call, and count what the call costs unless the function counts that itself."""
        if isinstance(function, BuiltinFunctionType):
            owner: Any = function.__self__
            kind = type(owner)
            if kind is re.Pattern:
                return self._matched(owner, function, given)
            result = function(*given, **named)
            if function.__name__ in _QUICK.get(kind, ()) or function in _CONSTANT:
                self.done += 1
            else:
                self.add(1 + _cost(function, owner, given, result))
            return result
        if function in (map, filter) and given:
            given = (partial(self.call, given[0]), *given[1:]) if given[0] is not None else given
        if _counts_itself(function):
            self.done += 1
            return function(*given, **named)
        if getattr(function, "__module__", None) == "re" and given and function.__name__ not in {"compile", "escape"}:
            pattern = re.compile(given[0], *given[3:] if function.__name__ == "sub" else given[2:])
            return self.call(getattr(pattern, function.__name__), *given[1 : 3 if function.__name__ == "sub" else 2])
        result = function(*given, **named)
        self.add(1 + _cost(function, getattr(function, "__self__", None), given, result))
        return result

    def each(self, items: Iterable[Any]) -> Iterator[Any]:
        """Yield `items`, counted."""
        for item in items:
            self.done += 1
            yield item

    def step(self) -> None:
        """Count one round of a loop."""
        self.add()

    def made(self, value: Any) -> Any:
        """Count a value that was copied together."""
        if isinstance(value, _SIZED):
            self.add(len(value))
        return value

    def grown(self, value: Any) -> None:
        """Count a string that was put together anew, longer than it was."""
        if isinstance(value, str):
            self.add(len(value))

    def holds(self, item: Any, whole: Any) -> bool:
        """Tell whether `item` is in `whole`, and count the search."""
        is_in = item in whole
        if isinstance(whole, str):
            self.add(whole.index(item) + len(item) if is_in else len(whole))
        elif isinstance(whole, (list, tuple)):
            self.add(len(whole))
        else:
            self.done += 1
        return is_in

    def equal(self, one: Any, other: Any) -> bool:
        """Tell whether two values are equal, and count the comparison."""
        if one is other or not isinstance(other, type(one)):
            self.done += 1
        else:
            self.add(_comparison(one, other))
        return bool(one == other)

    def _matched(self, pattern: re.Pattern[str], function: Any, given: tuple[Any, ...]) -> Any:
        name = function.__name__
        text = given[1] if name in {"sub", "subn"} else given[0]
        bounds = given[1:] if name not in {"sub", "subn", "split"} else ()
        start = max(0, min(len(text), bounds[0])) if bounds else 0
        end = max(0, min(len(text), bounds[1])) if len(bounds) > 1 else len(text)
        key = (pattern, name, text, start, end)
        if key not in self._patterns:
            before = self.done
            self._try(pattern, name, text, start, end)
            self._patterns[key] = self.done - before
        else:
            self.add(self._patterns[key])
        result = function(*given)
        if name in {"sub", "split"}:
            self.add(len(text))
        return result

    def _try(self, pattern: re.Pattern[str], name: str, text: str, start: int, end: int) -> None:
        attempt = Attempt(pattern, text, end, self.add)
        if name in {"match", "fullmatch"}:
            real = getattr(pattern, name)(text, start, end)
            matched = attempt.at(start, whole=name == "fullmatch")
            assert matched == (real and real.end()), (pattern, name, text[start : start + 80])
            return
        matches = [pattern.search(text, start, end)] if name == "search" else pattern.finditer(text, start, end)
        for match in matches:
            if match is not None:
                attempt.at_each(range(start, match.start() + 1))
                start = match.end()
                if name == "search":
                    return
        attempt.at_each(range(start, end + 1))


def _counts_itself(function: Any) -> bool:
    if isinstance(function, MethodType):
        function = function.__func__
    return isinstance(function, (FunctionType, type)) and _is_counted(function)


@cache
def _is_counted(function: FunctionType | type) -> bool:
    of = function.__module__
    return isinstance(of, str) and of.startswith(COUNTED)


def _cost(function: Any, owner: Any, given: tuple[Any, ...], found: Any) -> int:  # noqa: PLR0911 - one for each kind
    if function in _CONSTANT:
        return 0
    name = getattr(function, "__name__", "")
    if isinstance(owner, (str, bytes)):
        return _text_cost(name, owner, given, found)
    if isinstance(owner, list):
        if name == "pop" and not given:
            return 0
        return _size(given[0]) if name == "extend" else len(owner)
    if isinstance(owner, dict) and name in _QUICK[dict]:  # of a kind of its own
        return 0
    if isinstance(owner, (set, frozenset)):
        return sum(map(_size, given)) + (0 if name in {"update", "issuperset"} else len(owner))
    return sum(map(_size, given)) + _size(found)


def _text_cost(name: str, owner: Any, given: tuple[Any, ...], found: Any) -> int:
    match name:
        case "startswith" | "endswith":
            return sum(map(len, given[0])) if isinstance(given[0], tuple) else len(given[0])
        case "find" | "index" | "rfind" | "rindex":
            start, end, _ = slice(*(*given[1:], None, None)[:2]).indices(len(owner))
            looked = end - start if found < 0 else found - start if name in {"find", "index"} else end - found
            return int(max(0, looked)) + len(given[0])
        case "join":
            return len(found)
        case "isspace":
            return len(owner) - len(owner.lstrip())
        case _:
            return len(owner) + _size(found)


def _size(value: Any) -> int:
    return len(value) if isinstance(value, _SIZED) else 0


def _comparison(one: Any, other: Any) -> int:
    if one is other or not isinstance(other, type(one)):
        return 1
    if isinstance(one, str):
        return 1 + (len(one) if len(one) == len(other) else 0)
    if isinstance(one, (list, tuple)):
        return 1 + (sum(map(_comparison, one, other)) if len(one) == len(other) else 0)
    if isinstance(one, Mapping):
        return 1 + sum(_comparison(value, other.get(key)) for key, value in one.items())
    if isinstance(one, AbstractSet):
        return 1 + len(one)
    fields = getattr(one, "__struct_fields__", ())
    return 1 + sum(_comparison(getattr(one, name), getattr(other, name)) for name in fields)


class _Rewriting(ast.NodeTransformer):
    """Puts the counter between the code and what it does."""

    def visit_ImportFrom(self, node: ast.ImportFrom) -> ast.AST:
        if node.module and node.module.split(".")[0] == "compaction":
            node.module = COUNTED + node.module.removeprefix("compaction")
        return node

    def visit_FunctionDef(self, node: ast.FunctionDef) -> ast.AST:
        # Neither annotations nor defaults nor decorators: they are no work.
        whole = ast.Module(node.body, [])
        self.generic_visit(whole)
        node.body = whole.body
        return node

    def visit_AnnAssign(self, node: ast.AnnAssign) -> ast.AST:
        node.value = self.visit(node.value) if node.value else None
        return node

    def visit_Call(self, node: ast.Call) -> ast.AST:
        self.generic_visit(node)
        if isinstance(node.func, ast.Name) and node.func.id == "super":
            return node
        at_once = isinstance(node.func, ast.Name) and node.func.id in _AT_ONCE  # whose names the linter keeps free
        return ast.Call(_counting("quick" if at_once else "call"), [node.func, *node.args], node.keywords)

    def visit_Compare(self, node: ast.Compare) -> ast.AST:
        self.generic_visit(node)
        if len(node.ops) > 1:
            return node
        match node.ops[0]:
            case ast.In() | ast.NotIn():
                call: ast.expr = ast.Call(_counting("holds"), [node.left, *node.comparators], [])
            case ast.Eq() | ast.NotEq():
                call = ast.Call(_counting("equal"), [node.left, *node.comparators], [])
            case _:
                return node
        return ast.UnaryOp(ast.Not(), call) if isinstance(node.ops[0], (ast.NotIn, ast.NotEq)) else call

    def visit_Subscript(self, node: ast.Subscript) -> ast.AST:
        self.generic_visit(node)
        return _made(node) if isinstance(node.ctx, ast.Load) and isinstance(node.slice, ast.Slice) else node

    def visit_BinOp(self, node: ast.BinOp) -> ast.AST:
        self.generic_visit(node)
        return _made(node)

    def visit_JoinedStr(self, node: ast.JoinedStr) -> ast.AST:
        self.generic_visit(node)
        return _made(node)

    def visit_FormattedValue(self, node: ast.FormattedValue) -> ast.AST:
        node.value = self.visit(node.value)
        return node

    def visit_List(self, node: ast.List) -> ast.AST:
        self.generic_visit(node)
        return _made(node) if isinstance(node.ctx, ast.Load) else node

    def visit_Tuple(self, node: ast.Tuple) -> ast.AST:
        self.generic_visit(node)
        return _made(node) if isinstance(node.ctx, ast.Load) else node

    def visit_For(self, node: ast.For) -> ast.AST:
        self.generic_visit(node)
        node.iter = ast.Call(_counting("each"), [node.iter], [])
        return node

    def visit_comprehension(self, node: ast.comprehension) -> ast.AST:
        self.generic_visit(node)
        node.iter = ast.Call(_counting("each"), [node.iter], [])
        return node

    def visit_YieldFrom(self, node: ast.YieldFrom) -> ast.AST:
        self.generic_visit(node)
        node.value = ast.Call(_counting("each"), [node.value], [])
        return node

    def visit_While(self, node: ast.While) -> ast.AST:
        self.generic_visit(node)
        node.body.insert(0, ast.Expr(ast.Call(_counting("step"), [], [])))
        return node

    def visit_AugAssign(self, node: ast.AugAssign) -> ast.AST | list[ast.stmt]:
        self.generic_visit(node)
        if not isinstance(node.op, ast.Add):
            return node
        node.value = _made(node.value)
        if isinstance(node.target, ast.Name):
            return node
        again = ast.parse(ast.unparse(node.target), mode="eval").body
        return [node, ast.Expr(ast.Call(_counting("grown"), [again], []))]


def _counting(name: str) -> ast.expr:
    return ast.Attribute(ast.Name("__counter__", ast.Load()), name, ast.Load())


def _made(node: ast.expr) -> ast.expr:
    return ast.Call(_counting("made"), [node], [])


class _Finder(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    def find_spec(self, fullname: str, path: object, target: object = None) -> ModuleSpec | None:
        if fullname.split(".", maxsplit=1)[0] != COUNTED:
            return None
        return importlib.util.spec_from_loader(fullname, self, is_package=_folder_of(fullname).is_dir())

    def exec_module(self, module: ModuleType) -> None:
        folder = _folder_of(module.__name__)
        path = folder / "__init__.py" if folder.is_dir() else folder.with_suffix(".py")
        tree = ast.fix_missing_locations(_Rewriting().visit(ast.parse(path.read_text(encoding="utf-8"))))
        builtins.__dict__.setdefault("__counter__", COUNTER)
        exec(compile(tree, str(path), "exec"), module.__dict__)  # noqa: S102 - the code is our own


def _folder_of(fullname: str) -> Path:
    return SOURCE.joinpath(*fullname.split(".")[1:])


COUNTER: Final = Counter()


class _Counted:
    """A module that is rewritten when it is first used: every process of the tests collects all of them."""

    def __init__(self, name: str) -> None:
        self._name = name

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_"):  # pytest asks whatever it collects whether it is a fixture
            raise AttributeError(name)
        if not any(isinstance(finder, _Finder) for finder in sys.meta_path):
            sys.meta_path.append(_Finder())
        value = self.__dict__[name] = getattr(importlib.import_module(f"{COUNTED}.{self._name}"), name)
        return value


def counted(name: str) -> Any:
    """Return a module of `compaction`, by its dotted name there, that counts into `COUNTER`."""
    return _Counted(name)
