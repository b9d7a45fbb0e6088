"""The OpenAPI document: parameters, bodies that the routes read themselves, and the problems that all may answer."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING, Annotated, Any

import msgspec
from litestar.openapi.datastructures import ResponseSpec
from litestar.openapi.spec import OpenAPIMediaType, OpenAPIType, Operation, Parameter, RequestBody, Schema
from litestar.params import PathParameter, QueryParameter
from litestar.plugins import OpenAPISchemaPlugin

if TYPE_CHECKING:
    from litestar._openapi.schema_generation import SchemaCreator
    from litestar.typing import FieldDefinition


_INTEGER_MAX = 2**31 - 1

ConversationId = Annotated[str, PathParameter(description="A conversation's id.")]
RunId = Annotated[str, PathParameter(description="A run's id.")]
Seq = Annotated[int, PathParameter(ge=0, le=_INTEGER_MAX, description="A message's place in its conversation.")]
Position = Annotated[int, PathParameter(ge=0, le=_INTEGER_MAX, description="A context block's place in its turn.")]
Version = Annotated[int, PathParameter(ge=0, le=_INTEGER_MAX, description="A snapshot's version.")]
AfterSeq = Annotated[
    int, QueryParameter(ge=-1, le=_INTEGER_MAX, description="The seq before the first one; -1 = from the start.")
]
Wait = Annotated[float, QueryParameter(ge=0, le=60, description="Seconds to wait for the run's end.")]
# Postgres keeps no NUL in text, so nothing can be found by one.
Filter = Annotated[str | None, QueryParameter(max_length=512, pattern=r"^[^\x00]*$", description="Only these.")]


class Problem(msgspec.Struct):
    """A problem document (RFC 9457).

    `pointer` is a JSON pointer to a field of the body, or the bare name of a query parameter.
    """

    type: str
    title: str
    status: int
    detail: str
    code: str
    request_id: str
    pointer: str | None = None


def answers(kind: Any, description: str, media_type: str = "application/json") -> ResponseSpec:
    """Describe an answer whose bytes the route makes itself."""
    return ResponseSpec(data_container=kind, description=description, media_type=media_type, generate_examples=False)


PROBLEMS = {
    status: answers(Problem, description, "application/problem+json")
    for status, description in {
        400: "The body is not JSON, or a cursor is not one.",
        401: "No valid key.",
        403: "The key may not do this.",
        404: "There is no such resource.",
        409: "The conversation has moved on.",
        413: "The body is too large.",
        422: "A field or a parameter is not valid; `pointer` says which.",
        503: "The database is away; try again.",
    }.items()
}


class RawSchemaPlugin(OpenAPISchemaPlugin):
    """JSON that is passed on as it is may be anything."""

    @staticmethod
    def is_plugin_supported_type(value: Any) -> bool:
        """Take msgspec.Raw."""
        return value is msgspec.Raw

    def to_openapi_schema(self, field_definition: FieldDefinition, schema_creator: SchemaCreator) -> Schema:  # noqa: ARG002
        """Describe it."""
        return Schema(description="JSON, exactly as it was sent")


@cache
def takes(kind: type, *, key_length: int = 0) -> type[Operation]:
    """Return an operation that documents a body of `kind`, for a route that decodes it itself.

    `key_length` is what the route's Idempotency-Key may have of characters; 0 = the route takes none.
    """

    @dataclass
    class Documented(Operation):
        def __post_init__(self) -> None:
            if key_length:
                self.parameters = [*(self.parameters or []), _idempotency_key(key_length)]
            self.request_body = RequestBody(
                required=True,
                content={"application/json": OpenAPIMediaType(schema=InlineSchema(_inline_schema(kind)))},
            )

    return Documented


def _idempotency_key(length: int) -> Parameter:
    return Parameter(
        name="Idempotency-Key",
        param_in="header",
        description="A turn that is sent again with the same key is stored once.",
        schema=Schema(type=OpenAPIType.STRING, min_length=1, max_length=length),
    )


class InlineSchema(Schema):
    """A JSON schema that is written out as it is."""

    def __init__(self, document: dict[str, Any]) -> None:
        super().__init__()
        self.document = document

    def to_schema(self) -> dict[str, Any]:
        """Return the schema's JSON."""
        return self.document


def _inline_schema(kind: type) -> dict[str, Any]:
    """Return the JSON schema of `kind` without references: components belong to the document, not to a body."""
    (schema,), components = msgspec.json.schema_components([kind], ref_template="{name}")

    def inline(value: Any) -> Any:
        if isinstance(value, dict):
            if "$ref" in value:
                return inline(components[value["$ref"]])
            return {key: inline(inner) for key, inner in value.items()}
        return [inline(inner) for inner in value] if isinstance(value, list) else value

    result: dict[str, Any] = inline(schema)
    return result
