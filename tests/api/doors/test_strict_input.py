"""What no later reader could take, or two would understand differently, is refused at the door: nothing is written."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any, NamedTuple

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from compaction.text.surrogates import replace_lone_surrogates
from tests.support.messages_api import problems
from tests.support.service.problem_documents import problem

if TYPE_CHECKING:
    from tests.support.service.running_api import Service

HELLO = {"role": "user", "content": "Hello."}


class Raw(msgspec.Struct):
    content: msgspec.Raw


class RawTurn(msgspec.Struct):
    messages: list[Raw]


class RawPage(msgspec.Struct):
    data: list[Raw]


@pytest.fixture(scope="module")
def path(service: Service) -> str:
    """A conversation with one message, which no refusal may change."""
    conversation = service.conversation()
    service.append(conversation, HELLO)
    return conversation


def stored(service: Service, path: str) -> tuple[Any, Any]:
    return service.client.get(path).json(), service.client.get(f"{path}/messages").json()


def message(content: str, role: str = "user") -> bytes:
    """Return a turn of a good message and one of `content`, which is JSON text."""
    return f'{{"messages":[{json.dumps(HELLO)},{{"role":"{role}","content":{content}}}]}}'.encode()


def call(value: str) -> bytes:
    """Return a turn in which a tool is called with `value`, which is JSON text."""
    return message(f'[{{"type":"tool_use","id":"a","name":"b","input":{{"deep":[{value}]}}}}]', "assistant")


CONTENT, INPUT = "/messages/1/content", "/messages/1/content/0/input/deep/0"

REFUSED: dict[str, tuple[bytes, str]] = {
    "NUL in text": (message(r'"a\u0000b"'), CONTENT),
    "NUL in a block": (message(r'[{"type":"text","text":"a\u0000b"}]'), f"{CONTENT}/0/text"),
    "NUL in a key": (call(r'{"a\u0000":1}'), INPUT),
    "NUL in what is ignored": (b'{"messages":[{"role":"user","content":"a"}],"usage":{"x":"\\u0000"}}', "/usage/x"),
    "NUL in context": (
        b'{"messages":[{"role":"user","content":"a"}],"context":[{"source":"s","text":"\\u0000"}]}',
        "/context/0/text",
    ),
    "keys that differ in a lone surrogate alone": (call(r'{"\ud800":1,"\udc00":1}'), f"{INPUT}/\ufffd"),
    "surrogate in UTF-8": (message('"@"').replace(b"@", b"\xed\xa0\x80"), CONTENT),
    "invalid UTF-8": (call('"@"').replace(b"@", b"\xff"), INPUT),
    "invalid UTF-8 in a key": (call('{"@":1}').replace(b"@", b"\xff"), INPUT),
    "overlong UTF-8": (message('"@"').replace(b"@", b"\xc0\x80"), CONTENT),
    "invalid UTF-8 in the role": (b'{"messages":[{"role":"us\xe9r","content":"a"}]}', "/messages/0/role"),
    "NaN": (call("NaN"), INPUT),
    "Infinity": (call("Infinity"), INPUT),
    "minus Infinity": (call("-Infinity"), INPUT),
    "1e400": (call("1e400"), INPUT),
    "-1E+400": (call("-1E+400"), INPUT),
    "309 digits": (call("1" * 309), INPUT),
    "5,000 digits": (call("-" + "9" * 5_000), INPUT),
    "a long fraction of a large number": (call("9" * 400 + ".5"), INPUT),
    "a number out of range as usage": (
        b'{"messages":[{"role":"user","content":"a"}],"usage":{"input_tokens":1e999}}',
        "/usage/input_tokens",
    ),
    "duplicate key of a turn": (b'{"messages":[],"messages":[{"role":"user","content":"a"}]}', "/messages"),
    "duplicate key of a message": (
        b'{"messages":[{"role":"user","role":"user","content":"a"}]}',
        "/messages/0/role",
    ),
    "duplicate key of a block": (message('[{"type":"text","text":"a","text":"b"}]'), f"{CONTENT}/0/text"),
    "duplicate key of an input": (call('{"a/b":1,"c":2,"a/b":1}'), f"{INPUT}/a~1b"),
    "duplicate key, escaped": (call(r'{"a":1,"\u0061":1}'), f"{INPUT}/a"),
    "duplicate empty key": (call('{"":1,"":1}'), f"{INPUT}/"),
    "duplicate key inside a duplicate": (message('[{"type":"x","a":{"b":1,"b":2},"a":1}]'), f"{CONTENT}/0/a"),
    "duplicate key inside a result": (
        message('[{"type":"tool_result","tool_use_id":"a","content":[{"type":"text","type":"text","text":""}]}]'),
        f"{CONTENT}/0/content/0/type",
    ),
    "duplicate key of usage": (
        b'{"messages":[{"role":"user","content":"a"}],"usage":{"input_tokens":1,"input_tokens":2}}',
        "/usage/input_tokens",
    ),
    "too many levels": (call("[" * 250 + "]" * 250), INPUT + "/0" * 193),
    "too many levels of objects": (call('{"a":' * 250 + "1" + "}" * 250), INPUT + "/a" * 193),
    "unknown role": (b'{"messages":[{"role":"robot","content":"a"}]}', "/messages/0/role"),
    "no role": (b'{"messages":[{"content":"a"}]}', "/messages/0/role"),
    "role of another type": (b'{"messages":[{"role":["user"],"content":"a"}]}', "/messages/0/role"),
    "result without an id": (message('[{"type":"tool_result","content":"a"}]'), f"{CONTENT}/0/tool_use_id"),
    "result with an empty id": (message('[{"type":"tool_result","tool_use_id":""}]'), f"{CONTENT}/0/tool_use_id"),
    "result whose id is null": (message('[{"type":"tool_result","tool_use_id":null}]'), f"{CONTENT}/0/tool_use_id"),
    "call without an id": (
        message('[{"type":"tool_use","id":"","name":"a","input":{}}]', "assistant"),
        f"{CONTENT}/0/id",
    ),
    "empty text": (message('""'), CONTENT),
    "blank text": (message(r'" \n\t\u00a0"'), CONTENT),
    "no blocks": (message("[]"), CONTENT),
    "no blocks from the assistant": (message("[]", "assistant"), CONTENT),
    "blank blocks": (message(r'[{"type":"text","text":""},{"type":"text","text":"\n"}]', "assistant"), CONTENT),
    "no content": (b'{"messages":[{"role":"user"}]}', "/messages/0/content"),
    "null": (message("null"), CONTENT),
    "a system message's inner form": (message('[{"type":"instruction","by":"system","text":"a"}]'), f"{CONTENT}/0"),
    "another shape's part in its inner form": (
        message('[{"type":"text","text":"a"},{"type":"opaque","of":"x","text":"a","size":1}]'),
        f"{CONTENT}/1",
    ),
    "an item's inner form": (message('[{"type":"text","text":"a","item":"message"}]', "assistant"), f"{CONTENT}/0"),
    "an inner form in a result": (
        message(
            '[{"type":"tool_result","tool_use_id":"a","content":[{"type":"instruction","by":"system","text":"a"}]}]'
        ),
        f"{CONTENT}/0/content/0",
    ),
    "an inner form in a document": (
        message('[{"type":"document","source":{"type":"content","content":[{"type":"instruction","text":"a"}]}}]'),
        f"{CONTENT}/0/source/content/0",
    ),
}

MALFORMED: dict[str, bytes] = {
    "nothing": b"",
    "byte order mark": b"\xef\xbb\xbf" + message('"a"'),
    "UTF-16": message('"a"').decode().encode("utf-16"),
    "UTF-16 without a mark": message('"a"').decode().encode("utf-16-le"),
    "depth bomb": call("[" * 400_000),
    "depth bomb of objects": call('{"a":' * 200_000),
    "depth bomb that is whole": call("[" * 200_000 + "]" * 200_000),
    "a tab in a text": message('"a\tb"'),
    "NUL outside of text": message('"a"') + b"\x00",
    "an unknown escape": message(r'"\x41"'),
    "half an escape": message(r'"\u12"'),
    "a number that begins with 0": call("01"),
    "a comma too many": call("[1,]"),
    "a comment": call("1/**/"),
    "two bodies": message('"a"') * 2,
    "a duplicate key before an end that is missing": b'{"a":{"b":1,"b":2}',
    "compressed": b"\x1f\x8b\x08\x00" + message('"a"'),
}


@pytest.mark.parametrize("name", REFUSED)
def test_a_turn_is_refused_with_a_pointer(service: Service, path: str, name: str) -> None:
    body, pointer = REFUSED[name]
    before = stored(service, path)
    refusal = problem(service.client.post(f"{path}/turns", content=body), 422, "invalid", pointer)
    assert not refusal["detail"].endswith(": ")
    assert stored(service, path) == before


@pytest.mark.parametrize("name", MALFORMED)
def test_what_is_no_json_is_refused(service: Service, path: str, name: str) -> None:
    before = stored(service, path)
    refusal = problem(service.client.post(f"{path}/turns", content=MALFORMED[name]), 400, "malformed_json", None)
    assert not refusal["detail"].endswith(": ")
    assert stored(service, path) == before


def accepts(service: Service, body: bytes) -> list[dict[str, Any]]:
    """See that a turn is stored and served byte for byte, in a valid context; return the context's messages."""
    path = service.conversation()
    assert service.client.post(f"{path}/turns", content=body).status_code == 201
    return served(service, path, body)


def served(service: Service, path: str, body: bytes) -> list[dict[str, Any]]:
    clean, _ = replace_lone_surrogates(body)
    sent = [bytes(each.content) for each in msgspec.json.decode(clean, type=RawTurn).messages]
    stored = msgspec.json.decode(service.client.get(f"{path}/messages?limit=100").content, type=RawPage).data
    assert [bytes(each.content) for each in stored] == sent
    context = service.client.get(f"{path}/context")
    assert context.status_code == 200
    messages: list[dict[str, Any]] = context.json()["messages"]
    # Nothing of a message that no API would take in its role is shown.
    assert not messages or problems(messages) == []
    return messages


ACCEPTED: dict[str, bytes] = {
    "308 digits": call("1" * 308),
    "the largest double": call("1.7976931348623157e308"),
    "too small a number": call("1e-400"),
    "a number with many places": call("0." + "1" * 5_000),
    "levels within the limit": call("[" * 180 + "]" * 180),
    "a pair of surrogates": call(r'"\ud83d\ude00"'),
    "text that looks like NUL": call(r'"\\u0000"'),
    "text that looks like duplicate keys": call(r'"{\"a\":1,\"a\":1}"'),
    "the same key in two objects": call('{"a":{"a":[{"a":1},{"a":1}]}}'),
    "keys that differ in form only": call('{"\u00e9":1,"e\u0301":1}'),
    "a non-character": call(r'"\uffff"'),
    "an empty result": message('[{"type":"tool_result","tool_use_id":"a","content":""}]'),
    "a blank block beside another": message('[{"type":"text","text":""},{"type":"text","text":"a"}]'),
    "spaces everywhere": b' {\r\n"messages" :\t[ { "role" : "user" , "content" : [ {"type":"text","text":"a"} ] } ] } ',
}


@pytest.mark.parametrize("name", ACCEPTED)
def test_what_only_looks_odd_is_stored_as_it_came(service: Service, name: str) -> None:
    assert accepts(service, ACCEPTED[name])


LONE_SURROGATES: dict[str, str] = {
    "high": r'"a \ud800"',
    "low": r'[{"type":"text","text":"\udc00 x"}]',
    "the wrong way round": r'[{"type":"text","text":"\ude00\ud83d"}]',
    "two high ones": r'"\ud83d\ud83d\ude00"',
    "upper case": r'"\uDBFF and \uDFFF"',
    "in an unknown block": r'[{"type":"x_future","\ud800":["\udfff"]}]',
    "in a tool's name and input": r'[{"type":"tool_use","id":"a","name":"read\ud83d","input":{"\ud800":"\udc00"}}]',
    "in a result": r'[{"type":"tool_result","tool_use_id":"a\ud83d","content":"cut \ud83d"}]',
}


def without_lone_surrogates(value: Any) -> Any:
    """Return a value with U+FFFD for each half of a surrogate pair."""
    text = json.dumps(value, ensure_ascii=False)
    return json.loads("".join("\ufffd" if "\ud800" <= character <= "\udfff" else character for character in text))


@pytest.mark.parametrize("name", LONE_SURROGATES)
def test_lone_surrogates_are_stored_as_replacement_characters(service: Service, name: str) -> None:
    path, content = service.conversation(), LONE_SURROGATES[name]
    role = "assistant" if "tool_use" in content and "tool_use_id" not in content else "user"
    headers = {"idempotency-key": name}
    answers = [service.client.post(f"{path}/turns", content=message(content, role), headers=headers) for _ in range(2)]
    assert [answer.status_code for answer in answers] == [201, 201]
    assert answers[1].headers["idempotency-replayed"] == "true"
    page = service.client.get(f"{path}/messages").json()["data"]
    assert [each["content"] for each in page] == ["Hello.", without_lone_surrogates(json.loads(content))]
    assert problems(service.client.get(f"{path}/context").json()["messages"]) == []


SHAPED = [
    ("chat", r'{"role":"tool","tool_call_id":"c","content":"cut \ud83d"}'),
    ("chat", r'{"role":"user","name":"al\ud83d","content":[{"type":"text","text":"cut \ud83d"}]}'),
    ("responses", r'{"type":"function_call_output","call_id":"c","output":"cut \ud83d"}'),
]


@pytest.mark.parametrize(("shape", "row"), SHAPED)
def test_lone_surrogates_in_other_shapes(service: Service, shape: str, row: str) -> None:
    path = service.conversation()
    body = f'{{"shape":"{shape}","messages":[{row}]}}'.encode()
    assert service.client.post(f"{path}/turns", content=body).status_code == 201
    stored_row = service.client.get(f"{path}/messages/0").json()
    assert "cut \ufffd" in json.dumps(stored_row, ensure_ascii=False)


BESIDE_TURNS: list[tuple[str, str, bytes, int]] = [
    ("PATCH", "", rb'{"system":"cut \ud83d","metadata":{"\udc00":"\ud800"}}', 200),
    ("PATCH", "", rb'{"tools":[{"name":"read\ud83d","input_schema":{"type":"object"}}]}', 200),
    ("POST", "/context", rb'{"system":"cut \ud83d","user_message":"\ude00 what?"}', 200),
    ("POST", "/compactions", rb'{"instructions":"cut \udc00"}', 202),
    ("POST", "/recall", rb'{"query":"cut \ud83d"}', 200),
    ("POST", "/v1/conversations", rb'{"system":[{"type":"text","text":"cut \ud83d"}]}', 201),
]


@pytest.mark.parametrize(("method", "url", "body", "status"), BESIDE_TURNS)
def test_lone_surrogates_refuse_no_other_body(
    service: Service, method: str, url: str, body: bytes, status: int
) -> None:
    target = url if url.startswith("/v1") else service.conversation() + url
    assert service.client.request(method, target, content=body).status_code == status


def test_unknown_blocks_pass_through_untouched(service: Service) -> None:
    block = r'{ "type":"x_future", "n":1.50e+2,"big":123456789012345678901, "\u0061":{"z":[],"y":null} }'
    for role in ("user", "assistant"):
        shown = accepts(service, message(f"[{block}]", role))
        assert shown[-1]["content"][-1] == json.loads(block)


BODIES: list[tuple[str, str, bytes, str]] = [
    ("POST", "/v1/conversations", b'{"metadata":{"a":1,"a":2}}', "/metadata/a"),
    ("POST", "/v1/conversations", b'{"metadata":{"a":NaN}}', "/metadata/a"),
    ("POST", "/v1/conversations", b'{"metadata":{"a":1e400}}', "/metadata/a"),
    ("POST", "/v1/conversations", b'{"metadata":{"a":"\\u0000"}}', "/metadata/a"),
    ("POST", "/v1/conversations", b'{"external_id":"\\u0000"}', "/external_id"),
    ("POST", "/v1/conversations", b'{"user_ref":"\\ud800"}', "/user_ref"),
    ("POST", "/v1/conversations", b'{"external_id":"a","external_id":"b"}', "/external_id"),
    ("POST", "/v1/conversations", b'{"system":[{"type":"text","text":"\xff"}]}', "/system/0/text"),
    ("POST", "/v1/conversations", b'{"tools":[{"name":"a","name":"b"}]}', "/tools/0/name"),
    ("PATCH", "", b'{"metadata":{"a":[-Infinity]}}', "/metadata/a/0"),
    ("PATCH", "", b'{"policy":{"input_token_budget":5,"input_token_budget":6}}', "/policy/input_token_budget"),
    ("POST", "/pins", b'{"seq":0,"text":"\\u0000"}', "/text"),
    ("POST", "/context", b'{"user_message":[{"type":"text","text":"a","text":"b"}]}', "/user_message/0/text"),
    ("POST", "/v1/conversations", b'{"external_id":"cut \\ud83d"}', "/external_id"),
    ("PATCH", "/v1/tenant", b'{"policy":{"a":1,"a":1}}', "/policy/a"),
]


@pytest.mark.parametrize(("method", "url", "body", "pointer"), BODIES)
def test_every_other_body_is_read_as_strictly(
    service: Service, path: str, method: str, url: str, body: bytes, pointer: str
) -> None:
    before = service.client.get("/v1/conversations?limit=100").json()
    answer = service.client.request(method, url if url.startswith("/v1") else path + url, content=body)
    problem(answer, 422, "invalid", pointer)
    assert service.client.get("/v1/conversations?limit=100").json() == before


TEXTS = st.sampled_from(
    ['"a"', '"text: \\"b\\""', '""', '" "', r'"\ud83d\ude00"', r'"\ud800"', r'"\u0000"', '"é日"', '"t1"', r'"\\"']
)
NUMBERS = st.sampled_from(
    ["0", "-0", "1.50e+2", "1e400", "-1e999", "NaN", "Infinity", "9" * 400, "9" * 5_000, "1e-999", "01", "1.", "2" * 30]
)
KEYS = st.sampled_from(['"a"', '"b"', r'"\u0061"', '""', '"type"', '"text"', '"content"', '"id"', '"media_type"'])


def objects(inner: st.SearchStrategy[str]) -> st.SearchStrategy[str]:
    members = st.lists(st.tuples(KEYS, inner).map(":".join), max_size=3)
    return members.map(lambda found: "{" + ",".join(found) + "}")


def arrays(inner: st.SearchStrategy[str], most: int = 3) -> st.SearchStrategy[str]:
    return st.lists(inner, max_size=most).map(lambda found: "[" + ", ".join(found) + "]")


VALUES = st.recursive(
    TEXTS | NUMBERS | st.sampled_from(["null", "true", "{}", "[]", "[" * 300 + "]" * 300]),
    lambda inner: objects(inner) | arrays(inner),
    max_leaves=6,
)
SOUND_TEXTS = st.sampled_from(['"a"', '"two words"', '"é日"', r'"\ud83d\ude00"'])
FORMS = [
    '{{"type":"text","text":{text}}}',
    '{{"type":"tool_use","id":"t1","name":"look","input":{{"v":{value}}}}}',
    '{{"type":"tool_result","tool_use_id":"t1","content":{value}}}',
    '{{"type":"tool_result","tool_use_id":"t1","content":[{{"type":"text","text":{text}}}]}}',
    '{{"type":"x_future","v":{value}}}',
    '{{"type":"image","source":{value}}}',
    '{{"type":"thinking","thinking":{text},"signature":"s"}}',
]


class Mutation(NamedTuple):
    """A change of bytes: what stands at a share of the body is flipped, cut out or doubled."""

    place: float
    length: int
    kind: str
    mask: int

    def of(self, body: bytes) -> bytes:
        start = int(self.place * len(body))
        head, piece, tail = body[:start], body[start : start + self.length], body[start + self.length :]
        if self.kind == "flip":
            return head + bytes(byte ^ self.mask for byte in piece) + tail
        return head + (b"" if self.kind == "cut" else piece * 2) + tail


MUTATIONS = st.builds(
    Mutation, st.floats(0, 0.999), st.integers(1, 8), st.sampled_from(["flip", "cut", "double"]), st.integers(1, 255)
)


@st.composite
def turns(draw: st.DrawFn) -> bytes:
    """Turns as JSON text: most parts are sound, some are odd, and the bytes of some are changed."""
    odd = draw(st.booleans())
    texts, values = (TEXTS, VALUES) if odd else (SOUND_TEXTS, SOUND_TEXTS | objects(SOUND_TEXTS | st.just("5")))
    messages = []
    for _ in range(draw(st.integers(1, 3))):
        forms = draw(st.lists(st.sampled_from(FORMS), min_size=1, max_size=3))
        blocks = [form.format(text=draw(texts), value=draw(values)) for form in forms]
        content = draw(st.just(f"[{','.join(blocks)}]") | texts | (values if odd else st.nothing()))
        messages.append(f'{{"role":"{draw(st.sampled_from(["user", "assistant"]))}","content":{content}}}')
    body = f'{{"messages":[{",".join(messages)}]}}'.encode()
    for mutation in draw(st.lists(MUTATIONS, max_size=2)) if odd else []:
        body = mutation.of(body)
    return body


@given(body=turns())
def test_any_turn_is_refused_or_served_as_it_came(service: Service, body: bytes) -> None:
    path = service.conversation()
    answer = service.client.post(f"{path}/turns", content=body)
    if answer.status_code == 201:
        served(service, path, body)
    else:
        assert 400 <= answer.status_code < 500, answer.text
        problem(answer, answer.status_code, answer.json()["code"], answer.json().get("pointer"))
        assert service.client.get(path).json()["last_seq"] == -1
