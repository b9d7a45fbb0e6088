#!/usr/bin/env python3
"""Prints docs/gateway.md with its table of clients as they were measured last; `make docs` writes the file."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any, Final, NamedTuple

ROOT: Final = Path(__file__).resolve().parent.parent
PAGE: Final = ROOT / "docs/gateway.md"
RECORD: Final = ROOT / "clients/gateway/record.json"
"""Written by `make clients`."""
BEGIN: Final = "<!-- clients: written by make docs from what make clients measured -->\n"
END: Final = "<!-- clients end -->\n"
URL: Final = "http://127.0.0.1:8081"
HEADER: Final = """\
| client | what to set | requests | rows of the longest | its tokens | tokens of all requests | conversations |
|---|---|--:|--:|--:|--:|---|
"""


class Client(NamedTuple):
    """A client of the table."""

    measured: str
    """What the record calls it."""
    name: str
    to_set: str
    beside: str = ""
    """What its other conversations are."""


_SEALED: Final = '`store=False`, `include=["reasoning.encrypted_content"]`'
_ANTHROPIC: Final = f"`ANTHROPIC_BASE_URL={URL}`, the key as `ANTHROPIC_API_KEY`"
_OPENAI: Final = f"`OPENAI_BASE_URL={URL}/v1`, the key as `OPENAI_API_KEY`"
_AI_SDK: Final = f'({{ baseURL: "{URL}/v1", apiKey }})`'
_OPENCODE: Final = f"`provider.NAME.options`: `baseURL` `{URL}/v1`, `apiKey`"
CLIENTS: Final = (
    Client("anthropic (Python)", "`anthropic`, Python", _ANTHROPIC),
    Client("anthropic (TypeScript)", "`@anthropic-ai/sdk`", _ANTHROPIC),
    Client("openai chat (Python)", "`openai`, Python, Chat Completions", _OPENAI),
    Client("openai responses (Python)", "`openai`, Python, Responses", f"the same; {_SEALED}"),
    Client("openai chat (TypeScript)", "`openai`, TypeScript, Chat Completions", _OPENAI),
    Client("openai responses (TypeScript)", "`openai`, TypeScript, Responses", f"the same; {_SEALED}"),
    Client(
        "Claude Code",
        "Claude Code 2.1",
        f"`ANTHROPIC_BASE_URL={URL}`, the key as `ANTHROPIC_AUTH_TOKEN`",
        ": its own, a title, a subagent, and after `/compact`",
    ),
    Client(
        "Codex",
        "Codex 0.169",
        f'in its `config.toml` a provider with `base_url = "{URL}/v1"`, `wire_api = "responses"`, `env_key`',
        ": its own, and after its own compaction",
    ),
    Client(
        "opencode messages",
        "opencode 1.18, `@ai-sdk/anthropic`",
        _OPENCODE.replace("NAME", "anthropic"),
        ": its own, a title, a subagent",
    ),
    Client(
        "opencode chat",
        "opencode 1.18, `@ai-sdk/openai-compatible`",
        _OPENCODE,
        ": its own, a title, a subagent",
    ),
    Client("AI SDK, @ai-sdk/anthropic", "Vercel AI SDK 7, `@ai-sdk/anthropic`", f"`createAnthropic{_AI_SDK}"),
    Client("AI SDK, @ai-sdk/openai chat", "Vercel AI SDK 7, Chat Completions", f"`createOpenAI{_AI_SDK}, `.chat(…)`"),
    Client(
        "AI SDK, @ai-sdk/openai responses",
        "Vercel AI SDK 7, Responses",
        f"`createOpenAI{_AI_SDK}; `store: false` in the provider options, as earlier answers are references else",
    ),
    Client(
        "OpenAI Agents SDK chat",
        "OpenAI Agents SDK 0.24, Chat Completions",
        f'`AsyncOpenAI(base_url="{URL}/v1")` of its model, or as `openai`',
    ),
    Client(
        "OpenAI Agents SDK responses",
        "OpenAI Agents SDK 0.24, Responses",
        'the same; `ModelSettings(store=False, response_include=["reasoning.encrypted_content"])`',
    ),
    Client("Pydantic AI messages", "Pydantic AI 2.68, Messages", f'`AnthropicProvider(base_url="{URL}")`'),
    Client("Pydantic AI chat", "Pydantic AI 2.68, Chat Completions", f'`OpenAIProvider(base_url="{URL}/v1")`'),
    Client("Pydantic AI responses", "Pydantic AI 2.68, Responses", "the same; `openai_store=False`"),
    Client("LangChain messages", "LangChain 1.4, Messages", f'`ChatAnthropic(base_url="{URL}")`'),
    Client("LangChain chat", "LangChain 1.4, Chat Completions", f'`ChatOpenAI(base_url="{URL}/v1")`'),
    Client("LangChain responses", "LangChain 1.4, Responses", f"the same; `use_responses_api=True`, {_SEALED}"),
    Client("Strands messages", "Strands 1.62, Messages", f'`client_args={{"base_url": "{URL}", "api_key": …}}`'),
    Client("Strands chat", "Strands 1.62, Chat Completions", f'`client_args={{"base_url": "{URL}/v1", "api_key": …}}`'),
    Client("LiteLLM SDK to Anthropic", "LiteLLM's SDK 1.83, `anthropic/…`", f'`api_base="{URL}"`'),
    Client("LiteLLM SDK to OpenAI", "LiteLLM's SDK 1.83, `openai/…`", f'`api_base="{URL}/v1"`'),
    Client(
        "Open WebUI",
        "Open WebUI 0.12",
        f"`OPENAI_API_BASE_URLS={URL}/v1`, the key as `OPENAI_API_KEYS`; `ENABLE_FORWARD_USER_INFO_HEADERS=True`",
        ": its own, and one for each title, list of tags and follow-ups",
    ),
)


def table(record: list[dict[str, Any]]) -> str:
    """Return the table. Raises ValueError where the record has other clients than are described here."""
    measured = {each["client"]: each for each in record}
    if missing := {each.measured for each in CLIENTS} ^ set(measured):
        raise ValueError(f"not both described and measured: {', '.join(sorted(missing))}")
    return HEADER + "".join(_row(each, measured[each.measured]) for each in CLIENTS)


def _row(client: Client, measured: dict[str, Any]) -> str:
    cells = (
        client.name,
        client.to_set,
        str(measured["requests"]),
        f"{measured['rows_sent']} → {measured['rows_received']}",
        f"{measured['tokens_sent']:,} → {measured['tokens_received']:,}",
        f"{measured['all_tokens_sent']:,} → {measured['all_tokens_received']:,}",
        f"{measured['conversations']}{client.beside}",
    )
    return f"| {' | '.join(cells)} |\n"


def page() -> str:
    """Return the page with its table as it was measured."""
    text = PAGE.read_text()
    before, begin, rest = text.partition(BEGIN)
    _, end, after = rest.partition(END)
    if not begin or not end:
        raise ValueError(f"{PAGE} has not the comments that the table stands between")
    return f"{before}{BEGIN}\n{table(json.loads(RECORD.read_text()))}\n{END}{after}"


if __name__ == "__main__":
    sys.stdout.write(page())
