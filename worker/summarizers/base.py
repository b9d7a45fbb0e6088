"""The interface of a summarizer."""

from __future__ import annotations

from types import MappingProxyType
from typing import TYPE_CHECKING, NamedTuple, Protocol, Self, TypeVar, runtime_checkable

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from decimal import Decimal

    from compaction.claims.claim import Claim
    from compaction.credentials.masking import Masker
    from compaction.pins.pinned import Pin
    from compaction.policy import Policy
    from compaction.view import ViewMessage


T = TypeVar("T")


class SummaryRequest(NamedTuple):
    """The messages to summarize, the summary before them, and the policy in force."""

    zone: Sequence[ViewMessage]
    previous: str | None
    policy: Policy
    instructions: str | None = None
    """What people want stressed: untrusted, and no more than a wish."""
    times: Mapping[int, str] = MappingProxyType({})
    """When messages were sent, RFC 3339 by seq, as far as it is known."""
    names: Mapping[int, str] = MappingProxyType({})
    """Who wrote messages, by seq, where they say so."""
    pins: tuple[str, ...] = ()
    """Texts that are kept word for word next to the summary."""
    strip_fields: tuple[str, ...] = ()
    """Names of fields in tool results that no model may see."""
    canary: str | None = None
    """The word in the model's rules that a summary may not hold; known when a summary is checked."""
    other_texts: tuple[str, ...] = ()
    """Other texts of the context: what they hold, the summary does not have to."""
    tail: Sequence[ViewMessage] = ()
    """The messages after the zone, which stay as they are."""
    claims: tuple[Claim, ...] | None = None
    """What the lines of `previous` rest on; None where that is not known."""
    unsourced: str | None = None
    """An earlier summary that named no sources: what comes from it cannot have any."""
    withdrawn: tuple[Pin, ...] = ()
    """Rules that are not in force any more, which a summary does not state."""
    masker: Masker | None = None
    """What masked the credentials in all of it; None where they are kept."""
    in_pieces: bool = False
    """Whether several of the messages may be pieces of one, as in other shapes than the Messages API's."""
    language: str = "english"
    """Of the headings that are asked for."""

    def without_secrets(self, text: str) -> str:
        """Return what a summarizer wrote with its credentials masked, unless the policy keeps them."""
        return text if self.masker is None else self.masker.mask_known(text)


class Spent(NamedTuple):
    """What a summary cost; calls that failed count."""

    calls: int = 0
    input_tokens: int | None = None
    output_tokens: int | None = None
    cost_usd: Decimal | None = None


class Answer(NamedTuple):
    """What a model answered: its text, why it stopped (the Messages API's `stop_reason`), and what the call cost."""

    text: str
    stop_reason: str | None
    spent: Spent


class Summary(NamedTuple):
    """A finished summary and how it was made."""

    text: str
    model: str | None
    prompt_version: str
    spent: Spent
    covers_through: int | None = None
    """Seq of the last message of the zone that it covers; None for all of them."""
    read_through: int = -1
    """Seq of the newest message that it was made from; `proved` sets it."""
    notes: tuple[str, ...] = ()
    """What a reader has to know of it: that it is partial, which messages were too large."""
    parts: int = 1
    """How many parts it was written in."""
    claims: tuple[Claim, ...] | None = None
    """What its lines rest on, where that is known by construction; else its text may cite it, see `proving`."""
    dropped: int = 0
    """Lines that were left out of it because nothing bore them out."""


class SummaryError(Exception):
    """No summary could be made; `code` is the reason that the run records."""

    def __init__(self, code: str, detail: str, spent: Spent | None = None) -> None:
        super().__init__(f"{code}: {detail}")
        self.code = code
        self.detail = detail
        self.spent = spent or Spent()


class Model(Protocol):
    """A language model. Called outside any transaction, from many threads at once."""

    @property
    def name(self) -> str:
        """Name of the backend for the audit."""

    @property
    def model(self) -> str:
        """The model's id."""

    @property
    def context_tokens(self) -> int:
        """Tokens of its context window, input and answer together."""

    def ask(self, system: str, prompt: str, *, max_tokens: int) -> Answer:
        """Return its answer of at most `max_tokens` tokens; raise SummaryError if there is none."""


@runtime_checkable
class Choosable(Protocol):
    """A model, or a summarizer, of which a policy may choose another by its name, and say what its tokens cost."""

    def chosen_by(self, policy: Policy) -> Self:
        """Return the one that a policy names, itself where it names none."""


class Summarizer(Protocol):
    """Makes summaries. Called outside any transaction, from many threads at once. See also `PayingSummarizer`."""

    @property
    def name(self) -> str:
        """Name for the audit."""

    @property
    def model(self) -> str | None:
        """The model it calls, None where it calls none."""

    def summarize(self, request: SummaryRequest) -> Summary:
        """Return a summary; raise SummaryError if none can be made."""


def chosen_by(asked: T, policy: Policy) -> T:
    """Return the model or summarizer that a policy names, `asked` where it names none or there is no choice."""
    return asked.chosen_by(policy) if isinstance(asked, Choosable) else asked
