"""What a provider refuses as too large is asked again with less; nothing of that is kept unless it was accepted."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any, Final

import pytest

from runtime import ids
from tests.conftest import make_tenant
from tests.gateway.chatter import PATHS, Chatter
from tests.gateway.conftest import room_on
from tests.support.eventually import eventually
from tests.support.servers.loopback_providers import Asked, Says, Sends

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    import httpx2

    from runtime.settings import Settings
    from tests.gateway.conftest import Room
    from tests.support.servers.loopback_providers import Answer

SHAPES: Final = tuple(PATHS)
LIMIT: Final = 38_000
"""Bytes of the largest request that the providers of these tests take."""
TOO_LONG: Final = "The input (150000 tokens) is longer than the model's context length (90000 tokens)."
ERROR: Final = {"error": {"message": TOO_LONG, "code": 400}}
ROLE: Final = {
    "object": "chat.completion.chunk",
    "choices": [{"index": 0, "delta": {"role": "assistant", "content": ""}}],
}
STARTED: Final = {"type": "message_start", "message": {"id": "m", "role": "assistant", "content": [], "usage": {}}}
BLOCK: Final = {"type": "content_block_start", "index": 0, "content_block": {"type": "text", "text": ""}}
CLAUDE: Final = {"type": "error", "error": {"type": "invalid_request_error", "message": TOO_LONG}}
CREATED: Final = {"type": "response.created", "response": {"id": "r", "status": "in_progress", "output": []}}
ITEM: Final = {"type": "response.output_item.added", "output_index": 0, "item": {"type": "reasoning", "summary": []}}
FAILED: Final = {"type": "response.failed", "response": {"id": "r", "status": "failed", **ERROR}}
COMMENT: Final = b": PROCESSING\n\n"


def stream(*events: dict[str, Any] | bytes) -> Sends:
    """Return a stream of events; bytes are sent as they are."""
    texts = (each if isinstance(each, bytes) else b"data: " + json.dumps(each).encode() + b"\n\n" for each in events)
    return Sends(200, "text/event-stream", b"".join(texts))


def whole(body: Any, status: int = 200) -> Sends:
    return Sends(status, "application/json", json.dumps(body).encode())


WITHIN: Final = {
    ("chat", "error"): stream(ERROR, b"data: [DONE]\n\n"),
    ("chat", "comment"): stream(COMMENT, ERROR),
    ("chat", "role chunk"): stream(ROLE, ERROR),
    ("chat", "no choices yet"): stream({"choices": [], "prompt_filter_results": []}, ROLE, ERROR),
    ("chat", "error of a choice"): stream({"choices": [{"delta": {"content": ""}, "finish_reason": "error", **ERROR}]}),
    ("chat", "error type"): stream({"error_type": "BadRequestError", "error_message": TOO_LONG}),
    ("chat", "text of an error"): stream({"error": TOO_LONG}),
    ("chat", "nothing"): stream(b"data: [DONE]\n\n"),
    ("chat", "no stream"): Sends(200, "text/event-stream", json.dumps(ERROR).encode()),
    ("chat", "whole"): whole(ERROR),
    ("chat", "whole list"): whole([ERROR]),
    ("messages", "error"): stream(CLAUDE),
    ("messages", "ping"): stream({"type": "ping"}, CLAUDE),
    ("messages", "message_start"): stream(STARTED, {"type": "ping"}, CLAUDE),
    ("messages", "empty block"): stream(STARTED, BLOCK, CLAUDE),
    ("messages", "bare error"): stream(COMMENT, ERROR),
    ("messages", "whole"): whole(CLAUDE),
    ("responses", "failed"): stream(CREATED, FAILED),
    ("responses", "empty item"): stream(CREATED, ITEM, FAILED),
    ("responses", "error"): stream(
        {"type": "error", "code": "context_length_exceeded", "message": "no", "param": "input"}
    ),
    ("responses", "bare error"): stream(COMMENT, ERROR),
    ("responses", "whole"): whole({"id": "r", "object": "response", "status": "failed", "output": [], **ERROR}),
}


@pytest.fixture(scope="module")
def shared(module_settings: Settings) -> Iterator[Room]:
    """A gateway of this module."""
    tenant = make_tenant(module_settings.database_url.get_secret_value(), "acme")
    with room_on(module_settings, tenant) as room:
        yield room


def refuses(sends: Answer, limit: int = LIMIT) -> Callable[[Asked], Answer]:
    """Return a provider that refuses what is larger than `limit` bytes."""
    return lambda asked: sends if len(asked.raw) > limit else Says(f"answer of {len(asked.raw)}")


def begun(room: Room, shape: str, session: str, rows: int = 24, size: int = 90) -> Chatter:
    """Return a conversation that is stored, with more than LIMIT bytes."""
    chat = Chatter(room, shape, **{"x-session-id": session})
    room.providers.model = lambda _: Says("an answer " * size)
    for number in range(rows):
        chat.rows += [
            {"role": "user", "content": f"{session} {number} " + "a question " * size},
            *chat.answer(Says(f"{number} " + "an answer " * size)),
        ]
    chat.rows.append({"role": "user", "content": f"{session} before"})
    chat.send(stream=False)
    room.eventually_stored(chat.name, len(chat.rows))
    return chat


def ask(chat: Chatter, text: Any, **fields: Any) -> tuple[httpx2.Response, list[Asked]]:
    """Ask something more; return the answer, and the requests that the provider got."""
    before = len(chat.room.providers.asked)
    name = "input" if chat.shape == "responses" else "messages"
    body = {"model": "model-1", "max_tokens": 99, name: [*chat.rows, {"role": "user", "content": text}], **fields}
    answer = chat.room.client.post(PATHS[chat.shape], json=body, headers=chat.headers)
    return answer, chat.room.providers.asked[before:]


def heads(room: Room, conversation: str) -> list[int]:
    """Return the versions of a conversation's snapshots, and its head."""
    identifier = ids.parse("conv", conversation)
    versions = room.query("select version from snapshots where conversation_id = %s order by version", identifier)
    (row,) = room.query("select head_version from conversations where id = %s", identifier)
    return [*(each["version"] for each in versions), row["head_version"]]


@pytest.mark.parametrize(("shape", "how"), WITHIN)
def test_refusal_within_an_answer_is_answered_with_less(room: Room, shape: str, how: str) -> None:
    chat = begun(room, shape, f"within {shape} {how}")
    sends = WITHIN[shape, how]
    room.providers.model = refuses(sends)
    is_stream = sends.media_type == "text/event-stream"
    answer, asked = ask(chat, "one too many", stream=is_stream)
    assert answer.status_code == 200
    assert [len(each.raw) > LIMIT for each in asked] == [True, False]
    assert answer.content == asked[1].answered
    assert answer.headers["x-palimpsest-outcome"] == "compacted"
    assert "one too many" in json.dumps(asked[1].rows[-1])
    eventually(lambda: heads(room, chat.name) == [1, 1])


THOUGHT: Final = {"type": "thinking", "thinking": "Let me look.", "signature": "c2lnbmVk"}
NOT_THOUGHT: Final = (
    "messages.1.content.0.type: Expected `thinking` or `redacted_thinking`, but found `tool_use`. When `thinking` is "
    "enabled, a final `assistant` message must start with a thinking block."
)
KEPT_EDIT: Final = {"type": "clear_tool_uses_20250919"}
LOOP_FIELDS: Final = {
    "thinking": {"type": "enabled", "budget_tokens": 1_024},
    "context_management": {"edits": [{"type": "clear_thinking_20251015", "keep": "all"}, KEPT_EDIT]},
}


def refuses_lost_thinking(asked: Asked) -> Answer:
    """Refuse what is too large, and a tool loop without its thinking unless the request has thinking disabled."""
    if len(asked.raw) > LIMIT:
        return whole(CLAUDE, 400)
    loop = [row["content"] for row in asked.rows if row["role"] == "assistant"][-1]
    is_loop = any(block["type"] == "tool_result" for block in asked.rows[-1]["content"])
    if asked.body["thinking"]["type"] == "enabled" and is_loop and loop[0]["type"] != "thinking":
        return whole({"type": "error", "error": {"type": "invalid_request_error", "message": NOT_THOUGHT}}, 400)
    return Says(calls=(("toolu_more", "look", {}),)) if is_loop else Says("done")


def test_tool_loop_goes_on_without_thinking_that_was_left_out(room: Room) -> None:
    chat = begun(room, "messages", "a loop that thinks")
    room.providers.model = refuses_lost_thinking
    chat.rows += [
        {"role": "user", "content": [{"type": "text", "text": "Look."}]},
        {"role": "assistant", "content": [THOUGHT, {"type": "tool_use", "id": "toolu_1", "name": "look", "input": {}}]},
    ]
    answer, asked = ask(chat, result_of("toolu_1", "the first result"), **LOOP_FIELDS)
    assert answer.status_code == 200
    assert [each.body["thinking"] for each in asked] == [LOOP_FIELDS["thinking"], {"type": "disabled"}]
    assert asked[-1].body["context_management"] == {"edits": [KEPT_EDIT]}
    assert "the first result" in json.dumps(asked[-1].rows[-1])
    # The next round goes on from the smaller head, in one try.
    eventually(lambda: heads(room, chat.name) == [1, 1])
    chat.rows += [
        {"role": "user", "content": result_of("toolu_1", "the first result")},
        {"role": "assistant", "content": [{"type": "tool_use", "id": "toolu_more", "name": "look", "input": {}}]},
    ]
    answer, (sent,) = ask(chat, result_of("toolu_more", "the second result"), **LOOP_FIELDS)
    assert (answer.status_code, sent.body["thinking"]) == (200, {"type": "disabled"})
    # When the loop has ended the model thinks again.
    chat.rows += [
        {"role": "user", "content": result_of("toolu_more", "the second result")},
        {"role": "assistant", "content": [{"type": "text", "text": "Stopped."}]},
    ]
    answer, (sent,) = ask(chat, [{"type": "text", "text": "Now think again."}], **LOOP_FIELDS)
    assert answer.status_code == 200
    assert {name: sent.body[name] for name in LOOP_FIELDS} == LOOP_FIELDS


def result_of(called: str, text: str) -> list[dict[str, Any]]:
    return [{"type": "tool_result", "tool_use_id": called, "content": text}]


@pytest.mark.parametrize("shape", SHAPES)
def test_refusal_within_an_answer_that_has_begun_is_passed_on(room: Room, shape: str) -> None:
    chat = begun(room, shape, f"begun {shape}")
    pieces: dict[str, dict[str, Any]] = {
        "messages": {"type": "content_block_delta", "index": 0, "delta": {"type": "text_delta", "text": "so"}},
        "chat": {"choices": [{"index": 0, "delta": {"content": "so"}}]},
        "responses": {"type": "response.output_text.delta", "output_index": 0, "delta": "so"},
    }
    room.providers.model = lambda _: stream(pieces[shape], ERROR)
    answer, asked = ask(chat, "cut", stream=True)
    assert len(asked) == 1
    assert answer.content == asked[0].answered
    assert heads(room, chat.name) == [0]


def test_beginning_is_held_back_for_so_long(room: Room, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("gateway.answers.beginnings.SECONDS", 0.05)
    room.providers.model = lambda _: Says("one two three")
    room.providers.held.clear()
    room.providers.go_on.clear()
    room.providers.hold_after = 1
    body = {"model": "m", "max_tokens": 9, "stream": True, "messages": [{"role": "user", "content": "slowly"}]}
    with room.client.stream("POST", "/v1/messages", json=body) as answer:
        pieces = answer.iter_raw()
        first = next(pieces)
        assert b"message_start" in first
        assert b"one" not in first
        room.providers.go_on.set()
        rest = b"".join(pieces)
    assert first + rest == room.providers.asked[-1].answered


def test_beginning_is_held_back_up_to_so_many_bytes(room: Room, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("gateway.answers.beginnings.MAX_BYTES", 1_000)
    chat = begun(room, "chat", "bytes held")
    room.providers.model = refuses(stream(COMMENT * 200_000, ERROR))
    answer, asked = ask(chat, "long beginning", stream=True)
    assert len(asked) == 1
    assert answer.content == asked[0].answered


REFUSED: Final = {
    "nginx": Sends(413, "text/html", b"<html><head><title>413 Request Entity Too Large</title></head></html>"),
    "empty": Sends(413, "application/json", b""),
    "Vercel": Sends(413, "text/plain", b"Request Entity Too Large\n\nFUNCTION_PAYLOAD_TOO_LARGE"),
    "FastAPI": whole({"detail": "Request body too large"}, 413),
    "Moonshot": whole({"error": {"message": "total message size 60000 exceeds limit 40000"}}, 400),
    "Gemini": whole([{"error": {"message": f"Request payload size exceeds the limit: {LIMIT} bytes."}}], 400),
    "Bedrock": whole({"message": f"Member must have length less than or equal to {LIMIT}"}, 400),
    "vLLM": whole({"message": "Request body is too large"}, 422),
    "Go": whole({"error": {"message": "http: request body too large"}}, 500),
    "llama.cpp": whole(
        {"error": {"type": "exceed_context_size_error", "n_prompt_tokens": 12_000, "n_ctx": 6_000}}, 500
    ),
    "Ollama": whole({"error": "the input length exceeds the context length"}, 500),
    "LiteLLM": whole({"error": {"message": "litellm.ContextWindowExceededError: too much"}}, 502),
    "OpenAI, per minute": whole(
        {"error": {"message": "Request too large for m on tokens per min (TPM): Limit 6000, Requested 12099."}}, 429
    ),
    "messages": whole(
        {
            "error": {
                "message": "Invalid 'messages': array too long. Expected an array with maximum length 20, but got an "
                "array with length 51 instead."
            }
        },
        400,
    ),
}


@pytest.mark.parametrize("who", REFUSED)
def test_every_way_to_refuse_a_size_is_answered_with_less(room: Room, who: str) -> None:
    chat = begun(room, "chat", f"refused {who}")
    room.providers.model = refuses(REFUSED[who])
    answer, asked = ask(chat, "one too many")
    assert answer.status_code == 200
    assert len(asked) == 2
    eventually(lambda: heads(room, chat.name) == [1, 1])
    # What was accepted is what the conversation goes on from.
    again, asked_again = ask(chat, "one too many")
    assert (again.status_code, len(asked_again)) == (200, 1)


NOT_THE_HISTORY: Final = {
    "output": "This model's maximum context length is 262144 tokens. However, you requested 284283 tokens (22139 in "
    "the messages, 262144 in the completion). Please reduce the length of the messages or completion.",
    "largest output": "max_tokens is too large: 262144. This model supports at most 16384 completion tokens.",
    "stop": "Invalid 'stop': array too long. Expected an array with maximum length 4, but got one with 5.",
    "tool": "tools.0.custom.description: String is too long (max 10000)",
    "user": "'user' is too long - 'user'",
    "beta": "context_management: Extra inputs are not permitted; the context window beta header is missing",
    "file": "File name too long",
}


@pytest.mark.parametrize("about", NOT_THE_HISTORY)
@pytest.mark.parametrize("shape", SHAPES)
def test_refusal_of_something_else_is_passed_on_and_nothing_is_shortened(room: Room, shape: str, about: str) -> None:
    chat = begun(room, shape, f"else {shape} {about}", rows=4)
    error = {"type": "error", "error": {"message": NOT_THE_HISTORY[about], "type": "invalid_request_error"}}
    room.providers.model = lambda _: whole(error, 400)
    answer, asked = ask(chat, "refused")
    assert (answer.status_code, answer.json(), len(asked)) == (400, error, 1)
    room.providers.model = lambda _: Says("well")
    answer, asked = ask(chat, "refused")
    assert (answer.status_code, answer.headers["x-palimpsest-outcome"]) == (200, "unchanged")
    assert len(asked[0].rows) == len(chat.rows) + 1
    assert heads(room, chat.name) == [0]


def test_shrink_that_was_refused_too_is_not_kept(room: Room) -> None:
    chat = begun(room, "messages", "refused twice")
    error = {"type": "error", "error": {"type": "invalid_request_error", "message": "prompt is too long"}}
    room.providers.model = lambda _: whole(error, 400)
    sizes = []
    for _ in range(3):
        answer, asked = ask(chat, "refused")
        assert (answer.status_code, answer.json(), len(asked)) == (400, error, 2)
        sizes.append(len(asked[1].raw))
        assert heads(room, chat.name) == [0]
    # Each next one is smaller still, until one is accepted.
    assert sizes == sorted(set(sizes), reverse=True)
    room.providers.model = lambda _: Says("well")
    answer, asked = ask(chat, "refused")
    assert answer.headers["x-palimpsest-outcome"] == "unchanged"
    assert len(asked[0].rows) == len(chat.rows) + 1


def test_usage_of_an_accepted_shrink_is_counted_for_its_version(room: Room) -> None:
    chat = begun(room, "messages", "counted")
    room.providers.model = refuses(whole(ERROR, 400))
    answer, _ = ask(chat, "count it")
    assert answer.status_code == 200
    identifier = ids.parse("conv", chat.name)
    statement = "select measured_version, head_version, measured_tokens from conversations where id = %s"
    eventually(lambda: room.query(statement, identifier)[0]["measured_version"] == 1)
    (row,) = room.query(statement, identifier)
    assert row["head_version"] == 1
    assert row["measured_tokens"] > 0


def test_history_over_the_policys_budget_is_shortened_from_what_was_sent(
    module_settings: Settings, shared: Room
) -> None:
    budget = {"total_token_budget": 4_000, "reserved_output_tokens": 500}
    with room_on(module_settings, shared.tenant, policy=budget) as room:
        for error in ("http: request body too large", "prompt is too long: 10000 tokens > 8000 maximum"):
            chat = begun(room, "chat", f"over the budget {error[:4]}")
            room.providers.model = refuses(whole({"error": {"message": error}}, 500))
            answer, asked = ask(chat, "one too many")
            assert answer.status_code == 200
            assert len(asked[1].raw) > 0.6 * len(asked[0].raw)


def test_request_that_failed_open_gets_its_smaller_try(module_settings: Settings, shared: Room) -> None:
    with room_on(module_settings, shared.tenant, gateway_patience_seconds=1e-6) as room:
        room.providers.model = refuses(whole(ERROR, 400))
        chat = Chatter(room, "messages", **{"x-session-id": "failed open"})
        for number in range(24):
            chat.rows += [
                {"role": "user", "content": f"open {number} " + "a question " * 90},
                *chat.answer(Says(f"{number} " + "an answer " * 90)),
            ]
        answer, asked = ask(chat, "go on")
        assert (answer.status_code, answer.headers["x-palimpsest-outcome"]) == (200, "compacted")
        assert [len(each.raw) > LIMIT for each in asked] == [True, False]
        # The head that it left is found with the same patience: nothing more is left out.
        eventually(lambda: heads(room, answer.headers["x-palimpsest-conversation"]) == [1, 1])
        again, asked_again = ask(chat, "go on")
        assert again.status_code == 200
        assert [len(each.raw) for each in asked_again] == [len(each.raw) for each in asked]


def test_refusal_that_nobody_knows_passes_and_is_counted_by_its_provider(room: Room) -> None:
    chat = begun(room, "chat", "unknown", rows=2)
    room.providers.model = lambda _: whole({"error": {"message": "The moon is in the wrong house."}}, 400)
    answer, asked = ask(chat, "unknown")
    assert (answer.status_code, len(asked)) == (400, 1)
    counted = room.client.get("/metrics").text
    assert 'palimpsest_gateway_unread_refusals_total{provider="127.0.0.1",status="400"} 1.0' in counted


def test_provider_that_is_down_is_no_refusal(room: Room) -> None:
    chat = begun(room, "chat", "down")
    room.providers.model = lambda _: Sends(502, "text/html", b"<html><h1>502 Bad Gateway</h1></html>")
    answer, asked = ask(chat, "down")
    assert (answer.status_code, len(asked)) == (502, 1)
    assert heads(room, chat.name) == [0]
