"""Tool output inside assistant text, over HTTP: cut in every view, stored byte for byte, counted as it is shown."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest

from compaction.tokens import content_tokens
from compaction.view import MARKER
from tests.conftest import make_tenant
from tests.support.blocks import text_block
from tests.support.messages_api import problems
from tests.support.service.in_process_worker import work

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.support.service.running_api import Service

KEPT = 40
POLICY = {"inline_tool_tags": ["readNote", "localSearch"], "tool_result_retention_chars": KEPT}
HELLO = {"role": "user", "content": "Hello."}
PASTED = f"Found: <readNote path='a.md'>{'note ' * 400}</readNote> and so it is."
SHOWN = f"Found: <readNote path='a.md'>{('note ' * 400)[:KEPT]}{MARKER}</readNote> and so it is."


@pytest.fixture(scope="module")
def tagged(service: Service) -> Iterator[Service]:
    """The service, its client a tenant's whose assistants paste tool output into their text."""
    tenant = make_tenant(service.database_url, "tagged")
    with service.api.client(tenant.key) as client:
        assert client.patch("/v1/tenant", json={"policy": POLICY}).status_code == 200
        yield service._replace(tenant_id=tenant.id, client=client)


def context(service: Service, path: str) -> dict[str, Any]:
    answer = service.client.get(f"{path}/context")
    assert answer.status_code == 200
    body: dict[str, Any] = answer.json()
    assert problems(body["messages"]) == []
    return body


@pytest.mark.requirement("P17")
def test_pasted_results_are_cut_in_every_view_and_stored_byte_for_byte_P17(tagged: Service) -> None:
    path = tagged.conversation()
    original = json.dumps(PASTED).replace("Found", "F\\u006fund").encode()
    body = b'{"messages":[{"role":"user","content":"Hello."},{"role":"assistant","content":' + original + b"}]}"
    assert tagged.client.post(f"{path}/turns", content=body).status_code == 201
    blocks = [text_block(PASTED), {"type": "tool_use", "id": "t1", "name": "readNote", "input": {"note": PASTED}}]
    tagged.append(path, HELLO, {"role": "assistant", "content": blocks})
    cut = [
        {"role": "user", "content": "Hello."},
        {"role": "assistant", "content": SHOWN},
        HELLO,
        {"role": "assistant", "content": [text_block(SHOWN), blocks[1]]},
    ]
    assert context(tagged, path)["messages"] == cut
    assert context(tagged, path)["warnings"] == []
    payload = tagged.client.post(f"{path}/context", json={}).json()
    assert payload["messages"][: len(cut)] == cut
    assert original in tagged.client.get(f"{path}/messages").content
    one = tagged.client.get(f"{path}/messages/1").json()
    assert (one["content"], one["fate"]) == (PASTED, "kept")


@pytest.mark.requirement("P17")
@pytest.mark.parametrize(
    "text",
    [
        "Unclosed <readNote>" + "note " * 40,
        "Stray " + "note " * 40 + "</readNote> tag",
        "Crossed <readNote>" + "a" * 50 + "<localSearch>" + "b" * 50 + "</readNote>" + "c" * 50 + "</localSearch>",
        "In code:\n```\n<readNote>" + "x" * 90 + "</readNote>\n```\n",
        "Not named: <note>" + "x" * 900 + "</note>",
    ],
)
def test_what_is_no_element_is_not_touched_P17(tagged: Service, text: str) -> None:
    path = tagged.conversation()
    said = {"role": "assistant", "content": text}
    done = tagged.append(path, HELLO, said)
    assert context(tagged, path)["messages"] == [HELLO, said]
    assert done["context_tokens"] == 2 + content_tokens(text)


def test_nested_elements_lose_only_what_is_in_them(tagged: Service) -> None:
    path = tagged.conversation()
    inner = f"<localSearch>{'s' * 200}</localSearch>"
    tagged.append(path, HELLO, {"role": "assistant", "content": f"A <readNote>{inner}{'n' * 200}</readNote> Z"})
    served = context(tagged, path)["messages"][1]["content"]
    assert served == f"A <readNote><localSearch>{'s' * 27}{MARKER}</localSearch></readNote> Z"


def test_what_users_and_tools_say_is_not_touched(tagged: Service) -> None:
    path = tagged.conversation()
    call = {"type": "tool_use", "id": "t1", "name": "look", "input": {}}
    result = {"type": "tool_result", "tool_use_id": "t1", "content": PASTED}
    sent: list[dict[str, Any]] = [
        {"role": "user", "content": PASTED},
        {"role": "assistant", "content": [call]},
        {"role": "user", "content": [result]},
    ]
    tagged.append(path, *sent)
    assert context(tagged, path)["messages"] == sent


def test_what_is_hidden_does_not_count(tagged: Service) -> None:
    path = tagged.conversation()
    shown = content_tokens("Hello.") + content_tokens(SHOWN)
    assert tagged.append(path, HELLO, {"role": "assistant", "content": PASTED})["context_tokens"] == shown
    assert context(tagged, path)["tokens"]["context"] == shown
    assert tagged.client.get(path).json()["context_tokens"] == shown
    stored = tagged.client.get(f"{path}/messages/1").json()
    assert stored["tokens"] == content_tokens(PASTED)
    # Nor what is newer than the API's own count.
    usage = {"input_tokens": 1_000, "output_tokens": 10}
    done = tagged.append(path, HELLO, {"role": "assistant", "content": PASTED}, usage=usage)
    assert done["context_tokens"] == 1_010
    # A message of the assistant that no model call is known of.
    done = tagged.append(path, {"role": "assistant", "content": PASTED})
    assert done["context_tokens"] == 1_010 + content_tokens(SHOWN)


def test_a_snapshot_holds_the_view_and_the_lineage_says_kept(tagged: Service) -> None:
    path = tagged.conversation(policy={"input_token_budget": 200, "min_savings_tokens": 10})
    call = {"type": "tool_use", "id": "t1", "name": "look", "input": {}}
    other = {"type": "tool_use", "id": "t2", "name": "look", "input": {}}
    tagged.append(
        path,
        HELLO,
        {"role": "assistant", "content": PASTED},
        HELLO,
        {"role": "assistant", "content": [text_block(PASTED), call]},
        {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "t1", "content": "long " * 400}]},
        {"role": "assistant", "content": [other]},
        {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "t2", "content": "short"}]},
        {"role": "assistant", "content": PASTED},
    )
    work(tagged.settings, path)
    served = context(tagged, path)
    assert served["snapshot"] == {"version": 1, "covers_through": 4}
    assert str(served["messages"]).count("note ") == 3 * (KEPT // 5)
    snapshot = tagged.client.get(f"{path}/snapshots/1").json()
    assert snapshot["messages"][1]["content"] == SHOWN
    fates = {seq: tagged.client.get(f"{path}/messages/{seq}").json()["fate"] for seq in (1, 3, 4, 7)}
    assert fates == {1: "kept", 3: "kept", 4: "truncated", 7: "kept"}  # capped results are kept as well
    assert tagged.client.get(f"{path}/messages/1").json()["content"] == PASTED
    assert served["tokens"]["context"] == tagged.client.get(path).json()["context_tokens"]


def test_a_conversation_has_tags_of_its_own(service: Service, tagged: Service) -> None:
    said = {"role": "assistant", "content": PASTED}
    path = service.conversation(policy=POLICY)
    service.append(path, HELLO, said)
    assert context(service, path)["messages"] == [HELLO, {"role": "assistant", "content": SHOWN}]
    etag = service.client.get(f"{path}/context").headers["etag"]
    assert service.client.patch(path, json={"policy": None}).status_code == 200
    answer = service.client.get(f"{path}/context", headers={"if-none-match": etag})
    assert (answer.status_code, answer.json()["messages"]) == (200, [HELLO, said])
    path = tagged.conversation(policy={"inline_tool_tags": []})
    tagged.append(path, HELLO, said)
    assert context(tagged, path)["messages"] == [HELLO, said]


def test_a_change_of_tags_strips_what_was_signed_for_the_view_before(service: Service) -> None:
    path = service.conversation()
    thinking = {"type": "thinking", "thinking": "Hm.", "signature": "s"}
    service.append(path, HELLO, {"role": "assistant", "content": [thinking, text_block(PASTED)]})
    assert "signature" in str(context(service, path)["messages"])
    assert service.client.patch(path, json={"policy": POLICY}).status_code == 200
    assert context(service, path)["messages"] == [HELLO, {"role": "assistant", "content": [text_block(SHOWN)]}]
    # Later thinking was signed for what is shown now.
    later = {"role": "assistant", "content": [thinking, text_block("So.")]}
    service.append(path, HELLO, later, snapshot_version=0)
    assert context(service, path)["messages"][-1] == later
