"""One question in one call, two where a model recalls: by the Messages API or by Chat Completions.

Rate limits and failures that pass are the SDKs' business, which wait as long as servers ask for.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from decimal import Decimal
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from compaction.recall.tool import definition
from compaction.shapes.serving import in_shape
from compaction.shapes.usage import UsageError, read_usage
from gateway.recalls.calls import calls_in, result_rows
from worker.summarizers.prices import BilledTokens, PriceTable, cost

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from bench.answers.originals import Originals
    from compaction.shapes.inner import Shape
    from compaction.view import View
    from runtime.settings import Settings
    from runtime.summarizers import Provider

UNKNOWN: Final = "UNKNOWN"
"""What a model answers where the context does not say."""
SYSTEM: Final = (
    "You are asked one question about the conversation so far, which may be between you and a user or between two"
    " people. Answer with the answer alone, in as few words as you can. Answer UNKNOWN where you do not find it."
)
RECALLING: Final = " You may recall once what is not shown, and do so before you answer UNKNOWN."
BEFORE: Final = "(Earlier messages are not shown.)"
"""Stands before a context that begins with what a model said: the Messages API begins with the user."""
MAX_TOKENS: Final = 2_000
"""Tokens of an answer, what is thought before it included."""
RETRIES: Final = 8
_SECONDS: Final = 300.0


class Reply(NamedTuple):
    """What a question came to."""

    text: str
    calls: int
    recalled: int
    input_tokens: int
    output_tokens: int
    usd: Decimal | None
    """None where the model's price is not known."""


class FailedError(Exception):
    """A question that could not be asked, after every retry."""


class _Answer(NamedTuple):
    text: str
    row: dict[str, Any]
    """The model's message as the next request has it."""
    billed: BilledTokens


class Asker(ABC):
    """A model that answers questions; from several threads at once."""

    name: Provider
    shape: Shape

    def __init__(self, model: str, prices: PriceTable) -> None:
        self.model = model
        self.prices = prices

    def ask(
        self, context: View, question: str, originals: Originals | None = None, *, system: str | None = None
    ) -> Reply:
        """Return the answer to a question; where `originals` are given, the model may recall once. Raises FailedError.

        `system` takes the place of the usual instructions.
        """
        rows = self.rows(context, question)
        if system is None:
            system = SYSTEM if originals is None else SYSTEM + RECALLING
        tools = [] if originals is None else [definition(self.shape)]
        answer = self._send(system, rows, tools, may_call=True)
        every = [answer.billed]
        calls = [] if originals is None else calls_in(self.shape, [answer.row])
        if originals is not None and calls:
            rows = [*rows, answer.row, *result_rows(self.shape, originals.answers(calls))]
            answer = self._send(system, rows, tools, may_call=False)
            every.append(answer.billed)
        usd = [cost(self.model, each, self.prices) for each in every]
        return Reply(
            answer.text.strip(),
            len(every),
            len(every) - 1,
            sum(each.prompt for each in every),
            sum(each.output for each in every),
            None if None in usd else sum(filter(None, usd), start=Decimal()),
        )

    def rows(self, context: View, question: str) -> list[dict[str, Any]]:
        """Return a question's request: the context, then the question."""
        return [*in_shape(context, self.shape, None).messages, {"role": "user", "content": question}]

    @abstractmethod
    def _send(self, system: str, rows: list[dict[str, Any]], tools: list[dict[str, Any]], *, may_call: bool) -> _Answer:
        """Ask once. Raises FailedError."""


class MessagesAsker(Asker):
    """By the Messages API, the context marked for the cache: the next question has the same."""

    name = "anthropic"
    shape = "messages"

    def __init__(self, settings: Settings) -> None:
        import anthropic  # noqa: PLC0415 - takes longer to load than all the rest

        super().__init__(settings.model_of("anthropic"), PriceTable.of(settings))
        door = settings.model_access("anthropic")
        self._errors = anthropic.APIError
        self._client = anthropic.Anthropic(
            api_key=door.key or "none", base_url=door.base_url, max_retries=RETRIES, timeout=_SECONDS
        )

    def rows(self, context: View, question: str) -> list[dict[str, Any]]:
        """Return a question's request."""
        *shown, asked = super().rows(context, question)
        if shown and shown[0]["role"] != "user":
            shown.insert(0, {"role": "user", "content": BEFORE})
        return [*shown[:-1], *map(_marked, shown[-1:]), asked]

    def _send(self, system: str, rows: list[dict[str, Any]], tools: list[dict[str, Any]], *, may_call: bool) -> _Answer:
        from worker.summarizers.anthropic import billed  # noqa: PLC0415 - as above

        choice: Mapping[str, Any] = {"tools": tools, "tool_choice": {"type": "auto" if may_call else "none"}}
        body: Any = {"model": self.model, "max_tokens": MAX_TOKENS, "system": system, "messages": rows}
        try:
            message = self._client.messages.create(**body, **(choice if tools else {}))
            content = [block.model_dump(exclude_none=True) for block in message.content]
        except (self._errors, AttributeError) as error:
            raise FailedError(type(error).__name__) from error
        text = "".join(str(block["text"]) for block in content if block["type"] == "text")
        return _Answer(text, {"role": "assistant", "content": content}, billed(message.usage) or BilledTokens())


class ChatAsker(Asker):
    """By Chat Completions."""

    name = "openai"
    shape = "chat"

    def __init__(self, settings: Settings) -> None:
        import openai  # noqa: PLC0415 - takes longer to load than all the rest, and is an extra

        from worker.summarizers.openai import OpenAIModel  # noqa: PLC0415 - as above

        super().__init__(settings.model_of("openai"), PriceTable.of(settings))
        door = settings.model_access("openai")
        self._errors = openai.APIError
        self._limit = OpenAIModel(settings).limit_name
        self._client = openai.OpenAI(
            api_key=door.key or "none", base_url=door.base_url, max_retries=RETRIES, timeout=_SECONDS
        )

    def _send(self, system: str, rows: list[dict[str, Any]], tools: list[dict[str, Any]], *, may_call: bool) -> _Answer:
        choice: Mapping[str, Any] = {"tools": tools, "tool_choice": "auto" if may_call else "none"}
        body: Any = {"model": self.model, "messages": [{"role": "system", "content": system}, *rows]}
        limit = {self._limit: MAX_TOKENS}
        try:
            completion = self._client.chat.completions.create(**body, **(choice if tools else {}), extra_body=limit)
            message = completion.choices[0].message
        except (self._errors, AttributeError, IndexError, TypeError) as error:
            raise FailedError(type(error).__name__) from error
        calls = [call.model_dump(exclude_none=True) for call in message.tool_calls or ()]
        row = {"role": "assistant", "content": message.content, **({"tool_calls": calls} if calls else {})}
        return _Answer(message.content or "", row, self._billed(completion.usage))

    @staticmethod
    def _billed(reported: object) -> BilledTokens:
        from worker.summarizers.openai import billed  # noqa: PLC0415 - as above

        try:
            return billed(read_usage("chat", reported))
        except UsageError:
            return BilledTokens()


def asker_of(provider: Provider, settings: Settings) -> Asker:
    """Return what asks the model of a provider that the settings name."""
    return MessagesAsker(settings) if provider == "anthropic" else ChatAsker(settings)


def _marked(row: Mapping[str, Any]) -> dict[str, Any]:
    content = row["content"]
    blocks: Sequence[Any] = [{"type": "text", "text": content}] if isinstance(content, str) else content
    return {"role": row["role"], "content": [*blocks[:-1], {**blocks[-1], "cache_control": {"type": "ephemeral"}}]}
