"""Assembly: the whole payload under one budget, the one place where all layers meet (requirement P2)."""

from __future__ import annotations

import math
import re
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from compaction.coverage import name_seqs
from compaction.media.limits import limits_of, media_load, shed_warning
from compaction.media.shedding import shed_media
from compaction.messages import blocks, has_thinking, is_request, tool_result_ids
from compaction.pins.serving import fit_with_rules
from compaction.policy import reserved_output
from compaction.repair import repair
from compaction.shorten.fitting import FittedHistory, fit_history
from compaction.shorten.trimming import drop_oldest
from compaction.steps.ladder import over_by_fixed
from compaction.text.outline import ContextBlock, outline, read_share
from compaction.tokens import CHARS_PER_TOKEN as CHARS
from compaction.tokens import content_tokens, json_text, text_weight
from compaction.view import WRITTEN, View, ViewMessage, strip_thinking, view_tokens

if TYPE_CHECKING:
    from collections.abc import Sequence

    from compaction.pins.pinned import Pin
    from compaction.policy import Policy
    from compaction.recall.handles import Handles
    from compaction.text.outline import Form

TAG: Final = "context"
"""Element that a context block is put in, in the user's message."""
_CLOSING: Final = re.compile(rf"</\s*{TAG}\s*>", re.IGNORECASE)
_NAMED: Final = 10
"""Context blocks that a warning names."""
_FORMS: Final[dict[Form | None, str]] = {
    "summary": "are shown by their summary",
    "outline": "are shown by their outline",
    None: "were left out",
}
_STRIPPED: Final = "signed thinking of the loop under way is left out: the context blocks before it had to be shortened"
_ASKED: Final = -2
"""The seq by which the user's message is found again after repair; WRITTEN stands for others too."""


class UserMessageError(ValueError):
    """Nothing of the user's message can follow the history."""


class Layers(NamedTuple):
    """What a payload is made of: L1 to L5."""

    system: Any = None
    tools: Any = None
    prior: tuple[ContextBlock, ...] = ()
    turn: tuple[ContextBlock, ...] = ()
    history: View = ()
    user_message: ViewMessage | None = None


class History(NamedTuple):
    """What is known of the history besides its view."""

    exchanges: int
    """Exchanges of the whole context; the view may hold only the newest."""
    factor: float = 1.0
    """What estimates are multiplied by to agree with what the API counted."""
    carries_summary: bool = False
    lacks_rounds: bool = False
    """Whether the view holds only the newest rounds of the last exchange."""
    unread: Sequence[int] = ()
    """Seqs of messages that would not have fitted and are not in the view."""
    unstored: int = 0
    """Tokens, before the factor, that the client sends besides the layers, unknown to the service."""
    handles: Handles | None = None
    """By what names texts that lose their middle can be had back; None where the policy has no handles."""
    rules: Sequence[Pin] = ()
    """The rules in force."""
    is_part: bool = False
    """Whether messages were not read because they would not have fitted."""
    frame_code: str = ""
    """Of the conversation's frames."""

    def scale_estimate(self, tokens: float) -> int:
        """Return what the API is expected to count for an estimate."""
        return math.ceil(tokens * self.factor)


class GivenWay(NamedTuple):
    """A context block that is not shown whole; without a form it was left out."""

    source: str
    form: Form | None


class FittedBlocks(NamedTuple):
    """Prior and turn context as far as there is room, and what of it is not shown whole."""

    prior: tuple[ContextBlock, ...]
    turn: tuple[ContextBlock, ...]
    given_way: tuple[GivenWay, ...]


class Assembly(NamedTuple):
    """A payload and what each layer weighs, in tokens."""

    messages: View
    system_tokens: int
    prior_tokens: int
    turn_tokens: int
    user_tokens: int
    fitted: FittedHistory
    exchanges_total: int
    budget: int
    reserved: int
    given_way: tuple[GivenWay, ...] = ()
    warnings: tuple[str, ...] = ()

    @property
    def blocks_shortened(self) -> int:
        """Context blocks that gave way to a summary or an outline or were left out."""
        return len(self.given_way)

    @property
    def total(self) -> int:
        """Tokens of the whole input."""
        return self.system_tokens + self.prior_tokens + self.turn_tokens + self.user_tokens + self.fitted.tokens

    @property
    def exchanges_dropped(self) -> int:
        """Exchanges that were left out."""
        return max(0, self.exchanges_total - self.fitted.kept)


def assemble(layers: Layers, policy: Policy, about: History, *, reserved: int | None = None) -> Assembly:
    """Return the payload within `total_token_budget` less the reserved output, or with a warning that says by how much.

    Prior and turn context are held against the total less the system prompt, the user's message and the least that
    history needs, so a large system prompt makes them shrink earlier. While there is room they are whole. History gets
    what the others leave. The user's message is never touched. Raises UserMessageError.
    """
    budget = policy.total_token_budget
    held = reserved_output(reserved, budget, policy.reserved_output_tokens)
    speaks = bool(layers.prior or layers.turn) and _last_request(layers.history) is None
    history, asked = _answer_open_calls(layers.history, layers.user_message, speaks=speaks)
    shed = shed_media(history, limits_of(policy), beside=media_load([asked.content] if asked else []))
    history = shed.view
    system = about.scale_estimate(fixed_tokens(layers.system, layers.tools) + about.unstored)
    user = about.scale_estimate(asked.tokens) if asked else 0
    room = budget - held - system - user
    prior, turn, given_way = _fit_context(layers, history, asked, room, about, policy)
    warnings: tuple[str, ...] = ()
    if given_way and (loop := _thinking_loop(history, asked)) is not None:
        # What was thought in the loop is signed for the context that its first call had.
        before, request = history[:loop], about.scale_estimate(history[loop].tokens)
        if _fit_context(layers, before, None, room + user - request, about, policy)[:2] != (prior, turn):
            history, warnings = strip_thinking(history, _last_seq(history), from_index=loop), (_STRIPPED,)
    prior_tokens, turn_tokens = about.scale_estimate(blocks_tokens(prior)), about.scale_estimate(blocks_tokens(turn))
    fitted = fit_with_rules(
        lambda left: _fit(history, asked, left, about),
        room - prior_tokens - turn_tokens,
        history,
        about.rules,
        factor=about.factor,
        max_tokens=policy.pinned_max_tokens,
        is_part=about.is_part,
        frame_language=policy.frame_language,
        frame_code=about.frame_code,
    )
    messages = _join(fitted.view, (*prior, *turn), asked)
    assembly = Assembly(
        messages, system, prior_tokens, turn_tokens, user, fitted, about.exchanges, budget, held, given_way
    )
    shed_warnings = [shed_warning(shed.seqs)] if shed.replaced else []
    return assembly._replace(
        warnings=(
            *fixed_warnings(system, policy),
            *_output_warnings(reserved, held, budget),
            *warnings,
            *shed_warnings,
            *_warnings(assembly),
        )
    )


def _output_warnings(asked: int | None, held: int, budget: int) -> list[str]:
    """Return a warning if more output is asked for than is kept free."""
    if asked is None or asked == held:
        return []
    left = "nothing" if asked >= budget else "little"
    return [
        (
            f"max_output_tokens ({asked:,}) leaves {left} of the budget of {budget:,} tokens: "
            f"{held:,} are kept for the answer"
        )
    ]


def _fit(history: View, asked: ViewMessage | None, room: float, about: History) -> FittedHistory:
    return fit_history(
        history,
        room,
        lambda message: message.tokens * about.factor,
        carries_summary=about.carries_summary,
        asked=asked,
        lacks_rounds=about.lacks_rounds,
        unread=about.unread,
        handles=about.handles,
    )


def _fit_context(
    layers: Layers, history: View, asked: ViewMessage | None, room: int, about: History, policy: Policy
) -> FittedBlocks:
    """Return the context that accompanies a history, for both of which there are `room` tokens.

    What history cannot do without comes first, and so do the long texts in it, as far as half of the room goes.
    """
    given = blocks_tokens((*layers.prior, *layers.turn))
    if given and about.scale_estimate(given + view_tokens(history)) + len(history) + 2 > room:
        whole = history if asked is None else (*history, asked)
        uncut = drop_oldest(whole, lambda *_: False, carries_summary=about.carries_summary).view
        uncut = uncut if asked is None else uncut[:-1]
        room -= max(_fit(history, asked, 0, about).tokens, min(about.scale_estimate(view_tokens(uncut)), room // 2))
    # Two tokens less, since both kinds are rounded up.
    return fit_blocks(layers.prior, layers.turn, int((room - 2) / about.factor), policy)


def _thinking_loop(history: View, user: ViewMessage | None) -> int | None:
    """Return where the request of a loop with signed thinking is, None where no such loop is under way."""
    place = _last_request(history)
    begins = user is not None and is_request(user.role, user.content)
    if place is None or begins or not any(has_thinking(each.role, each.content) for each in history[place:]):
        return None
    return place


def _answer_open_calls(history: View, user: ViewMessage | None, *, speaks: bool) -> tuple[View, ViewMessage | None]:
    """Return history and the user's message so that no call is left open between them.

    Context that has no request to be put in (`speaks`) gets a message of its own, which then has to answer as well.
    Raises UserMessageError where repair leaves nothing of what the user says: results of no open call, or thinking.
    """
    if user is None and not (speaks and history and history[-1].role == "assistant"):
        return history, None
    joined, _ = repair((*history, ViewMessage("user", user.content if user else "…", _ASKED)), ends_with_newest=False)
    if user is None:
        answered = [block for block in blocks(joined[-1].content) if block.get("type") == "tool_result"]
        return joined[:-1], ViewMessage("user", [dict(block) for block in answered]) if answered else None
    if not joined or joined[-1].seq != _ASKED or not _is_of(joined[-1], user):
        raise UserMessageError
    return joined[:-1], ViewMessage("user", joined[-1].content)


def _is_of(mended: ViewMessage, user: ViewMessage) -> bool:
    """Tell whether anything of the user's message is in what repair made of it, apart from results that it made up."""
    own = set(tool_result_ids(user.content))
    return any(block.get("type") != "tool_result" or block["tool_use_id"] in own for block in blocks(mended.content))


def fixed_tokens(system: Any, tools: Any) -> int:
    """Return the estimated tokens of the system prompt and the tool definitions."""
    weight = text_weight(json_text(tools)) if tools else 0
    return content_tokens(system or "") + -(-weight // CHARS)


def blocks_tokens(blocks: Sequence[ContextBlock]) -> int:
    """Return the estimated tokens of context blocks as they are in the user's message."""
    return sum(content_tokens(render_block(block)) for block in blocks)


def fit_blocks(prior: Sequence[ContextBlock], turn: Sequence[ContextBlock], room: int, policy: Policy) -> FittedBlocks:
    """Return both kinds of context within `room` tokens as far as outlines go, and what is not shown whole.

    The largest block gives way first: to its summary where there is one, else to its outline. Where that is not enough,
    summaries give way to outlines; then the oldest prior blocks go, whole. This turn's stay. Outlines that are not made
    yet read MAX_READ characters in all: what a block has after its share is left out, and the outline says how much.
    """
    given = (*prior, *turn)
    fitted = list(given)
    weights = [blocks_tokens([block]) for block in given]
    largest_first = sorted(range(len(given)), key=lambda index: (-len(given[index].text), index))
    summarized = [index for index in largest_first if given[index].summary]
    max_read = read_share(len(block.text) for block in given if block.outline is None)
    for index, summary in [(i, given[i].summary) for i in largest_first] + [(i, None) for i in summarized]:
        if sum(weights) <= room:
            break
        short = summary or _outline(given[index], policy, max_read)
        shorter = given[index]._replace(text=short, form="summary" if summary else "outline")
        if _length(shorter) < _length(fitted[index]):
            fitted[index] = shorter
            weights[index] = blocks_tokens([shorter])
    oldest = 0
    while oldest < len(prior) and sum(weights[oldest:]) > room:
        oldest += 1
    gone = tuple(GivenWay(block.source, None) for block in given[:oldest])
    short_of = tuple(GivenWay(block.source, block.form) for block in fitted[oldest:] if block.form != "whole")
    return FittedBlocks(tuple(fitted[oldest : len(prior)]), tuple(fitted[len(prior) :]), (*gone, *short_of))


def _length(block: ContextBlock) -> int:
    return len(block.text) + len(block.note)


def _outline(block: ContextBlock, policy: Policy, max_read: int) -> str:
    if block.outline is not None:
        return block.outline
    return outline(block.text, section_chars=policy.carry_forward_section_chars, max_read=max_read)


def render_block(block: ContextBlock) -> str:
    """Return a context block as text that nothing in it can close; where it is not whole, with its handle."""
    about = f"<{TAG} source={json_text(block.source)} title={json_text(block.title)}>"
    # Names of files and titles of pages are as much from outside as what is in them.
    inside = _CLOSING.sub(f"<\\\\/{TAG}>", f"{about}\n{block.text}")
    note = block.note and f"\n{block.note}"
    return f"{inside}{note}\n</{TAG}>"


def _join(history: View, context: Sequence[ContextBlock], user: ViewMessage | None) -> View:
    """Put context before the text of the request it came with: the user's message, or the last request of the history.

    In a tool loop it so stays where it was in the loop's first call, which keeps cached prefixes and signed thinking.
    """
    messages = history if user is None else (*history, user)
    if not context:
        return messages
    parts = [{"type": "text", "text": render_block(block)} for block in context]
    place = place_of_context(messages)
    if place is None:
        return (*messages, ViewMessage("user", parts, WRITTEN))
    request = messages[place]
    given = [{"type": "text", "text": request.content}] if isinstance(request.content, str) else request.content
    # Tool results have to come first.
    results = [block for block in given if block.get("type") == "tool_result"]
    rest = [block for block in given if block.get("type") != "tool_result"]
    return (*messages[:place], request.with_content([*results, *parts, *rest]), *messages[place + 1 :])


def place_of_context(messages: View) -> int | None:
    """Return the message that context blocks stand in, None where they are one of their own, at the end."""
    place = _last_request(messages)
    return len(messages) - 1 if place is None and messages and messages[-1].role == "user" else place


def _last_request(view: View) -> int | None:
    requests = (index for index in reversed(range(len(view))) if is_request(view[index].role, view[index].content))
    return next(requests, None)


def _last_seq(view: View) -> int:
    return max((message.seq for message in view), default=WRITTEN)


def fixed_warnings(fixed: int, policy: Policy) -> list[str]:
    """Say that system prompt and tools, so many tokens, are over a threshold by themselves."""
    if not (keys := over_by_fixed(fixed, policy)):
        return []
    over = " and ".join(f"{key} ({getattr(policy, key):,})" for key in keys)
    return [
        f"system prompt and tools alone have {fixed:,} tokens, over {over}: compacting the history cannot help that"
    ]


def drop_warnings(fitted: FittedHistory, exchanges: int) -> list[str]:
    """Say what the guard left out of a history of so many exchanges, and what it cut."""
    warnings: list[str] = []
    if (dropped := exchanges - fitted.kept) > 0:
        warnings.append(f"the oldest {dropped} of {exchanges} exchanges were left out to fit the token budget")
    if fitted.media_replaced:
        named = "image(s) or file(s) gave way to texts that name them to fit the token budget"
        warnings.append(f"{fitted.media_replaced} {named}")
    if fitted.opening_dropped:
        warnings.append("the first message was left out but for the summary in it to fit the token budget")
    if fitted.rounds_dropped:
        warnings.append("older tool rounds of the last exchange were left out to fit the token budget")
    if fitted.cut:
        warnings.append(f"{fitted.cut} long text(s) were cut to their beginning and end to fit the token budget")
    if fitted.left_out:
        warnings.append(f"left out to fit the token budget: messages {name_seqs(fitted.left_out)}")
    return warnings


def _warnings(assembly: Assembly) -> list[str]:
    warnings: list[str] = []
    for form, what in _FORMS.items():
        if sources := [block.source for block in assembly.given_way if block.form == form]:
            names = ", ".join(json_text(source) for source in sources[:_NAMED]) + ", …" * (len(sources) > _NAMED)
            warnings.append(f"{len(sources)} context block(s) {what} to fit the token budget: {names}")
    warnings += drop_warnings(assembly.fitted, assembly.exchanges_total)
    over = assembly.total + assembly.reserved - assembly.budget
    if over > 0:
        warnings.append(
            f"the payload has {assembly.total:,} tokens and {assembly.reserved:,} reserved for the answer: "
            f"{over:,} over the budget of {assembly.budget:,}; nothing more may be left out"
        )
    return warnings
