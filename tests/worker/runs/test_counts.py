"""Counts that cannot be trusted: the byte net and the guard hold without them, and nothing is counted twice."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ClassVar

import psycopg
import pytest

from compaction.policy import Policy
from compaction.steps import snapshot
from compaction.steps.ladder import Load, trim_is_due
from runtime import ids
from tests.support.messages_api import problems
from tests.support.service.in_process_worker import work
from tests.support.talk import chat

if TYPE_CHECKING:
    from runtime.settings import Settings
    from tests.support.service.running_api import Service

BYTES = 10_000
NET = {
    "max_context_bytes": BYTES,
    "min_savings_tokens": 0,
    "input_token_budget": 0,
    "compaction_enabled": False,
    "compaction_threshold_tokens": 10**8,
    "total_token_budget": 3_000,
    "reserved_output_tokens": 100,
}
USAGES: dict[str, Any] = {
    "absent": None,
    "empty": {},
    "zero": {"input_tokens": 0, "output_tokens": 0},
    "null": {"input_tokens": None, "cache_read_input_tokens": None},
    "one": {"input_tokens": 1},
    "without what was cached": {"input_tokens": 12, "output_tokens": 9},
    "absurdly high": {"input_tokens": 100_000_000},
    "only output": {"output_tokens": 700},
}


def counts(service: Service, path: str) -> tuple[Any, ...]:
    """Return what the store knows of counts: the last one, what it came to, and what was learned."""
    with psycopg.connect(service.database_url) as connection:
        parsed = connection.execute(
            "select measured_input_tokens, measured_tokens, ratio_samples, token_ratio, next_seq, revision "
            "from conversations where id = %s",
            [ids.parse("conv", path.rpartition("/")[2])],
        ).fetchone()
    assert parsed is not None
    return parsed


def served(service: Service, path: str) -> list[dict[str, Any]]:
    messages: list[dict[str, Any]] = service.client.get(f"{path}/context").json()["messages"]
    assert problems(messages) == []
    return messages


def size(messages: list[dict[str, Any]]) -> int:
    return sum(len(snapshot.serialized(message)) + 1 for message in messages)


@pytest.mark.requirement("K7")
@pytest.mark.parametrize("usage", USAGES.values(), ids=USAGES)
def test_the_byte_net_and_the_guard_hold_whatever_the_count_says(
    service: Service, module_settings: Settings, usage: Any
) -> None:
    path = service.conversation(policy=NET)
    for number in range(6):
        fields = {} if usage is None else {"usage": usage}
        service.append(path, *chat(3, 1_000, 3 * number), **fields)
        within = service.client.post(f"{path}/context", json={}).json()
        assert problems(within["messages"]) == []
        assert within["total"] <= 2_900 or any("over the budget" in warning for warning in within["warnings"])
        # Whatever the count says: what is sent is small.
        assert size(within["messages"]) <= 2 * 4 * 2_900
    work(module_settings, path)
    assert service.client.get(path).json()["head_version"] == 1
    service.client.patch(path, json={"policy": {**NET, "total_token_budget": 10**8}})
    assert size(served(service, path)) <= BYTES
    assert served(service, path)[-1]["content"].startswith("assistant 17 ")


@pytest.mark.requirement("K7")
@pytest.mark.parametrize(
    "usage", [{"input_tokens": -1}, {"input_tokens": 1.5}, {"input_tokens": "12"}, [], "12", 10**9]
)
def test_a_count_that_is_none_is_refused_and_the_net_holds(
    service: Service, module_settings: Settings, usage: Any
) -> None:
    path = service.conversation(policy=NET)
    service.append(path, *chat(9, 1_000))
    before = counts(service, path)
    turn = {"messages": chat(1, 1_000, 9), "usage": usage if usage != 10**9 else {"input_tokens": 10**9}}
    assert service.client.post(f"{path}/turns", json=turn).status_code == 422
    assert counts(service, path) == before
    work(module_settings, path)
    assert size(served(service, path)) <= BYTES


@pytest.mark.requirement("K7")
@pytest.mark.parametrize("factor", [0.001, 0.5, 2.0, 1_000.0])
def test_ratios_at_their_bounds_leave_a_context_that_fits(service: Service, factor: float) -> None:
    path = service.conversation(policy=NET)
    for number in range(8):
        estimate = service.client.get(path).json()["context_tokens"] + 600
        service.append(path, *chat(1, 1_200, number), usage={"input_tokens": min(10**8, round(estimate * factor) or 1)})
    ratio = counts(service, path)[3]
    assert 0.5 <= ratio <= 2.0
    service.append(path, {"role": "user", "content": "And now?"})
    body = service.client.get(f"{path}/context").json()
    assert problems(body["messages"]) == []
    assert body["messages"][-1]["content"] == "And now?"
    assert body["tokens"]["measured"] == counts(service, path)[0]
    assert sum(-(-len(message["content"]) // 4) for message in body["messages"]) * ratio <= 2_900


@pytest.mark.requirement("K3", "K7")
@pytest.mark.parametrize(("measured", "due"), [(25_000, False), (24_999, True), (1, True), (None, True)])
def test_a_count_far_below_the_estimate_is_not_believed(measured: int | None, due: bool) -> None:
    assert trim_is_due(Load(100_000, measured, bytes=10**6), Policy()) is due


class TestOnlySuccess:
    """Counts come with what a successful call brought; no attempt that failed leaves one, and no replay two."""

    FIRST: ClassVar = {"input_tokens": 900, "output_tokens": 40}

    @pytest.fixture
    def path(self, service: Service) -> str:
        conversation = service.conversation()
        service.append(conversation, *chat(2, 1_000), usage=self.FIRST)
        return conversation

    @pytest.mark.requirement("K9")
    @pytest.mark.parametrize(
        ("turn", "key", "status"),
        [
            ({"messages": [{"role": "assistant", "content": [{"no": "type"}]}]}, None, 422),
            ({"messages": chat(1, 40), "expected_next_seq": 99}, None, 409),
            ({"messages": chat(1, 40), "replace_from": 99}, None, 422),
            ({"messages": chat(1, 40)}, "first", 422),
            ({"messages": []}, None, 422),
        ],
        ids=["bad block", "out of order", "beyond the end", "another body under the key", "no message"],
    )
    def test_a_failed_attempt_leaves_no_count(
        self, service: Service, path: str, turn: dict[str, Any], key: str | None, status: int
    ) -> None:
        taken = {"messages": chat(1, 40, 7), "usage": {"input_tokens": 1_000}}
        service.client.post(f"{path}/turns", json=taken, headers={"idempotency-key": "first"})
        before = counts(service, path)
        headers = {"idempotency-key": key} if key else {}
        refused = service.client.post(
            f"{path}/turns", json={**turn, "usage": {"input_tokens": 5_000, "output_tokens": 7}}, headers=headers
        )
        assert refused.status_code == status, refused.text
        assert counts(service, path) == before

    @pytest.mark.requirement("K9")
    def test_a_replayed_turn_is_counted_once(self, service: Service, path: str) -> None:
        turn = {"messages": chat(1, 1_000, 2), "usage": {"input_tokens": 1_500, "output_tokens": 250}}
        first = service.client.post(f"{path}/turns", json=turn, headers={"idempotency-key": "k"})
        before = counts(service, path)
        again = service.client.post(f"{path}/turns", json=turn, headers={"idempotency-key": "k"})
        assert (first.status_code, again.status_code) == (201, 201)
        assert again.headers["idempotency-replayed"] == "true"
        assert counts(service, path) == before
        assert before[0] == 1_500

    @pytest.mark.requirement("K9")
    def test_a_retry_that_succeeds_updates_the_count(self, service: Service, path: str) -> None:
        failed = {"messages": chat(1, 40, 2), "usage": {"input_tokens": 4_000}, "expected_next_seq": 0}
        assert service.client.post(f"{path}/turns", json=failed).status_code == 409
        service.append(path, *chat(1, 40, 2), usage={"input_tokens": 1_300, "output_tokens": 20})
        assert counts(service, path)[:2] == (1_300, 1_320)

    @pytest.mark.requirement("K9")
    def test_a_continuation_updates_the_count(self, service: Service, path: str) -> None:
        """An answer that ran into its limit, and the call that went on with it."""
        service.append(path, {"role": "user", "content": "Go on."})
        assert counts(service, path)[:2] == (900, 942)
        start = {"role": "assistant", "content": "The first half"}
        service.append(path, start, usage={"input_tokens": 1_100, "output_tokens": 64})
        assert counts(service, path)[:2] == (1_100, 1_164)
        service.append(
            path,
            {"role": "assistant", "content": " and the second."},
            usage={"input_tokens": 1_160, "output_tokens": 30},
        )
        assert counts(service, path)[:2] == (1_160, 1_190)

    @pytest.mark.requirement("K9")
    def test_after_an_error_the_last_count_is_carried_on_until_a_call_succeeds(
        self, service: Service, path: str
    ) -> None:
        """The user asks, the call fails, the user asks again: the estimate of both comes on top of what was counted."""
        service.append(path, {"role": "user", "content": "First try"})
        assert counts(service, path)[:2] == (900, 943)
        service.append(path, {"role": "user", "content": "Second try"})
        assert counts(service, path)[:2] == (900, 946)
        answer = {"role": "assistant", "content": "Here."}
        service.append(path, answer)
        assert counts(service, path)[:2] == (900, 948)
        tokens = service.client.get(f"{path}/context").json()["tokens"]
        assert (tokens["context"], tokens["measured"]) == (948, 900)
        service.append(path, {"role": "user", "content": "x"}, answer, usage={"input_tokens": 1_200})
        assert counts(service, path)[0] == 1_200

    @pytest.mark.requirement("K9")
    def test_an_answer_without_a_count_carries_the_last_one_forward(self, service: Service, path: str) -> None:
        before = counts(service, path)
        service.append(path, {"role": "assistant", "content": "y" * 400})
        assert counts(service, path)[:4] == (before[0], before[1] + 100, before[2], before[3])
