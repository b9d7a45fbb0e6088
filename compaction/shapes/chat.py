"""Chat Completions: its messages to the inner form and back.

Roles, parts and what has to stand together are those of the API's reference, "Create chat completion". Beside them
`reasoning_content` is DeepSeek's, `reasoning_details` OpenRouter's and `thinking_blocks` LiteLLM's.
"""

from __future__ import annotations

from itertools import groupby
from typing import TYPE_CHECKING, Any, Final

from compaction.messages import INSTRUCTION, THINKING, blocks, call_id
from compaction.shapes import inner
from compaction.shapes.acceptance import NAME_CHARS
from compaction.shapes.inner import InnerMessage, LeftOut, SentMessage, ShapeError, field
from compaction.shapes.spoken import REASONING as REASONED
from compaction.shapes.spoken import arguments_text, spoken, text_of_result, what_is
from compaction.text.malformed import tool_name
from compaction.tokens import json_text

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from compaction.messages import Block
    from compaction.shapes.inner import Part, Path
    from compaction.view import ViewMessage

REASONING: Final = ("reasoning_content", "reasoning", "reasoning_details", "thinking_blocks")
"""Fields of an answer that go back to the model that made it, and to no other."""
INSTRUCTS: Final = ("system", "developer")
_SAYS: Final = ("content", "tool_calls", "function_call", "refusal", "audio")
LONGEST_ID: Final = 40
"""Characters of a call's id; other APIs have longer ones, and what came in this shape a provider has taken."""
FUNCTION: Final = "function:"
"""Begins the id of a call by the deprecated `function_call`, which has none of its own."""


def decode(message: Mapping[str, Any], path: Path = ()) -> InnerMessage:
    """Return a message in the inner form. Raises ShapeError for what the API would refuse."""
    role = message.get("role")
    # Any JSON value may stand there: a set would ask for its hash.
    if role in INSTRUCTS:
        return inner.instruction("\n".join(_only_texts(message.get("content"), (*path, "content"))), str(role))
    if role == "user":
        return InnerMessage("user", inner.simplest(list(_parts(message.get("content"), (*path, "content")))))
    if role == "assistant":
        return InnerMessage("assistant", inner.simplest(_answer(message, path)))
    if role in ("tool", "function"):
        name = "tool_call_id" if role == "tool" else "name"
        identifier = field(message, name, str, path)
        if not identifier:
            raise ShapeError(f"`{name}` is not empty.", *path, name)
        given = message.get("content")
        texts = _only_texts("" if given is None else given, (*path, "content"))
        content: Any = texts[0] if isinstance(given, str) or given is None else [*map(inner.words, filter(None, texts))]
        return InnerMessage("user", [inner.result(identifier if role == "tool" else FUNCTION + identifier, content)])
    raise ShapeError("Expected one of system, developer, user, assistant, tool, function.", *path, "role")


def _only_texts(content: Any, path: Path) -> list[str]:
    """Return the texts of content that may hold nothing else."""
    if isinstance(content, str):
        return [content]
    if not isinstance(content, list) or not content:
        raise ShapeError("Expected a string or a list of text parts.", *path)
    texts = []
    for index, part in enumerate(content):
        if not isinstance(part, dict) or part.get("type") != "text":
            raise ShapeError("Expected a text part.", *path, index)
        texts.append(field(part, "text", str, (*path, index)))
    return texts


def _parts(content: Any, path: Path) -> Iterator[Part]:
    """Yield the parts of what a user or an assistant said."""
    if isinstance(content, str):
        yield inner.words(content)
        return
    if not isinstance(content, list) or not content:
        raise ShapeError("Expected a string or a list of content parts.", *path)
    for index, part in enumerate(content):
        if not isinstance(part, dict):
            raise ShapeError("A content part is an object.", *path, index)
        kind = field(part, "type", str, (*path, index))
        reader = _PARTS.get(kind)
        yield reader(part, (*path, index)) if reader else inner.opaque(kind, size=len(json_text(part)))


def _image(part: Mapping[str, Any], path: Path) -> Part:
    return inner.image(field(field(part, "image_url", dict, path), "url", str, (*path, "image_url")))


def _audio(part: Mapping[str, Any], path: Path) -> Part:
    given = field(part, "input_audio", dict, path)
    field(given, "data", str, (*path, "input_audio"))
    return inner.recording(given)


def _linked_reader(kind: str) -> Callable[[Mapping[str, Any], Path], Part]:
    """Return the reader of a part of vLLM's that links a recording or a video."""

    def read(part: Mapping[str, Any], path: Path) -> Part:
        return inner.linked_medium(kind, field(field(part, kind, dict, path), "url", str, (*path, kind)))

    return read


def _file(part: Mapping[str, Any], path: Path) -> Part:
    given = field(part, "file", dict, path)
    name, data = given.get("filename"), given.get("file_data")
    name = name if isinstance(name, str) else ""
    read = inner.document(name, data) if isinstance(data, str) else None
    return read or inner.file(name, data)


_PARTS: Final[Mapping[str, Callable[[Mapping[str, Any], Path], Part]]] = {
    "text": lambda part, path: inner.words(field(part, "text", str, path)),
    "refusal": lambda part, path: inner.words(field(part, "refusal", str, path)),
    "image_url": _image,
    "input_audio": _audio,
    "file": _file,
    "audio_url": _linked_reader("audio_url"),
    "video_url": _linked_reader("video_url"),
}


def _answer(message: Mapping[str, Any], path: Path) -> list[Part]:
    sealed = {name: message[name] for name in REASONING if message.get(name)}
    parts = [inner.reasoning_part(_reasoning_text(sealed), sealed, "reasoning")] if sealed else []
    content = message.get("content")
    if content not in (None, []):
        parts += _parts(content, (*path, "content"))
    if isinstance(refusal := message.get("refusal"), str) and refusal.strip():
        parts.append(inner.words(refusal))
    if isinstance(audio := message.get("audio"), dict):
        parts.append(inner.opaque("audio", str(audio.get("transcript") or ""), size=inner.AUDIO_CHARS))
    calls = _calls(message, path)
    if content is None and not parts and not calls:
        raise ShapeError("An answer needs content, a refusal or tool calls.", *path, "content")
    return [*parts, *calls]


def _reasoning_text(sealed: Mapping[str, Any]) -> str:
    return "\n".join(value for value in sealed.values() if isinstance(value, str))


def _calls(message: Mapping[str, Any], path: Path) -> list[Part]:
    calls = []
    given = message.get("tool_calls")
    if given is not None and not isinstance(given, list):
        raise ShapeError("Expected a list of tool calls.", *path, "tool_calls")
    for index, each in enumerate(given or ()):
        at: Path = (*path, "tool_calls", index)
        if not isinstance(each, dict):
            raise ShapeError("A tool call is an object.", *at)
        identifier = field(each, "id", str, at)
        if not identifier:
            raise ShapeError("`id` is not empty.", *at, "id")
        if each.get("type") == "custom":
            custom = field(each, "custom", dict, at)
            said = field(custom, "input", str, (*at, "custom"))
            calls.append(inner.call(identifier, field(custom, "name", str, (*at, "custom")), {"input": said}))
        else:
            function = field(each, "function", dict, at)
            calls.append(_function(identifier, function, (*at, "function")))
    if (function := message.get("function_call")) is not None:
        name = field(message, "function_call", dict, path).get("name")
        calls.append(_function(f"{FUNCTION}{name}", function, (*path, "function_call")))
    return calls


def _function(identifier: str, function: Mapping[str, Any], path: Path) -> Part:
    given = function.get("arguments")
    if not isinstance(given, str | dict | None):
        raise ShapeError("Expected `arguments`: a string of JSON.", *path, "arguments")
    read = inner.arguments(given) if isinstance(given, str) else given
    return inner.call(identifier, field(function, "name", str, path), read)


def encode(view: Sequence[ViewMessage], sent: Mapping[int, SentMessage]) -> tuple[list[Any], list[LeftOut]]:
    """Return a view as messages, those as they were sent that are as they were; and what has no counterpart.

    `sent` has what was sent in this shape, by seq. Results stand directly after their calls, images in them after all.
    """
    encoder = _Encoder(sent, inner.answered_calls(view))
    for role, group in groupby(view, key=lambda message: message.role):
        if role == "assistant":
            encoder.answers(list(group))
        else:
            encoder.encode_user(list(group))
    return encoder.messages, encoder.left_out


class _Encoder:
    def __init__(self, sent: Mapping[int, SentMessage], answered: frozenset[str]) -> None:
        self.messages: list[Any] = []
        self.left_out: list[LeftOut] = []
        self._sent = sent
        self._answered = answered
        self._ids = {
            call_id(identifier): identifier for each in sent.values() for identifier in _identifiers(each.value)
        }

    def encode_user(self, group: Sequence[ViewMessage]) -> None:
        """Write a run of the user's messages: results first, as they are wanted directly after their calls."""
        results: list[Any] = []
        others: list[Any] = []
        for message in group:
            sent = self._sent.get(message.seq)
            if sent is not None and inner.is_same(sent.decoded.content, message.content) and self._is_as_called(sent):
                (results if sent.value.get("role") in {"tool", "function"} else others).append(inner.raw(sent))
            else:
                self._rebuilt(message, sent, results, others)
        self.messages += [*results, *others]

    def _id(self, identifier: str) -> str:
        """Return the id by which a call is shown, given its inner one: as it was sent, if that was in this shape.

        That of an open call stays, as the client names it in the result that is still to come.
        """
        if identifier in self._ids or identifier not in self._answered:
            return self._ids.get(identifier, identifier)
        return call_id(identifier, LONGEST_ID)

    def _is_as_called(self, sent: SentMessage) -> bool:
        """Return whether a message names its call as that is shown; the call may have come in another shape."""
        given = sent.value.get("tool_call_id")
        return not isinstance(given, str) or self._id(call_id(given)) == given

    def _rebuilt(self, message: ViewMessage, sent: SentMessage | None, results: list[Any], others: list[Any]) -> None:
        if sent is not None and sent.value.get("name") and (added := _added_text(message, sent)):
            # What is put beside somebody's words does not go under their name.
            others += [inner.raw(sent), {"role": "user", "content": added}]
            return
        kept = _kept_parts(sent)
        parts: list[Any] = []
        for block in blocks(message.content):
            match block.get("type"):
                case "tool_result":
                    results.append(self._result(block, sent))
                    parts += self._media(block, message.seq)
                case str(kind) if kind == INSTRUCTION:
                    same = sent is not None and block in blocks(sent.decoded.content)
                    others.append(inner.raw(sent) if sent and same else {"role": block["by"], "content": block["text"]})
                case _:
                    parts += self._part(block, kept, message.seq)
        if parts:
            said = parts[0]["text"] if len(parts) == 1 and set(parts[0]) == {"type", "text"} else parts
            own = {} if sent is None or sent.value.get("role") != "user" else sent.value
            others.append({**own, "role": "user", "content": said})

    def _result(self, block: Block, sent: SentMessage | None) -> dict[str, Any]:
        """Return a result; of one that was cut everything but its content is as it was sent."""
        text, identifier = text_of_result(block), str(block.get("tool_use_id"))
        if sent is not None and isinstance(sent.decoded.content, list):
            was = sent.decoded.content[0]
            if was.get("tool_use_id") == block.get("tool_use_id"):
                same = was.get("content") == block.get("content")
                named = {"tool_call_id": self._id(identifier)} if "tool_call_id" in sent.value else {}
                return {**sent.value, **named, "content": sent.value.get("content") if same else text}
        return {"role": "tool", "tool_call_id": self._id(identifier), "content": text}

    def _media(self, block: Block, seq: int) -> list[Any]:
        content = block.get("content")
        inside = content if isinstance(content, list) else []
        media = [self._part(part, [], seq) for part in inside if part.get("type") in {"image", "document"}]
        return [part for parts in media for part in parts]

    def _part(self, block: Block, kept: Sequence[tuple[Part, Any]], seq: int) -> list[Any]:
        same = next((part for was, part in kept if inner.is_same(was, block)), None)
        if same is not None:
            return [same]
        url = inner.url_of(block.get("source"))
        if block.get("type") == "image" and url is not None:
            return [{"type": "image_url", "image_url": {"url": url}}]
        if block.get("type") == "document" and url is not None and url.startswith("data:"):
            return [{"type": "file", "file": {"filename": str(block.get("title") or "file.pdf"), "file_data": url}}]
        return self._text(block, seq)

    def _text(self, block: Block, seq: int) -> list[Any]:
        text = spoken(block)
        if text is None:
            self.left_out.append(LeftOut((seq,), what_is(block)))
            return []
        return [inner.words(text)] if text.strip() else []

    def answers(self, group: Sequence[ViewMessage]) -> None:
        """Write a run of the model's answers, as one where any but the last calls: results follow directly."""
        every = [answer for message in group if (answer := self._answer(message)) is not None]
        if any(answer.get("tool_calls") for answer, _ in every[:-1]):
            self.messages.append(_as_one([answer for answer, _ in every]))
        else:
            self.messages += [answer if sent is None else inner.raw(sent) for answer, sent in every]

    def _answer(self, message: ViewMessage) -> tuple[Mapping[str, Any], SentMessage | None] | None:
        """Return an answer and, if it is as it was sent, that; None where nothing of it can be said."""
        sent = self._sent.get(message.seq)
        if sent is not None and inner.is_same(sent.decoded.content, message.content):
            return ({**sent.value, "content": ""}, None) if _says_nothing(sent.value) else (sent.value, sent)
        own = dict(sent.value) if sent is not None and sent.value.get("role") == "assistant" else {}
        was = blocks(sent.decoded.content) if own and sent is not None else []
        now = blocks(message.content)
        if not any(block.get("type") in THINKING for block in now):
            own = {name: value for name, value in own.items() if name not in REASONING}
        said = [block for block in now if block.get("type") not in {*THINKING, "tool_use"}]
        if not own or said != [block for block in was if block.get("type") not in {*THINKING, "tool_use"}]:
            own = {name: value for name, value in own.items() if name not in {"refusal", "audio", "annotations"}}
            texts = [part["text"] for block in said for part in self._text(block, message.seq)]
            own["content"] = "\n\n".join(texts) or None
        self._foreign_thinking(now, was, message.seq)
        own = self._with_calls(own, [block for block in now if block.get("type") == "tool_use"], was)
        return ({**own, "role": "assistant"}, None) if any(own.get(name) for name in _SAYS) else None

    def _foreign_thinking(self, now: Sequence[Any], was: Sequence[Any], seq: int) -> None:
        if any(block.get("type") in THINKING and block not in was for block in now):
            self.left_out.append(LeftOut((seq,), REASONED))

    def _with_calls(self, own: dict[str, Any], calls: Sequence[Any], was: Sequence[Any]) -> dict[str, Any]:
        if calls == [block for block in was if block.get("type") == "tool_use"]:
            return own
        given = {call_id(str(each.get("id"))): each for each in own.get("tool_calls") or ()}
        rest = {name: value for name, value in own.items() if name not in {"tool_calls", "function_call"}}
        wanted = [given.get(str(block.get("id"))) or self._call(block) for block in calls]
        return {**rest, "tool_calls": wanted} if wanted else rest

    def _call(self, block: Block) -> dict[str, Any]:
        function = {"name": tool_name(block.get("name"), NAME_CHARS), "arguments": arguments_text(block)}
        return {"id": self._id(str(block.get("id"))), "type": "function", "function": function}


def _as_one(answers: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Return neighbouring answers as one, which calls all that they call."""
    texts = [text for answer in answers for text in _texts(answer.get("content"))]
    calls = [call for answer in answers for call in answer.get("tool_calls") or ()]
    other_fields = {
        name: value for answer in answers for name, value in answer.items() if name not in {"content", "tool_calls"}
    }
    return {**other_fields, "content": "\n\n".join(texts) or None, **({"tool_calls": calls} if calls else {})}


def _says_nothing(message: Mapping[str, Any]) -> bool:
    """Return whether an answer has reasoning alone: its content is required then, and null is none."""
    return (
        message.get("role") == "assistant"
        and not any(message.get(name) for name in _SAYS)
        and (message.get("content") != "")
    )


def _texts(content: Any) -> list[str]:
    parts = (
        [content] if isinstance(content, str) else [part.get("text") or part.get("refusal") for part in content or ()]
    )
    return [part for part in parts if part]


def _identifiers(message: Mapping[str, Any]) -> Iterator[str]:
    for each in message.get("tool_calls") or ():
        yield str(each.get("id"))


def _added_text(message: ViewMessage, sent: SentMessage) -> str:
    """Return the text that a user's message has after what was sent, "" if it is not all there or nothing was added."""
    now, was = message.content, sent.decoded.content
    if message.role != "user" or sent.value.get("role") != "user" or not was:
        return ""
    if isinstance(now, str) and isinstance(was, str):
        return now[len(was) :].strip() if now.startswith(f"{was}\n\n") else ""
    before, after = blocks(now)[: len(blocks(was))], blocks(now)[len(blocks(was)) :]
    if before != blocks(was) or any(set(block) != {"type", "text"} for block in after):
        return ""
    return "\n\n".join(str(block["text"]) for block in after)


def _kept_parts(sent: SentMessage | None) -> list[tuple[Part, Any]]:
    """Return each part of a message as it was sent beside what it is in the inner form."""
    if sent is None:
        return []
    content = sent.value.get("content")
    if not isinstance(content, list):
        return []
    return [(next(_parts([part], ())), part) for part in content if isinstance(part, dict)]
