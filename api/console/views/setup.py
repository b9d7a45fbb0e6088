"""What the chat product sent about a conversation besides its messages, and the policy that results for it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, NamedTuple

import msgspec

from api.console.views.content import SHOWN_CHARS, Part, as_json, parts
from compaction.policy import Policy

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from compaction.overrides import InForce
    from store.tables import AnyRow

TOOLS_SHOWN: Final = 200
"""Tools of a conversation that the page shows; the API has the rest."""


class Tool(NamedTuple):
    """A tool: its name, what it says it does, and its definition."""

    name: str
    description: str
    definition: str


class Key(NamedTuple):
    """A key of the policy in force, and who set it."""

    name: str
    value: Any
    source: str


class Setup(NamedTuple):
    """All of it, ready to be shown."""

    system: Sequence[Part]
    tools: Sequence[Tool]
    tools_left_out: int
    metadata: str
    keys: Sequence[Key]
    ignored: Sequence[str]

    @property
    def own(self) -> Sequence[Key]:
        """The keys that are not the defaults."""
        return [key for key in self.keys if key.source != "default"]


def setup(row: AnyRow, in_force: InForce, *, of_tenant: Mapping[str, Any], of_installation: Mapping[str, Any]) -> Setup:
    """Return what is known of a conversation; `of_tenant` are the overrides below its own, with the installation's."""
    tools = row.tools if isinstance(row.tools, list) else []
    defaults = msgspec.to_builtins(Policy())

    def source(name: str, value: Any) -> str:
        if name in (row.policy or {}):
            return "this conversation"
        if name in of_tenant:
            return "installation" if of_installation.get(name) == of_tenant[name] else "tenant"
        return "default" if defaults[name] == value else "model's window"

    return Setup(
        system=parts(row.system) if row.system else (),
        tools=[_tool(each) for each in tools[:TOOLS_SHOWN]],
        tools_left_out=max(0, len(tools) - TOOLS_SHOWN),
        metadata=as_json(row.metadata)[:SHOWN_CHARS] if row.metadata else "",
        keys=[Key(name, value, source(name, value)) for name, value in msgspec.to_builtins(in_force.policy).items()],
        ignored=in_force.ignored,
    )


def _tool(tool: Any) -> Tool:
    known = tool if isinstance(tool, dict) else {}
    name, description = known.get("name") or known.get("type") or "?", known.get("description") or ""
    return Tool(str(name), str(description)[:SHOWN_CHARS], as_json(tool)[:SHOWN_CHARS])
