"""The policy in force: layers, the window of the model, and layers that contradict each other."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from compaction.media.limits import limits_for_model
from compaction.overrides import in_force, policy_warnings
from compaction.policy import FIELDS, Policy, merge
from tests.support.strategies import policies

ANYTHING = (
    st.none() | st.booleans() | st.integers() | st.floats() | st.text() | st.lists(st.text(max_size=3), max_size=3)
)
LAYERS = st.dictionaries(st.sampled_from([*FIELDS, "", "unknown"]), ANYTHING, max_size=8) | policies()


@given(policies(), policies())
def test_layers_that_agree_are_all_in_force(below: dict[str, Any], own: dict[str, Any]) -> None:
    both = below | own
    if both.get("reserved_output_tokens", 4_096) >= both.get("total_token_budget", 128_000):
        return
    assert in_force(below, own) == (merge(below, own), both, ())


@given(st.lists(LAYERS, max_size=4), st.sampled_from([None, "claude-opus-4-6", "x:8k", "x[99999m]"]))
def test_whatever_the_layers_there_is_a_policy(layers: list[dict[str, Any]], model: str | None) -> None:
    policy, overrides, ignored = in_force(*layers, model=model)
    held = merge(overrides)
    of_model = {**limits_for_model(model), "model_context_tokens": policy.model_context_tokens}
    assert merge({**of_model, **overrides}) == policy
    assert policy.model_context_tokens == held.model_context_tokens or "model_context_tokens" not in overrides
    given_keys = [key for layer in layers for key in layer]
    assert len(ignored) + len(overrides) <= len(given_keys)
    assert set(overrides) <= set(given_keys) & set(FIELDS)
    assert bool(ignored) or all(overrides[key] == value for key, value in (layers[-1].items() if layers else ()))


def test_an_override_that_a_layer_below_contradicts_now_gives_way_alone() -> None:
    own = {"total_token_budget": 5_000, "input_token_budget": 3_000}
    assert in_force({}, own).ignored == ()
    policy, overrides, ignored = in_force({"reserved_output_tokens": 6_000}, own)
    assert overrides == {"reserved_output_tokens": 6_000, "input_token_budget": 3_000}
    assert policy == Policy(reserved_output_tokens=6_000, input_token_budget=3_000)
    (reason,) = ignored
    assert reason == (
        "the override of total_token_budget is not in force: "
        "reserved_output_tokens must be smaller than total_token_budget"
    )


def test_a_conversation_that_sets_both_sides_is_nobodys_contradiction() -> None:
    own = {"total_token_budget": 5_000, "reserved_output_tokens": 1_000, "a_key_of_a_newer_version": 1}
    policy, _, ignored = in_force({"reserved_output_tokens": 6_000}, own)
    assert (policy.total_token_budget, policy.reserved_output_tokens) == (5_000, 1_000)
    (reason,) = ignored
    assert "a_key_of_a_newer_version" in reason


@pytest.mark.requirement("O5", "P3")
def test_the_window_is_the_models_unless_somebody_states_it_and_the_budget_is_nobodys_but_the_users_O5_P3() -> None:
    assert in_force(model="claude-opus-4-6").policy == Policy(
        model_context_tokens=1_000_000, max_context_images=600, max_context_document_pages=600
    )
    assert in_force(model="claude-2.0").policy == Policy(model_context_tokens=100_000)
    assert in_force(model="nobody-knows").policy == in_force(model=None).policy == Policy()
    stated = {"model_context_tokens": 64_000}
    for layers in ([stated], [stated, {}], [{}, stated]):
        assert in_force(*layers, model="claude-opus-4-6").policy.model_context_tokens == 64_000
    assert in_force(model="claude-opus-4-6").policy.trim_threshold_tokens == 600_000
    for model in ("claude-opus-4-6", "claude-2.0", "nobody-knows", None):
        assert in_force({"total_token_budget": 90_000}, {}, model=model).policy.total_token_budget == 90_000
        assert in_force(model=model).policy.total_token_budget == 128_000


@pytest.mark.requirement("O5")
def test_a_window_stated_in_a_models_name_that_no_policy_may_have_is_held_within_bounds_O5() -> None:
    assert in_force(model="small:8k").policy.model_context_tokens == 16_000
    assert in_force(model="huge[99999m]").policy.model_context_tokens == 100_000_000


@pytest.mark.requirement("O5")
def test_a_small_window_and_a_budget_over_the_window_are_warned_of_O5() -> None:
    assert policy_warnings(Policy()) == []
    assert policy_warnings(merge({"model_context_tokens": 32_000, "total_token_budget": 32_000})) == []
    (small,) = policy_warnings(merge({"model_context_tokens": 31_999, "total_token_budget": 20_000}))
    assert "31,999" in small
    small, over = policy_warnings(merge({"model_context_tokens": 16_000}))
    assert "16,000" in small
    assert "128,000 is larger than the context window of 16,000" in over
