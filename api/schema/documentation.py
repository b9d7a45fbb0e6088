"""What the OpenAPI document says of a route: parameters, bodies that it reads by itself, answers and problems."""

from __future__ import annotations

from dataclasses import dataclass
from types import UnionType
from typing import TYPE_CHECKING, Annotated, Any, Final, cast, get_args

import msgspec
from litestar.openapi.datastructures import ResponseSpec
from litestar.openapi.spec import Example, OpenAPIMediaType, Operation, Parameter, Reference, RequestBody, Schema
from litestar.params import PathParameter, QueryParameter
from litestar.plugins import OpenAPISchemaPlugin

from runtime.http.problem_documents import PROBLEM_MEDIA_TYPE
from runtime.http.problem_types import EVERY_CALL, PROBLEM_TYPES

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from litestar._openapi.schema_generation import SchemaCreator
    from litestar.openapi.spec import OpenAPIResponse
    from litestar.typing import FieldDefinition


_INTEGER_MAX = 2**31 - 1
HEADER_REFERENCE: Final = "#/components/headers/"

ConversationId = Annotated[str, PathParameter(description="A conversation's id.")]
RunId = Annotated[str, PathParameter(description="A run's id.")]
KeyId = Annotated[str, PathParameter(description="A key's id, the part before its dot.")]
WebhookId = Annotated[str, PathParameter(description="A webhook's id.")]
DeliveryId = Annotated[str, PathParameter(description="A delivery's id, the event's own.")]
Seq = Annotated[int, PathParameter(ge=0, le=_INTEGER_MAX, description="A message's place in its conversation.")]
Position = Annotated[int, PathParameter(ge=0, le=_INTEGER_MAX, description="A context block's place in its turn.")]
Version = Annotated[int, PathParameter(ge=0, le=_INTEGER_MAX, description="A snapshot's version.")]
AfterSeq = Annotated[
    int, QueryParameter(ge=-1, le=_INTEGER_MAX, description="The seq before the first one; -1 = from the start.")
]
Wait = Annotated[float, QueryParameter(ge=0, le=60, description="Seconds to wait for the run's end.")]
# Postgres keeps no NUL in text, so nothing can be found by one.
Filter = Annotated[str | None, QueryParameter(max_length=512, pattern=r"^[^\x00]*$", description="Only these.")]
_REFERENCE: Final[dict[str, Any]] = {
    "max_length": 512,
    "pattern": r"^[^\x00]*$",
    "description": "The `user_ref` of conversations.",
}
UserRef = Annotated[str, PathParameter(**_REFERENCE)]
AnyUserRef = Annotated[str | None, QueryParameter(name="user_ref", **_REFERENCE)]
"""For one that no path can have: with a slash, or made of dots."""


class Problem(msgspec.Struct, kw_only=True):
    """A problem document (RFC 9457).

    `pointer` is a JSON pointer to a field of the body, or the bare name of a query parameter; `next_seq` comes with
    `unexpected_seq`, and `run_id` with `compaction_running`.
    """

    type: str
    title: str
    status: int
    detail: str
    code: str
    request_id: str
    pointer: str | msgspec.UnsetType = msgspec.UNSET
    next_seq: int | msgspec.UnsetType = msgspec.UNSET
    run_id: str | msgspec.UnsetType = msgspec.UNSET


def answers(kind: Any, description: str, media_type: str = "application/json", *, example: Any = None) -> ResponseSpec:
    """Describe an answer whose bytes the route makes itself; `kind` None is one without a body."""
    examples = None if example is None else [Example(id="example", value=Verbatim(example))]
    return ResponseSpec(
        data_container=kind,
        description=description,
        media_type=media_type,
        generate_examples=False,
        examples=examples,
    )


def problems(*codes: str) -> dict[int, ResponseSpec]:
    """Describe the problems that a call with a key may have: those that each has, and `codes`."""
    by_status: dict[int, list[str]] = {}
    for code in (*EVERY_CALL, *codes):
        by_status.setdefault(PROBLEM_TYPES[code].status, []).append(code)
    return {status: problem(*named) for status, named in sorted(by_status.items())}


def problem(*codes: str) -> ResponseSpec:
    """Describe the answer for the problems of one status; the document has their examples once, for all calls."""
    return ResponseSpec(
        data_container=Problem,
        description=" ".join(f"`{code}`: {PROBLEM_TYPES[code].remedy}" for code in codes),
        media_type=PROBLEM_MEDIA_TYPE,
        generate_examples=False,
        examples=[Example(id=code, value={}) for code in codes],
    )


class RawSchemaPlugin(OpenAPISchemaPlugin):
    """JSON that is passed on as it is may be anything."""

    @staticmethod
    def is_plugin_supported_type(value: Any) -> bool:
        """Take msgspec.Raw."""
        return value is msgspec.Raw

    def to_openapi_schema(self, field_definition: FieldDefinition, schema_creator: SchemaCreator) -> Schema:  # noqa: ARG002
        """Describe it."""
        return Schema(description="JSON, exactly as it was sent")


def operation(
    body: type | UnionType | None = None,
    *,
    example: Any = None,
    optional: bool = False,
    request_headers: Mapping[str, Schema] | None = None,
    headers: Mapping[int, Sequence[str]] | None = None,
) -> type[Operation]:
    """Return what documents an operation beyond its function.

    body: what the route reads by itself; with `example`, one that it takes. `optional`: none is as good as `{}`.
    request_headers: optional ones that the route reads, with what they hold.
    headers: names of those in the document's `components` that answers of a status have beyond every answer's.
    """

    @dataclass
    class Documented(Operation):
        def __post_init__(self) -> None:
            named = request_headers or {}
            if named:
                self.parameters = [*(self.parameters or []), *(_header(name, of) for name, of in named.items())]
            if body is not None:
                media = OpenAPIMediaType(
                    schema=Verbatim(_inline_schema(body)), example=None if example is None else Verbatim(example)
                )
                self.request_body = RequestBody(required=not optional, content={"application/json": media})
            for status, names in (headers or {}).items():
                answer = cast("OpenAPIResponse", (self.responses or {})[str(status)])
                answer.headers = {name: Reference(ref=HEADER_REFERENCE + name) for name in names}

    return Documented


def _header(name: str, schema: Schema) -> Parameter:
    return Parameter(name=name, param_in="header", description=schema.description, schema=schema)


class Verbatim(Schema):
    """A part of the document that is written out as it is, with what is null in it."""

    def __init__(self, document: Any) -> None:
        super().__init__()
        self.document = document

    def to_schema(self) -> Any:
        """Return the part's JSON."""
        return self.document


def _inline_schema(kind: type | UnionType) -> dict[str, Any]:
    """Return the JSON schema of `kind` without references: components belong to the document, not to a body.

    A union is any of its types.
    """
    kinds = get_args(kind) if isinstance(kind, UnionType) else (kind,)
    schemas, components = msgspec.json.schema_components(kinds, ref_template="{name}")

    def inline(value: Any) -> Any:
        if isinstance(value, dict):
            if "$ref" in value:
                return inline(components[value["$ref"]])
            return {key: inline(inner) for key, inner in value.items()}
        return [inline(inner) for inner in value] if isinstance(value, list) else value

    inlined: list[dict[str, Any]] = inline(list(schemas))
    return inlined[0] if len(inlined) == 1 else {"anyOf": inlined}
