"""Checks of what a request says beside its messages: policies, models, sizes."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ParamSpec, TypeVar

import msgspec

from actions.errors import InvalidError, step_into
from actions.input.strict_json import WITHOUT_SETTINGS, StrictJson
from compaction.choices import unknown
from compaction.overrides import in_force
from compaction.policy import FIELDS, MINIMUM_CONTEXT_WINDOW, PolicyError, merge
from compaction.presets import AUTO, LARGEST_CONTEXT_WINDOW, preset, window_named
from compaction.windows import window_of, window_warning

if TYPE_CHECKING:
    from collections.abc import Mapping

    from actions.input.strict_json import Limits
    from runtime.settings import Settings

T = TypeVar("T")
P = ParamSpec("P")


def read(body: bytes, kind: type[T], strict: StrictJson = WITHOUT_SETTINGS) -> T:
    """Return a body as `kind`; raise the problem that it has."""
    return strict.read(body, lambda given, _: msgspec.json.decode(given, type=kind), kind)


def check_metadata(metadata: Any, limits: Limits) -> None:
    """Check the size of a conversation's metadata; raise the problem that it has."""
    if metadata and len(msgspec.json.encode(metadata)) > limits.metadata_bytes:
        raise InvalidError(f"Metadata has at most {limits.metadata_bytes:,} bytes as JSON.", "/metadata")


def read_policy(overrides: Mapping[str, Any], *below: Mapping[str, Any]) -> None:
    """Check a policy's overrides; raise the problem, with a pointer to the key."""
    try:
        merge(*below, overrides)
    except PolicyError as error:
        raise InvalidError(error.detail, step_into("/policy", *error.path)) from None


def read_summarizer_model(overrides: Mapping[str, Any] | None, settings: Settings) -> None:
    """Check that a body's policy names no model for summaries that the installation refuses; raise the problem."""
    model = (overrides or {}).get("summarizer_model")
    if isinstance(model, str) and model and settings.refuses_model(model):
        detail = "This installation asks no such model for summaries: PALIMPSEST_SUMMARIZER_MODELS does not name it."
        raise InvalidError(detail, "/policy/summarizer_model")


def read_overrides(
    overrides: Mapping[str, Any], named: str | int | None, *below: Mapping[str, Any], model: str | None = None
) -> dict[str, Any]:
    """Return the overrides that a body sets: those of the preset it names, and over them its own.

    `below` are the layers they are laid over, `model` is the conversation's. Raises the problem that preset or policy
    has.
    """
    chosen = {**_preset(overrides, named, *below, model=model), **overrides}
    read_policy(chosen, *below)
    return chosen


def read_changes(
    changes: Mapping[str, Any] | None,
    named: str | int | None,
    stored: Mapping[str, Any],
    *below: Mapping[str, Any],
    model: str | None = None,
) -> dict[str, Any]:
    """Return the `stored` overrides as a body changes them, key by key: null takes one away, null for all takes all.

    What is stored and not in force, since a layer below has changed, is no reason to refuse another change. The rest is
    as in `read_overrides`.
    """
    wanted = {key: value for key, value in (changes or {}).items() if value is not None}
    new = {**_preset(wanted, named, *below, model=model), **(changes or {})}
    for key in new:
        if key not in FIELDS and key not in stored:
            raise InvalidError(unknown("policy key", key, FIELDS), step_into("/policy", key))
    old = {} if changes is None else {key: value for key, value in stored.items() if key not in new}
    set_now = {key: value for key, value in new.items() if value is not None}
    holds = in_force(*below, old).overrides
    read_policy({**{key: value for key, value in old.items() if holds.get(key) == value}, **set_now}, *below)
    return {**old, **set_now}


def read_model(model: str | None, *layers: Mapping[str, Any]) -> None:
    """Check the window of a model where no layer of policy overrides states it; raise the problem that it has."""
    if model is None or any("model_context_tokens" in layer for layer in layers):
        return
    window = window_of(model, MINIMUM_CONTEXT_WINDOW)
    if not MINIMUM_CONTEXT_WINDOW <= window <= LARGEST_CONTEXT_WINDOW:
        detail = window_warning(window) or f"a context window of {window:,} tokens is no model's"
        raise InvalidError(f"{detail}; policy.model_context_tokens can state another", "/model")


def _preset(
    overrides: Mapping[str, Any], named: str | int | None, *below: Mapping[str, Any], model: str | None
) -> dict[str, int]:
    if named is None:
        return {}
    if named == AUTO:
        window: int | None = in_force(*below, overrides, model=model).policy.model_context_tokens
    else:
        window = window_named(str(named))
    if window is None:
        raise InvalidError("Expected auto, a number of tokens, or a model whose window is known.", "/policy_preset")
    try:
        return preset(window)
    except PolicyError as error:
        raise InvalidError(error.detail, "/policy_preset") from None


def check_size(size: int, most: int, what: str, pointer: str) -> None:
    """Raise the problem of too many of something."""
    if size > most:
        raise InvalidError(f"At most {most:,} {what}.", pointer)
