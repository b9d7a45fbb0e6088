"""The model behind /chat/completions: OpenAI's, or any server that speaks its API, as vLLM, Ollama and gateways do."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import urlsplit

import openai
from openai.types.chat import ChatCompletion

from compaction.shapes.usage import UsageError, read_usage
from compaction.steps.runs import RunReason
from compaction.tokens import CHARS_PER_TOKEN, text_weight
from compaction.windows import longest_answer_of
from worker.summarizers.api_errors import Trouble, trouble_of_status
from worker.summarizers.asking import (
    CONNECT_SECONDS,
    RemoteModel,
    Service,
    authorities,
    bound_answer,
    said_in,
)
from worker.summarizers.base import Answer, Spent, SummaryError
from worker.summarizers.prices import MOST_TOKENS, BilledTokens, cost

if TYPE_CHECKING:
    from collections.abc import Mapping

    from compaction.shapes.usage import TokenUsage
    from runtime.summarizers import ModelAccess
    from worker.summarizers.prices import PriceTable

_OWN_HOSTS: Final = re.compile(r"(?:.+\.)?(?:openai\.com|openai\.azure\.com|services\.ai\.azure\.com)")
"""Hosts that know `max_completion_tokens`, which their reasoning models insist on; others may ignore it, and then there
is no limit at all."""
OTHER_LIMIT: Final = "limit"
"""Lesson: the answer's limit goes by the other of its two names here."""
NO_SYSTEM: Final = "system"
"""Lesson: this model's template knows no role `system`; what it says is put before the text."""
THINKS: Final = "thinking"
"""Lesson: what this model thinks counts as a part of its answer, and takes all of the room."""
THINKING_TOKENS: Final = 16_384
"""Tokens of an answer's limit for what models think before it, once that has left no room for the answer."""
THINKING_SHARE: Final = 4
"""That room is at most this part of the window."""
READ_AT_LEAST: Final = 1_000
"""Tokens; a server that counts fewer counts what it has not had in its cache."""
CHARS_TOO_MANY: Final = 3
"""A prompt that is taken for this many times the tokens that the server has read was not read to its end."""

_UNKNOWN_NAME: Final = re.compile(
    r"unsupported|not supported|unrecognized|unknown|unexpected|not permitted|extra_forbidden|extra fields|use '?max_"
)

_STOPS: Final[Mapping[str | None, str]] = {
    "stop": "end_turn",
    "eos": "end_turn",  # text-generation-inference and its kin
    "eos_token": "end_turn",
    "stop_sequence": "stop_sequence",
    "length": "max_tokens",
    None: "end_turn",  # servers that know none
}
"""Finish reasons of an answer, as the Messages API calls them."""
_NO_ANSWER: Final[Mapping[str | None, tuple[str, str]]] = {
    "content_filter": (RunReason.MODEL_REFUSED, "the model's answer was filtered"),
    "model_length": (RunReason.PROMPT_TOO_LONG, "the model's window was full before its answer was whole"),  # Mistral
    "insufficient_system_resource": (RunReason.MODEL_OVERLOADED, "the model was interrupted"),  # DeepSeek
    "error": (RunReason.MODEL_ERROR, "the model's server failed while it answered"),  # OpenRouter
}
"""Finish reasons without an answer: the reason code, and what it means."""


class OpenAIModel(RemoteModel[openai.AsyncOpenAI]):
    """A model that is asked by Chat Completions."""

    name = "openai"

    @staticmethod
    def service(door: ModelAccess, deadline: float) -> Service[openai.AsyncOpenAI]:
        """Return where models are asked, for questions of `deadline` seconds."""

        def connect() -> openai.AsyncOpenAI:
            return openai.AsyncOpenAI(
                api_key=door.key or "none",
                base_url=door.base_url,
                max_retries=0,
                timeout=openai.Timeout(deadline, connect=CONNECT_SECONDS),
                http_client=openai.DefaultAsyncHttpx2Client(
                    verify=authorities(), follow_redirects=False, event_hooks={"response": [bound_answer]}
                ),
            )

        return Service(door.base_url, connect, trouble_of, "chat.completions.create")

    def lesson(self, text: str) -> str | None:
        """Return what a refusal of a request, in small letters, says to do without; None where that is nothing."""
        if self.limit_name in text and _UNKNOWN_NAME.search(text):
            return OTHER_LIMIT
        if "system role" in text or ("system" in text and "template" in text):
            return NO_SYSTEM
        return super().lesson(text)

    def ask(self, system: str, prompt: str, *, max_tokens: int) -> Answer:
        """Return the answer; SummaryError names what went wrong, and its `spent` counts the calls all the same.

        An answer that reached `max_tokens` is returned as it is, with that stop reason, and may be empty; any other
        has text.
        """
        self.check_allowed()

        async def call(client: openai.AsyncOpenAI) -> object:
            return await client.chat.completions.create(
                model=self.model,
                messages=self._messages(system, prompt),
                temperature=openai.omit if self.temperature is None else self.temperature,
                extra_body={self.limit_name: self._room(max_tokens)},
            )

        def read(answer: object, calls: int) -> Answer:
            return answer_of(answer, self.model, self.prices, calls=calls, weight=text_weight(system + prompt))

        answer = self.send(call, read)
        if not answer.text and answer.stop_reason == "max_tokens":
            self.learned.add(THINKS)
        return answer

    def _messages(self, system: str, prompt: str) -> list[Any]:
        if NO_SYSTEM in self.learned:
            return [{"role": "user", "content": f"{system}\n\n{prompt}"}]
        return [{"role": "system", "content": system}, {"role": "user", "content": prompt}]

    @property
    def limit_name(self) -> str:
        """What the answer's limit is called in a request to this model."""
        names = ["max_completion_tokens", "max_tokens"]
        host = urlsplit(self.base_url or "").hostname
        is_own = host is None or _OWN_HOSTS.fullmatch(host) is not None
        return names[is_own == (OTHER_LIMIT in self.learned)]

    def _room(self, max_tokens: int) -> int:
        """Return the most tokens that the answer may have, what the model thinks before it included."""
        thinking = min(THINKING_TOKENS, self.context_tokens // THINKING_SHARE) if THINKS in self.learned else 0
        return min(max_tokens + thinking, longest_answer_of(self.model, max_tokens + thinking))


def trouble_of(error: Exception) -> Trouble | None:
    """Return what an error of the SDK says, None for one that is not its own."""
    match error:
        case openai.APIStatusError():
            trouble = trouble_of_status(error)
            # The SDK leaves these out of its message, and some servers say nothing else.
            return trouble._replace(text=f"{error.code} {error.type} {trouble.text}".lower())
        case openai.APITimeoutError():
            return Trouble("timeout", type(error).__name__)
        case openai.APIConnectionError():
            return Trouble("unreachable", type(error).__name__)
        case openai.OpenAIError():
            return Trouble("garbage", type(error).__name__)
        case _:
            return None


def answer_of(completion: object, model: str, prices: PriceTable, *, calls: int = 1, weight: float = 0) -> Answer:
    """Return what a completion answers and what it cost; SummaryError where it answers nothing.

    `completion` may be anything: the SDK does not check what it parses. `weight` is that of the prompt, see
    `tokens.text_weight`: a server that has counted far fewer tokens has left most of it unread.
    """
    spent = Spent(calls)
    try:
        if not isinstance(completion, ChatCompletion):
            raise TypeError  # noqa: TRY301 - one way out for all that is no completion
        usage = _usage(getattr(completion, "usage", None))
        if usage is not None and usage.input is not None:
            spent = Spent(calls, usage.input, usage.output, cost(model, billed(usage), prices))
        if not completion.choices and getattr(completion, "error", None):
            raise SummaryError(RunReason.MODEL_ERROR, "the answer is an error", spent)
        choice = completion.choices[0]
        reason, refusal = choice.finish_reason, getattr(choice.message, "refusal", None)
        text = said_in(_text(choice.message.content))
        failed, stop = _NO_ANSWER.get(reason), _STOPS.get(reason)
    except (AttributeError, IndexError, TypeError):
        raise SummaryError(RunReason.MODEL_GARBAGE, "the answer is not a completion", spent) from None
    if refusal:
        raise SummaryError(RunReason.MODEL_REFUSED, "the model declined to answer", spent)
    if failed is not None:
        raise SummaryError(*failed, spent)
    if stop is None:
        raise SummaryError(RunReason.MODEL_GARBAGE, "the model stopped for another reason than its end", spent)
    read = spent.input_tokens or 0
    if READ_AT_LEAST <= read < weight / CHARS_PER_TOKEN / CHARS_TOO_MANY:
        # Ollama, with a `num_ctx` that is smaller than the prompt: it drops the beginning and says nothing.
        raise SummaryError(RunReason.PROMPT_TOO_LONG, f"the server has read {read:,} tokens of the prompt", spent)
    if not text and stop != "max_tokens":
        raise SummaryError(RunReason.EMPTY_SUMMARY, "the model answered without text", spent)
    return Answer(text, stop, spent)


def billed(usage: TokenUsage) -> BilledTokens:
    """Return the tokens that a call was billed for."""
    read, written = usage.cache_read or 0, usage.cache_written or 0
    return BilledTokens((usage.input or 0) - read - written, usage.output or 0, written, 0, read)


def _usage(reported: Any) -> TokenUsage | None:
    """Return what a usage says, None where it says nothing, or something else than tokens."""
    try:
        usage = read_usage("chat", reported)
    except UsageError:
        return None
    return usage if max(usage.input or 0, usage.output or 0) <= MOST_TOKENS else None


def _text(content: Any) -> str:
    """Return the text of an answer; some servers send parts, of which what was thought is none."""
    if isinstance(content, list):
        return "".join(str(part["text"]) for part in content if isinstance(part, dict) and part.get("type") == "text")
    if content is None or isinstance(content, str):
        return content or ""
    raise TypeError
