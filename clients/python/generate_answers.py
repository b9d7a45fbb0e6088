"""Writes palimpsest_client/answers.py: what the calls of the client are answered, from the OpenAPI document.

    .venv/bin/python clients/python/generate_answers.py > clients/python/palimpsest_client/answers.py

What a type says is what the service's own docstring says, unless it is said here: a type can be a part of an answer.
"""

from __future__ import annotations

import inspect
import sys
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from api.app import create_app
from msgspec import Struct
from runtime.settings import Settings

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

Schema = dict[str, Any]
LINE: Final = 120
"""Characters of a line, as the formatter has it."""
_PRIMITIVES: Final = {"string": "str", "integer": "int", "number": "float", "boolean": "bool", "null": "None"}
_HEADER: Final = '''\
"""What the service answers with. Answers may hold more than is named here: fields are added without notice.

Written by generate_answers.py from the OpenAPI document; `make docs` writes it anew.
"""

from __future__ import annotations

from typing import Any, Literal, TypedDict

Message = dict[str, Any]
"""One message of the Messages API or of Chat Completions, or one Responses item."""
Shape = Literal["messages", "chat", "responses"]
"""The API whose messages they are: Messages API, Chat Completions, Responses items."""
'''


class Type(NamedTuple):
    """A type: the schema that it is of, what is said of it, and which of the schema's fields it has.

    Those are the ones that are always there, and `always`, which are there in the answers that the type is for; for one
    that `extends` another, what that leaves; with `optional`, any of them may be missing. `without` are never there.
    """

    component: str
    about: str | None = None
    extends: str | None = None
    optional: bool = False
    always: tuple[str, ...] = ()
    without: tuple[str, ...] = ()


TYPES: Final[Mapping[str, Type]] = {
    "ContextTokens": Type("ContextTokens"),
    "ListedConversation": Type("ConversationOut", "A conversation as lists have it; `policy` is the one in force."),
    "Conversation": Type(
        "ConversationOut",
        "A conversation; to a key without `context:read`, what makes or changes one answers with ids, numbers, times.",
        extends="ListedConversation",
        without=("last_assembly",),
    ),
    "Layers": Type("PayloadLayers"),
    "PayloadHistory": Type("PayloadHistory"),
    "StandingRules": Type("RulesOut"),
    "LeftOut": Type("LeftOutOut"),
    "CacheControl": Type(
        "CacheControl", "A mark for the prompt cache; `ttl` where the policy names its longer life.", optional=True
    ),
    "CacheBreakpoint": Type("CacheBreakpointOut"),
    "PayloadCounts": Type("PayloadOut", "What a payload weighs; `system` stands apart for the Messages API alone."),
    "Payload": Type(
        "PayloadOut",
        "A whole payload under one budget: `items` for Responses, else `messages`.",
        extends="PayloadCounts",
        optional=True,
    ),
    "ContextBlockRef": Type("ContextBlockRef"),
    "Step": Type("StepOut"),
    "Run": Type("RunOut"),
    "QueuedRun": Type("CompactionOut"),
    "PlannedStep": Type("PlannedStepOut"),
    "Plan": Type("PlanOut"),
    "RestorePlan": Type("RestorePlanOut"),
    "ListedSnapshot": Type("SnapshotOut", "A snapshot without what it holds."),
    "Span": Type("SpanOut"),
    "Pinned": Type("PinnedOut"),
    "Snapshot": Type("SnapshotOut", "A snapshot in full.", extends="ListedSnapshot"),
    "Claim": Type("ClaimOut"),
    "Claims": Type("ClaimsOut"),
    "ComparedContext": Type("ComparedContext"),
    "OnlySeqs": Type("OnlySeqs"),
    "OnlyTexts": Type("OnlyTexts"),
    "OnlyClaims": Type("OnlyClaims"),
    "Differences": Type("DifferencesOut"),
    "Comparison": Type("ComparisonOut"),
    "FateOfOriginal": Type("FateOut"),
    "Loss": Type("LossOut"),
    "Bisected": Type("BisectOut"),
    "StoredContent": Type("MessageOut", "An original; `content` has it as every step works on it.", always=("shape",)),
    "StoredMessage": Type(
        "MessageOut",
        "An original; one of another shape than the Messages API's stands whole in `original`, as it came.",
        extends="StoredContent",
        optional=True,
        without=("fate", "lineage"),
    ),
    "Pin": Type("PinOut"),
    "PinList": Type("PinList"),
    "RuleProposal": Type("ProposalOut"),
    "Rule": Type("RuleOut"),
    "RuleList": Type("RuleList"),
    "RecalledPart": Type("RecalledPart"),
    "RecalledPassage": Type("RecalledPassage"),
    "RecalledCounts": Type("RecallOut", "What was found, best first; with a reference, in the conversation's order."),
    "Recalled": Type(
        "RecallOut",
        "`framed`, where it was asked for, is the text that a model is given as the tool's result.",
        extends="RecalledCounts",
        optional=True,
    ),
    "UserPassage": Type("UserPassage", extends="RecalledPassage"),
    "UserRecalledCounts": Type(
        "UserRecallOut", "What was found in the conversations that were searched, the best first."
    ),
    "UserRecalled": Type(
        "UserRecallOut",
        "`framed`, where it was asked for, is the text that a model is given as the tool's result.",
        extends="UserRecalledCounts",
        optional=True,
    ),
    "RecallTool": Type("RecallToolOut", optional=True),
    "Erasure": Type("ErasureOut"),
    "UserErasure": Type("UserErasureOut"),
}
"""What the client's calls are said to answer, each after those that it extends."""


class Writer:
    """Writes the types of a document's schemas."""

    def __init__(self, components: Mapping[str, Schema], docstrings: Mapping[str, str]) -> None:
        self._components = components
        self._docstrings = docstrings
        self._names = {kind.component: name for name, kind in TYPES.items()}
        self._enums: dict[str, Schema] = {}

    def module(self) -> str:
        """Return the whole module."""
        classes = ["\n".join(self._class(name, kind)) for name, kind in TYPES.items()]
        enums = [_line(f"{name} = ", _literal(schema)) for name, schema in sorted(self._enums.items())]
        return "\n\n".join(["\n".join([_HEADER, *enums]), *classes]) + "\n"

    def _class(self, name: str, kind: Type) -> Iterator[str]:
        bases = [kind.extends or "TypedDict", *(["total=False"] if kind.optional else [])]
        about = kind.about or self._docstrings[kind.component]
        yield f"\nclass {name}({', '.join(bases)}):"
        first, *more = about.splitlines()
        yield f'    """{first}' + ("" if more else '"""')
        yield from (f"    {line}".rstrip() for line in more)
        if more:
            yield '    """'
        yield ""
        for field, schema in self._fields(kind).items():
            yield _line(f"    {field}: ", self._type_of(schema, field))

    def _fields(self, kind: Type) -> Schema:
        """Return the fields that a type adds to the one that it extends."""
        component = self._components[kind.component]
        base = self._fields(TYPES[kind.extends]) if kind.extends else {}
        wanted = component["properties"] if kind.extends or kind.optional else component["required"]
        left = {*wanted, *kind.always} - set(base) - set(kind.without)
        return {name: schema for name, schema in component["properties"].items() if name in left}

    def _type_of(self, schema: Schema, field: str = "") -> str:
        """Return the Python type of a schema; `field` is what it is the value of."""
        if reference := schema.get("$ref"):
            return self._component(reference.rpartition("/")[2])
        if alternatives := schema.get("oneOf") or schema.get("anyOf"):
            return " | ".join(dict.fromkeys(self._type_of(each, field) for each in alternatives))
        if "enum" in schema:
            return _literal(schema)
        if "const" in schema:
            return _literal({"enum": [schema["const"]]})
        return self._value(schema, field)

    def _value(self, schema: Schema, field: str) -> str:
        kind = schema.get("type", "")
        if field in {"messages", "items"} and kind not in {"integer", "null"}:
            return "list[Message]"
        if kind == "array":
            return f"list[{self._type_of(schema.get('items', {}))}]"
        if kind == "object":
            return f"dict[str, {self._type_of(schema.get('additionalProperties', {}))}]"
        return _PRIMITIVES.get(kind, "Any")

    def _component(self, name: str) -> str:
        """Return the name of a component's type; an object that has none here is a dictionary of values of one type."""
        schema = self._components[name]
        if named := self._names.get(name):
            return named
        if "enum" in schema:
            self._enums[name] = schema
            return name
        (value,) = {self._type_of(each) for each in schema["properties"].values()}
        return f"dict[str, {value}]"


def _literal(schema: Schema) -> str:
    return "Literal[" + ", ".join(map('"{}"'.format, schema["enum"])) + "]"


def _line(before: str, kind: str) -> str:
    """Return what is declared, broken as the formatter does where it is too long for a line."""
    if len(before + kind) <= LINE:
        return before + kind
    indent = " " * (len(before) - len(before.lstrip()))
    values = kind.removeprefix("Literal[").removesuffix("]").split(", ")
    return "\n".join([f"{before}Literal[", *(f"{indent}    {each}," for each in values), f"{indent}]"])


def _docstrings(kind: type[Struct] = Struct) -> Iterator[tuple[str, str]]:
    """Yield what each type of the API says of itself."""
    for each in kind.__subclasses__():
        if each.__module__.startswith(("actions.", "api.")):
            yield each.__name__, inspect.getdoc(each) or ""
        yield from _docstrings(each)


def text(document: Schema) -> str:
    """Return the module for an OpenAPI document."""
    return Writer(document["components"]["schemas"], dict(_docstrings())).module()


if __name__ == "__main__":
    sys.stdout.write(text(create_app(Settings()).openapi_schema.to_schema()))
