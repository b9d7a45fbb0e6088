"""The parts that every answer with a context has: rules, breakpoints of the prompt cache, and warnings."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NamedTuple

from actions.types.core import CacheBreakpointOut, RulesOut
from compaction.cost import breakpoints
from compaction.payload.history import rules_in_force
from compaction.pins.agreement import proposal_warnings, proposals
from compaction.pins.pinned import Pin, masked_pins
from compaction.pins.serving import StandingRules, check, reading_bytes, warnings_of
from store.bytes_held import MOST_READ_BYTES

if TYPE_CHECKING:
    from collections.abc import Sequence

    from compaction.cost.breakpoints import Breakpoint
    from compaction.payload.stored_context import StoredContext
    from compaction.policy import Policy
    from compaction.shapes.inner import Shape

RULES_HEADER: Final = "palimpsest-rules"
"""Of an answer with a context: the hash over the rules that stand in it, in hexadecimal."""


class NamedRules(NamedTuple):
    """The rules that stand in a context, and warnings about those that do not."""

    rules: RulesOut
    warnings: Sequence[str] = ()


_NO_RULES: Final = NamedRules(RulesOut([], StandingRules((), ()).sha256))


def name_rules(messages: bytes, stored: StoredContext, policy: Policy) -> NamedRules:
    """Look for the rules in force in the messages as served; name those that stand there, warn of the others."""
    if not stored.shapes.rules:
        return _NO_RULES
    rules = rules_in_force(stored)
    stand = check(messages, rules, masked_pins(rules, policy))
    asked = [Pin(*each[:3]) for each in stored.shapes.rules if each[3] == "withdrawal"]
    named = RulesOut([rule.id for rule in stand.standing], stand.sha256)
    proposed = proposals([*stand.standing, *stand.absent], asked) if asked else {}
    return NamedRules(named, (*warnings_of(stand.absent), *proposal_warnings(proposed)))


def count_rule_bytes(stored: StoredContext) -> int:
    """Return how many bytes of JSON take as long to read as to look for the rules in a context."""
    return reading_bytes((text for _, _, text, _ in stored.shapes.rules), stored.context_bytes)


def list_breakpoints(places: Sequence[Breakpoint], shape: Shape, policy: Policy) -> list[CacheBreakpointOut] | None:
    """Return breakpoints as answers list them: None for a shape without, none where the model caches nothing."""
    if shape != "messages":
        return None
    mark = breakpoints.cache_mark(policy.prompt_cache_seconds)
    return [] if mark is None else [CacheBreakpointOut(*each, mark) for each in places]


def warn_of_left_out(stored: StoredContext) -> list[str]:
    """Return warnings about messages that no summary covers and the context lacks: dropped, or too large to read."""
    warnings = [f"dropped without a summary: messages {stored.left_out}"] if stored.left_out else []
    if stored.gap and stored.context_bytes > MOST_READ_BYTES:
        size = f"{stored.context_bytes:,} bytes"
        warnings.append(
            f"the context has {size}: only the newest messages were read, {MOST_READ_BYTES:,} bytes at most"
        )
    return warnings
