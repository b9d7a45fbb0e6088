"""Responses: its items to the inner form and back, one stored message an item.

Item types, their fields and what has to stand together are those of the API's reference, "Create a model response".
"""

from __future__ import annotations

from itertools import groupby
from typing import TYPE_CHECKING, Any, Final

from compaction.messages import INSTRUCTION, ITEM, THINKING, blocks, call_id
from compaction.shapes import inner
from compaction.shapes.acceptance import NAME_CHARS
from compaction.shapes.inner import InnerMessage, LeftOut, SentMessage, ShapeError, field
from compaction.shapes.spoken import REASONING, arguments_text, spoken, text_of_result, what_is
from compaction.text.malformed import tool_name
from compaction.tokens import json_text

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from compaction.messages import Block
    from compaction.shapes.inner import Part, Path
    from compaction.view import ViewMessage

CALLS: Final[Mapping[str, str]] = {
    "function_call": "arguments",
    "custom_tool_call": "input",
    "computer_call": "action",
    "local_shell_call": "action",
    "shell_call": "action",
    "apply_patch_call": "operation",
    "mcp_approval_request": "arguments",
}
"""Calls that the client answers, and the field that says with what."""
OUTPUTS: Final[Mapping[str, str]] = {
    **{f"{kind}_output": kind for kind in CALLS if kind != "mcp_approval_request"},
    "mcp_approval_response": "mcp_approval_request",
}
"""Answers to calls, and to which."""
LONGEST_ID: Final = 64
"""Characters of a call's id; other APIs have longer ones, and what came in this shape a provider has taken."""
SEALED: Final = frozenset({"reasoning", "compaction", "compaction_summary"})
"""Items that only the provider that made them can read."""
_APPROVED: Final = "approved"
_ROLES: Final = ("user", "assistant", "system", "developer")
"""Compared one by one: any JSON value may stand there, and a set would ask for its hash."""
_INSTRUCTS: Final = ("system", "developer")
_SAYS: Final = ("title", "url", "queries", "query", "code", "logs", "text", "output", "name", "error", "filename")
"""What is read of items that the API's own tools left; the rest of them is encoded, or for the API alone."""
_MOST_SAID: Final = 20_000
"""Characters read of one of them."""


def decode(item: Mapping[str, Any], path: Path = ()) -> InnerMessage:
    """Return an item in the inner form. Raises ShapeError for what the API would refuse, and for a mere reference."""
    kind = item.get("type", "message" if "role" in item else None)
    if not isinstance(kind, str) or not kind:
        raise ShapeError("An item needs a `type`.", *path, "type")
    if kind == "message":
        return _message(item, path)
    if kind in CALLS:
        return InnerMessage("assistant", [_call(kind, item, path)])
    if kind in OUTPUTS:
        return InnerMessage("user", [_output(kind, item, path)])
    if kind in SEALED:
        return InnerMessage("assistant", [inner.reasoning_part(_summary(item), {"sealed": _sealed_value(item)}, kind)])
    if kind == "item_reference":
        detail = "An item_reference points to what only the provider stores: send the item itself, as it was answered."
        raise ShapeError(detail, *path, "type")
    block = inner.opaque(kind, "\n".join(_readable_texts(item))[:_MOST_SAID])
    block["size"] = max(block["size"], 40)
    return InnerMessage("user" if kind.endswith("_output") else "assistant", [{**block, ITEM: kind}])


def _message(item: Mapping[str, Any], path: Path) -> InnerMessage:
    role = item.get("role")
    if role not in _ROLES:
        raise ShapeError("Expected one of user, assistant, system, developer.", *path, "role")
    parts = list(_parts(item.get("content"), (*path, "content")))
    if role in _INSTRUCTS:
        return inner.instruction("\n".join(str(part.get("text") or "") for part in parts), str(role))
    return InnerMessage("assistant" if role == "assistant" else "user", inner.simplest(parts))


def _parts(content: Any, path: Path) -> Iterator[Part]:
    """Yield the parts of what somebody said, or a tool returned."""
    if isinstance(content, str):
        yield inner.words(content)
        return
    if not isinstance(content, list):
        raise ShapeError("Expected a string or a list of content parts.", *path)
    for index, part in enumerate(content):
        if not isinstance(part, dict):
            raise ShapeError("A content part is an object.", *path, index)
        kind = field(part, "type", str, (*path, index))
        reader = _PARTS.get(kind)
        yield reader(part, (*path, index)) if reader else inner.opaque(kind, size=len(json_text(part)))


def _text(part: Mapping[str, Any], path: Path) -> Part:
    return inner.words(field(part, "text", str, path))


def _image(part: Mapping[str, Any], path: Path) -> Part:
    url = part.get("image_url")
    if isinstance(url, str):
        return inner.image(url)
    return inner.opaque("image", field(part, "file_id", str, path), size=inner.IMAGE_CHARS)


def _file(part: Mapping[str, Any], _: Path) -> Part:
    name, data, url = part.get("filename"), part.get("file_data"), part.get("file_url")
    name = name if isinstance(name, str) else ""
    read = inner.document(name, data) if isinstance(data, str) else None
    if read is None and isinstance(url, str):
        return {"type": "document", "source": {"type": "url", "url": url}}
    return read or inner.file(name, data)


_PARTS: Final[Mapping[str, Callable[[Mapping[str, Any], Path], Part]]] = {
    "input_text": _text,
    "output_text": _text,
    "text": _text,
    "summary_text": _text,
    "refusal": lambda part, path: inner.words(field(part, "refusal", str, path)),
    "input_image": _image,
    "computer_screenshot": _image,
    "input_file": _file,
    "input_audio": lambda part, _: inner.recording(part.get("input_audio") or part),
}


def _call(kind: str, item: Mapping[str, Any], path: Path) -> Part:
    given = item.get(CALLS[kind])
    if kind == "function_call":
        if not isinstance(given, str | dict | None):
            raise ShapeError("Expected `arguments`: a string of JSON.", *path, "arguments")
        given = inner.arguments(given) if isinstance(given, str) else given
    elif isinstance(given, str):
        given = {"input": given}
    name = field(item, "name", str, path) if kind in {"function_call", "custom_tool_call"} else item.get("name") or kind
    if kind != "function_call" and not isinstance(given, dict):
        given = {}
    return inner.call(_identifier(kind, item, path), str(name), given, kind)


def _identifier(kind: str, item: Mapping[str, Any], path: Path) -> str:
    """Return the id that ties a call and its output together."""
    name = {"mcp_approval_request": "id", "mcp_approval_response": "approval_request_id"}.get(kind, "call_id")
    if kind == "local_shell_call_output" and "call_id" not in item:
        name = "id"
    identifier: str = field(item, name, str, path)
    if not identifier:
        raise ShapeError(f"`{name}` is not empty.", *path, name)
    return identifier


def _output(kind: str, item: Mapping[str, Any], path: Path) -> Part:
    identifier = _identifier(kind, item, path)
    if kind == "mcp_approval_response":
        return inner.result(identifier, _APPROVED if item.get("approve") else "denied", kind)
    output = item.get("output")
    if kind in {"function_call_output", "custom_tool_call_output"} and not isinstance(output, str | list | None):
        raise ShapeError("Expected a string or a list of content parts.", *path, "output")
    if kind == "shell_call_output":
        return inner.result(identifier, "\n".join(filter(None, _printed_texts(output))), kind)
    return inner.result(identifier, _content(output, (*path, "output")), kind)


def _printed_texts(output: Any) -> Iterator[str]:
    for each in blocks(output):
        yield from (str(each.get(stream) or "") for stream in ("stdout", "stderr"))


def _content(output: Any, path: Path) -> Any:
    if isinstance(output, list) and all(map(_is_part, output)):
        parts = list(_parts(output, path))
        return [part for part in parts if part["type"] != "text" or part["text"].strip()]
    if _is_part(output):
        return list(_parts([output], path))
    return output if isinstance(output, str) else "" if output is None else json_text(output)


def _is_part(part: Any) -> bool:
    return isinstance(part, dict) and isinstance(part.get("type"), str) and part["type"] in _PARTS


def _summary(item: Mapping[str, Any]) -> str:
    texts = [part.get("text") for name in ("summary", "content") for part in blocks(item.get(name) or [])]
    return "\n".join(text for text in texts if isinstance(text, str))


def _sealed_value(item: Mapping[str, Any]) -> Any:
    return item.get("encrypted_content") or item.get("id")


def _readable_texts(value: Any, key: str = "", depth: int = 0) -> Iterator[str]:
    """Yield the texts of an item, those under keys that people read."""
    if isinstance(value, str):
        if key in _SAYS and value.strip():
            yield value
    elif depth < 6:  # noqa: PLR2004 - the deepest item of the reference has four levels
        if isinstance(value, list):
            for each in value:
                yield from _readable_texts(each, key, depth + 1)
        elif isinstance(value, dict):
            for name, each in value.items():
                yield from _readable_texts(each, name, depth + 1)


def _answer(kind: str) -> Callable[[str, Block], dict[str, Any]]:
    """Return what makes an output of a call that has none of its own."""
    match kind:
        case "mcp_approval_request":
            return lambda known, _: {"type": "mcp_approval_response", "approval_request_id": known}
        case "local_shell_call":
            return lambda known, _: {"type": "local_shell_call_output", "id": known}
        case "apply_patch_call":
            return lambda known, block: {
                "type": "apply_patch_call_output",
                "call_id": known,
                "status": "failed" if block.get("is_error") else "completed",
            }
        case _:
            return lambda known, _: {"type": f"{kind}_output", "call_id": known}


_MADE_UP: Final = {kind: _answer(kind) for kind in CALLS}


def encode(view: Sequence[ViewMessage], sent: Mapping[int, SentMessage]) -> tuple[list[Any], list[LeftOut]]:
    """Return a view as items, those as they were sent that are as they were; and what has no counterpart.

    `sent` has what was sent in this shape, by seq. An item whose reasoning is not shown goes without its id, by which
    the API would look for it; reasoning that no item follows is left out.
    """
    encoder = _Encoder(sent, inner.answered_calls(view))
    encoder.put_in_words(view)
    before = -1
    for role, group in groupby(view, key=lambda message: message.role):
        run = list(group)
        if role == "assistant":
            before = encoder.answers(run, before)
        else:
            encoder.encode_user(run)
            before = run[-1].seq
    return encoder.items, encoder.left_out


class _Encoder:
    def __init__(self, sent: Mapping[int, SentMessage], answered: frozenset[str]) -> None:
        self.items: list[Any] = []
        self.left_out: list[LeftOut] = []
        self._sent = sent
        self._answered = answered
        self._called: dict[str, tuple[str, str]] = {}
        """Of each call so far by its inner id, the id and the type that it was sent with."""
        self._in_words: set[str] = set()
        """Inner ids of calls whose results no item can say in words: they and their calls are text."""

    def put_in_words(self, view: Sequence[ViewMessage]) -> None:
        """Look for results that are not as they were sent, and cannot be sent otherwise."""
        clicks = set()
        for message in view:
            sent = self._sent.get(message.seq)
            for block in blocks(message.content):
                if block.get(ITEM) == "computer_call":
                    clicks.add(block["id"])
                elif block.get("tool_use_id") in clicks and (sent is None or block not in blocks(sent.decoded.content)):
                    self._in_words.add(str(block["tool_use_id"]))

    def encode_user(self, group: Sequence[ViewMessage]) -> None:
        """Write a run of the user's items: results first, as they are wanted directly after their calls."""
        results: list[Any] = []
        others: list[Any] = []
        for message in group:
            sent = self._sent.get(message.seq)
            is_same = (
                sent is not None and inner.is_same(sent.decoded.content, message.content) and self._is_as_called(sent)
            )
            if sent is not None and is_same and not self._is_in_words(message):
                (results if sent.value.get("type") in OUTPUTS else others).append(inner.raw(sent))
            else:
                self._rebuilt(message, sent, results, others)
        self.items += [*results, *others]

    def _rebuilt(self, message: ViewMessage, sent: SentMessage | None, results: list[Any], others: list[Any]) -> None:
        kept = _kept_parts(sent)
        parts: list[Any] = []
        for block in blocks(message.content):
            match block.get("type"):
                case "tool_result" if block.get("tool_use_id") in self._in_words:
                    parts.append({"type": "input_text", "text": spoken(block)})
                case "tool_result":
                    results.append(self._result(block, sent))
                case str(kind) if kind == INSTRUCTION:
                    same = sent is not None and block in blocks(sent.decoded.content)
                    others.append(inner.raw(sent) if sent and same else {"role": block["by"], "content": block["text"]})
                case _:
                    parts += self._part(block, kept, message.seq)
        if parts:
            own = {} if sent is None or sent.value.get("role") != "user" else sent.value
            others.append({**own, "role": "user", "content": parts})

    def _result(self, block: Block, sent: SentMessage | None) -> dict[str, Any]:
        """Return a result; of one that was cut everything but its content is as it was sent."""
        identifier = str(block.get("tool_use_id"))
        own: dict[str, Any] = {}
        if sent is not None and sent.value.get("type") in OUTPUTS and isinstance(sent.decoded.content, list):
            was = sent.decoded.content[0]
            own = dict(sent.value) if was.get("tool_use_id") == identifier else {}
            if own and not self._is_as_called(sent):
                own["call_id"] = self._called[identifier][0]
            if was == block:
                return own
        known, kind = self._called.get(identifier, (identifier, "function_call"))
        return {**_MADE_UP[kind](known, block), **own, **self._output_fields(kind, block)}

    def _is_as_called(self, sent: SentMessage) -> bool:
        """Return whether an output names its call as that is shown; the call may have come in another shape."""
        given = sent.value.get("call_id")
        if not isinstance(given, str) or sent.value.get("type") not in OUTPUTS:
            return True
        known, _ = self._called.get(call_id(given), (given, ""))
        return known == given

    def _output_fields(self, kind: str, block: Block) -> dict[str, Any]:
        """Return the fields of an output that say what the tool returned."""
        if kind == "mcp_approval_request":
            return {"approve": block.get("content") == _APPROVED}
        if kind == "shell_call":
            outcome = {"type": "exit", "exit_code": int(bool(block.get("is_error")))}
            return {"output": [{"stdout": text_of_result(block), "stderr": "", "outcome": outcome}]}
        return {"output": self._output(block)}

    def _output(self, block: Block) -> Any:
        content = block.get("content")
        if isinstance(content, list) and any(part.get("type") == "image" for part in content):
            parts = [each for part in content for each in self._part(part, [], -1)]
            return parts or ""
        return text_of_result(block)

    def _part(self, block: Block, kept: Sequence[tuple[Part, Any]], seq: int) -> list[Any]:
        same = next((part for was, part in kept if inner.is_same(was, block)), None)
        if same is not None:
            return [same]
        url = inner.url_of(block.get("source"))
        if block.get("type") == "image" and url is not None:
            return [{"type": "input_image", "detail": "auto", "image_url": url}]
        if block.get("type") == "document" and url is not None:
            name = {"filename": str(block.get("title") or "file.pdf"), "file_data": url}
            return [{"type": "input_file", **(name if url.startswith("data:") else {"file_url": url})}]
        return [{"type": "input_text", "text": text} for text in self._spoken(block, seq)]

    def _spoken(self, block: Block, seq: int) -> list[str]:
        text = spoken(block)
        if text is None:
            self.left_out.append(LeftOut((seq,), what_is(block)))
        return [text] if text and text.strip() else []

    def answers(self, group: Sequence[ViewMessage], before: int) -> int:
        """Write a run of the model's items, given the seq that stands before it; return that of its last."""
        last = max((at for at, message in enumerate(group) if not _only_thinks(message)), default=-1)
        for at, message in enumerate(group):
            sent = self._sent.get(message.seq)
            self._remember(message, sent)
            if at > last:
                self.left_out.append(LeftOut((message.seq,), REASONING))
            elif sent is None or not inner.is_same(sent.decoded.content, message.content) or self._is_in_words(message):
                self._rewritten(message)
            elif "id" in sent.value and message.seq - 1 != before and self._may_follow_reasoning(message.seq):
                self._without_id(message, sent)
            else:
                self.items.append(inner.raw(sent))
            before = message.seq
        return before

    def _remember(self, message: ViewMessage, sent: SentMessage | None) -> None:
        for block in blocks(message.content):
            if block.get("type") == "tool_use":
                kind = str(block.get(ITEM, "function_call"))
                own = sent is not None and sent.value.get("type") == kind
                named = str(block.get("id"))
                # That of an open call stays, as the client names it in the result that is still to come.
                known = call_id(named, LONGEST_ID) if named in self._answered else named
                known = _identifier(kind, sent.value, ()) if own and sent is not None else known
                self._called[named] = (known, kind)

    def _without_id(self, message: ViewMessage, sent: SentMessage) -> None:
        """Write an item so that it may stand without the reasoning before it, which is not shown."""
        if sent.value.get("type") in CALLS:
            self.items.append({name: value for name, value in sent.value.items() if name != "id"})
        else:
            self._rewritten(message)

    def _may_follow_reasoning(self, seq: int) -> bool:
        before = self._sent.get(seq - 1)
        return seq > 0 and (before is None or before.value.get("type") == "reasoning")

    def _is_in_words(self, message: ViewMessage) -> bool:
        words = self._in_words
        return bool(words) and any(
            block.get("id") in words or block.get("tool_use_id") in words for block in blocks(message.content)
        )

    def _rewritten(self, message: ViewMessage) -> None:
        texts: list[str] = []
        calls: list[Any] = []
        for block in blocks(message.content):
            if block.get("type") in THINKING:
                self.left_out.append(LeftOut((message.seq,), REASONING))
            elif block.get("type") == "tool_use" and block.get("id") not in self._in_words:
                calls.append(self._call(block))
            else:
                texts += self._spoken(block, message.seq)
        if texts:
            self.items.append({"role": "assistant", "content": "\n\n".join(texts)})
        self.items += calls

    def _call(self, block: Block) -> dict[str, Any]:
        identifier = str(block.get("id"))
        known, _ = self._called.get(identifier, (identifier, ""))
        name = tool_name(block.get("name"), NAME_CHARS)
        return {"type": "function_call", "call_id": known, "name": name, "arguments": arguments_text(block)}


def _only_thinks(message: ViewMessage) -> bool:
    content = message.content
    return isinstance(content, list) and all(block.get("type") in THINKING for block in content)


def _kept_parts(sent: SentMessage | None) -> list[tuple[Part, Any]]:
    """Return each part of a message as it was sent beside what it is in the inner form."""
    content = sent.value.get("content") if sent is not None else None
    if not isinstance(content, list):
        return []
    return [(next(_parts([part], ())), part) for part in content if isinstance(part, dict)]
