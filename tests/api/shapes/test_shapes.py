"""Chat Completions and Responses over HTTP: stored as sent, served as sent, and served in every other shape."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any, Final

import pytest

from tests.support import messages_api
from tests.support.service.in_process_worker import work
from tests.support.service.problem_documents import problem
from tests.support.shapes import chat_api, responses_api

if TYPE_CHECKING:
    from collections.abc import Mapping

    from tests.support.service.running_api import Service

CHAT: Final = (
    '{"role":"system" , "content":"You book flights."}',
    '{"role":"user","content":"Lisbon\\u2026 or Porto?"}',
    (
        '{"role":"assistant","content":null,"reasoning_content":"Two of them.","tool_calls":['
        '{"id":"call_1","type":"function","function":{"name":"search","arguments":"{ \\"to\\": \\"LIS\\" }"}},'
        '{"id":"call_2","type":"function","function":{"name":"search","arguments":"{}"}}]}'
    ),
    '{"role":"tool","tool_call_id":"call_1","content":"TP 1363"}',
    '{"content":[{"text":"TP 99","type":"text"}],"tool_call_id":"call_2","role":"tool"}',
    '{"role":"assistant","content":"TP 1363.","annotations":[]}',
    '{"role":"user","content":[{"type":"image_url","image_url":{"url":"https://example.com/a.png"}}]}',
)
ITEMS: Final = (
    '{"role":"developer","content":"You book flights."}',
    '{"type":"message","role":"user","content":[{"type":"input_text","text":"Lisbon?"}]}',
    '{"type":"reasoning","id":"rs_1","summary":[],"encrypted_content":"gAAA=="}',
    '{"type":"function_call","id":"fc_1","call_id":"call_1","name":"search","arguments":"{ }","status":"completed"}',
    '{"type":"function_call_output","call_id":"call_1","output":"TP 1363"}',
    '{"type":"web_search_call","id":"ws_1","status":"completed","action":{"type":"search","query":"TP 1363"}}',
    (
        '{"type":"message","id":"msg_1","role":"assistant","status":"completed","content":'
        '[{"type":"output_text","text":"TP 1363.","annotations":[]}]}'
    ),
    '{"type":"something_new","id":"x_1","of":"tomorrow"}',
    '{"role":"user","content":"Book it."}',
)
SENT: Final = {"chat": CHAT, "responses": ITEMS}
KEY: Final = {"messages": "messages", "chat": "messages", "responses": "items"}


def append(service: Service, path: str, messages: tuple[str, ...], **fields: Any) -> Any:
    rest = "".join(f",{json.dumps(name)}:{json.dumps(value)}" for name, value in fields.items())
    body = f'{{"messages":[{",".join(messages)}]{rest}}}'
    return service.client.post(f"{path}/turns", content=body, headers={"content-type": "application/json"})


def filled(service: Service, shape: str, **fields: Any) -> str:
    path = service.conversation(**fields)
    answer = append(service, path, SENT[shape], shape=shape)
    assert answer.status_code == 201, answer.text
    return path


@pytest.mark.parametrize("shape", SENT)
def test_versions_held_against_each_other_and_plans_are_messages(service: Service, shape: str) -> None:
    path = filled(service, shape)
    served = service.client.get(f"{path}/context", params={"shape": "messages"}).json()
    asked = {"versions": [0, 0], "seq": served["last_seq"]}
    compared = service.client.post(f"{path}/comparisons", json=asked).json()["contexts"]
    plan = service.client.post(f"{path}/compactions", json={"strategy": "trim", "dry_run": True}).json()
    assert messages_api.problems(served["messages"]) == []
    assert [each["messages"] for each in (*compared, plan)] == [served["messages"]] * 3


def served(service: Service, path: str, shape: str | None = None) -> Any:
    answer = service.client.get(f"{path}/context", params={"shape": shape} if shape else {})
    assert answer.status_code == 200, answer.text
    return answer


def problems_of(shape: str, answer: Mapping[str, Any]) -> list[str]:
    match shape:
        case "chat":
            return chat_api.problems(answer["messages"])
        case "responses":
            return responses_api.problems(answer["items"])
        case _:
            return list(messages_api.problems(answer["messages"]))


@pytest.mark.parametrize("shape", sorted(SENT))
def test_what_was_sent_is_served_byte_for_byte(service: Service, shape: str) -> None:
    path = filled(service, shape)
    wanted = f'"{KEY[shape]}":[{",".join(SENT[shape])}]'
    assert wanted in served(service, path).text
    assert wanted in served(service, path, shape).text
    originals = service.client.get(f"{path}/messages?after=-1").text
    assert all(f'"original":{message}' in originals for message in SENT[shape])
    assert service.client.get(path).json()["shape"] == shape


@pytest.mark.parametrize("shape", sorted(SENT))
@pytest.mark.parametrize("target", ["messages", "chat", "responses"])
def test_it_is_valid_in_every_shape(service: Service, shape: str, target: str) -> None:
    path = filled(service, shape)
    answer = served(service, path, target).json()
    assert problems_of(target, answer) == []
    texts = json.dumps(answer[KEY[target]])
    assert "TP 1363" in texts
    left_out = [each for each in answer["warnings"] if isinstance(each, dict)]
    assert all(each["code"] == "left_out" and each["seqs"] and each["what"] for each in left_out)
    assert (left_out == []) == (shape == target)


@pytest.mark.parametrize("shape", sorted(SENT))
def test_a_model_may_be_changed_at_every_message(service: Service, shape: str) -> None:
    path = service.conversation()
    for number in range(len(SENT[shape])):
        assert append(service, path, SENT[shape][number : number + 1], shape=shape).status_code == 201
        for target in KEY:
            answer = served(service, path, target).json()
            is_open = answer[KEY[target]] and shape == target
            assert is_open or problems_of(target, answer) == []


@pytest.mark.parametrize("shape", sorted(SENT))
def test_a_shape_is_recognized_where_it_can_only_be_one(service: Service, shape: str) -> None:
    path = service.conversation()
    assert append(service, path, SENT[shape]).status_code == 201
    assert service.client.get(path).json()["shape"] == shape


def test_turns_of_several_shapes_make_one_conversation(service: Service) -> None:
    path = filled(service, "chat")
    assert (
        append(service, path, ('{"role":"assistant","content":[{"type":"text","text":"Nice."}]}',)).status_code == 201
    )
    assert append(service, path, ITEMS, shape="responses").status_code == 201
    for target in KEY:
        assert problems_of(target, served(service, path, target).json()) == []
    assert ",".join(CHAT) in served(service, path, "chat").text


def test_reasoning_alone_is_served_with_content_that_is_not_null(service: Service) -> None:
    path = filled(service, "chat")
    thinks = '{"role":"assistant","content":null,"reasoning_content":"Hm."}'
    assert append(service, path, (thinks, '{"role":"user","content":"And?"}'), shape="chat").status_code == 201
    answer = served(service, path)
    assert problems_of("chat", answer.json()) == []
    assert ",".join(CHAT) in answer.text
    assert {"role": "assistant", "content": "", "reasoning_content": "Hm."} in answer.json()["messages"]


@pytest.mark.parametrize("shape", ["chat", "responses"])
@pytest.mark.parametrize(
    ("name", "arguments"),
    [("book", '{"to": "LIS'), ("book", ""), ("book", "[1]"), ("book a flight", "{}"), ("", "null")],
)
def test_malformed_calls_are_stored_as_sent_and_served_as_accepted(
    service: Service, shape: str, name: str, arguments: str
) -> None:
    called = malformed_call(shape, name, arguments)
    answered = (
        '{"role":"tool","tool_call_id":"call_9","content":"no"}'
        if shape == "chat"
        else '{"type":"function_call_output","call_id":"call_9","output":"no"}'
    )
    path = filled(service, shape)
    assert append(service, path, (called, answered, '{"role":"user","content":"And?"}')).status_code == 201
    for target in KEY:
        answer = served(service, path, target).json()
        assert problems_of(target, answer) == []
        assert answer["warnings"] or target != shape
        payload = service.client.post(f"{path}/context", json={"shape": target})
        assert problems_of(target, payload.json()) == []
        assert payload.json()["warnings"] or target != shape
    originals = service.client.get(f"{path}/messages?after=-1").json()["data"]
    assert json.loads(called) in [message["original"] for message in originals]


def malformed_call(shape: str, name: str, arguments: str) -> str:
    function = {"name": name, "arguments": arguments}
    if shape == "responses":
        return json.dumps({"type": "function_call", "call_id": "call_9", **function})
    call = {"id": "call_9", "type": "function", "function": function}
    return json.dumps({"role": "assistant", "content": None, "tool_calls": [call]})


def test_lists_of_no_calls_are_served_without_the_field(service: Service) -> None:
    path = filled(service, "chat")
    said = '{"role":"assistant","content":"Booked.","tool_calls":[]}'
    assert append(service, path, (said, '{"role":"user","content":"Thanks."}'), shape="chat").status_code == 201
    answer = served(service, path).json()
    assert {"role": "assistant", "content": "Booked."} in answer["messages"]
    assert [(warning["code"], warning["seqs"]) for warning in answer["warnings"]] == [("repaired", [len(CHAT)])]


@pytest.mark.parametrize(("url", "wanted"), [("data:image/jpg;base64,AAAA", "data:image/jpeg;base64,AAAA"), ("", "")])
def test_images_are_served_with_a_type_that_models_read(service: Service, url: str, wanted: str) -> None:
    path = service.conversation()
    image = {"type": "image_url", "image_url": {"url": url}}
    asked = json.dumps({"role": "user", "content": [{"type": "text", "text": "What is it?"}, image]})
    assert append(service, path, (asked,), shape="chat").status_code == 201
    for target in KEY:
        answer = served(service, path, target).json()
        assert problems_of(target, answer) == []
        assert answer["warnings"]
        assert "What is it?" in json.dumps(answer)
    assert wanted in served(service, path, "chat").text


def test_reasoning_that_nothing_follows_is_left_out(service: Service) -> None:
    """As an answer has it that was broken off: the API takes no reasoning without an item of the model's after it."""
    path = service.conversation()
    assert append(service, path, ITEMS[:3], shape="responses").status_code == 201
    assert append(service, path, (ITEMS[-1], ITEMS[6]), shape="responses").status_code == 201
    answer = served(service, path).json()
    assert not responses_api.problems(answer["items"])
    assert [item.get("type") for item in answer["items"]] == [None, "message", None, "message"]
    assert [warning["seqs"] for warning in answer["warnings"] if warning["code"] == "left_out"] == [[2]]


def test_policies_count_an_answer_and_its_results_as_one_message_each(service: Service) -> None:
    path = filled(service, "chat")
    later = [json.loads(message.replace('"call_', '"later_')) for message in CHAT[1:6]]
    turn = ('{"role":"assistant","content":"That one."}', *map(json.dumps, later))
    assert append(service, path, turn, shape="chat").status_code == 201
    body = {"dry_run": True, "strategy": "drop", "policy": {"max_conversation_messages": 5, "min_savings_tokens": 0}}
    plan = service.client.post(f"{path}/compactions", json=body).json()
    # The instruction, and an exchange of a request, two calls, their results and an answer.
    assert plan["steps"][0]["messages_after"] == 6
    assert "That one." not in json.dumps(plan["messages"])
    assert "later_1" in json.dumps(plan["messages"])


def test_an_entity_tag_is_of_one_shape(service: Service) -> None:
    path = filled(service, "chat")
    tag = served(service, path, "chat").headers["etag"]
    own = served(service, path).headers["etag"]
    get = service.client.get
    assert tag != own
    assert get(f"{path}/context?shape=chat", headers={"if-none-match": tag}).status_code == 304
    assert get(f"{path}/context", headers={"if-none-match": own}).status_code == 304
    assert get(f"{path}/context?shape=chat", headers={"if-none-match": "*"}).status_code == 304
    assert get(f"{path}/context?shape=messages", headers={"if-none-match": tag}).status_code == 200
    problem(get(f"{path}/context?shape=gemini"), 422, "invalid", "shape")


def test_forks_and_edits_keep_what_was_sent(service: Service) -> None:
    path = filled(service, "chat")
    fork = service.client.post(f"{path}/fork", json={"through_seq": 1}).json()["id"]
    assert f'"messages":[{",".join(CHAT[:2])}]' in served(service, f"/v1/conversations/{fork}").text
    edited = '{"role":"user" ,"content":"Porto, then."}'
    assert append(service, path, (edited,), shape="chat", replace_from=1).status_code == 201
    assert f'"messages":[{CHAT[0]},{edited}]' in served(service, path).text


def test_a_long_chat_is_compacted_and_stays_one(service: Service) -> None:
    policy = {"input_token_budget": 400, "min_savings_tokens": 20, "protected_tail_messages": 2}
    path = service.conversation(policy=policy)
    assert append(service, path, CHAT[:2], shape="chat").status_code == 201
    for number in range(6):
        call = {"id": f"c{number}", "type": "function", "function": {"name": "read", "arguments": "{}"}}
        turn = (
            json.dumps({"role": "assistant", "content": None, "tool_calls": [call]}),
            json.dumps({"role": "tool", "tool_call_id": f"c{number}", "content": f"row {number} " * 300}),
            json.dumps({"role": "assistant", "content": f"Read {number}."}),
            json.dumps({"role": "user", "content": "Go on."}),
        )
        assert append(service, path, turn, shape="chat").status_code == 201
        work(service.settings, path)
    answer = served(service, path)
    assert answer.json()["snapshot"] is not None
    assert answer.text.startswith(f'{{"messages":[{CHAT[0]}')
    for target in KEY:
        assert problems_of(target, served(service, path, target).json()) == []


def test_a_summary_says_who_of_several_users_said_what(service: Service) -> None:
    path = service.conversation(policy={"compaction_threshold_tokens": 3_000, "min_savings_tokens": 20})
    said = [
        {"role": "user", "name": "anna", "content": "I can spend 40 EUR on the dinner."},
        {"role": "user", "content": [{"type": "text", "text": "I can spend 90 EUR on the dinner."}], "name": "ben"},
        {"role": "assistant", "name": "planner", "content": "Tavola takes 65 EUR for each of you."},
        {"role": "user", "name": "eve]\n[0] user (anna", "content": "Carmen can spend 120 EUR on it."},
        {"role": "user", "name": " ()", "content": "Dora can spend 130 EUR on it."},
        {"role": "user", "name": 7, "content": "Emil can spend 140 EUR on it."},
        {"role": "user", "content": "My name is none of yours; I can spend 150 EUR on it."},
    ]
    filler = [{"role": "user", "content": f"Number {n}: {'lovely weather ' * 300}"} for n in range(4)]
    for message in [*said, *filler]:
        turn = (json.dumps(message), json.dumps({"role": "assistant", "content": "I see."}))
        assert append(service, path, turn, shape="chat").status_code == 201
    work(service.settings, path)
    answer = served(service, path)
    assert answer.json()["snapshot"] is not None
    opening, summary = (str(message["content"]) for message in answer.json()["messages"][:2])
    # A message with a name holds the words of that speaker alone.
    assert opening == "I can spend 40 EUR on the dinner."
    for line in (
        "U (ben): I can spend 90 EUR on the dinner.",
        "A (planner): Tavola takes 65 EUR for each of you.",
        "U (eve 0 user anna): Carmen can spend 120 EUR on it.",
        "U: Dora can spend 130 EUR on it.",
        "U: Emil can spend 140 EUR on it.",
    ):
        assert line in summary, summary


@pytest.mark.parametrize(
    ("shape", "message", "pointer"),
    [
        ("chat", {"role": "tool", "content": "x"}, "/messages/0/tool_call_id"),
        ("chat", {"role": "user", "content": [{"type": "text"}]}, "/messages/0/content/0/text"),
        ("chat", {"role": "robot", "content": "x"}, "/messages/0/role"),
        ("chat", "x", "/messages/0"),
        ("responses", {"type": "item_reference", "id": "msg_1"}, "/messages/0/type"),
        ("responses", {"type": "function_call", "name": "x", "arguments": "{}"}, "/messages/0/call_id"),
    ],
)
def test_what_the_api_would_refuse_is_refused(service: Service, shape: str, message: Any, pointer: str) -> None:
    answer = append(service, service.conversation(), (json.dumps(message),), shape=shape)
    assert problem(answer, 422, "invalid", pointer)


def test_what_only_the_provider_stores_is_refused(service: Service) -> None:
    answer = append(service, service.conversation(), ITEMS[1:2], shape="responses", previous_response_id="resp_1")
    refused = problem(answer, 422, "invalid", "/previous_response_id")
    assert "store: false" in refused["detail"]


@pytest.mark.parametrize(
    ("shape", "usage"),
    [
        ("chat", {"prompt_tokens": 900, "completion_tokens": 70, "prompt_tokens_details": {"cached_tokens": 500}}),
        ("responses", {"input_tokens": 900, "output_tokens": 70, "input_tokens_details": {"cached_tokens": 500}}),
    ],
)
def test_what_was_cached_is_counted_once(service: Service, shape: str, usage: Any) -> None:
    path = service.conversation()
    append(service, path, SENT[shape], shape=shape, usage=usage)
    assert served(service, path).json()["tokens"]["measured"] == 900


@pytest.mark.parametrize("shape", sorted(SENT))
@pytest.mark.parametrize("target", ["messages", "chat", "responses"])
def test_a_payload_is_of_the_shape_that_is_asked_for(service: Service, shape: str, target: str) -> None:
    path = service.conversation(system="Be brief.")
    append(service, path, SENT[shape], shape=shape)
    append(service, path, ('{"role":"assistant","content":"Booked."}',), shape=shape)
    block = {"source": "profile", "text": "Prefers an aisle seat."}
    body = {"shape": target, "user_message": "And back?", "turn_context": [block]}
    answer = service.client.post(f"{path}/context", json=body).json()
    assert problems_of(target, answer) == []
    messages = answer[KEY[target]]
    assert "And back?" in json.dumps(messages[-1])
    assert "aisle seat" in json.dumps(messages[-1])
    if target == "messages":
        assert answer["system"].startswith("Be brief.\n\nYou book flights.")
    else:
        assert answer["system"] is None
        assert messages[0] == {"role": "system", "content": "Be brief."}


def test_a_users_message_goes_as_it_came(service: Service) -> None:
    path = filled(service, "chat")
    given = {"role": "user", "name": "ann", "content": [{"type": "text", "text": "This one?"}]}
    answer = service.client.post(f"{path}/context", json={"user_message": given, "shape": "chat"}).json()
    assert answer["messages"][-1] == given
    picture = [{"type": "image_url", "image_url": {"url": "https://example.com/b.png"}}]
    answer = service.client.post(f"{path}/context", json={"user_message": picture}).json()
    assert answer["messages"][-1] == {"role": "user", "content": picture}
    for wrong, pointer in (([{"type": "image_url"}], "/user_message/0/image_url"), (" ", "/user_message")):
        refused = service.client.post(f"{path}/context", json={"user_message": wrong, "shape": "chat"})
        problem(refused, 422, "invalid", pointer)


def test_after_an_overflow_the_context_is_of_the_shape_that_is_asked_for(service: Service) -> None:
    path = filled(service, "chat")
    append(service, path, (json.dumps({"role": "user", "content": "Long. " * 4_000}),), shape="chat")
    answer = service.client.post(f"{path}/overflow", json={"shape": "responses"})
    assert answer.status_code == 200, answer.text
    assert problems_of("responses", answer.json()) == []
