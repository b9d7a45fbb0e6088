"""Strict JSON: bodies whose text, numbers and sizes every later step can take, or a problem that points at what is not.

Parsers disagree about duplicate keys and numbers that no double holds, and the originals are stored as they came. So
anything that two readers could understand differently is refused before it is stored. Lone surrogates become U+FFFD.
"""

from __future__ import annotations

import json
import math
import re
from typing import TYPE_CHECKING, Any, Final, NamedTuple, TypeVar

import msgspec

from actions.errors import InvalidError, from_msgspec, step_into
from compaction.text.surrogates import replace_lone_surrogates
from runtime.errors import RequestError
from runtime.settings import Settings

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

T = TypeVar("T")

MAX_DIGITS: Final = 308
"""Characters of an integer, its sign included; with more it is no finite double, which is what many parsers make it."""
_NUL: Final = b"\\u0000"
_COMPRESSED: Final = (b"\x1f\x8b", b"\x28\xb5\x2f\xfd")
"""How gzip (RFC 1952) and Zstandard (RFC 8878) begin."""
_NOT_FINITE: Final = "Numbers are finite: no NaN, no Infinity, nothing that a double cannot hold."
_NOT_UNICODE: Final = "Text is valid UTF-8."
_NAMES: Final = ("external_id", "user_ref")
"""Names that the client gives: two that differ in a lone surrogate alone must not become one."""
_JSON_ERRORS: Final = (msgspec.DecodeError, UnicodeDecodeError, RecursionError)


class Limits(NamedTuple):
    """What one body may hold; each is explained by the setting of the same name with `max_` before it."""

    turn_messages: int
    message_blocks: int
    context_blocks: int
    json_depth: int
    body_values: int
    object_keys: int
    text_bytes: int
    metadata_bytes: int

    @classmethod
    def of(cls, settings: Settings) -> Limits:
        """Return the limits that the settings state."""
        return cls(*(getattr(settings, f"max_{name}") for name in cls._fields))


class _SuspectError(ValueError):
    """Something in a body is not acceptable; its position is found by reading the body again."""


class _Pairs(list[tuple[str, Any]]):
    """An object's members as they were written, duplicates included."""


class _Fault(NamedTuple):
    """What is wrong with a value, and the way to it, innermost step first."""

    detail: str
    path: list[str | int]


class StrictJson:
    """Reads bodies within `limits`.

    Accepted bodies are parsed by two parsers in C: the standard library's, which shows duplicate keys, and msgspec,
    which checks types and surrogates. Only refused ones are walked in Python, and large or deep ones.
    """

    def __init__(self, limits: Limits) -> None:
        self.limits = limits
        self._too_many = _more_values_than(limits.body_values)
        self._parse = json.JSONDecoder(
            object_pairs_hook=self._object, parse_float=_float, parse_int=_int, parse_constant=_refuse
        ).decode

    def read(self, body: bytes, decode: Callable[[bytes, Any], T], kind: Any) -> T:
        """Return what `decode` makes of a body and its plain values; raise the problem that it has as a `kind`.

        Texts and keys with a lone surrogate have U+FFFD in its place.
        """
        if self._may_be_crowded(body) and self._too_many(body):
            raise InvalidError(
                f"A body has at most {self.limits.body_values:,} values, brackets and commas counted.", ""
            )
        clean, replaced = replace_lone_surrogates(body)
        if replaced:
            _refuse_in_names(body)
            body = clean
        try:
            value = self._parse(body.decode())
            if self._needs_check(body) and (fault := self._find(value, self.limits.json_depth)):
                raise _problem(fault)
            return decode(body, value)
        except msgspec.ValidationError as error:
            raise from_msgspec(error, kind) from None
        except (ValueError, *_JSON_ERRORS) as error:
            raise self._explain(body, error) from None

    def _may_be_crowded(self, body: bytes) -> bool:
        """Tell whether a body may hold too many values; most are shorter than that, or have fewer such characters."""
        most = self.limits.body_values
        return len(body) > most and body.count(b",") + body.count(b"[") + body.count(b"{") > most

    def _object(self, pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        decoded = dict(pairs)
        if len(decoded) != len(pairs) or len(decoded) > self.limits.object_keys:
            raise _SuspectError
        return decoded

    def _needs_check(self, body: bytes) -> bool:
        """Tell whether a body that parses may hold NUL, too many levels or too long a text; most cannot."""
        return (
            len(body) > self.limits.text_bytes
            or _NUL in body
            or body.count(b"[") + body.count(b"{") > self.limits.json_depth
        )

    def _explain(self, body: bytes, error: Exception) -> RequestError:
        """Return the problem of a body that `error` was raised for, with a pointer unless it is no JSON at all."""
        if body.startswith(_COMPRESSED):
            return _malformed(ValueError("it is compressed, and no Content-Encoding is read here: send it as it is"))
        try:
            value = _written(body.decode("utf-8", "surrogateescape"))
        except (ValueError, RecursionError) as reason:
            return _malformed(reason)
        fault = self._find(value, self.limits.json_depth)
        return _problem(fault) if fault else _malformed(error)

    def _find(self, value: Any, levels: int) -> _Fault | None:
        """Return the first fault of a value that may have so many levels; recursion is as deep as these."""
        if isinstance(value, str):
            return self._of_text(value)
        if isinstance(value, float):
            return None if math.isfinite(value) else _Fault(_NOT_FINITE, [])
        if not isinstance(value, (dict, list)):
            return None
        if not levels:
            return _Fault(f"Nested more than {self.limits.json_depth} levels deep.", [])
        if isinstance(value, list) and not isinstance(value, _Pairs):
            return self._of_members(enumerate(value), levels)
        members = value.items() if isinstance(value, dict) else value
        names = [name for name, _ in members]
        return self._of_keys(names) or self._of_members(members, levels, media="media_type" in names)

    def _of_members(
        self, members: Iterable[tuple[str | int, Any]], levels: int, *, media: bool = False
    ) -> _Fault | None:
        for name, inner in members:
            # Base64 is as long as its image or document; the body's limit holds it.
            file = media and name == "data" and isinstance(inner, str)
            fault = self._of_text(inner, bounded=False) if file else self._find(inner, levels - 1)
            if fault is not None:
                fault.path.append(name)
                return fault
        return None

    def _of_keys(self, names: Sequence[str]) -> _Fault | None:
        if len(names) > self.limits.object_keys:
            return _Fault(f"An object has at most {self.limits.object_keys:,} keys.", [])
        for name in names:
            # The pointer ends at the object: a name like this cannot stand in one.
            if fault := self._of_text(name):
                return fault
        seen: set[str] = set()
        for name in names:
            if name in seen:
                return _Fault("This key is given twice; parsers differ about which one counts.", [name])
            seen.add(name)
        return None

    def _of_text(self, text: str, *, bounded: bool = True) -> _Fault | None:
        try:
            size = len(text.encode())
        except UnicodeEncodeError:
            return _Fault(_NOT_UNICODE, [])
        if bounded and size > self.limits.text_bytes:
            return _Fault(f"A text has at most {self.limits.text_bytes:,} bytes.", [])
        return _Fault("Text must not contain the NUL character.", []) if "\x00" in text else None


def _more_values_than(most: int) -> Callable[[bytes], object]:
    """Return what matches a text with more than `most` commas and opening brackets outside of strings.

    It stops at the first one too many, and takes nothing back, so its time is linear whatever the text is.
    """
    return re.compile(
        rb'(?:(?:[^",\[{]++|"(?:[^"\\]++|\\.)*+")*+[,\[{]){%d}+' % (most + 1),
        re.DOTALL,
    ).match


def _refuse_in_names(body: bytes) -> None:
    """Raise the problem of a name with a lone surrogate."""
    try:
        value = json.loads(body)
    except (ValueError, RecursionError):
        return
    for name in _NAMES if isinstance(value, dict) else ():
        if isinstance(given := value.get(name), str) and not _is_unicode(given):
            raise InvalidError("A name is valid UTF-8 without lone surrogates.", f"/{name}")


def _is_unicode(text: str) -> bool:
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def _problem(fault: _Fault) -> RequestError:
    return InvalidError(fault.detail, step_into("", *reversed(fault.path)))


def _malformed(error: Exception) -> RequestError:
    reason = "it is nested too deeply" if isinstance(error, RecursionError) else str(error)
    return RequestError("malformed_json", f"The body is not valid JSON: {reason}")


def _int(digits: str) -> int:
    if len(digits) > MAX_DIGITS:
        raise _SuspectError
    return int(digits)


def _float(digits: str) -> float:
    value = float(digits)
    if not math.isfinite(value):
        raise _SuspectError
    return value


def _refuse(_constant: str) -> Any:
    raise _SuspectError


def _mark(digits: str) -> float:
    return math.inf if len(digits) > MAX_DIGITS else 0.0


_written: Final = json.JSONDecoder(object_pairs_hook=_Pairs, parse_int=_mark).decode
"""Reads a body with every fault still in it: duplicates, surrogates, and numbers that are not finite."""

WITHOUT_SETTINGS: Final = StrictJson(Limits.of(Settings.model_construct()))
"""Reads bodies within the limits of an installation that sets none."""
