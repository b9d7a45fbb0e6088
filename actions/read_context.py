"""The context: the head snapshot and the tail that were read, fitted to the budget, with what there is to say of it."""

from __future__ import annotations

import math
from datetime import UTC, datetime
from functools import partial
from typing import TYPE_CHECKING, Any, Final, NamedTuple, cast

import msgspec

from actions.errors import or_not_found
from actions.types.core import CacheBreakpointOut, ContextTokens, RulesOut, SnapshotRef
from compaction.cache_marks import MAX_MARKS, Marked, keep_last, without_marks
from compaction.cost import breakpoints
from compaction.media.limits import any_may_exceed, limits_of, shed_warning
from compaction.media.shedding import load_of_view, shed_media
from compaction.messages import count_marks, is_request
from compaction.payload.assembly import History, drop_warnings, fixed_warnings
from compaction.pins.agreement import proposal_warnings, proposals
from compaction.pins.pinned import IN_LEDGER, Pin, masked_pins
from compaction.pins.serving import StandingRules, check, fit_with_rules, reading_bytes, warnings_of, with_speakers
from compaction.shapes import serving
from compaction.shorten.fitting import count_exchanges, fit_history
from compaction.shorten.trimming import exchanges, last_answer, rounds
from compaction.steps.snapshot import Original, Snapshot, build, context_json, load_view
from compaction.steps.stored_view import dump_messages
from compaction.summary.zone import opening_length
from compaction.view import WRITTEN
from runtime.threads import run_aside
from store import hot_path
from store.bytes_held import MOST_READ_BYTES
from store.conversations import conversations
from store.conversations.assemblies import AssemblyRecord
from store.conversations.names import name_in

if TYPE_CHECKING:
    from collections.abc import Sequence
    from uuid import UUID

    from actions.caller import Caller
    from compaction.cost.breakpoints import Breakpoint
    from compaction.policy import Policy
    from compaction.shapes.inner import Shape
    from compaction.shorten.fitting import Fitted
    from compaction.steps.snapshot import Working
    from compaction.view import View
    from store.hot_path import ContextRead

_encode: Final = msgspec.json.Encoder().encode
_content: Final = msgspec.json.Decoder().decode
_sent: Final = msgspec.json.Decoder(list[tuple[int, msgspec.Raw]]).decode
_rows: Final = msgspec.json.Decoder(list[tuple[int, str, msgspec.Raw]]).decode


RULES_HEADER: Final = "palimpsest-rules"
"""Of a context's answer: the hash over the rules that stand in it, in hexadecimal."""


class ContextAnswer(NamedTuple):
    """The context as JSON, None where the caller has it already, and its entity tag."""

    body: bytes | None
    etag: str
    rules: str = ""
    """The hash over the rules that stand in it; "" where there is no body."""

    @property
    def headers(self) -> dict[str, str]:
        """What is said of it beside its body."""
        of_rules = {RULES_HEADER: self.rules} if self.rules else {}
        return {"etag": f'"{self.etag}"', "cache-control": "private, no-cache", **of_rules}


async def read_context(
    caller: Caller,
    conversation: UUID,
    etags: Sequence[str] = (),
    *,
    shape: Shape | None = None,
    breakpoint_room: int | None = None,
) -> ContextAnswer:
    """Return the context; raise the problem that there is no such conversation. `etags` are those the caller has.

    `shape` is the one to serve; None = that of the conversation. `breakpoint_room` is how many breakpoints of the
    prompt cache are said at the most; None = nothing is said of them, and what clients marked keeps its marks.
    """
    suffix = (f"-{shape}" if shape else "") + (f"-{breakpoint_room}" if breakpoint_room else "")
    etags = [each.removesuffix(suffix) for each in etags if each == "*" or each.endswith(suffix)]
    services, principal = caller.services, caller.principal
    read = partial(
        hot_path.read_context,
        services.pool,
        tenant_id=caller.tenant_id,
        conversation_id=conversation,
        policy_digest=principal.policy_digest,
        shape=shape,
    )
    # Of one entity tag the database tells whether it is current, without reading the messages.
    etag = etags[0] if len(etags) == 1 else None
    stored = or_not_found(await read(etag=etag, policy=principal.policy, take=caller.hold.take))
    if stored.not_modified or stored.etag in etags or "*" in etags:
        services.metrics.contexts["not_modified"].inc()
        return ContextAnswer(None, stored.etag + suffix)
    services.metrics.contexts["plain" if stored.plain else "mended"].inc()
    policy, _, ignored = principal.policy_of(stored.policy, stored.model)
    etag = stored.etag
    if ignored:
        # The database has reckoned with overrides that are not in force.
        stored = await read(etag=None, policy=policy, room=policy.context_limit_tokens) or stored
    if stored.plain and await _may_exceed_limits(stored, policy):
        # The messages one by one, if the oldest media have to go.
        parsed = await read(etag=None, policy=policy, room=policy.context_limit_tokens)
        if parsed is not None and await _exceeds_limits(parsed, policy):
            stored = parsed
    size = 0 if stored.plain else len(stored.head or "") + len(stored.tail or "")
    marks = 0 if stored.plain or breakpoint_room else await _fixed_marks(caller, conversation, stored)
    as_asked = partial(serve, fixed_marks=marks, shape=shape, breakpoint_room=breakpoint_room)
    size = size if breakpoint_room is None else stored.context_bytes
    served = await run_aside(size + rules_size(stored), as_asked, stored, policy, ignored)
    if (fitted := served.fitted) is not None and fitted.gave_way:
        record = _record(caller.tenant_id, conversation, stored.head_version, policy, fitted, served.warnings)
        services.assemblies.add(record, caller.request_id)
    return ContextAnswer(served.body, etag + suffix, served.rules)


async def _may_exceed_limits(stored: ContextRead, policy: Policy) -> bool:
    """Return whether a context that is stored sound may have more media than the model takes."""
    texts = [text for text in (stored.head, stored.tail, stored.sent) if text]
    limits = limits_of(policy)
    return await run_aside(sum(map(len, texts)), lambda: any_may_exceed(texts, limits))


async def _exceeds_limits(stored: ContextRead, policy: Policy) -> bool:
    """Return whether a context has more media than the model takes."""
    size = len(stored.head or "") + len(stored.tail or "")
    return await run_aside(size, lambda: load_of_view(working_view(stored, policy).view).exceeds(limits_of(policy)))


def shape_served(stored: ContextRead, wanted: Shape | None) -> Shape:
    """Return the shape that is asked for, or else that of the conversation."""
    return wanted or cast("Shape", stored.shapes.shape)


async def _fixed_marks(caller: Caller, conversation: UUID, stored: ContextRead) -> int:
    """Return the marks for the prompt cache in what goes with the messages; 0 where these have none themselves."""
    if "cache_control" not in (stored.tail or ""):
        return 0
    row = await caller.run(conversations.get, conversation)
    return count_marks(row.tools) + count_marks(row.system) if row else 0


class FittedContext(NamedTuple):
    """A context that had to be parsed: to be capped, stripped of stale thinking, repaired, or fitted."""

    history: Fitted
    exchanges: int
    """Exchanges of the whole context."""
    fixed: int
    """Tokens of what is sent along with the history."""
    warnings: tuple[str, ...]

    @property
    def gave_way(self) -> bool:
        """Whether the guard had to leave out or cut anything."""
        fitted = self.history
        return bool(self.exchanges > fitted.kept or fitted.rounds_dropped or fitted.cut or fitted.media_replaced)


def _record(
    tenant_id: UUID, conversation_id: UUID, version: int, policy: Policy, fitted: FittedContext, warnings: int
) -> AssemblyRecord:
    """Return what is remembered of a context made from snapshot `version`; `warnings` is how many its answer has."""
    return AssemblyRecord(
        conversation_id=conversation_id,
        tenant_id=tenant_id,
        call="context",
        snapshot_version=version,
        system_tokens=fitted.fixed,
        history_tokens=fitted.history.tokens,
        reserved_output_tokens=policy.reserved_output_tokens,
        total_token_budget=policy.total_token_budget,
        exchanges_total=fitted.exchanges,
        exchanges_kept=fitted.history.kept,
        rounds_dropped=fitted.history.rounds_dropped,
        responses_truncated=fitted.history.cut,
        warnings=warnings,
        assembled_at=datetime.now(UTC),
    )


class Served(NamedTuple):
    """An answer's bytes, how many warnings it has, and what had to be fitted for it."""

    body: bytes
    warnings: int
    fitted: FittedContext | None
    rules: str
    """The hash over the rules that stand in it."""


def serve(
    stored: ContextRead,
    policy: Policy,
    ignored: Sequence[str] = (),
    *,
    fixed_marks: int = 0,
    shape: Shape | None = None,
    breakpoint_room: int | None = None,
) -> Served:
    """Return the answer; what is stored sound is passed on without being parsed.

    `ignored` tells what of the conversation's policy is not in force, `fixed_marks` how many marks for the prompt cache
    system prompt and tools have. For `breakpoint_room` see `read_context`.
    """
    head_length = len(stored.head_seqs or ())
    fitted = None if stored.plain else _fit(stored, policy)
    served = shape_served(stored, shape)
    warnings: list[Any] = []
    if fitted is None:
        of_messages = served == "messages"
        messages = context_json(stored.head, stored.tail) if of_messages else f"[{stored.sent or ''}]"
        tokens_served = stored.context_tokens
    else:
        tokens_served = fitted.fixed + fitted.history.tokens
        warnings += fitted.warnings
        view = fitted.history.view
        if breakpoint_room is not None:
            view, head_length = without_marks(view), head_length_of(view, stored)
        elif served == "messages":
            view = keep_last(Marked(None, None, view), MAX_MARKS - fixed_marks).messages
        if served == "messages" and stored.shapes.is_whole:
            messages = dump_messages(view)
        else:
            encoded = serving.in_shape(view, served, stored.sent)
            messages = _encode(encoded.messages).decode()
            head_length = head_length if len(encoded.messages) == len(view) else 0
            warnings += serving.warnings_of(encoded)
    fixed = math.ceil(stored.fixed_tokens * stored.factor)
    encoded_messages = messages.encode()
    stand = standing_rules(encoded_messages, stored, policy)
    warnings += [*fixed_warnings(fixed, policy), *ignored, *dropped_before(stored), *stand.warnings]
    room = policy.context_limit_tokens
    if tokens_served > room:
        warnings.append(
            f"the context has {tokens_served:,} tokens, {tokens_served - room:,} over the budget of "
            f"{policy.total_token_budget:,} less {policy.reserved_output_tokens:,} for the answer"
        )
    head = SnapshotRef(stored.head_version, stored.covers_through) if stored.head_version else None
    tokens = ContextTokens(tokens_served, stored.measured_input_tokens, policy.total_token_budget)
    about = {
        "snapshot": head,
        "last_seq": stored.last_seq,
        "tokens": tokens,
        "rules": stand.named,
        "warnings": warnings,
    }
    if breakpoint_room is not None:
        places = []
        if served == "messages" and not stored.gap and not (fitted and fitted.gave_way):
            places = breakpoints.in_messages(breakpoints.of_json(encoded_messages, head_length), breakpoint_room)
        about["cache_breakpoints"] = breakpoints_out(places, served, policy)
    rest = _encode(about)
    key = serving.KEYS[served].encode()
    body = b'{"' + key + b'":' + encoded_messages + b"," + rest[1:]
    return Served(body, len(warnings), fitted, stand.named.sha256)


def head_length_of(view: View, stored: ContextRead) -> int:
    """Return how many messages of a view are the snapshot's: all before the first that came after it."""
    after = (at for at, message in enumerate(view) if message.seq > stored.covers_through)
    return next(after, len(view)) if stored.head_version else 0


def breakpoints_out(places: Sequence[Breakpoint], shape: Shape, policy: Policy) -> list[CacheBreakpointOut] | None:
    """Return what an answer says of breakpoints: None for a shape without, none where the model caches nothing."""
    if shape != "messages":
        return None
    mark = breakpoints.mark(policy.prompt_cache_seconds)
    return [] if mark is None else [CacheBreakpointOut(*each, mark) for each in places]


class Stand(NamedTuple):
    """What an answer says of the rules."""

    named: RulesOut
    warnings: Sequence[str] = ()


def standing_rules(messages: bytes, stored: ContextRead, policy: Policy) -> Stand:
    """Look for the rules in force in the messages as served; say which do not stand there, or may be withdrawn."""
    if not stored.shapes.rules:
        return _NO_RULES
    rules = rules_of(stored)
    stand = check(messages, rules, masked_pins(rules, policy))
    asked = [Pin(*each[:3]) for each in stored.shapes.rules if each[3] == "withdrawal"]
    named = RulesOut([rule.id for rule in stand.standing], stand.sha256)
    proposed = proposals([*stand.standing, *stand.absent], asked) if asked else {}
    return Stand(named, (*warnings_of(stand.absent), *proposal_warnings(proposed)))


def rules_of(stored: ContextRead) -> tuple[Pin, ...]:
    """Return the rules in force, under the ids that clients see."""
    return tuple(
        Pin(f"rule_{entry}", seq, text, IN_LEDGER[source])
        for entry, seq, text, source in stored.shapes.rules
        if source in IN_LEDGER
    )


def rules_size(stored: ContextRead) -> int:
    """Return how many bytes of JSON take as long to read as to look for the rules in a context."""
    return reading_bytes((text for _, _, text, _ in stored.shapes.rules), stored.context_bytes)


_NO_RULES: Final = Stand(RulesOut([], StandingRules((), ()).sha256))


def dropped_before(stored: ContextRead) -> list[str]:
    """Say what is not shown although no summary covers it: what was dropped, and what is too large to read."""
    dropped = [f"dropped without a summary: messages {stored.left_out}"] if stored.left_out else []
    if stored.gap and stored.context_bytes > MOST_READ_BYTES:
        size = f"{stored.context_bytes:,} bytes"
        dropped.append(f"the context has {size}: only the newest messages were read, {MOST_READ_BYTES:,} bytes at most")
    return dropped


def _fit(stored: ContextRead, policy: Policy) -> FittedContext:
    working = working_view(stored, policy)
    about = history_of(stored, working, policy)
    fixed = math.ceil(stored.fixed_tokens * stored.factor)
    shed = shed_media(working.view, limits_of(policy))
    fit = partial(
        fit_history,
        shed.view,
        weigh=lambda message: message.tokens * stored.factor,
        carries_summary=about.carries_summary,
        lacks_rounds=about.lacks_rounds,
        unread=about.unread,
        handles=about.handles,
    )
    room = policy.context_limit_tokens - fixed
    fitted = fit_with_rules(
        fit,
        room,
        shed.view,
        about.rules,
        factor=stored.factor,
        max_tokens=policy.pinned_max_tokens,
        is_part=about.is_part,
        frame_language=policy.frame_language,
    )
    shed_warnings = [shed_warning(shed.seqs)] if shed.replaced else []
    warnings = (*working.warnings, *shed_warnings, *drop_warnings(fitted, about.exchanges))
    return FittedContext(fitted, about.exchanges, fixed, warnings)


def history_of(stored: ContextRead, working: Working, policy: Policy) -> History:
    """Return what is known of the history besides its view. What repair left out of a view that is whole was none."""
    return History(
        stored.exchanges if stored.gap else count_exchanges(working.view),
        stored.factor,
        carries_summary=bool(stored.has_summary),
        lacks_rounds=stored.gap and _skips_rounds(working.view),
        unread=_unread(stored, working) if stored.gap else (),
        handles=working.handles,
        rules=masked_pins(with_speakers(rules_of(stored), working.view, _names(stored)), policy),
        is_part=stored.gap,
    )


def _names(stored: ContextRead) -> dict[int, str]:
    """Return who wrote the messages that rules are of, by seq, as far as what was read says so."""
    if not stored.shapes.rules or stored.sent is None or stored.plain:
        return {}
    stating = {seq for _, seq, _, _ in stored.shapes.rules}
    named = ((seq, name_in(bytes(message).decode())) for seq, message in _sent(stored.sent) if seq in stating)
    return {seq: name for seq, name in named if name}


def _unread(stored: ContextRead, working: Working) -> list[int]:
    """Return the seqs between which the view has a gap."""
    read = {row.seq for row in working.tail}.union(message.seq for message in working.snapshot.messages)
    seqs = (*(stored.head_seqs or ()), *range(stored.covers_through + 1, stored.last_seq + 1))
    return [seq for seq in seqs if seq not in read and seq != WRITTEN]


def _skips_rounds(view: View) -> bool:
    """Tell whether what follows the request that was answered last is not what was stored next to it."""
    answer = last_answer(view)
    request = next(
        (index for index in reversed(range(answer)) if is_request(view[index].role, view[index].content)), -1
    )
    return request >= 0 and view[request + 1].seq != view[request].seq + 1


def working_view(stored: ContextRead, policy: Policy) -> Working:
    """Return the view of what was read."""
    messages = load_view(stored.head, stored.head_seqs or ()) if stored.head else ()
    tail = [Original(seq, role, bytes(content).decode()) for seq, role, content in _rows(stored.tail or "[]")]
    if stored.gap:
        messages = _before_gap(messages, tail, has_summary=bool(stored.has_summary))
    snapshot = Snapshot(
        version=stored.head_version,
        covers_through=stored.covers_through,
        messages=messages,
    )
    # What was thought with more before it was signed for that.
    changed_through = stored.last_seq if stored.gap else stored.strip_thinking_through
    return build(
        snapshot,
        tail,
        policy,
        strip_thinking_through=changed_through,
        other_model_through=stored.shapes.other_model_through,
    )


def _before_gap(messages: View, tail: Sequence[Original], *, has_summary: bool) -> View:
    """Return what of a snapshot comes before a tail that begins later: its summary, and what the tail goes on from.

    That is the request of rounds that were read; where nothing was answered since, the answer to it as well.
    """
    opening = opening_length(messages, carries_summary=has_summary)
    is_answered = any(row.role == "assistant" for row in tail)
    if not messages or (is_answered and is_request(tail[0].role, _content(tail[0].content))):
        return messages[:opening]
    last = exchanges(messages)[-1]
    newest = rounds(messages, last)[-1:]
    before = newest[0].start if newest and not is_answered else len(messages)
    asked = [index for index in range(before) if is_request(messages[index].role, messages[index].content)][-1:]
    core = {*range(opening), *asked, *(index for part in newest if not is_answered for index in part)}
    return tuple(message for index, message in enumerate(messages) if index in core)
