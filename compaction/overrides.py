"""Overrides: how the policies of installation, tenant and conversation become the one that is in force."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, NamedTuple

from msgspec.structs import replace

from compaction.media.limits import limits_for_model
from compaction.policy import MINIMUM_CONTEXT_WINDOW, Policy, PolicyError, merge
from compaction.presets import LARGEST_CONTEXT_WINDOW
from compaction.windows import window_of, window_warning

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

_WINDOW: Final = "model_context_tokens"


class InForce(NamedTuple):
    """A policy in force, the overrides it came from, and what of them is not in force and why."""

    policy: Policy
    overrides: dict[str, Any]
    ignored: tuple[str, ...] = ()


def in_force(*layers: Mapping[str, Any], model: str | None = None) -> InForce:
    """Return the policy that results from `layers` of overrides, later ones on top; never raises.

    Each layer was checked against those below it when it was written, and those may have changed since. Where a layer
    contradicts what is below it now, or has a key that is not known (another version of the service may have written
    it), its other keys are in force and that one is not. What a run has recorded is read as a single layer.
    The window is that of `model`, if it is known and no layer sets `model_context_tokens`; so are the limits on media.
    """
    try:
        policy = merge(*layers)
    except PolicyError:
        policy, overrides, ignored = _what_holds(layers)
    else:
        overrides, ignored = {}, ()
        for layer in layers:
            overrides |= layer
    if model is not None and _WINDOW not in overrides:
        window = window_of(model, policy.model_context_tokens)
        held = min(max(window, MINIMUM_CONTEXT_WINDOW), LARGEST_CONTEXT_WINDOW)
        if held != policy.model_context_tokens:
            policy = replace(policy, model_context_tokens=held)
    if model is not None and (unset := {k: v for k, v in limits_for_model(model).items() if k not in overrides}):
        policy = replace(policy, **unset)
    return InForce(policy, overrides, ignored)


def _what_holds(layers: Sequence[Mapping[str, Any]]) -> InForce:
    """Lay each layer over what holds of those below it, without the keys that contradict it."""
    overrides: dict[str, Any] = {}
    policy = Policy()
    ignored: list[str] = []
    for layer in layers:
        rest = dict(layer)
        while True:
            try:
                policy = merge(overrides, rest)
            except PolicyError as error:
                # What is below holds by itself, so the layer has one of the keys: every round takes some away.
                for key in [key for key in error.fields if key in rest]:
                    del rest[key]
                    ignored.append(f"the override of {key} is not in force: {_reason(error)}")
            else:
                break
        overrides |= rest
    return InForce(policy, overrides, tuple(ignored))


def policy_warnings(policy: Policy) -> list[str]:
    """Return what to tell people of a policy that holds and yet will not do them good."""
    warnings = [window_warning(policy.model_context_tokens)]
    if policy.total_token_budget > policy.model_context_tokens:
        warnings.append(
            f"the total token budget of {policy.total_token_budget:,} is larger than the context window of "
            f"{policy.model_context_tokens:,}: a payload within it may be refused by the model"
        )
    return [warning for warning in warnings if warning]


def _reason(error: PolicyError) -> str:
    return error.detail if len(error.fields) == 1 else f"{error.field} {error.detail}"
