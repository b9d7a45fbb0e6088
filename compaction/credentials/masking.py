"""Masks credentials in texts and in the contents of messages: `[secret: aws key, m12]` in the place of a key."""

from __future__ import annotations

import re
from collections import Counter
from functools import partial
from itertools import groupby, pairwise
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from compaction.credentials.detection import find_secrets, is_secret_field, is_secret_flag
from compaction.credentials.marks import blank_marks, mark_for, spans
from compaction.messages import CALLS, INSTRUCTION, OPAQUE, THINKING

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

    from compaction.messages import Content
    from compaction.view import View, ViewMessage

_SPOKEN: Final = frozenset({"text", INSTRUCTION, OPAQUE})
_API_FIELDS: Final = frozenset(
    {"type", "id", "tool_use_id", "cache_control", "signature", "encrypted_content", "media_type", "file_id"}
)
"""Fields of blocks that are the API's own."""
_LEAST_KNOWN: Final = 6
"""Characters; a shorter value is masked where it was found, and not where the same characters stand elsewhere."""
_LEAST_HALF: Final = 4
"""Characters of a credential at a cut that are masked."""
_LEAST_LINE: Final = 16
"""Characters of a line of a private key that are masked by themselves too."""
_MOST_PASSES: Final = 3
_LINES: Final = re.compile(r"\s+|\\+[nr]")
_CUT_AFTER: Final = re.compile(r"\s*(?:\Z|\[|\u2026|\.\.\.)")
_CUTS: Final = ("]", "\u2026", "...")
_EDGE_CHARS: Final = 40
"""Characters between a cut and what it left, at most."""
_JOINED: Final = re.compile(r"[A-Za-z0-9]{2}")
_WORD: Final = re.compile(r"[^\W\d_]+|\d+")


class _KnownSecret(NamedTuple):
    """A credential that was found, and what stands for it."""

    value: str
    mark: str


def mask_text(text: str, seq: int | None = None) -> str:
    """Return `text`, which is of message `seq`, with a mark in the place of each credential; itself without any."""
    return Masker().mask_text(text, seq)


def mask_content(content: Content, seq: int | None = None) -> Content:
    """Return the content of message `seq` with its credentials masked; the same object without any."""
    return Masker().mask_content(content, seq)


class Masker:
    """Masks what belongs together, such as one request, and knows afterwards what it has masked."""

    def __init__(self) -> None:
        self._known: dict[str, _KnownSecret] = {}
        self._kinds: dict[tuple[str, str], None] = {}

    @property
    def counts(self) -> Counter[str]:
        """How many different credentials of each kind were masked."""
        return Counter(kind for kind, _ in self._kinds)

    def mask_text(self, text: str, seq: int | None = None) -> str:
        """Return `text`, which is of message `seq`, with its credentials masked; itself without any."""
        for _ in range(_MOST_PASSES):
            found = [(secret.start, secret.end, secret.kind) for secret in find_secrets(blank_marks(text))]
            if not found:
                break
            text = self._replace_found(text, found, seq)
        return text

    def mask_content(self, content: Content, seq: int | None = None) -> Content:
        """Return the content of message `seq` with its credentials masked; the same object without any."""
        if isinstance(content, str):
            return self.mask_text(content, seq)
        try:
            masked = self._blocks(content, seq)
        except RecursionError:
            # Nested more deeply than anything reads: nobody can say what is in it.
            return [{"type": "text", "text": mark_for("nested data", seq)}]
        return content if masked == content else masked

    def mask_view(self, view: Iterable[ViewMessage]) -> View:
        """Return messages with their credentials masked, each as it was where there are none."""
        return tuple(map(self.mask_message, view))

    def mask_message(self, message: ViewMessage) -> ViewMessage:
        """Return a message with its credentials masked, itself without any."""
        content = self.mask_content(message.content, message.seq)
        return message if content is message.content else message.with_content(content)

    def mask_value(self, value: Any, seq: int | None = None) -> Any:
        """Return a JSON value, such as a system prompt or tools, with its credentials masked."""
        try:
            return self._value(value, seq)
        except RecursionError:
            return mark_for("nested data", seq)

    def mask_cut(self, content: Content, original: Content, seq: int | None) -> Content:
        """Return a content that is a shorter `original` with its credentials masked, and what a cut left of them."""
        known = Masker()
        known.mask_content(original, seq)
        masked = content
        for secret in known._known.values():
            masked = _map_strings(masked, partial(_without_half, known=secret))
        masked = known.mask_content(_map_strings(masked, known._replace_known), seq)
        if masked == content:
            return content
        self._kinds |= known._kinds
        return masked

    def mask_anew(self, content: Content, original: Content, seq: int | None) -> Content:
        """Return the content of message `seq` with the credentials masked in each block that `original` has not.

        The same object where there are none.
        """
        if isinstance(content, str) or isinstance(original, str):
            return content if content == original else self.mask_cut(content, original, seq)
        anew = [block for block in content if block not in original]
        masked = self.mask_cut(anew, original, seq) if anew else anew
        if isinstance(masked, str) or masked == anew:
            return content
        of_block = iter(masked)
        return [block if block in original else next(of_block) for block in content]

    def mask_known(self, text: str) -> str:
        """Return a text of a writer who may have read what was masked: that is masked in it wherever it stands."""
        return self.mask_text(self._replace_known(text))

    def _replace_known(self, text: str) -> str:
        # The longest first: one credential may have the characters of another in it.
        for value, known in sorted(self._known.items(), key=lambda item: -len(item[0])):
            if value in text and len(value) >= _LEAST_KNOWN and not _WORD.fullmatch(value):
                text = _replaced_whole(text, value, known.mark)
        return text

    def _replace_found(self, text: str, found: Sequence[tuple[int, int, str]], seq: int | None) -> str:
        marked = spans(text)
        parts: list[str] = []
        at = 0
        for start, end, kind in found:
            # A mark in what was found stays; a credential that has one in its middle is masked on both sides of it.
            inside = [span for span in marked if start < span[1] and span[0] < end]
            edges = [start, *(edge for span in inside for edge in span), end]
            for begin, stop in zip(edges[::2], edges[1::2], strict=True):
                if begin < stop:
                    parts += [text[at:begin], self._mark(text[begin:stop], kind, seq)]
                    at = stop
        return "".join([*parts, text[at:]])

    def _mark(self, value: str, kind: str, seq: int | None) -> str:
        known = self._known.get(value)
        mark = mark_for(kind, seq)
        if known is None:
            self._known[value] = _KnownSecret(value, mark)
            self._kinds[kind, value] = None
            for line in _LINES.split(value)[1:-1]:
                if len(line) >= _LEAST_LINE:
                    self._known.setdefault(line, _KnownSecret(line, mark))
        return mark

    def _blocks(self, content: Sequence[Any], seq: int | None) -> list[Any]:
        masked: list[Any] = []
        for is_spoken, group in groupby(content, _is_spoken):
            blocks = list(group)
            if is_spoken:
                texts = self._texts([str(block.get("text") or "") for block in blocks], seq)
                masked += [
                    block if text == block.get("text") else {**block, "text": text}
                    for block, text in zip(blocks, texts, strict=True)
                ]
            else:
                masked += [self._block(block, seq) for block in blocks]
        return masked

    def _block(self, block: Any, seq: int | None) -> Any:
        if not isinstance(block, dict) or block.get("type") in THINKING:
            return block
        own = _API_FIELDS | {"name"} if block.get("type") in CALLS else _API_FIELDS
        return {key: value if key in own else self._field(key, value, seq) for key, value in block.items()}

    def _field(self, key: str, value: Any, seq: int | None) -> Any:
        if key == "source" and isinstance(value, dict):
            own = _API_FIELDS | {"data"} if value.get("type") == "base64" else _API_FIELDS
            return {name: part if name in own else self._field(name, part, seq) for name, part in value.items()}
        if key == "content" and isinstance(value, list):
            return self._blocks(value, seq)
        return self._value(value, seq)

    def _texts(self, texts: list[str], seq: int | None) -> list[str]:
        """Return texts that follow each other with their credentials masked: one may stand in two of them."""
        if len(texts) > 1:
            for joint in ("", "\n"):
                texts = self._mask_joined(texts, joint, seq)
        return [self.mask_text(text, seq) for text in texts]

    def _mask_joined(self, texts: list[str], joint: str, seq: int | None) -> list[str]:
        found = find_secrets(blank_marks(joint.join(texts)))
        if not found:
            return texts
        masked = []
        at = 0
        for text in texts:
            own = [
                (max(0, start - at), min(len(text), end - at), kind)
                for start, end, kind in found
                if start < at + len(text) and end > at
            ]
            masked.append(self._replace_found(text, own, seq))
            at += len(text) + len(joint)
        return masked

    def _value(self, value: Any, seq: int | None) -> Any:
        if isinstance(value, str):
            return self.mask_text(value, seq)
        if isinstance(value, dict):
            return {self.mask_text(key, seq): part for key, part in self._fields(value, seq)}
        if isinstance(value, list):
            return self._items(value, seq)
        return value

    def _fields(self, value: Mapping[str, Any], seq: int | None) -> Iterator[tuple[str, Any]]:
        name = next((value[key] for key in ("name", "key", "Name", "Key") if isinstance(value.get(key), str)), None)
        for key, part in value.items():
            kind = is_secret_field(str(key), part) if isinstance(part, str) else None
            if kind is None and isinstance(part, str) and isinstance(name, str) and key in {"value", "Value"}:
                kind = is_secret_field(name, part)
            yield str(key), self._value(part, seq) if kind is None else self._mark(part, kind, seq)

    def _items(self, items: Sequence[Any], seq: int | None) -> list[Any]:
        masked: list[Any] = []
        before: Any = None
        for item in items:
            is_after_flag = isinstance(item, str) and isinstance(before, str)
            kind = is_secret_flag(before, item) if is_after_flag else None
            masked.append(self._value(item, seq) if kind is None else self._mark(item, kind, seq))
            before = item
        return masked


def _is_spoken(block: Any) -> bool:
    return isinstance(block, dict) and block.get("type") in _SPOKEN


def _map_strings(value: Any, change: Callable[[str], str]) -> Any:
    """Return a content with every string of it changed, those of the API's own fields excepted."""
    if isinstance(value, str):
        return change(value)
    if isinstance(value, list):
        return [_map_strings(part, change) for part in value]
    if isinstance(value, dict):
        return {key: part if key in _API_FIELDS else _map_strings(part, change) for key, part in value.items()}
    return value


def _replaced_whole(text: str, value: str, mark: str) -> str:
    """Return a text with `mark` for `value` wherever that is no part of a longer word."""
    parts = text.split(value)
    replaced = parts[0]
    for before, after in pairwise(parts):
        is_part = _JOINED.search(before[-1:] + value[0]) or _JOINED.search(value[-1] + after[:1])
        replaced += f"{value if is_part else mark}{after}"
    return replaced


def _without_half(text: str, known: _KnownSecret) -> str:
    """Return a text that was cut without the half of a credential that the cut left at its edge."""
    value = known.value
    if len(value) < 2 * _LEAST_HALF:
        return text
    text = _without_head(text, known)
    backwards = value[::-1]
    at = text.find(value[-_LEAST_HALF:])
    while at >= 0:
        end = at + _LEAST_HALF
        start = end - _common(text[max(0, end - len(value)) : end][::-1], backwards)
        before = text[max(0, start - _EDGE_CHARS) : start].rstrip()
        if end - start < len(value) and (not before or before.endswith(_CUTS)):
            return f"{text[:start]}{known.mark}{text[end:]}"
        at = text.find(value[-_LEAST_HALF:], end)
    return text


def _without_head(text: str, known: _KnownSecret) -> str:
    at = text.rfind(known.value[:_LEAST_HALF])
    while at >= 0:
        length = _common(text[at : at + len(known.value)], known.value)
        if length < len(known.value) and _CUT_AFTER.match(text, at + length):
            return f"{text[:at]}{known.mark}{text[at + length :]}"
        at = text.rfind(known.value[:_LEAST_HALF], 0, at + _LEAST_HALF - 1)
    return text


def _common(first: str, second: str) -> int:
    """Return how many characters two texts begin with alike."""
    most = min(len(first), len(second))
    return next((at for at in range(most) if first[at] != second[at]), most)
