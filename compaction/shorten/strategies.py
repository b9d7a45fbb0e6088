"""Strategies of other packages: they make messages shorter, and are held to what every step is held to."""

from __future__ import annotations

import copy
import json
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias

from compaction.repair import repair
from compaction.summary.zone import opening_length
from compaction.view import WRITTEN, View, ViewMessage

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from compaction.policy import Policy

    ExtraStrategy: TypeAlias = Callable[[Sequence[dict[str, Any]], Policy], Sequence[Mapping[str, Any] | None]]
    """Gets messages as the model would and returns one for each of them: the same, one with other content, or None to
    leave it out. It gets copies and has to be a pure function of them."""


class ShortenedView(NamedTuple):
    """What a strategy makes of a view; `changed` and `dropped` are seqs."""

    view: View
    changed: tuple[int, ...] = ()
    dropped: tuple[int, ...] = ()


class StrategyError(Exception):
    """What a strategy returned cannot replace the messages; the text says why and holds nothing of them."""


def shorten(
    view: Sequence[ViewMessage], strategy: ExtraStrategy | None, policy: Policy, *, carries_summary: bool
) -> ShortenedView:
    """Return what a strategy makes of a view; None is one that is not installed.

    Raises StrategyError if it is not there, changes what has to stay (the newest message, a summary in the beginning,
    what the service wrote itself), changes roles or the number of messages, raises, or leaves something that the
    Messages API would refuse.
    """
    if strategy is None:
        raise StrategyError("it is not installed here")
    try:
        answers = list(strategy([copy.deepcopy(message.as_message()) for message in view], policy))
    except Exception as error:  # noqa: BLE001 - foreign code; its message may hold content
        raise StrategyError(f"it raised {type(error).__name__}") from None
    if len(answers) != len(view):
        raise StrategyError(f"it returned {len(answers)} answers for {len(view)} messages")
    opening = opening_length(view, carries_summary=carries_summary)
    after: list[ViewMessage] = []
    changed: list[int] = []
    dropped: list[int] = []
    for index, (message, answer) in enumerate(zip(view, answers, strict=True)):
        if answer == message.as_message():
            after.append(message)
            continue
        if index < opening or index == len(view) - 1 or message.seq == WRITTEN:
            raise StrategyError(f"it changed message {index} of {len(view)}, which has to stay")
        if answer is None:
            dropped.append(message.seq)
            continue
        after.append(_replace_content(message, answer, index))
        changed.append(message.seq)
    if repair(after)[0] != tuple(after):
        raise StrategyError("the Messages API would refuse what it left")
    return ShortenedView(tuple(after), tuple(changed), tuple(dropped))


def _replace_content(message: ViewMessage, answer: Mapping[str, Any], index: int) -> ViewMessage:
    if not isinstance(answer, dict) or answer.keys() != {"role", "content"} or answer["role"] != message.role:
        raise StrategyError(f"its answer for message {index} is no message of the {message.role}")
    try:
        content = json.loads(json.dumps(answer["content"], allow_nan=False))
    except (TypeError, ValueError, RecursionError):
        raise StrategyError(f"its answer for message {index} is no JSON") from None
    if not isinstance(content, (str, list)) or not content:
        raise StrategyError(f"its answer for message {index} has no content")
    return message.with_content(content)
