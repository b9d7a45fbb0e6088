"""A conversation in memory whose turns come in any shape, as the store keeps it, and lives of such conversations."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from hypothesis import strategies as st

from compaction.messages import CALLS
from compaction.policy import merge
from compaction.shapes import codecs
from compaction.steps.snapshot import build
from tests.support.domain_conversation import Conversation
from tests.support.shapes.generated import as_sent, chat_conversations, response_conversations
from tests.support.shapes.served import problems, served
from tests.support.strategies import policies, valid_conversations

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from hypothesis.strategies import DrawFn

    from compaction.policy import Policy
    from compaction.shapes.inner import SentMessage, Shape
    from compaction.steps.snapshot import NewSnapshot, Working
    from tests.support.blocks import Message

STEPS: Final = ("cut", "summarize", "drop")
_GENERATED: Final = {
    "messages": valid_conversations(max_chars=300, max_exchanges=2, max_rounds=2, thinking=False),
    "chat": chat_conversations(),
    "responses": response_conversations(),
}


@dataclass
class MixedConversation(Conversation):
    """The counters of what tells whether a text may be served unparsed are for the Messages API alone."""

    sent: dict[Shape, dict[int, SentMessage]] = field(default_factory=lambda: {"chat": {}, "responses": {}})
    items: list[Message] = field(default_factory=list)
    """The Responses items that were sent, in order."""
    other_model_through: int = -1

    def append_in(self, shape: Shape, turn: Sequence[Message]) -> None:
        """Append a turn of a shape."""
        if shape == "messages":
            self.append(turn)
            return
        first = len(self.originals)
        every = [codecs.read_sent(as_sent(message), shape) for message in turn]
        self.sent[shape] |= dict(enumerate(every, first))
        self.items += turn if shape == "responses" else []
        self.append([{"role": each.decoded.role, "content": each.decoded.content} for each in every])

    def switch_model(self) -> None:
        """Let another model answer from here on: what the one before it thought is for nobody else."""
        self.strip_thinking_through = self.other_model_through = len(self.originals) - 1

    def working(self) -> Working:
        """Return the view that steps and readers start from."""
        return build(
            self.snapshot,
            self.tail,
            self.policy,
            strip_thinking_through=self.strip_thinking_through,
            other_model_through=self.other_model_through,
            broken_through=self.broken_through,
            in_pieces=True,
        )

    def served_in(self, shape: Shape, view: Any = None) -> list[Message]:
        """Return what a client reads in a shape."""
        return served(shape, self.working().view if view is None else view, self.sent.get(shape, {}))[0]

    def refused(self, shape: Shape, view: Any = None) -> list[Any]:
        """Return what the API of a shape would refuse of the context."""
        shown = self.served_in(shape, view)
        return problems(shape, shown, self.items) if shown else []

    @property
    def open_ids(self) -> list[str]:
        """The inner ids of the calls that the newest messages leave open, in order."""
        view = self.working().view
        entries: list[str] = []
        for message in reversed(view):
            if message.role != "assistant":
                break
            content = message.content if isinstance(message.content, list) else []
            entries = [*(str(block["id"]) for block in content if block.get("type") in CALLS - _SERVERS), *entries]
        return entries

    def take(self, name: str, number: int) -> NewSnapshot | None:
        """Return what a step would write."""
        return self.summarize(f"Summary {number}.") if name == "summarize" else getattr(self, name)()


_SERVERS: Final = CALLS - {"tool_use"}


class Segment(NamedTuple):
    """What is said in one shape, in turns; `answers` that it begins with the results of calls of the segment before."""

    shape: Shape
    turns: list[list[Message]]
    answers: bool


class MixedLife(NamedTuple):
    """Segments of one conversation, each by another model, and the acts after each of their turns, in order."""

    policy: Policy
    segments: list[Segment]
    acts: list[tuple[str, int]]


@st.composite
def mixed_lives(draw: DrawFn) -> MixedLife:
    """Return a life whose model and shape change up to twice, in the middle of a tool loop as well."""
    segments = []
    for _ in range(draw(st.integers(1, 3))):
        shape: Shape = draw(st.sampled_from(codecs.SHAPES))
        messages = draw(_GENERATED[shape])
        at = draw(st.integers(1, len(messages)))
        turns = [messages[:at], messages[at:]] if at < len(messages) else [messages]
        segments.append(Segment(shape, turns, draw(st.booleans())))
    acts = st.tuples(st.sampled_from([*STEPS, *(f"late {step}" for step in STEPS), "restore"]), st.integers(0, 5))
    return MixedLife(merge(draw(policies())), segments, draw(st.lists(acts, min_size=3, max_size=8)))


def lived(life: MixedLife) -> Iterator[tuple[str, MixedConversation]]:
    """Yield the conversation after every append and every act, with what has just happened."""
    conversation = MixedConversation(life.policy)
    acts = iter(life.acts)
    late: NewSnapshot | None = None
    before: Shape | None = None
    for segment in life.segments:
        if conversation.originals:
            conversation.switch_model()
            yield "switch", conversation
        turns = list(segment.turns)
        # A client of the shape that the calls are in has their own ids, and outputs of their type.
        if segment.answers and segment.shape != before and (ids := conversation.open_ids):
            turns.insert(0, _results(segment.shape, ids))
        before = segment.shape
        for turn in turns:
            conversation.append_in(segment.shape, turn)
            yield "append", conversation
            if late is not None:
                conversation.commit(late)
                late = None
                yield "late commit", conversation
            name, number = next(acts, ("", 0))
            if name == "restore":
                conversation.move_head(number % (len(conversation.versions) + 1))
            elif not name or (new := conversation.take(name.split()[-1], number)) is None:
                continue
            elif name.startswith("late"):
                late = new
                continue
            else:
                conversation.commit(new)
            yield name, conversation


def _results(shape: Shape, ids: Sequence[str]) -> list[Message]:
    """Return the results of calls as a client of a shape sends them, by the ids that it was served."""
    match shape:
        case "messages":
            entries = [{"type": "tool_result", "tool_use_id": each, "content": f"Found {each}."} for each in ids]
            return [{"role": "user", "content": entries}]
        case "chat":
            return [{"role": "tool", "tool_call_id": each, "content": f"Found {each}."} for each in ids]
        case _:
            return [{"type": "function_call_output", "call_id": each, "output": f"Found {each}."} for each in ids]
