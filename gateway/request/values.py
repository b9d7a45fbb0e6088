"""The value of each stage of a request: read, then placed in a conversation, then rewritten."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from runtime import ids

if TYPE_CHECKING:
    from uuid import UUID

    from actions.overflow import RefusedCall
    from compaction.media.limits import MediaLimits
    from gateway.conversations.histories import ResentHistory
    from gateway.conversations.recognition import RecognizedPlace
    from gateway.conversations.turns import PendingExchange


class ParsedRequest(NamedTuple):
    """A request with a history."""

    body: bytes
    """As the provider may have it: malformed rows are repaired."""
    history: ResentHistory
    """As it is stored."""
    links: list[bytes]
    """The digest of each of its beginnings."""


class PlacedRequest(NamedTuple):
    """A request whose conversation is known, or is to be made."""

    body: bytes
    learned: PendingExchange
    """The turn that is stored when the answer has come."""
    limits: MediaLimits
    """Limits of the model on media."""
    body_without_tool: bytes | None
    """The body without the recall tool that the gateway declares; None where it declares none."""

    @property
    def history(self) -> ResentHistory:
        """The whole history, with the recall tool where it is declared."""
        return self.learned.history

    def at(self, place: RecognizedPlace) -> PlacedRequest:
        """Return the request at another place, as it is found there later."""
        return self._replace(learned=self.learned._replace(place=place, first=place.keyed))


class PreparedRequest(NamedTuple):
    """A request as it goes to the provider."""

    body: bytes
    outcome: str
    learned: PendingExchange | None = None
    """The turn that is stored when the answer has come; None for nothing."""
    placed: PlacedRequest | None = None
    """The request before it was rewritten, for another try with less; None where nothing is known of it."""
    unplaced: ParsedRequest | None = None
    """A request that failed open because the database was away, to be placed where its provider refuses it."""
    repaired: int = 0
    """Malformed rows of the client's that went on repaired."""
    opaque: int = 0
    """Rows of the client's that could not be read and went on as they came."""
    shrink: Shrink | None = None
    """The smaller context that becomes the head once this request was accepted."""

    @property
    def conversation(self) -> str | None:
        """The conversation as clients see it."""
        return ids.external("conv", self.learned.place.conversation_id) if self.learned else None

    @property
    def size(self) -> int:
        """Bytes of the turn that is to be stored."""
        return sum(map(len, self.learned.history.rows)) if self.learned else 0

    @property
    def saved_tokens(self) -> int:
        """Tokens that are not sent, by estimate."""
        return self.learned.saved_tokens if self.learned else 0

    @property
    def rules(self) -> str:
        """The hash over the rules that stand in it, "" where nothing was compacted."""
        return self.learned.rules if self.learned else ""

    @property
    def declares_recall(self) -> bool:
        """Whether the gateway has declared the recall tool in it."""
        return self.placed is not None and self.placed.body_without_tool is not None


class Shrink(NamedTuple):
    """A smaller context of a conversation, made after a refusal and stored nowhere yet."""

    conversation_id: UUID
    call: RefusedCall
