"""Assembly: the whole payload under one budget, the one place where all layers meet (seed 001)."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from compaction.guard import Fitted, fit_history
from compaction.messages import blocks
from compaction.outline import ContextBlock, outline
from compaction.repair import repair
from compaction.tokens import CHARS_PER_TOKEN as CHARS
from compaction.tokens import content_tokens, json_text, text_weight
from compaction.view import WRITTEN, View, ViewMessage

if TYPE_CHECKING:
    from collections.abc import Sequence

    from compaction.policy import Policy

TAG: Final = "context"
"""Element that a context block stands in, in the user's message."""


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


class Assembly(NamedTuple):
    """A payload and what each layer weighs, in tokens."""

    messages: View
    system_tokens: int
    prior_tokens: int
    turn_tokens: int
    user_tokens: int
    fitted: Fitted
    exchanges_total: int
    budget: int
    reserved: int
    warnings: tuple[str, ...]

    @property
    def total(self) -> int:
        """Tokens of the whole input."""
        return self.system_tokens + self.prior_tokens + self.turn_tokens + self.user_tokens + self.fitted.tokens


def assemble(layers: Layers, policy: Policy, about: History, *, reserved: int | None = None) -> Assembly:
    """Return the payload within `total_token_budget` less the reserved output, or with a warning that says by how much.

    Context blocks give way first: prior and turn context are held against total less system, so a large system prompt
    makes them shrink earlier. History gets what the others leave. The user's message is never touched.
    """
    budget = policy.total_token_budget
    held = policy.reserved_output_tokens if reserved is None else reserved

    def scaled(tokens: float) -> int:
        return -int(-tokens * about.factor // 1)

    history, asked = _answer_open_calls(layers.history, layers.user_message, speaks=bool(layers.prior or layers.turn))
    system = scaled(fixed_tokens(layers.system, layers.tools))
    user = scaled(asked.tokens) if asked else 0
    prior, turn, shortened = fit_blocks(
        layers.prior, layers.turn, int((budget - held - system - user) / about.factor), policy
    )
    prior_tokens, turn_tokens = scaled(blocks_tokens(prior)), scaled(blocks_tokens(turn))
    room = budget - held - system - prior_tokens - turn_tokens - user
    fitted = fit_history(
        history, room, lambda message: message.tokens * about.factor, carries_summary=about.carries_summary
    )
    messages = _join(fitted.view, (*prior, *turn), asked)
    dropped = about.exchanges - fitted.kept
    assembly = Assembly(messages, system, prior_tokens, turn_tokens, user, fitted, about.exchanges, budget, held, ())
    return assembly._replace(warnings=tuple(_warnings(assembly, dropped, shortened)))


def _answer_open_calls(history: View, user: ViewMessage | None, *, speaks: bool) -> tuple[View, ViewMessage | None]:
    """Return history and the user's message so that no call is left open between them.

    Without a user's message, context (`speaks`) stands in one of its own, which then has to answer as well.
    """
    if user is None and not (speaks and history and history[-1].role == "assistant"):
        return history, None
    joined, _ = repair((*history, user or ViewMessage("user", "…")))
    if user is not None:
        return joined[:-1], joined[-1]
    answered = [block for block in blocks(joined[-1].content) if block.get("type") == "tool_result"]
    return joined[:-1], ViewMessage("user", [dict(block) for block in answered]) if answered else None


def fixed_tokens(system: Any, tools: Any) -> int:
    """Return the estimated tokens of the system prompt and the tool definitions."""
    weight = text_weight(json_text(tools)) if tools else 0
    return content_tokens(system or "") + -(-weight // CHARS)


def blocks_tokens(blocks: Sequence[ContextBlock]) -> int:
    """Return the estimated tokens of context blocks as they stand in the user's message."""
    return sum(content_tokens(render_block(block)) for block in blocks)


def fit_blocks(
    prior: Sequence[ContextBlock], turn: Sequence[ContextBlock], room: int, policy: Policy
) -> tuple[tuple[ContextBlock, ...], tuple[ContextBlock, ...], int]:
    """Return both kinds of context within `room` tokens as far as outlines go, and how many were shortened.

    The largest block gives way to its outline first; then the oldest prior blocks go, whole. This turn's stay.
    """
    blocks = [*prior, *turn]
    shortened = 0
    for index in sorted(range(len(blocks)), key=lambda index: (-len(blocks[index].text), index)):
        if blocks_tokens(blocks) <= room:
            break
        short = outline(blocks[index].text, section_chars=policy.carry_forward_section_chars)
        if len(short) < len(blocks[index].text):
            blocks[index] = blocks[index]._replace(text=short)
            shortened += 1
    kept_prior, kept_turn = blocks[: len(prior)], blocks[len(prior) :]
    while kept_prior and blocks_tokens(kept_prior) + blocks_tokens(kept_turn) > room:
        kept_prior.pop(0)
        shortened += 1
    return tuple(kept_prior), tuple(kept_turn), shortened


def render_block(block: ContextBlock) -> str:
    """Return a context block as text that its content cannot close."""
    closing = f"</{TAG}>"
    text = block.text.replace(closing, f"<\\/{TAG}>")
    return f"<{TAG} source={json_text(block.source)} title={json_text(block.title)}>\n{text}\n{closing}"


def _join(history: View, blocks: Sequence[ContextBlock], user: ViewMessage | None) -> View:
    """Put context before the user's message, or with none after what the user's side said last."""
    parts = [{"type": "text", "text": render_block(block)} for block in blocks]
    if user is not None:
        content = [{"type": "text", "text": user.content}] if isinstance(user.content, str) else user.content
        joined = user.content if not parts else _after_results(content, parts)
        return (*history, replace(user, content=joined))
    if not parts:
        return history
    if history and history[-1].role == "user":
        last = history[-1]
        content = [{"type": "text", "text": last.content}] if isinstance(last.content, str) else last.content
        return (*history[:-1], replace(last, content=_after_results(content, parts)))
    return (*history, ViewMessage("user", parts, WRITTEN))


def _after_results(content: list[dict[str, Any]], parts: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return content with `parts` before it, but after the tool results that have to come first."""
    results = [block for block in content if block.get("type") == "tool_result"]
    rest = [block for block in content if block.get("type") != "tool_result"]
    return [*results, *parts, *rest]


def _warnings(assembly: Assembly, dropped: int, shortened: int) -> list[str]:
    found: list[str] = []
    if shortened:
        found.append(f"{shortened} context block(s) were shortened to an outline or left out to fit the token budget")
    if dropped > 0:
        found.append(
            f"the oldest {dropped} of {assembly.exchanges_total} exchanges were left out to fit the token budget"
        )
    if assembly.fitted.cut:
        found.append(f"{assembly.fitted.cut} long response(s) or result(s) were cut to their start")
    over = assembly.total + assembly.reserved - assembly.budget
    if over > 0:
        found.append(
            f"the payload has {assembly.total:,} tokens and {assembly.reserved:,} reserved for the answer: "
            f"{over:,} over the budget of {assembly.budget:,}; nothing more may be left out"
        )
    return found
