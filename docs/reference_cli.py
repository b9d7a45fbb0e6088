#!/usr/bin/env python3
"""Prints docs/reference-cli.md from the command line itself; `make docs` writes the file."""

from __future__ import annotations

import re
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from typer.main import get_command

from cli.main import app
from cli.options import CONVERSATIONS, OPERATE, RUN

if TYPE_CHECKING:
    from collections.abc import Iterator

HEADER: Final = """\
# Command line

`palimpsest --help` and `palimpsest COMMAND --help` say the same as this page, which `make docs` writes.

- **Exit codes.** 0: well. 1: it failed, and a line on stderr says why. 2: bad usage, or a setting that cannot be.
- **Output.** What was asked for goes to stdout; notes, prompts and logs go to stderr. Whatever prints a table prints
  JSON with `--json`. Tables are as wide as what is in them.
- **Where to.** Commands about one conversation ask the API (`--url` and `--key`, or `PALIMPSEST_URL` and
  `PALIMPSEST_KEY`). `export`, `import` and what operates an installation work on the database, by the
  [settings](settings.md): whoever may use them may see every tenant.
- **Completion.** `palimpsest --install-completion` once, for the shell that it is typed in. `palimpsest --version`
  prints the version.
"""
_VALUES: Final = {int: "NUMBER", Path: "PATH"}


def page() -> str:
    """Return the page."""
    root: Any = get_command(app)
    parts = [HEADER]
    for panel in (RUN, CONVERSATIONS, OPERATE):
        parts.append(f"\n## {panel}\n")
        for name, command in root.commands.items():
            if command.rich_help_panel == panel:
                parts += _sections(name, command)
    return "".join(parts)


def _sections(name: str, command: Any) -> Iterator[str]:
    inner = getattr(command, "commands", None)
    if inner is None:
        yield _section(name, command)
        return
    for own, each in inner.items():
        yield _section(f"{name} {own}", each)


def _section(name: str, command: Any) -> str:
    arguments = [each for each in command.params if each.param_type_name == "argument"]
    options = [each for each in command.params if each.param_type_name == "option" and not each.hidden]
    usage = " ".join(["palimpsest", name, *("[OPTIONS]" for _ in options[:1]), *map(_place, arguments)])
    text, _, example = command.help.partition("Example: ")
    description = "\n\n".join(" ".join(part.split()) for part in text.strip().split("\n\n"))
    example_line = f"\nExample: `{example.strip()}`\n" if example else ""
    rows = [f"| `{_place(each)}` | {_cell(each.help)} | {_default(each)} |\n" for each in arguments]
    rows += [f"| {_spelled(each)} | {_cell(each.help)}{_variable(each)} | {_default(each)} |\n" for each in options]
    table = "\n| | meaning | default |\n|---|---|---|\n" + "".join(rows) if rows else ""
    return f"\n### palimpsest {name}\n\n`{usage}`\n\n{description}\n{example_line}{table}"


def _place(argument: Any) -> str:
    """Return an argument as a usage line has it: what may be left out in brackets, what may be repeated with dots."""
    name = (argument.metavar or argument.name).upper().strip("[]{}").removesuffix("...")
    name += "…" if argument.nargs == -1 else ""
    return name if argument.required else f"[{name}]"


def _spelled(option: Any) -> str:
    """Return an option's spellings; the word after one that takes a value says of what kind."""
    value = "" if option.is_flag else f" {_VALUES.get(option.type_descriptor.annotation, 'TEXT')}"
    return ", ".join(f"`{each}{value}`" for each in (*option.opts, *option.secondary_opts))


def _variable(option: Any) -> str:
    return f" Or `{option.envvar}`." if option.envvar else ""


def _default(parameter: Any) -> str:
    if parameter.required:
        return "required"
    if isinstance(parameter.show_default, str):
        return parameter.show_default
    if parameter.default in (None, (), []) or getattr(parameter, "is_flag", False):
        return ""
    return f"`{parameter.default}`"


def _cell(text: str) -> str:
    # Braces and pipes mean something in a table, brackets in Rich's markup.
    return re.sub(r"\s+", " ", text).replace("|", "\\|")


if __name__ == "__main__":
    sys.stdout.write(page())
