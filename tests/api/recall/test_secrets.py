"""Recall gives credentials back to keys that may read them; rules, pins and outlines show their marks to everybody."""

from __future__ import annotations

import json
from contextlib import ExitStack
from typing import TYPE_CHECKING, Any, Final

import pytest

from tests.api.doors.test_problems import key_with
from tests.domain.credentials.samples import PASSWORD, PEM, TOKENS
from tests.support.talk import answer, request

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    import httpx2

    from tests.support.service.running_api import Service

KEY: Final = TOKENS["github token"]
RULE: Final = f"From now on always log in with the password {PASSWORD}."
SHOWN: Final = "From now on always log in with the password [secret: password, m2]."
RESULT: Final = {
    "role": "user",
    "content": [{"type": "tool_result", "tool_use_id": "t1", "content": f"zebra\nGITHUB_TOKEN={KEY}\n{PEM}\n"}],
}
CALL: Final = {
    "role": "assistant",
    "content": [{"type": "tool_use", "id": "t1", "name": "login", "input": {"user": "bob", "password": PASSWORD}}],
}
MARK: Final = "[secret: github token, m"


@pytest.fixture
def client_with(service: Service) -> Iterator[Callable[..., httpx2.Client]]:
    """Makes clients whose keys have these scopes alone."""
    with ExitStack() as stack:
        yield lambda *scopes: stack.enter_context(service.api.client(key_with(service, scopes)))


def begun(service: Service, **policy: Any) -> str:
    path = service.conversation(policy=policy, user_ref=f"user-{id(policy)}")
    service.append(path, request("Look into the environment, please."), CALL)
    service.append(path, RESULT, answer("I have seen the zebra."))
    return path


def recalled(client: httpx2.Client, path: str, **asked: Any) -> str:
    found = client.post(f"{path}/recall", json=asked)
    assert found.status_code == 200, found.text
    return json.dumps([part["text"] for each in found.json()["passages"] for part in each["parts"]])


ASKED: Final = [{"query": "zebra environment"}, {"ref": "m0-m3"}, {"ref": "m2"}, {"pattern": "zebra"}]


@pytest.mark.parametrize("asked", ASKED)
def test_recall_masks_for_keys_without_the_scope(
    service: Service, client_with: Callable[..., httpx2.Client], asked: dict[str, Any]
) -> None:
    path = begun(service)
    text = recalled(client_with("context:read"), path, **asked)
    assert "zebra" in text
    assert KEY not in text
    assert f"{MARK}2]" in text
    assert PASSWORD not in text
    for scopes in (("context:read", "secrets:read"), ("admin",)):
        assert KEY in recalled(client_with(*scopes), path, **asked)


def test_an_offset_leads_into_no_credential(service: Service, client_with: Callable[..., httpx2.Client]) -> None:
    path, client = begun(service), client_with("context:read")
    whole = json.loads(recalled(client, path, ref="m2"))[0]
    for offset in range(1, len(whole), 7):
        assert json.loads(recalled(client, path, ref="m2", offset=offset))[0] == whole[offset:]


def test_a_pattern_finds_no_credential_for_keys_without_the_scope(
    service: Service, client_with: Callable[..., httpx2.Client]
) -> None:
    path = begun(service)
    assert recalled(client_with("context:read"), path, pattern="ghp_[A-Za-z0-9]+") == "[]"
    assert KEY in recalled(client_with("context:read", "secrets:read"), path, pattern="ghp_[A-Za-z0-9]+")


def test_a_policy_that_keeps_them_masks_nothing(service: Service, client_with: Callable[..., httpx2.Client]) -> None:
    path = begun(service, secrets="keep")
    assert KEY in recalled(client_with("context:read"), path, query="zebra")


def test_recall_across_conversations_masks_too(service: Service, client_with: Callable[..., httpx2.Client]) -> None:
    path = service.conversation(user_ref="zebra-keeper")
    service.append(path, request("Look into the environment, please."), CALL)
    service.append(path, RESULT, answer("I have seen the zebra."))
    for scopes, is_masked in ((("recall:user",), True), (("recall:user", "secrets:read"), False)):
        for asked in ({"query": "zebra"}, {"pattern": "zebra"}):
            body = {"user_ref": "zebra-keeper"}
            found = client_with(*scopes).post("/v1/recall", params=body, json=asked)
            assert found.status_code == 200, found.text
            assert (KEY not in found.text) == is_masked
            assert (f"{MARK}2]" in found.text) == is_masked


def test_rules_and_pins_are_listed_with_marks_and_stand_either_way(service: Service) -> None:
    path = service.conversation()
    service.append(path, request("Begin."), answer("Yes."), {"role": "user", "content": RULE}, answer("Noted."))
    (rule,) = service.client.get(f"{path}/rules").json()["data"]
    assert rule["text"] == SHOWN
    context = service.client.get(f"{path}/context").json()
    assert context["rules"]["ids"] == [rule["id"]]
    assert not context["warnings"]
    assert context["messages"][2]["content"] == RULE
    pinned = service.client.post(f"{path}/pins", json={"seq": 2, "text": RULE})
    assert pinned.status_code == 201
    assert pinned.json()["text"] == SHOWN
    assert service.client.get(f"{path}/pins").json()["data"][0]["text"] == SHOWN


def test_messages_themselves_stay_as_they_came(service: Service) -> None:
    path = begun(service)
    assert KEY in service.client.get(f"{path}/messages").text


def test_what_is_carried_over_of_a_context_block_is_masked(service: Service) -> None:
    path = service.conversation()
    text = f"# Access\nThe key is GITHUB_TOKEN={KEY} and no other.\n\n# Rest\n" + "Words and words. " * 200
    service.append(path, request("Read it."), context=[{"source": "notes.md", "title": "Notes", "text": text}])
    shown = service.client.post(f"{path}/context", json={})
    assert KEY in shown.text
    service.append(path, answer("I have."), request("And now?"))
    carried = service.client.post(f"{path}/context", json={})
    assert carried.status_code == 200
    assert "Access" in carried.text
    assert KEY not in carried.text
    assert f"{MARK}0]" in carried.text
