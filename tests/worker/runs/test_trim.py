"""The byte trim and its gate (requirements K1 to K9), decided from counters and carried out by a check."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import psycopg
import pytest
from hypothesis import given
from hypothesis import strategies as st

from compaction.media.files import DOCUMENT_TOKENS, IMAGE_TOKENS
from compaction.policy import Policy, merge
from compaction.sizes import REQUEST_SHARE, uncounted_bytes
from compaction.steps import snapshot
from compaction.steps.ladder import Load, decide, trim_is_due
from compaction.view import ViewMessage
from runtime import ids
from tests.support.messages_api import problems
from tests.support.service.in_process_worker import work
from tests.support.talk import chat

if TYPE_CHECKING:
    from runtime.settings import Settings
    from tests.support.service.running_api import Service

OVER = 800_000


@pytest.mark.requirement("K2")
def test_without_a_count_the_bytes_decide() -> None:
    assert trim_is_due(Load(1, None, bytes=737_281), Policy())
    assert not trim_is_due(Load(1, None, bytes=737_280), Policy())


@pytest.mark.requirement("K3", "K4", "K5")
@pytest.mark.parametrize(("measured", "due"), [(1, False), (119_999, False), (120_000, True), (190_000, True)])
def test_a_count_below_the_threshold_skips_the_trim(measured: int, due: bool) -> None:
    assert Policy().trim_threshold_tokens == 120_000
    assert trim_is_due(Load(1, measured, bytes=OVER), Policy()) is due
    assert decide(Load(1, measured, bytes=OVER), Policy()).trim is due


def image(chars: int, kind: str = "image") -> dict[str, Any]:
    return {"type": kind, "source": {"type": "base64", "media_type": "image/png", "data": "iVBORw0K" * (chars // 8)}}


@pytest.mark.parametrize("inside", ["message", "result"])
def test_base64_counts_as_what_it_stands_for(service: Service, module_settings: Settings, inside: str) -> None:
    """A megabyte of image is 1,600 tokens; as bytes it pushed out all that had been said before."""
    path = service.conversation()
    asked: list[dict[str, Any]] = [{"role": "user", "content": [image(1_000_000), {"type": "text", "text": "Look."}]}]
    if inside == "result":
        use = {"type": "tool_use", "id": "t", "name": "look", "input": {}}
        shown = {"type": "tool_result", "tool_use_id": "t", "content": [image(1_000_000)]}
        asked = [{"role": "user", "content": "Look."}, {"role": "assistant", "content": [use]}]
        asked.append({"role": "user", "content": [shown]})
    service.append(path, *chat(3, 100), *asked)
    work(module_settings, path)
    assert service.client.get(f"{path}/context").json()["messages"] == [*chat(3, 100), *asked]
    # The counter has whole bytes, so the trim looks once, and not again before there is much more.
    service.append(path, {"role": "assistant", "content": "A cat."}, {"role": "user", "content": "Sure?"})
    work(module_settings, path)
    (run,) = service.client.get(f"{path}/runs").json()["data"]
    assert (run["state"], run["reason"]) == ("skipped", "nothing_to_drop")
    # The size of a request is bounded all the same.
    assert service.client.patch(path, json={"policy": {"max_context_bytes": 60_000}}).status_code == 200
    more = {"role": "user", "content": [image(1_000_000)]}
    for _ in range(2):
        service.append(path, {"role": "assistant", "content": "Seen."}, more)
    work(module_settings, path)
    left = service.client.get(f"{path}/context").json()["messages"]
    assert left[-1] == more
    # Media give way before words do.
    assert len(left) == len(chat(3, 100)) + len(asked) + 6
    assert str(left).count("base64") == 2
    counted = sum(snapshot.counted_bytes(ViewMessage(each["role"], each["content"])) for each in left)
    assert counted <= 60_000


@given(st.integers(0, 100_000), st.sampled_from(["image", "document", "sound"]), st.booleans())
def test_what_counts_of_a_block_is_never_more_than_it_has_nor_less_than_its_tokens(
    chars: int, kind: str, nested: bool
) -> None:
    block = image(chars, kind)
    content = [{"type": "tool_result", "tool_use_id": "t", "content": [block]}] if nested else [block]
    message = ViewMessage("user", content)
    whole, counted = len(snapshot.serialized(message.as_message())) + 1, snapshot.counted_bytes(message)
    assert whole - uncounted_bytes(content) == counted <= whole
    data = len(block["source"]["data"])
    least = {"image": IMAGE_TOKENS, "document": DOCUMENT_TOKENS}.get(kind, data) * 4
    assert counted - (whole - data) == min(data, max(least, data // REQUEST_SHARE))


@pytest.mark.requirement("K6")
def test_the_trim_drops_as_few_whole_exchanges_as_it_takes(service: Service, module_settings: Settings) -> None:
    path = service.conversation(policy={"max_context_bytes": 10_000, "min_savings_tokens": 0})
    sent = chat(10, 1_000)
    service.append(path, *sent)
    work(module_settings, path)
    body = service.client.get(f"{path}/context").json()
    assert problems(body["messages"]) == []
    size = sum(len(snapshot.serialized(message)) + 1 for message in body["messages"])
    assert size <= 10_000
    kept = len(body["messages"])
    # The exchange that does not fit whole is cut to the room that is left, the newer ones are as they came.
    assert body["messages"][0] == sent[-kept]
    assert "characters between are stored but not shown" in body["messages"][1]["content"]
    assert body["messages"][2:] == sent[2 - kept :]
    assert size + 2 * 1_050 > 10_000
    (run,) = service.client.get(f"{path}/runs").json()["data"]
    assert [(step["name"], step["state"]) for step in run["steps"]] == [("trim", "committed")]


@pytest.mark.requirement("K1", "K3", "K8")
def test_a_measured_conversation_is_not_serialized_to_find_out(
    service: Service, module_settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(_: object) -> int:
        raise AssertionError("the trim was skipped, and yet something was serialized")

    monkeypatch.setattr("compaction.steps.steps.counted_bytes", refuse)
    path = service.conversation(policy={"max_context_bytes": 10_000, "min_savings_tokens": 0})
    service.append(
        path,
        *chat(10, 1_000),
        usage={"input_tokens": 100, "cache_read_input_tokens": 3_000, "cache_creation_input_tokens": 900},
    )
    work(module_settings, path)
    assert service.client.get(f"{path}/runs").json()["data"] == []
    assert service.client.get(f"{path}/context").json()["tokens"]["measured"] == 4_000


@pytest.mark.requirement("K1", "K2")
def test_a_new_request_without_a_count_lets_the_bytes_decide_again(service: Service, module_settings: Settings) -> None:
    path = service.conversation(policy={"max_context_bytes": 10_000, "min_savings_tokens": 0})
    service.append(path, *chat(10, 1_000), usage={"input_tokens": 4_000})
    work(module_settings, path)
    service.append(path, {"role": "user", "content": "And now?"})
    work(module_settings, path)
    body = service.client.get(f"{path}/context").json()
    assert body["snapshot"] is not None
    assert body["messages"][-1]["content"] == "And now?"
    assert merge({}).max_context_bytes == 737_280


def test_the_ratio_learned_from_counts_is_bounded_and_not_moved_by_one_odd_count(service: Service) -> None:
    path = service.conversation()
    ratios = []
    for number, factor in enumerate([9.0, 1.2, 1.2, 1.2, 1.2, 9.0]):
        context = service.client.get(f"{path}/context").json()["messages"]
        question = {"role": "user", "content": f"Question {number} " + "q" * 4_000}
        estimate = sum(-(-len(str(message["content"])) // 4) for message in [*context, question])
        answer = {"role": "assistant", "content": "a" * 400}
        service.append(path, question, answer, usage={"input_tokens": round(estimate * factor), "output_tokens": 100})
        with psycopg.connect(service.database_url) as connection:
            identifier = ids.parse("conv", path.rpartition("/")[2])
            learned = "select token_ratio, unstored_tokens from conversations where id = %s"
            ratio, unstored = connection.execute(learned, [identifier]).fetchone() or (0, 0)
        assert unstored == 0
        ratios.append(ratio)
    assert ratios[0] == pytest.approx(1.0, abs=0.01)
    assert ratios[-1] == pytest.approx(1.2, abs=0.02)
