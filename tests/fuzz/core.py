"""The invariants of the compaction core on conversations that the door takes, however little sense they make."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from hypothesis import strategies as st

from tests.domain.core import test_invariants_domain
from tests.domain.steps import test_fitting
from tests.fuzz.turns import accepted_conversations

if TYPE_CHECKING:
    from collections.abc import Callable

    from hypothesis.strategies import DrawFn, SearchStrategy


_PROPERTIES: Final[dict[str, Callable[..., None]]] = {
    "valid and whole": test_invariants_domain.test_a_life_of_any_conversation_keeps_the_invariants,
    "idempotent": test_invariants_domain.test_the_same_step_twice_is_the_same_step_once,
    "shrinking": test_invariants_domain.test_a_commit_shrinks_the_context_by_what_was_promised,
}


@st.composite
def _lives(draw: DrawFn) -> test_invariants_domain.Life:
    found: test_invariants_domain.Life = draw(test_invariants_domain.lives(accepted_conversations()))
    return found


def invariants() -> dict[str, tuple[SearchStrategy[Any], Callable[[Any], None]]]:
    """Return each invariant: what to draw, and what has to hold for it."""
    names = {name: (_lives(), test.hypothesis.inner_test) for name, test in _PROPERTIES.items()}  # type: ignore[attr-defined]
    fits = test_fitting.test_any_payload_fits_or_says_by_how_much_and_is_valid.hypothesis.inner_test  # type: ignore[attr-defined]
    payloads = st.tuples(accepted_conversations(), st.integers(1_000, 60_000), st.booleans(), st.booleans())
    return names | {"bounded": (payloads, lambda drawn: fits(*drawn))}
