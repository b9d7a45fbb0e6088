"""Repair: a view that the Messages API accepts, whatever was stored.

Nothing stored is changed; only the view is. A view that is already sound comes back as the same objects.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import defaultdict
from dataclasses import dataclass, field
from itertools import groupby, takewhile
from operator import attrgetter
from typing import TYPE_CHECKING, Any, Final

from compaction.messages import (
    CALLER,
    ITEM,
    SERVER_CALLS,
    THINKING,
    acceptable,
    calling_tool,
    is_server_result,
    is_signed_summary,
)
from compaction.soundness import is_sound
from compaction.text.malformed import repair_media
from compaction.tokens import json_text
from compaction.view import MARKER, OPENING, OUT_OF_PLACE, View, ViewMessage, signed_summary

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence

NO_RESULT: Final = "No result was recorded for this tool call."
LATE: Final = f"{OUT_OF_PLACE} the result of an earlier tool call came late.)"
LATE_DATA: Final = f"{OUT_OF_PLACE} what follows is data from a tool, the result of an earlier call that came late.)"
ORPHANED: Final = f"{OUT_OF_PLACE} what follows is data from a tool, the result of no call that was made here.)"
NOTHING: Final = f"{OUT_OF_PLACE} it held nothing that can be shown.)"
_SAID_CHARS: Final = 2_000
"""Characters of results without a place that are shown as text."""


@dataclass(slots=True)
class Repairs:
    """How much of a view had to be mended."""

    moved_results: int = 0
    missing_results: int = 0
    renamed_calls: int = 0
    repaired_arguments: int = 0
    repaired_media: int = 0
    detached_calls: int = 0
    dropped_blocks: int = 0
    stale_thinking: int = 0
    last_thinking: int = 0
    stood_in: bool = False
    opened: bool = False

    def count(self, before: Mapping[str, Any], after: Mapping[str, Any]) -> None:
        """Count what was repaired inside a block."""
        match before["type"]:
            case "tool_use":
                self.repaired_arguments += before.get("input") is not after["input"]
                self.renamed_calls += (before.get("id"), before.get("name")) != (after["id"], after["name"])
            case "image" | "document":
                self.repaired_media += 1
            case "tool_result" if isinstance(inner := before.get("content"), list):
                self.repaired_media += sum(isinstance(part, dict) and repair_media(part) is not part for part in inner)

    def warnings(self) -> list[str]:
        """Return what was mended, in plain words."""
        counted = [text.format(count=count) for name, text in _WARNINGS if (count := getattr(self, name))]
        if self.stood_in:
            counted.append("the newest message has no place where it was sent; a text stands for it")
        if self.opened:
            counted.append("the conversation begins with the assistant; an opening user message was put before it")
        return counted


_WARNINGS: Final = (
    ("moved_results", "{count} tool result(s) were stored out of place and moved to their call"),
    ("missing_results", "{count} tool call(s) had no result stored and got an error result"),
    ("renamed_calls", "{count} tool call(s) have an id or a name that the API refuses and got another"),
    ("detached_calls", "{count} tool call(s) were made by a server tool's call that is not shown and stand without it"),
    ("repaired_arguments", "{count} tool call(s) have arguments that are no JSON object and are served as one"),
    ("repaired_media", "{count} image(s) or file(s) have no data, or a wrong media type, and are served repaired"),
    ("dropped_blocks", "{count} empty or orphaned block(s) are left out"),
    ("stale_thinking", "{count} block(s) of thinking from before a late tool result are left out"),
    ("last_thinking", "{count} block(s) of thinking that nothing was said after are left out"),
)
"""Counters of repairs and what a warning says of each, in this order."""


@dataclass(slots=True)
class _Draft:
    source: ViewMessage
    parts: list[dict[str, Any]]
    changed: bool = False

    @property
    def role(self) -> str:
        return self.source.role

    def finish(self) -> ViewMessage:
        return self.source.with_content(self.parts) if self.changed else self.source


@dataclass(slots=True)
class _Occurrence:
    position: int
    block: dict[str, Any]
    used: bool = field(default=False)


def missing_result(identifier: str) -> dict[str, Any]:
    """Return the error that stands for the result of a call that was never answered."""
    return {"type": "tool_result", "tool_use_id": identifier, "is_error": True, "content": NO_RESULT}


def is_missing_result(block: Mapping[str, Any]) -> bool:
    """Return whether a result is the error that stands for one that was not there."""
    return block.get("content") == NO_RESULT and bool(block.get("is_error"))


def repair(view: Sequence[ViewMessage], *, ends_with_newest: bool = True) -> tuple[View, Repairs]:
    """Return a valid view and what it took.

    Empty blocks and messages go; results move to their call, missing ones become error results, orphans go. The
    calls of a last assistant message are left open: their results are still to come. Where nothing is left at the end
    of a last message from the user, a text replaces it, unless it is not wanted that the view `ends_with_newest`.
    """
    return (tuple(view), Repairs()) if is_sound(view) else mend(view, ends_with_newest=ends_with_newest)


def mend(view: Sequence[ViewMessage], *, ends_with_newest: bool = True) -> tuple[View, Repairs]:
    """Do what `repair` does without looking first whether there is anything to do."""
    repairs = Repairs()
    mended = _until_settled(tuple(view), repairs)
    if ends_with_newest and view and (text := _stand_in(view[-1], mended)) is not None:
        repairs.stood_in = True
        # Calls that were left open cannot be any more.
        mended = _until_settled(_with_text(mended, view[-1].seq, text), repairs)
    return mended, repairs


def _with_text(view: View, seq: int, text: str) -> View:
    """Return a view with a text at the end of its message `seq`, which has nothing now but errors for open calls."""
    if view and view[-1].role == "user" and view[-1].seq == seq:
        return (*view[:-1], view[-1].with_content([*_blocks(view[-1]), {"type": "text", "text": text}]))
    return (*view, ViewMessage("user", text, seq))


def _until_settled(view: View, repairs: Repairs) -> View:
    """Mend until nothing changes: what one pass empties may bring neighbours together that were apart."""
    while (after := _mend(view, repairs)) != view:
        view = after
    return view


def _stand_in(newest: ViewMessage, mended: View) -> str | None:
    """Return the text that replaces a last message from the user of which the end shows nothing, else None."""
    own = _clean(newest, Repairs()).parts
    if newest.role != "user" or any(block["type"] != "tool_result" for block in own):
        return None
    results = {json_text(block): block for block in own}
    ids = {block["tool_use_id"] for block in results.values()}
    if not results.keys().isdisjoint(_results(takewhile(_is_from_user, reversed(mended)), ids)):
        return None
    orphaned = results.keys() - set(_results(mended, ids))
    # A late result stands with its call as well, but there it may be cut or summarized before the model was asked.
    said = "\n".join(_result_text(block) for key, block in results.items() if not orphaned or key in orphaned)
    if len(said) > _SAID_CHARS + len(MARKER):
        said = said[:_SAID_CHARS] + MARKER
    if said.strip():
        return f"{ORPHANED if orphaned else LATE_DATA}\n{said}"
    if results and not orphaned:
        return LATE
    if mended and (mended[-1].role == "user" or any(block["type"] == "tool_use" for block in _blocks(mended[-1]))):
        return None
    return NOTHING


def _blocks(message: ViewMessage) -> list[dict[str, Any]]:
    return message.content if isinstance(message.content, list) else []


def _is_from_user(message: ViewMessage) -> bool:
    return message.role == "user"


def _results(view: Iterable[ViewMessage], ids: Collection[str]) -> Iterator[str]:
    """Yield the results of these calls as JSON text."""
    for message in view:
        for block in _blocks(message):
            if block.get("type") == "tool_result" and block.get("tool_use_id") in ids:
                yield json_text(block)


def _result_text(block: dict[str, Any]) -> str:
    content = block.get("content", "")
    if isinstance(content, str):
        return content
    return "\n".join(str(part.get("text") or "") for part in content if part.get("type") == "text")


def _mend(view: View, repairs: Repairs) -> View:
    drafts = _first_summary_only([_clean(message, repairs) for message in view], repairs)
    groups = [list(group) for _, group in groupby(drafts, key=lambda draft: draft.role)]
    for group in groups:
        if group[0].role == "assistant":
            _drop_repeated_calls(group, repairs)
    _pair_server_tools(groups, repairs)
    for group in groups:
        if group[0].role == "assistant":
            _order_answer(group, repairs)
    _pair(groups, repairs)
    mended = [draft.finish() for draft in drafts if draft.parts]
    if mended and mended[0].role != "user" and signed_summary(mended) is None:
        repairs.opened = True
        mended.insert(0, ViewMessage("user", OPENING))
    return tuple(mended)


def _clean(message: ViewMessage, repairs: Repairs) -> _Draft:
    content = message.content
    if isinstance(content, str):
        text = [{"type": "text", "text": content}]
        if content.strip():
            return _Draft(message, text)
        repairs.dropped_blocks += 1
        return _Draft(message, [])
    parts: list[dict[str, Any]] = []
    changed = False
    for block in content if isinstance(content, list) else ():
        kept = acceptable(message.role, block)
        if kept is None:
            repairs.dropped_blocks += 1
        else:
            parts.append(kept)
            if kept is not block:
                repairs.count(block, kept)
        changed = changed or kept is not block
    return _Draft(message, parts, changed)


def _first_summary_only(drafts: list[_Draft], repairs: Repairs) -> list[_Draft]:
    """Return the drafts that hold anything, without signed summaries after the first block: the API refuses them."""
    kept = [draft for draft in drafts if draft.parts]
    for place, draft in enumerate(kept):
        own = [block for at, block in enumerate(draft.parts) if place == at == 0 or not is_signed_summary(block)]
        if len(own) != len(draft.parts):
            repairs.dropped_blocks += len(draft.parts) - len(own)
            draft.parts, draft.changed = own, True
    return [draft for draft in kept if draft.parts]


def _drop_repeated_calls(group: list[_Draft], repairs: Repairs) -> None:
    """Keep the first of several calls with one id inside what the API takes as one assistant message."""
    seen: set[str] = set()
    for draft in group:
        kept: list[dict[str, Any]] = []
        for block in draft.parts:
            if block.get("type") == "tool_use":
                if block["id"] in seen:
                    continue
                seen.add(block["id"])
            kept.append(block)
        if len(kept) != len(draft.parts):
            repairs.dropped_blocks += len(draft.parts) - len(kept)
            draft.parts, draft.changed = kept, True


def _order_answer(group: list[_Draft], repairs: Repairs) -> None:
    """Let calls end what the Messages API takes as one assistant message, and thinking not: it refuses both."""
    every = [block for draft in group for block in draft.parts]
    if any(ITEM in block for block in every):
        return
    calls = [block for block in every if block.get("type") == "tool_use"]
    rest = [block for block in every if block.get("type") != "tool_use"]
    if calls and every[len(rest) :] != calls:
        _think_first(group)
        every = [block for draft in group for block in draft.parts]
    if calls and every[len(rest) :] != calls:
        newest = next(draft for draft in reversed(group) if draft.parts)
        for draft in group:
            draft.parts = [block for block in draft.parts if block.get("type") != "tool_use"]
            draft.changed = True
        newest.parts += calls
    ends = not calls
    for draft in reversed(group):
        said = len(draft.parts)
        # What is cut off while it is thought has no signature yet.
        while said and (last := draft.parts[said - 1])["type"] in THINKING and (ends or last.get("signature") == ""):
            said -= 1
        if said < len(draft.parts):
            repairs.last_thinking += len(draft.parts) - said
            draft.parts, draft.changed = draft.parts[:said], True
        ends = ends and not said


def _think_first(group: list[_Draft]) -> None:
    """Put what was thought after the first call before it: calls stay where they are served once it is left out."""
    late: list[dict[str, Any]] = []
    calling: tuple[_Draft, int] | None = None
    for draft in group:
        kept: list[dict[str, Any]] = []
        for block in draft.parts:
            if calling is not None and block["type"] in THINKING:
                late.append(block)
                continue
            if calling is None and block["type"] == "tool_use":
                calling = draft, len(kept)
            kept.append(block)
        draft.changed = draft.changed or len(kept) != len(draft.parts)
        draft.parts = kept
    if calling is not None and late:
        first, at = calling
        first.parts[at:at] = late
        first.changed = True


def _pair(groups: list[list[_Draft]], repairs: Repairs) -> None:
    """Put every result directly after its call. Groups are runs of one role, which the API combines."""
    results, written, calls = _index(groups)
    wanted: dict[int, list[dict[str, Any]]] = defaultdict(list)
    # Where thinking was signed before a result that came late: from which group, up to which.
    stale: dict[int, int] = {}
    for identifier, positions in calls.items():
        calling = set(positions)
        for place, position in enumerate(positions):
            if position == len(groups) - 1:
                continue
            until = positions[place + 1] if place + 1 < len(positions) else len(groups)
            result = _first_unused(results.get(identifier, []), position, until)
            if result is None and position - 2 not in calling:
                # Directly before its call, and no second answer to the call before: it was stored too early.
                result = _first_unused(results.get(identifier, []), position - 2, position)
            if result is None:
                result = _first_unused(written.get(identifier, []), position, position + 2)
            if result is None:
                repairs.missing_results += 1
            elif result.position != position + 1:
                repairs.moved_results += 1
                stale[position + 2] = max(result.position, stale.get(position + 2, 0))
            wanted[position + 1].append(result.block if result else missing_result(identifier))
    repairs.dropped_blocks += sum(not result.used for every in results.values() for result in every)
    _settle(groups, wanted, stale, repairs)


def _settle(
    groups: list[list[_Draft]], wanted: Mapping[int, list[dict[str, Any]]], stale: Mapping[int, int], repairs: Repairs
) -> None:
    """Place the results that are wanted, and leave out thinking whose prefix that changes."""
    stale_until = 0
    for position, group in enumerate(groups):
        stale_until = max(stale_until, stale.get(position, 0))
        if group[0].role == "user":
            placed = wanted.get(position, [])
            newest, shown = group[-1].parts, {id(block) for block in placed}
            _place(group, placed)
            if all(block["type"] == "tool_result" and id(block) not in shown for block in newest):
                # While it was the newest a text stood in for it, which what was thought next was signed for.
                stale_until = max(stale_until, position + 2)
        elif position < stale_until:
            repairs.stale_thinking += _strip_thinking(group)


def _strip_thinking(group: list[_Draft]) -> int:
    """Leave out thinking that was signed before a result came late: its prefix has changed. Return how much."""
    count = 0
    for draft in group:
        kept = [block for block in draft.parts if block["type"] not in THINKING]
        if len(kept) != len(draft.parts):
            count += len(draft.parts) - len(kept)
            draft.parts, draft.changed = kept, True
    return count


def _index(
    groups: list[list[_Draft]],
) -> tuple[dict[str, list[_Occurrence]], dict[str, list[_Occurrence]], dict[str, list[int]]]:
    """Return, by id, where every result is, where what a snapshot says in the place of one, and which groups call."""
    results: dict[str, list[_Occurrence]] = defaultdict(list)
    written: dict[str, list[_Occurrence]] = defaultdict(list)
    calls: dict[str, list[int]] = defaultdict(list)
    for position, group in enumerate(groups):
        for block in (block for draft in group for block in draft.parts):
            if block.get("type") == "tool_result":
                kind = written if is_missing_result(block) else results
                kind[block["tool_use_id"]].append(_Occurrence(position, block))
            elif block.get("type") == "tool_use":
                calls[block["id"]].append(position)
    return results, written, calls


def _first_unused(occurrences: list[_Occurrence], after: int, until: int) -> _Occurrence | None:
    """Return the first of the occurrences, which are in order, that is in between and answers no call yet."""
    for index in range(bisect_right(occurrences, after, key=attrgetter("position")), len(occurrences)):
        occurrence = occurrences[index]
        if occurrence.position >= until:
            return None
        if not occurrence.used:
            occurrence.used = True
            return occurrence
    return None


def _place(group: list[_Draft], wanted: list[dict[str, Any]]) -> None:
    """Leave exactly the `wanted` results in a run of user messages, before everything else."""
    present = [block for draft in group for block in draft.parts]
    here = [block for block in present if block.get("type") == "tool_result"]
    in_place = {id(block) for block in wanted}
    if len(here) == len(wanted) and all(id(block) in in_place for block in here):
        kinds = [block.get("type") == "tool_result" for block in present]
        if kinds == sorted(kinds, reverse=True):
            return
    staying = [block for block in here if id(block) in in_place]
    stay = {id(block) for block in staying}
    added = [block for block in wanted if id(block) not in stay]
    for draft in group:
        rest = [block for block in draft.parts if block.get("type") != "tool_result"]
        draft.changed = draft.changed or len(rest) != len(draft.parts)
        draft.parts = rest
    if staying or added:
        group[0].parts = [*staying, *added, *group[0].parts]
        group[0].changed = True


def _pair_server_tools(groups: list[list[_Draft]], repairs: Repairs) -> None:
    """Drop server-tool calls without a result and results without a call; a loop under way may be unfinished.

    While a server tool runs it may have the client's tools called: then its result is in a later answer, with nothing
    but the results of those calls between. A call of the client's tools that names a server call which is gone stands
    as the model's own.
    """
    waiting: dict[str, dict[str, Any]] = {}
    stray: set[int] = set()
    for group in groups:
        parts = [block for draft in group for block in draft.parts]
        if group[0].role == "user":
            is_answer = all(block["type"] == "tool_result" for block in parts)
        else:
            _match_server_results(parts, waiting, stray)
            is_answer = group is groups[-1] or any(block["type"] == "tool_use" for block in parts)
        if not is_answer:
            stray.update(map(id, waiting.values()))
            waiting = {}
    for draft in (draft for group in groups for draft in group) if stray else ():
        kept = [block for block in draft.parts if id(block) not in stray]
        if len(kept) != len(draft.parts):
            repairs.dropped_blocks += len(draft.parts) - len(kept)
            draft.parts, draft.changed = kept, True
    _detach_calls(groups, repairs)


def _match_server_results(parts: Sequence[dict[str, Any]], waiting: dict[str, dict[str, Any]], stray: set[int]) -> None:
    """Add an answer's server calls to `waiting`, remove those that it has the result of, and note stray blocks."""
    called: set[str] = set()
    for block in parts:
        if block["type"] in SERVER_CALLS:
            if block["id"] in called or block["id"] in waiting:
                stray.add(id(block))
            else:
                called.add(block["id"])
                waiting[block["id"]] = block
        elif is_server_result(block) and waiting.pop(str(block.get("tool_use_id")), None) is None:
            stray.add(id(block))


def _detach_calls(groups: list[list[_Draft]], repairs: Repairs) -> None:
    """Take the name of the calling server tool off calls whose server call does not stand before them."""
    server_calls: set[str] = set()
    for draft in (draft for group in groups for draft in group if draft.role == "assistant"):
        for place, block in enumerate(draft.parts):
            if block["type"] in SERVER_CALLS:
                server_calls.add(block["id"])
            elif (caller := calling_tool(block)) is not None and caller not in server_calls:
                draft.parts[place] = {key: value for key, value in block.items() if key != CALLER}
                draft.changed = True
                repairs.detached_calls += 1
