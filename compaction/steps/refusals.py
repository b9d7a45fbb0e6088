"""Refusals: what a model's error says about a prompt that was too long for it.

The wordings are those of the Messages API (also behind Bedrock and Vertex), Gemini, OpenAI and servers that speak its
protocol (vLLM, SGLang, OpenRouter, Groq, Mistral, xAI, Moonshot, Qwen, Zhipu, MiniMax, TGI, Databricks), llama.cpp,
LM Studio and Amazon Bedrock. `tests/domain/steps/test_refusals.py` has each with where it was seen.
"""

from __future__ import annotations

import re
from typing import Final, NamedTuple

LOOKED_AT_CHARS: Final = 20_000
"""Characters of an error that are searched: errors that quote the prompt do so after what they have to say."""
LARGEST: Final = 100_000_000
"""Tokens; a larger number is no count."""

_N: Final = r"\d{1,3}(?:[,_]\d{3})+|\d{1,12}"
_TOKENS: Final = rf"(?P<tokens>{_N})"
_LIMIT: Final = rf"(?P<limit>{_N})"
_OUTPUT: Final = rf"(?P<output>{_N})"
_CLOSE: Final = r"[^0-9]{0,80}?"
"""Words between two numbers of one statement."""
_SAID: Final = r"(?:resulted in|requested(?: about)?|request (?:has|contains))"
_LENGTH: Final = r"max(?:imum)?[ _](?:context|prompt|input|model)[ _]len(?:gth)?"

_WORDINGS: Final = tuple(
    re.compile(pattern, re.IGNORECASE)
    for pattern in (
        rf"prompt is too long\D{{0,20}}{_TOKENS} tokens? > {_LIMIT}",
        rf"exceed context limit\D{{0,20}}{_TOKENS} \+ {_OUTPUT} > {_LIMIT}",
        rf"token count{_CLOSE}{_TOKENS}{_CLOSE}(?:maximum|only supports|limit){_CLOSE}{_LIMIT}",
        rf"length is {_LIMIT}{_CLOSE}requested {_OUTPUT} output tokens{_CLOSE}contains (?:at least )?{_TOKENS} input",
        rf"passed {_TOKENS} input tokens{_CLOSE}requested {_OUTPUT} output tokens{_CLOSE}length is only {_LIMIT}",
        rf"length of {_LIMIT} tokens{_CLOSE}total of (?:{_N}) tokens: {_TOKENS} tokens from.{{0,40}}? {_OUTPUT}",
        rf"is too large: {_OUTPUT}\D{{0,60}}context length is {_LIMIT}{_CLOSE}{_SAID} {_TOKENS}",
        rf"(?:context|prompt|input) length is (?:only )?{_LIMIT}{_CLOSE}{_SAID} {_TOKENS}",
        rf"limit of {_LIMIT} tokens{_CLOSE}resulted in {_TOKENS}",
        rf"prompt contains {_TOKENS} tokens.{{0,80}}?too large for model with {_LIMIT}",
        rf"token limit: {_LIMIT} \(requested: {_TOKENS}",
        rf"keep the first {_TOKENS} tokens{_CLOSE}context length of (?:only )?{_LIMIT}",
        rf"length {_TOKENS} exceeds context length {_LIMIT}",
        rf"request \({_TOKENS} tokens\){_CLOSE}context size \({_LIMIT}",
        rf"n_prompt_tokens\W+{_TOKENS}\D{{0,40}}n_ctx\W+{_LIMIT}",
        rf"requested tokens \({_TOKENS}\){_CLOSE}context window of {_LIMIT}",
        rf"prompt_tokens \({_TOKENS}\){_CLOSE}max_seq_len \({_LIMIT}",
        rf"max(?:imum)? input tokens: {_LIMIT}{_CLOSE}token count: {_TOKENS}",
        rf"cannot exceed {_LIMIT}{_CLOSE}(?:received|got) {_TOKENS}",
        rf"must be <= {_LIMIT}\D{{0,20}}given: {_TOKENS}{_CLOSE}and {_OUTPUT}",
        rf"must have less than {_LIMIT} tokens\D{{0,20}}given: {_TOKENS}",
        rf"input \({_TOKENS} tokens\) is longer than{_CLOSE}\({_LIMIT}",
        rf"input length \({_TOKENS} tokens\) exceeds{_CLOSE}\({_LIMIT}",
        rf"length {_TOKENS}\) is (?:longer than|too long){_CLOSE}length(?: of)? {_LIMIT}",
        rf"prompt is too long: {_TOKENS}{_CLOSE}context length: {_LIMIT}",
        rf"max input length is {_LIMIT}{_CLOSE}supplied {_TOKENS}",
    )
)
_LIMITS: Final = tuple(
    re.compile(pattern, re.IGNORECASE)
    for pattern in (
        rf"token count exceeds the maximum{_CLOSE}{_LIMIT}",
        rf"range of input length should be \[\d+, ?{_LIMIT}\]",
        rf"{_LENGTH} (?:is|of) {_LIMIT}",
    )
)
"""Wordings that name the limit and not the prompt's tokens."""
_TOO_LONG: Final = re.compile(
    # Claude, Bedrock, TGI; "string too long" of OpenAI, which says the same of ids, names and lists of tools.
    r"(?<!took )(?<!'tools': array )too long(?!\.? expected a string with maximum length \d{1,5}\b)"
    r"|context[ _](?:size|length|window|limit)"  # llama.cpp, vLLM, SGLang, OpenAI and its code, MiniMax, LM Studio
    rf"|{_LENGTH}"  # vLLM
    r"|reduce the length of the messages"  # Groq
    r"|exceeds max length"  # Zhipu
    r"|number of input tokens exceeds",  # Amazon Nova
    re.IGNORECASE,
)


class Refused(NamedTuple):
    """A prompt of `tokens` was refused; the model takes `limit` tokens of prompt besides the output asked for.

    `tokens` is None where the error names the limit alone.
    """

    tokens: int | None
    limit: int


def read_refusal(error: str) -> Refused | None:
    """Return the numbers in a model's error, None where it has none or they do not say that the prompt was too long."""
    text = " ".join(error[:LOOKED_AT_CHARS].split())
    contradicts_itself = False
    for wording in _WORDINGS:
        if match := wording.search(text):
            said = match.groupdict()
            tokens, limit = _number(said["tokens"]), _number(said["limit"]) - _number(said.get("output") or "0")
            if 0 < limit < tokens <= LARGEST:
                return Refused(tokens, limit)
            contradicts_itself = True
    for wording in () if contradicts_itself else _LIMITS:
        if (match := wording.search(text)) and 0 < (limit := _number(match["limit"])) <= LARGEST:
            return Refused(None, limit)
    return None


def is_refused_for_length(error: str) -> bool:
    """Tell whether an error, of whichever server, says that the prompt has too many tokens for the model."""
    return _TOO_LONG.search(error[:LOOKED_AT_CHARS]) is not None or read_refusal(error) is not None


def _number(text: str) -> int:
    return int(re.sub(r"\D", "", text))
