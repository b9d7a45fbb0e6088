#!/usr/bin/env python3
"""Prints docs/settings.md from the classes Settings and Policy; `make docs` writes the file."""

from __future__ import annotations

import ast
import inspect
import sys
import textwrap
from typing import Annotated, Any, Final, Literal, get_args, get_origin, get_type_hints

import msgspec
from pydantic import AliasChoices, SecretStr

from compaction.policy import Policy
from runtime.settings import Settings

HEADER: Final = """\
# Settings

Every process reads its settings once, from environment variables. A file in `/run/secrets` that is named
after a variable counts as well, which keeps passwords and keys out of the environment. `make docs` writes
this page.

## Processes

| variable | default | meaning |
|---|---|---|
"""

COMMAND_VARIABLES: Final = {
    "PALIMPSEST_URL": "where the API is, for commands about conversations (`--url`)",
    "PALIMPSEST_KEY": "the API key for them (`--key`)",
    "PALIMPSEST_CONVERSATION": "the conversation that `palimpsest mcp` serves",
    "PALIMPSEST_POSTGRES_BIN": "the folder of Postgres' programs for `serve` and `demo`; without it they look for one",
    "PALIMPSEST_REDIS_BIN": "the path of `redis-server` for them; without it, that of the `PATH`, then of the wheel",
}
"""Variables that commands read, and no process of an installation."""
COMMAND_HEADER: Final = """
## Commands

| variable | meaning |
|---|---|
"""

POLICY_HEADER: Final = """
## Policy

What decides when and how a conversation is compacted. Each key is a variable too, as
`PALIMPSEST_INPUT_TOKEN_BUDGET`, and `PALIMPSEST_POLICY` takes several as one JSON object; both set the
defaults of the installation. A list is JSON there, or its items with commas between. A tenant
(`PATCH /v1/tenant`) and a conversation (`PATCH /v1/conversations/{id}`) may override each key. Unknown keys,
impossible values and values that contradict each other are refused. Codes such as T2 are the
[requirements](requirements.md) that a default comes from.

- **Layers.** Installation, tenant, conversation; the last one that sets a key has it. Where a layer below has
  changed so that an override contradicts it, the override is not in force, and the conversation's `warnings`
  and its context's say so.
- **Changing.** `PATCH` merges `policy` key by key: what it does not name stays, `null` takes an override away, and
  `null` for `policy` all of them.
- **When a change counts.** A conversation's own at once. A tenant's with the next check of each conversation;
  processes of the API may go by the old one for 5 seconds, as long as they remember a key. A run keeps the policy
  that it began with, and `GET /v1/runs/{id}` shows it.
- **The window** of a conversation is that of its `model`, if it is known and no layer sets
  `model_context_tokens`. Every other number is the same whatever the model. Under 16,000 tokens is refused,
  under 32,000 is warned of.
- **Presets.** `policy_preset` beside `policy` sets the keys that depend on the window to fit one: `auto` (the
  model's), a model, or tokens (`200000`, `200k`, `1m`). It is worked out when it is written; what `policy` names
  wins. `GET /v1/policy-presets/{window_or_model}` shows one.
- **What is counted.** A changed `max_tool_result_chars` is counted in a conversation at once.
  `inline_tool_tags` count as the tenant has them when a message comes; what a conversation sets itself is in the
  view at once and counted from the next snapshot on.

| key | default | range | meaning |
|---|---|---|---|
"""


def docstrings(cls: type) -> dict[str, str]:
    """Return the text under each attribute of `cls`, on one line; attributes without a text are absent."""
    (definition,) = ast.parse(textwrap.dedent(inspect.getsource(cls))).body
    assert isinstance(definition, ast.ClassDef)  # noqa: S101 - the source of a class is a class
    texts: dict[str, str] = {}
    for attribute, text in zip(definition.body, definition.body[1:], strict=False):
        match attribute, text:
            case ast.AnnAssign(target=ast.Name(id=name)), ast.Expr(value=ast.Constant(value=str(value))):
                texts[name] = " ".join(value.split())
    return texts


def variable(name: str) -> str:
    """Return the environment variable that sets the field `name` of Settings."""
    alias = Settings.model_fields[name].validation_alias
    match alias:
        case AliasChoices(choices=[str(first), *_]):
            return first
        case str():
            return alias
        case _:
            return f"{Settings.model_config['env_prefix']}{name}".upper()


def _default(value: Any) -> str:
    match value:
        case None | "":
            return "not set"
        case {}:
            return "`{}`"
        case ():
            return "none"
        case SecretStr():
            return f"`{value.get_secret_value()}`"
        case bool():
            return f"`{str(value).lower()}`"
        case _:
            return f"`{value}`"


def _value(field: msgspec.structs.FieldInfo) -> Any:
    return field.default if field.default_factory is msgspec.NODEFAULT else field.default_factory()


def _choices(annotation: Any) -> str:
    """Return the values of a Literal, also of an optional one, as a sentence; nothing for other types."""
    for candidate in (annotation, *get_args(annotation)):
        if get_origin(candidate) is Literal:
            return " One of " + ", ".join(f"`{value}`" for value in get_args(candidate)) + "."
    return ""


def _range(annotation: Any) -> str:
    if get_origin(annotation) is not Annotated:
        return ""
    kind, *extras = get_args(annotation)
    meta = next(extra for extra in extras if isinstance(extra, msgspec.Meta))
    if get_origin(kind) is dict:
        return f"up to {meta.max_length} names"
    if meta.max_length is not None and kind is str:
        return f"up to {meta.max_length:,} characters"
    if meta.max_length is not None:
        item = next(extra for extra in get_args(get_args(kind)[0])[1:] if isinstance(extra, msgspec.Meta))
        rule = f"`{item.pattern}`" if item.pattern else f"{item.min_length} to {item.max_length} characters"
        return f"up to {meta.max_length}, each {rule}"
    low = f"{meta.ge:,}" if meta.ge is not None else f"above {meta.gt:,}"
    return f"{low} to {meta.le:,}"


def _cell(text: str) -> str:
    return text.replace("|", "\\|")


def page() -> str:
    """Return the page; a field without a docstring has an empty last cell."""
    texts = docstrings(Settings)
    rows = [
        f"| `{variable(name)}` | {_default(field.get_default(call_default_factory=True))} "
        f"| {_cell((texts.get(name, '') + _choices(field.annotation)).strip())} |"
        for name, field in Settings.model_fields.items()
    ]
    texts = docstrings(Policy)
    hints = get_type_hints(Policy, include_extras=True)
    policy_rows = [
        f"| `{field.name}` | {_default(_value(field))} | {_range(hints[field.name])} "
        f"| {_cell(texts.get(field.name, ''))} |"
        for field in msgspec.structs.fields(Policy)
    ]
    commands = "".join(f"| `{name}` | {meaning} |\n" for name, meaning in COMMAND_VARIABLES.items())
    return HEADER + "\n".join(rows) + "\n" + COMMAND_HEADER + commands + POLICY_HEADER + "\n".join(policy_rows) + "\n"


if __name__ == "__main__":
    sys.stdout.write(page())
