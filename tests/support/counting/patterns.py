"""A backtracking matcher that counts its steps, since `re` does not tell how far it looked before it gave up.

It takes patterns as `re` parses them and tries what `re` tries in the same order, without its shortcuts, so that its
count is of the same order as the work of `re` and never of a lower one.
"""

from __future__ import annotations

import re
from functools import cache, partial
from re import _constants as codes
from re import _parser as parser
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    Then = Callable[[int], int | None]
    """What has to match from an index on; returns where the whole match ends."""
    Node = Callable[["Attempt", int, Then], int | None]
    Opening = Callable[[str, int, int], int]
    """Steps in which a pattern fails with its first character at an index, up to an end; UNKNOWN where it may not."""

_CATEGORIES: Final[dict[Any, Callable[[str], bool]]] = {
    codes.CATEGORY_DIGIT: str.isdecimal,
    codes.CATEGORY_SPACE: str.isspace,
    codes.CATEGORY_WORD: lambda char: char.isalnum() or char == "_",
    codes.CATEGORY_NOT_DIGIT: lambda char: not char.isdecimal(),
    codes.CATEGORY_NOT_SPACE: lambda char: not char.isspace(),
    codes.CATEGORY_NOT_WORD: lambda char: not (char.isalnum() or char == "_"),
}
UNKNOWN: Final = -1
_SINGLE: Final = frozenset({codes.LITERAL, codes.NOT_LITERAL, codes.ANY, codes.IN})
_REPEATS: Final = frozenset({codes.MAX_REPEAT, codes.MIN_REPEAT, codes.POSSESSIVE_REPEAT})


class Attempt:
    """One text on which a pattern is tried at one place after the other."""

    def __init__(self, pattern: re.Pattern[str], text: str, end: int, tick: Callable[..., None]) -> None:
        self.text = text
        self.end = end
        self.groups: dict[int, tuple[int, int]] = {}
        self.tick = tick
        self._node, self._opening = _compiled(pattern.pattern, pattern.flags)

    def at(self, start: int, *, whole: bool = False) -> int | None:
        """Return where a match from `start` on ends, None for none; `whole` asks for one that reaches the end."""
        self.groups.clear()
        self.tick()
        return self._node(self, start, lambda index: index if not whole or index == self.end else None)

    def at_each(self, places: range) -> None:
        """Try one place after the other, as a search does that finds nothing before the last of them."""
        opening, text, end, count = self._opening, self.text, self.end, 0
        for place in places:
            if opening is None or (steps := opening(text, place, end)) == UNKNOWN:
                self.at(place)
            else:
                count += 1 + steps
        self.tick(count)


@cache
def _compiled(pattern: str, flags: int) -> tuple[Node, Opening | None]:
    items = list(parser.parse(pattern, flags))
    return _sequence(items, flags), _opening(items, flags)


def _opening(items: Sequence[tuple[Any, Any]], flags: int) -> Opening | None:  # noqa: C901, PLR0911 - one for each kind
    """Return a short way to what most places of a text come to: they fail at once; None where there is none."""
    if not items:
        return None
    code, argument = items[0]
    if code in _SINGLE:
        fits = _predicate(items[0], flags)
        return lambda text, index, end: UNKNOWN if index < end and fits(text[index]) else 1
    if code in _REPEATS and argument[0] > 0:
        inner = list(argument[2])
        if len(inner) == 1 and inner[0][0] in _SINGLE:
            fits, steps = _predicate(inner[0], flags), int(code is codes.MIN_REPEAT)
            return lambda text, index, end: UNKNOWN if index < end and fits(text[index]) else steps
        return None
    if code is codes.SUBPATTERN:
        _, added, removed, body = argument
        return _opening(list(body), (flags | added) & ~removed)
    if code is codes.ATOMIC_GROUP:
        return _opening(list(argument), flags)
    if code is codes.BRANCH:
        known = [each for body in argument[1] if (each := _opening(list(body), flags)) is not None]
        return partial(_all_fail, known) if len(known) == len(argument[1]) else None
    rest = _opening(items[1:], flags)
    if code is codes.AT:
        return partial(_fails_here, _here(argument, flags), rest)
    if code in {codes.ASSERT, codes.ASSERT_NOT}:
        direction, body = argument
        inner = list(body)
        if len(inner) == 1 and inner[0][0] in _SINGLE:
            fits = _predicate(inner[0], flags)
            return partial(_fails_beside, fits, int(direction < 0), code is codes.ASSERT, rest)
    return None


def _all_fail(bodies: Sequence[Opening], text: str, index: int, end: int) -> int:
    steps = 0
    for body in bodies:
        if (taken := body(text, index, end)) == UNKNOWN:
            return UNKNOWN
        steps += taken
    return steps


def _fails_here(here: Callable[[str, int, int], bool], rest: Opening | None, text: str, index: int, end: int) -> int:
    if not here(text, index, end):
        return 1
    steps = rest(text, index, end) if rest else UNKNOWN
    return steps if steps == UNKNOWN else 1 + steps


def _fails_beside(
    fits: Callable[[str], bool], width: int, wanted: bool, rest: Opening | None, text: str, index: int, end: int
) -> int:
    at = index - width
    looked = int(at >= 0)
    if bool(looked and at < end and fits(text[at])) is not wanted:
        return looked
    steps = rest(text, index, end) if rest else UNKNOWN
    return steps if steps == UNKNOWN else looked + steps


def _sequence(items: Sequence[tuple[Any, Any]], flags: int) -> Node:
    nodes = [_node(code, argument, flags) for code, argument in items]
    if len(nodes) == 1:
        return nodes[0]

    def run(attempt: Attempt, index: int, then: Then) -> int | None:
        def follow(place: int, at: int) -> int | None:
            if place == len(nodes):
                return then(at)
            return nodes[place](attempt, at, lambda after: follow(place + 1, after))

        return follow(0, index)

    return run


def _node(code: Any, argument: Any, flags: int) -> Node:  # noqa: PLR0911 - one return for each kind of node
    if code in _SINGLE:
        return _single(_predicate((code, argument), flags))
    if code in _REPEATS:
        least, most, body = argument
        inner = list(body)
        if len(inner) == 1 and inner[0][0] in _SINGLE:
            return _run(code, least, most, _predicate(inner[0], flags))
        return _repeat(code, least, most, _sequence(inner, flags))
    if code is codes.SUBPATTERN:
        number, added, removed, body = argument
        return _group(number, _sequence(list(body), (flags | added) & ~removed))
    if code is codes.BRANCH:
        return _branch([_sequence(list(body), flags) for body in argument[1]])
    if code is codes.AT:
        return _place(argument, flags)
    if code in {codes.ASSERT, codes.ASSERT_NOT}:
        direction, body = argument
        width = body.getwidth()[0] if direction < 0 else 0
        return _look(_sequence(list(body), flags), width, wanted=code is codes.ASSERT)
    if code is codes.ATOMIC_GROUP:
        return _atomic(_sequence(list(argument), flags))
    if code is codes.GROUPREF:
        return _reference(argument)
    raise NotImplementedError(str(code))


def _predicate(item: tuple[Any, Any], flags: int) -> Callable[[str], bool]:
    test = _test(item, flags)
    if flags & re.IGNORECASE:
        known = cache(lambda char: any(map(test, {char, char.lower(), char.upper()[:1]})))
    else:
        known = cache(test)
    return known


def _test(item: tuple[Any, Any], flags: int) -> Callable[[str], bool]:
    code, argument = item
    if code is codes.ANY:
        return (lambda _: True) if flags & re.DOTALL else (lambda char: char != "\n")
    if code is codes.LITERAL:
        return lambda char: ord(char) == argument
    if code is codes.NOT_LITERAL:
        return lambda char: ord(char) != argument
    if code is codes.RANGE:
        return lambda char: argument[0] <= ord(char) <= argument[1]
    if code is codes.CATEGORY:
        return _CATEGORIES[argument]
    negated = argument[0][0] is codes.NEGATE
    tests = [_test(item, flags) for item in argument[negated:]]
    return lambda char: any(test(char) for test in tests) is not negated


def _single(fits: Callable[[str], bool]) -> Node:
    def run(attempt: Attempt, index: int, then: Then) -> int | None:
        attempt.tick()
        return then(index + 1) if index < attempt.end and fits(attempt.text[index]) else None

    return run


def _run(code: Any, least: int, most: int, fits: Callable[[str], bool]) -> Node:
    """Return a repeat of single characters."""

    def run(attempt: Attempt, index: int, then: Then) -> int | None:
        text, end, tick = attempt.text, attempt.end, attempt.tick
        stop = min(end, index + most) if most is not codes.MAXREPEAT else end
        at = index
        if code is codes.MIN_REPEAT:
            while True:
                if at - index >= least and (position := then(at)) is not None:
                    return position
                tick()
                if at >= stop or not fits(text[at]):
                    return None
                at += 1
        while at < stop and fits(text[at]):
            at += 1
        tick(at - index)
        if code is codes.POSSESSIVE_REPEAT:
            return then(at) if at - index >= least else None
        while at - index >= least:
            tick()
            if (position := then(at)) is not None:
                return position
            at -= 1
        return None

    return run


def _repeat(code: Any, least: int, most: int, body: Node) -> Node:
    def run(attempt: Attempt, index: int, then: Then) -> int | None:
        if code is codes.POSSESSIVE_REPEAT:
            count = 0
            while count < most:
                attempt.tick()
                after = body(attempt, index, lambda at: at)
                if after is None or after == index:
                    break
                index, count = after, count + 1
            return then(index) if count >= least else None

        def again(count: int, at: int, before: int) -> int | None:
            attempt.tick()
            more = count < most and not (count > least and at == before)
            if code is codes.MIN_REPEAT and count >= least and (position := then(at)) is not None:
                return position
            if more and (position := body(attempt, at, lambda after: again(count + 1, after, at))) is not None:
                return position
            return then(at) if code is codes.MAX_REPEAT and count >= least else None

        return again(0, index, -1)

    return run


def _group(number: int | None, body: Node) -> Node:
    if number is None:
        return body

    def run(attempt: Attempt, index: int, then: Then) -> int | None:
        def close(after: int) -> int | None:
            before = attempt.groups.get(number)
            attempt.groups[number] = index, after
            position = then(after)
            if position is None and before is not None:
                attempt.groups[number] = before
            elif position is None:
                del attempt.groups[number]
            return position

        return body(attempt, index, close)

    return run


def _branch(bodies: Sequence[Node]) -> Node:
    def run(attempt: Attempt, index: int, then: Then) -> int | None:
        for body in bodies:
            if (position := body(attempt, index, then)) is not None:
                return position
        return None

    return run


def _here(place: Any, flags: int) -> Callable[[str, int, int], bool]:
    def here(text: str, index: int, end: int) -> bool:
        if place is codes.AT_BEGINNING_STRING or (place is codes.AT_BEGINNING and not flags & re.MULTILINE):
            return index == 0
        if place is codes.AT_BEGINNING:
            return index == 0 or text[index - 1] == "\n"
        if place is codes.AT_END_STRING:
            return index == end
        if place is codes.AT_END:
            last = index == end or (index == end - 1 and text[index] == "\n")
            return last or bool(flags & re.MULTILINE and text[index] == "\n")
        word = _CATEGORIES[codes.CATEGORY_WORD]
        parted = (index > 0 and word(text[index - 1])) is not (index < end and word(text[index]))
        return parted is (place is codes.AT_BOUNDARY)

    return here


def _place(place: Any, flags: int) -> Node:
    here = _here(place, flags)

    def run(attempt: Attempt, index: int, then: Then) -> int | None:
        attempt.tick()
        return then(index) if here(attempt.text, index, attempt.end) else None

    return run


def _look(body: Node, width: int, *, wanted: bool) -> Node:
    def run(attempt: Attempt, index: int, then: Then) -> int | None:
        position = body(attempt, index - width, lambda at: at) if index >= width else None
        return then(index) if (position is not None) is wanted else None

    return run


def _atomic(body: Node) -> Node:
    def run(attempt: Attempt, index: int, then: Then) -> int | None:
        after = body(attempt, index, lambda at: at)
        return None if after is None else then(after)

    return run


def _reference(number: int) -> Node:
    def run(attempt: Attempt, index: int, then: Then) -> int | None:
        attempt.tick()
        if number not in attempt.groups:
            return None
        start, end = attempt.groups[number]
        said = attempt.text[start:end]
        return then(index + len(said)) if attempt.text.startswith(said, index, attempt.end) else None

    return run
