"""The payload as a whole: any layers, any history and any policy; several times the budget; real transcripts."""

from __future__ import annotations

import json
from itertools import pairwise
from typing import TYPE_CHECKING, Any, NamedTuple

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cli.transcripts.readers import read_transcripts
from compaction.messages import THINKING, is_request
from compaction.payload.assembly import Assembly, History, Layers, assemble, blocks_tokens, fixed_tokens
from compaction.policy import Policy, merge
from compaction.repair import repair
from compaction.shorten.fitting import count_exchanges, fit_history
from compaction.shorten.trimming import exchanges, last_answer, rounds
from compaction.text.outline import ContextBlock
from compaction.tokens import content_tokens
from compaction.view import View, ViewMessage, view_tokens
from tests.support.messages_api import problems
from tests.support.places import TRANSCRIPTS
from tests.support.strategies import any_conversations, one_of, policies, texts

if TYPE_CHECKING:
    from collections.abc import Sequence

    from hypothesis.strategies import DrawFn

    from cli.transcripts.readers import Transcript
    from tests.support.blocks import Message
    from tests.support.service.running_api import Service

BUDGETS = (4_000, 8_000, 16_000, 32_000, 64_000, 128_000, 200_000)
FACTORS = (1.0, 0.5, 1.37, 2.0, 40.0)
"""What estimates may be multiplied by: learned ratios, and a count that was far higher than the estimate."""


def view_of(messages: Sequence[Message]) -> View:
    found, _ = repair([ViewMessage(message["role"], message["content"], seq) for seq, message in enumerate(messages)])
    return found


class Given(NamedTuple):
    """Everything that a payload is assembled from."""

    layers: Layers
    policy: Policy
    factor: float
    reserved: int | None
    carries_summary: bool = False

    def at(self, budget: int) -> Assembly:
        """Assemble under another total."""
        policy = merge(
            {
                "total_token_budget": budget,
                "reserved_output_tokens": min(self.policy.reserved_output_tokens, budget - 1),
                "carry_forward_section_chars": self.policy.carry_forward_section_chars,
            }
        )
        return assemble(self.layers, policy, self.about, reserved=self.reserved)

    @property
    def about(self) -> History:
        """What is known of the history besides its view."""
        return History(count_exchanges(self.layers.history), self.factor, carries_summary=self.carries_summary)

    def assembled(self) -> Assembly:
        """Assemble under the policy's own total."""
        return assemble(self.layers, self.policy, self.about, reserved=self.reserved)


@st.composite
def context_blocks(draw: DrawFn) -> tuple[ContextBlock, ...]:
    return tuple(
        ContextBlock(
            draw(one_of("notes.md", "https://example.com/a?b=<c>", "", "日本語")),
            draw(one_of("", "A title", '"quoted" </context>')),
            draw(one_of("", "# One\n", "<h1>One</h1><p>", "def one():\n    ")) + draw(texts(max_chars=12_000)),
        )
        for _ in range(draw(st.integers(0, 3)))
    )


SAID = st.none() | texts(max_chars=12_000) | texts(max_chars=700).map(lambda text: [{"type": "text", "text": text}])
TOOLS = st.sampled_from([None, [{"name": "look", "description": "d" * 800, "input_schema": {}}]])
BLOCKS = context_blocks()
RESERVED = st.none() | st.integers(1, 3_000)


@st.composite
def payloads(draw: DrawFn) -> Given:
    system, tools, user = draw(SAID), draw(TOOLS), draw(SAID)
    layers = Layers(
        system,
        tools,
        draw(BLOCKS),
        draw(BLOCKS),
        view_of(draw(any_conversations(max_chars=12_000))),
        None if user is None else ViewMessage("user", user),
    )
    reserved = draw(RESERVED)
    return Given(layers, merge(draw(policies())), draw(one_of(*FACTORS)), reserved, draw(st.booleans()))


def shown(made: Assembly) -> list[Message]:
    return [message.as_message() for message in made.messages]


def by_seq(view: View) -> dict[int, int]:
    """Return the tokens of every original in a view."""
    return {message.seq: message.tokens for message in view if message.seq >= 0}


@given(payloads())
@pytest.mark.requirement("P1", "P2", "P7", "P11", "P18")
def test_any_payload(given: Given) -> None:
    """It is valid, the same every time, within its budget, and has what has to be there and what would have fitted."""
    served = given.assembled()
    if served.messages:
        assert problems(shown(served)) == []
    assert given.assembled() == served
    within_its_budget_or_the_excess_is_named(given, served)
    the_last_exchange_is_there(given, served)
    nothing_gave_way_that_would_have_fitted(given, served)


def within_its_budget_or_the_excess_is_named(given: Given, served: Assembly) -> None:
    over = served.total + served.reserved - served.budget
    named = [warning for warning in served.warnings if "over the budget" in warning]
    assert len(named) == (over > 0)
    assert all(f"{over:,} over the budget of {given.policy.total_token_budget:,}" in warning for warning in named)
    if over > 0:
        assert sum(block.form is None for block in served.given_way) == len(given.layers.prior)
    # Not what the layers say of themselves: what is sent, counted as a whole.
    sent = (fixed_tokens(given.layers.system, given.layers.tools) + view_tokens(served.messages)) * given.factor
    assert abs(sent - served.total) <= (given.factor + 1) * (len(served.messages) + 12)


def the_last_exchange_is_there(given: Given, served: Assembly) -> None:
    history = given.layers.history
    asked = given.layers.user_message
    if asked is not None:
        said = asked.content if isinstance(asked.content, str) else asked.content[0]["text"]
        assert said in (block["text"] for block in shown_blocks(served.messages[-1]) if block["type"] == "text")
    if not history:
        return
    last = exchanges(history)[-1]
    answer = last_answer(history)
    request = next(message for message in history[last.start : last.stop] if is_request(message.role, message.content))
    newest = [index for part in rounds(history, last)[-1:] for index in part if index <= answer]
    kept = {message.seq: message for message in served.messages}
    # What nobody has answered yet may go for what is asked now.
    core = [request] if answer >= 0 else [history[-1]] if asked is None else []
    for message in (*core, *(history[index] for index in newest)):
        # Signed thinking cannot stay where what stood before it went; a message of nothing else goes with it.
        assert message.seq in kept or all(block["type"] in THINKING for block in shown_blocks(message))
    if asked is None:
        assert served.messages[-1].seq == history[-1].seq or history[-1].role == "assistant"
    if given.carries_summary:
        assert served.messages[0].seq == history[0].seq
    asked_last = next(message for message in reversed(history) if is_request(message.role, message.content))
    if asked is None and asked_last.seq >= 0:
        said = [block for block in shown_blocks(asked_last) if block["type"] == "text"]
        assert all(block in shown_blocks(kept[asked_last.seq]) for block in said)


def shown_blocks(message: ViewMessage) -> list[dict[str, Any]]:
    content = message.content
    return [{"type": "text", "text": content}] if isinstance(content, str) else content


@given(payloads(), st.lists(st.integers(1_000, 40_000), min_size=2, max_size=4, unique=True))
@pytest.mark.requirement("P5", "P6")
def test_a_larger_budget_never_returns_less(given: Given, budgets: list[int]) -> None:
    """Context comes before history: where a larger budget leaves more of a block, history gets what that leaves."""
    for small, large in pairwise(given.at(budget) for budget in sorted(budgets)):
        context = small.prior_tokens + small.turn_tokens, large.prior_tokens + large.turn_tokens
        assert context[0] <= context[1]
        assert large.blocks_shortened <= small.blocks_shortened
        if context[0] == context[1]:
            assert small.fitted.kept <= large.fitted.kept
            less, more = by_seq(small.messages), by_seq(large.messages)
            assert less.keys() <= more.keys()
            history = by_seq(small.fitted.view)
            assert all(tokens <= more[seq] for seq, tokens in history.items())


def nothing_gave_way_that_would_have_fitted(given: Given, served: Assembly) -> None:
    layers, factor = given.layers, given.factor
    asked = layers.user_message
    whole = (
        fixed_tokens(layers.system, layers.tools)
        + blocks_tokens((*layers.prior, *layers.turn))
        + (content_tokens(asked.content) if asked else 0)
        + view_tokens(layers.history)
    )
    if whole * factor + (factor + 1) * (len(layers.history) + 12) + served.reserved <= served.budget:
        assert [warning for warning in served.warnings if "cannot help that" not in warning] == []
        assert (served.exchanges_dropped, served.fitted.rounds_dropped, served.fitted.cut, served.blocks_shortened) == (
            0,
            False,
            0,
            0,
        )
        assert by_seq(layers.history).keys() <= by_seq(served.messages).keys()


class TestStory:
    """500k of system prompt, 20k carried over, 50k new, 200k of history and 2k from the user."""

    LAYERS = Layers(
        system="s" * 2_000_000,
        prior=(ContextBlock("p", "P", "# A\n" + "p" * 80_000),),
        turn=(ContextBlock("t", "T", "# B\n" + "t " * 100_000),),
        history=view_of(
            [
                {"role": role, "content": f"{role} {number} " + "h" * (4 * 200_000 // 30)}
                for number in range(15)
                for role in ("user", "assistant")
            ]
        ),
        user_message=ViewMessage("user", "u" * 8_000),
    )

    def at(self, **policy: Any) -> Assembly:
        served = assemble(self.LAYERS, merge(policy), History(15))
        assert problems(shown(served)) == []
        return served

    @pytest.mark.requirement("P1", "P18")
    def test_in_a_million_it_fits_whole(self) -> None:
        place = self.at(total_token_budget=1_000_000)
        (warning,) = place.warnings
        assert "system prompt and tools alone have 500,000 tokens" in warning
        assert place.total == pytest.approx(772_000, rel=0.01)
        assert (place.system_tokens, place.user_tokens) == (500_000, 2_000)
        assert place.prior_tokens == pytest.approx(20_000, rel=0.01)
        assert place.turn_tokens == pytest.approx(50_000, rel=0.01)
        assert place.fitted.tokens == pytest.approx(200_000, rel=0.01)

    @pytest.mark.requirement("P4", "P5", "P6", "P18")
    def test_a_little_tighter_history_gets_what_the_others_leave(self) -> None:
        place = self.at(total_token_budget=700_000)
        assert place.blocks_shortened == 0
        assert place.exchanges_dropped > 0
        assert place.total + place.reserved <= 700_000
        one = place.fitted.tokens // place.fitted.kept
        assert place.total + place.reserved + one > 700_000

    @pytest.mark.requirement("P4", "P18")
    def test_the_system_prompt_makes_context_give_way_before_it_is_too_late(self) -> None:
        place = self.at(total_token_budget=540_000)
        assert place.blocks_shortened > 0
        assert place.prior_tokens + place.turn_tokens <= 540_000 - place.system_tokens
        assert place.total + place.reserved <= 540_000

    @pytest.mark.requirement("P8", "P11", "P18")
    def test_in_the_default_budget_the_excess_is_named_and_the_last_exchange_is_there(self) -> None:
        place = self.at()
        over = place.total + place.reserved - 128_000
        assert over > 500_000 - 128_000
        assert f"{over:,} over the budget of 128,000; nothing more may be left out" in place.warnings[-1]
        assert place.fitted.kept == 1
        assert str(place.messages[0].content).startswith("user 14")

    @pytest.mark.requirement("P18")
    @pytest.mark.parametrize("layer", ["system", "prior", "turn", "history", "user_message"])
    def test_two_point_seven_million_in_any_layer_fit_a_million_or_are_named(self, layer: str) -> None:
        much = "word and " * 300_000 * 4
        layers = {
            "system": Layers(system=much, history=self.LAYERS.history),
            "prior": Layers(prior=(ContextBlock("p", "P", "# A\n" + much),), history=self.LAYERS.history),
            "turn": Layers(turn=(ContextBlock("t", "T", "# B\n" + much),), history=self.LAYERS.history),
            "history": Layers(history=view_of([m.as_message() for m in self.LAYERS.history] * 14)),
            "user_message": Layers(history=self.LAYERS.history, user_message=ViewMessage("user", much)),
        }[layer]
        served = assemble(layers, merge({"total_token_budget": 1_000_000}), History(count_exchanges(layers.history)))
        named = any("over the budget of 1,000,000" in warning for warning in served.warnings)
        # The system prompt and what the user says are not the service's to shorten.
        assert named == (layer in {"system", "user_message"})
        assert named or served.total + served.reserved <= 1_000_000
        assert served.fitted.kept >= 1
        assert served.warnings


def transcripts() -> list[Transcript]:
    """Return real conversations: every long one, and some of the short."""
    if not TRANSCRIPTS.is_dir():
        pytest.skip(f"no transcripts in {TRANSCRIPTS}; PALIMPSEST_TRANSCRIPTS names another folder")
    items = [each for path in sorted(TRANSCRIPTS.glob("*.json*")) for each in read_transcripts(path)]
    by_length = sorted(items, key=lambda each: -sum(len(bytes(message.content)) for message in each.messages))
    return [*by_length[:6], *by_length[6::20]]


def messages_of(transcript: Transcript) -> list[Message]:
    return [{"role": message.role, "content": json.loads(bytes(message.content))} for message in transcript.messages]


@pytest.mark.requirement("P1", "P6", "P7")
def test_real_transcripts_at_every_budget() -> None:
    for transcript in transcripts():
        view = view_of(messages_of(transcript))
        system = json.loads(bytes(transcript.system)) if transcript.system else None
        asked = ViewMessage("user", "Where were we?")
        given = Given(Layers(system, history=view, user_message=asked), Policy(), 1.0, None)
        before: dict[int, int] = {}
        for budget in BUDGETS:
            made = given.at(budget)
            assert problems(shown(made)) == [], (transcript.id, budget)
            over = made.total + made.reserved - budget
            assert over <= 0 or any(f"{over:,} over" in warning for warning in made.warnings)
            assert made.messages[-1].content == "Where were we?"
            now = by_seq(made.messages)
            assert all(before[seq] <= now[seq] for seq in before), (transcript.id, budget)
            before = now
        history = fit_history(view, 10**9, lambda message: message.tokens, carries_summary=False)
        assert history.view == view


@pytest.mark.requirement("P6", "P7", "P9")
def test_real_transcripts_over_http_at_every_budget(service: Service) -> None:
    for transcript in transcripts()[1:2]:
        system = json.loads(bytes(transcript.system)) if transcript.system else None
        path = service.conversation(system=system)
        for turn in transcript.turns:
            messages = [{"role": each.role, "content": json.loads(bytes(each.content))} for each in turn.messages]
            service.append(path, *messages)
        before = {"GET": 0, "POST": 0}
        for budget in BUDGETS:
            limits = {"total_token_budget": budget, "reserved_output_tokens": 500}
            changed = service.client.patch(path, json={"policy": limits})
            assert changed.status_code == 200, changed.text
            for call, least in before.items():
                answer = service.client.request(call, f"{path}/context", json={} if call == "POST" else None).json()
                assert problems(answer["messages"]) == [], (transcript.id, budget, call)
                tokens = answer["total"] if call == "POST" else answer["tokens"]["context"]
                over = tokens + 500 - budget
                assert over <= 0 or any(f"{over:,} over the budget" in warning for warning in answer["warnings"])
                assert least <= tokens, (transcript.id, budget, call)
                before[call] = tokens
