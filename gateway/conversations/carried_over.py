"""Changes that a client made to its history (ids of calls, cleared results, times), carried over into the head."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import msgspec

from compaction.messages import blocks, tool_result_ids, tool_use_ids
from compaction.shapes.inner import ShapeError
from gateway.conversations.meaning import UNREADABLE, decode_row

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from compaction.shapes.inner import Shape
    from compaction.view import ViewMessage
    from gateway.conversations.histories import ResentHistory
    from gateway.conversations.recognition import RedatedRow
    from store.gateway.histories import Head

_CALLED: Final = ("tool_use_id", "tool_call_id", "call_id")
"""Fields by which a result names its call."""
_value: Final = msgspec.json.Decoder().decode
_encode: Final = msgspec.json.Encoder().encode


def find_open_results(history: ResentHistory, head: Head, first: int) -> list[str]:
    """Return the ids of leading results in the rows from `first` on that no call of the head has."""
    missing: list[str] = []
    for at in range(first, len(history.rows)):
        try:
            identifiers = tool_result_ids(decode_row(history.shape, _value(history.rows[at])).content)
        except (ShapeError, *UNREADABLE):
            break
        if not identifiers:
            break
        missing += [each for each in identifiers if msgspec.json.encode(each).decode() not in head.messages]
    return missing


def with_client_ids(shape: Shape, view: Sequence[ViewMessage], rows: Mapping[int, bytes]) -> tuple[ViewMessage, ...]:
    """Return the messages of a head with the ids that the client's own rows, by seq, have for the same calls."""
    renamed: dict[str, str] = {}
    for message in view:
        if (row := rows.get(message.seq)) is None or not (was := tool_use_ids(message.content)):
            continue
        now = tool_use_ids(decode_row(shape, _value(row)).content)
        if len(was) == len(now):
            renamed |= dict(zip(was, now, strict=True))
    return tuple(message.with_content(_rename_calls(message.content, renamed)) for message in view)


def with_stored_ids(row: bytes, stored_ids: Mapping[str, str]) -> bytes:
    """Return a new row with the ids in its results by which their calls are stored."""
    if not stored_ids or not any(_encode(each) in row for each in stored_ids):
        return row
    value = _value(row)
    changed = _replace_ids(value, stored_ids)
    return row if changed == value else _encode(changed)


def _replace_ids(value: Any, stored_ids: Mapping[str, str]) -> Any:
    if isinstance(value, dict):
        ids = {name: stored_ids[each] for name, each in value.items() if name in _CALLED and str(each) in stored_ids}
        content = {name: _replace_ids(value[name], stored_ids) for name in ("content",) if name in value}
        return {**value, **content, **ids}
    return [_replace_ids(each, stored_ids) for each in value] if isinstance(value, list) else value


def _rename_calls(content: Any, renamed: Mapping[str, str]) -> Any:
    if not isinstance(content, list):
        return content
    every = []
    for block in content:
        name = {"tool_use": "id", "tool_result": "tool_use_id"}.get(str(block.get("type")))
        known = renamed.get(str(block.get(name))) if name is not None else None
        every.append({**block, name: known} if name is not None and known is not None else block)
    return every


def with_client_clearings(
    shape: Shape, view: Sequence[ViewMessage], rows: Mapping[int, bytes]
) -> tuple[ViewMessage, ...]:
    """Return the messages of a head with the results that the client's own rows have shorter."""
    return tuple(_clear_results(shape, message, rows.get(message.seq)) for message in view)


def _clear_results(shape: Shape, message: ViewMessage, row: bytes | None) -> ViewMessage:
    if row is None or not isinstance(message.content, list) or not tool_result_ids(message.content):
        return message
    # By their order: ids that the API would refuse are others in the head.
    results = [block for block in blocks(decode_row(shape, _value(row)).content) if block.get("type") == "tool_result"]
    if len(results) != len(tool_result_ids(message.content)):
        return message
    own = iter(results)
    content = [
        _shorter_result(block, next(own)) if block.get("type") == "tool_result" else block for block in message.content
    ]
    return message.with_content(content)


def _shorter_result(block: dict[str, Any], own: Mapping[str, Any]) -> dict[str, Any]:
    content = own.get("content")
    return {**block, "content": content} if len(_encode(content)) < len(_encode(block.get("content"))) else block


def with_client_dates(
    history: ResentHistory, view: Sequence[ViewMessage], redated: Sequence[RedatedRow]
) -> tuple[ViewMessage, ...]:
    """Return the messages of a head with the words of rows that the client has written with another time."""
    by_seq = {row.seq: row for row in redated}
    return tuple(_redate(history, message, by_seq.get(message.seq)) for message in view)


def _redate(history: ResentHistory, message: ViewMessage, row: RedatedRow | None) -> ViewMessage:
    if row is None:
        return message
    old = _text_of(row.content)
    new = _text_of(decode_row(history.shape, _value(history.rows[row.place])).content)
    content = message.content
    if isinstance(content, str):
        return message.with_content(content.replace(old, new, 1)) if old in content else message
    every: list[Any] = [dict(block) for block in content]
    own = [block for block in blocks(row.content) if block.get("type") == "text"]
    first = next((at for at, block in enumerate(every) if block.get("type") == "text"), None)
    if first is None or not own:
        return message
    # The message's own blocks stand before what compaction put after them.
    count = sum(1 for mine, block in zip(own, every[first:], strict=False) if mine.get("text") == block.get("text"))
    if count == len(own):
        every[first : first + count] = [{"type": "text", "text": new}]
        return message.with_content(every)
    if old in str(every[first]["text"]):
        every[first]["text"] = every[first]["text"].replace(old, new, 1)
        return message.with_content(every)
    return message


def _text_of(content: Any) -> str:
    return "".join(str(block.get("text") or "") for block in blocks(content) if block.get("type") == "text")
