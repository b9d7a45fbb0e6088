"""What the demo asks in the end: something that its context has no more, and that only recall can answer."""

from __future__ import annotations

import html
import re
import time
from typing import TYPE_CHECKING, Any, Final

import msgspec

from cli.demo.report import Recollection, plain_text
from compaction.messages import blocks
from compaction.recall.tool import NAME

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from cli.client.client import ServiceClient
    from cli.client.types import RecalledPart
    from cli.demo.scenario import Scenario

_HANDLE: Final = re.compile(rf"\[[^\]\n]* more characters: {NAME} (m\d+\.\d+)\]")
_REVIEW: Final = re.compile(r'<blockquote class="review"[^>]*>([^<]+)</blockquote>')


class _Gap(msgspec.Struct, frozen=True):
    """A page that the context shows no more in full, and a sentence of it that is nowhere in it."""

    about: str
    handle: str
    ref: str
    sentence: str


def recollect(
    client: ServiceClient, conversation: str, scenario: Scenario, context: Sequence[Any], originals: Sequence[Any]
) -> Recollection | None:
    """Ask about a page that was cut, as a model does that finds its handle; None where no page was cut."""
    gap = next(_gaps(scenario, context, originals), None)
    if gap is None:
        return None
    call = {"ref": gap.ref}
    started = time.perf_counter()
    parts = [part for passage in client.recall(conversation, call).passages for part in passage.parts]
    return Recollection(
        question=f"What did the first contractor say who reviewed {gap.about}?",
        handle=gap.handle,
        call=call,
        answer=html.unescape(gap.sentence),
        ref=gap.ref,
        characters=max((part.characters for part in parts), default=0),
        is_found=_has(parts, gap.sentence),
        milliseconds=round((time.perf_counter() - started) * 1_000, 1),
    )


def _has(parts: Sequence[RecalledPart], sentence: str) -> bool:
    return any(sentence in part.text for part in parts)


def _gaps(scenario: Scenario, context: Sequence[Any], originals: Sequence[Any]) -> Iterator[_Gap]:
    """Yield the pages that were cut, the newest first."""
    context_text = plain_text(context)
    about = {vacancy.url: f"{vacancy.company} ({vacancy.id})" for vacancy in scenario.scored}
    urls = dict(_opened(originals))
    for call, text in reversed(list(_results(context))):
        handle = _HANDLE.search(text)
        url = urls.get(call, "")
        if handle is None or url not in about:
            continue
        whole = next(said for name, said in _results(originals) if name == call)
        review = _REVIEW.search(whole)
        if review is not None and review[1] not in context_text:
            yield _Gap(about[url], handle[0], handle[1], review[1])


def _opened(messages: Sequence[Any]) -> Iterator[tuple[str, str]]:
    for message in messages:
        for block in blocks(message["content"]):
            if block.get("type") == "tool_use":
                yield block["id"], str(block["input"].get("url", ""))


def _results(messages: Sequence[Any]) -> Iterator[tuple[str, str]]:
    """Yield the id of the call and the text of each tool result."""
    for message in messages:
        for block in blocks(message["content"]):
            if block.get("type") == "tool_result":
                yield str(block["tool_use_id"]), plain_text([{"content": block.get("content") or ""}])
