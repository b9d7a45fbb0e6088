"""What recall has prepared: the same answers with it as without, erased with its conversation, small."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import psycopg
import pytest
from sqlalchemy.exc import DBAPIError

from compaction.recall import segments as domain
from compaction.recall.segments import Searchable
from store.engine import service_engine, transaction
from store.recall import segments
from tests.support.service.in_process_worker import work
from tests.support.service.running_api import conversation_at

if TYPE_CHECKING:
    from tests.support.service.running_api import Service

WORDS = "lighthouse garden violin harbour walnut ladder candle meadow copper thimble".split()  # noqa: SIM905


def rows(service: Service, path: str) -> list[tuple[int, int, int]]:
    """Return first and last seq and bytes of each segment of a conversation."""
    with psycopg.connect(service.settings.database_url.get_secret_value()) as connection:
        return connection.execute(
            "select first_seq, last_seq, length(terms) from recall_segments where conversation_id = %s order by 1",
            [conversation_at(path)],
        ).fetchall()


def talk(service: Service, count: int, **fields: Any) -> str:
    path = service.conversation(**fields)
    messages = [
        {
            "role": ("user", "assistant")[seq % 2],
            "content": f"We spoke of the {WORDS[seq % 10]} and then of number{seq} for a while, as we always do.",
        }
        for seq in range(count)
    ]
    service.append(path, *messages)
    return path


def recalled(service: Service, path: str, **asked: Any) -> dict[str, Any]:
    answer = service.client.post(f"{path}/recall", json=asked)
    assert answer.status_code == 200, answer.text
    body: dict[str, Any] = answer.json()
    return body


def test_a_search_is_the_same_with_and_without_what_is_prepared(service: Service) -> None:
    path = talk(service, 300)
    queries = ["number77", "the violin and the candle", "walnuts", "number299 harbours"]
    first = [recalled(service, path, query=query) for query in queries]
    assert [(row[0], row[1]) for row in rows(service, path)] == [(0, 127), (128, 255), (256, 299)]
    assert [recalled(service, path, query=query) for query in queries] == first
    assert first[0]["passages"][0]["first_seq"] <= 77 <= first[0]["passages"][0]["last_seq"]
    assert first[0]["searched"] == 300
    bounded = recalled(service, path, query="violin", from_seq=100, through_seq=140)
    assert bounded["searched"] == 41
    text = sum(
        len(f"We spoke of the {WORDS[seq % 10]} and then of number{seq} for a while, as we always do.")
        for seq in range(300)
    )
    assert sum(row[2] for row in rows(service, path)) <= 1.5 * text


def test_few_messages_of_many_words_are_stored_too(service: Service) -> None:
    path = service.conversation()
    texts = [" ".join(f"{WORDS[(seq * 7 + word) % 10]}{word}" for word in range(100)) for seq in range(30)]
    service.append(path, *({"role": "user", "content": text} for text in texts))
    before = recalled(service, path, query="lighthouse70")
    assert [(row[0], row[1]) for row in rows(service, path)] == [(0, 29)]
    assert recalled(service, path, query="lighthouse70")["passages"] == before["passages"]
    service.append(path, {"role": "user", "content": "And a plover."})
    assert "plover" in str(recalled(service, path, query="plover"))
    assert len(rows(service, path)) == 1


def test_what_left_the_context_is_prepared_by_the_worker(service: Service) -> None:
    policy = {
        "compaction_threshold_tokens": 2_000,
        "compaction_enabled": False,
        "max_conversation_messages": 20,
        "min_savings_tokens": 100,
    }
    path = talk(service, 400, policy=policy)
    assert rows(service, path) == []
    work(service.settings, path)
    assert service.client.get(path).json()["head_version"] > 0
    assert [(row[0], row[1]) for row in rows(service, path)] == [(0, 127), (128, 255)]
    found = recalled(service, path, query="number5")
    assert not found["passages"][0]["in_context"]
    assert found["searched"] == 400


def test_what_was_said_before_many_pictures_is_prepared_and_found(service: Service) -> None:
    """More bytes than a search reads, and more than a portion has for one segment's messages, some without a word."""
    policy = {"compaction_enabled": False, "compaction_threshold_tokens": 2_000, "max_conversation_messages": 20}
    path = service.conversation(policy=policy)
    service.append(path, {"role": "user", "content": "The bird was a plover."}, {"role": "assistant", "content": "Oh."})
    source = {"type": "base64", "media_type": "image/jpeg", "data": "abcd" * 240_000}
    for number in range(24):
        for _ in range(4 if number == 3 else 1):
            service.append(path, {"role": "user", "content": [{"type": "image", "source": source}]})
        service.append(path, {"role": "user", "content": "What is it?"}, {"role": "assistant", "content": "A violin."})
    work(service.settings, path)
    assert rows(service, path)[-1][1] > 30
    found = recalled(service, path, query="plover")["passages"][0]
    assert (found["first_seq"], found["in_context"]) == (0, False)


def test_what_is_superseded_later_is_not_found_in_what_was_prepared(service: Service) -> None:
    path = talk(service, 200)
    assert "number150" in str(recalled(service, path, query="number150"))
    service.append(path, {"role": "user", "content": "Let us begin again."}, replace_from=100)
    found = recalled(service, path, query="number150 number99")
    assert "number150" not in str(found)
    assert "number99" in str(found)
    assert found["searched"] == 101


def test_what_was_prepared_is_erased_and_does_not_come_back(service: Service) -> None:
    path = talk(service, 150)
    recalled(service, path, query="violin")
    assert rows(service, path)
    assert service.client.delete(path).status_code == 200
    assert rows(service, path) == []
    late = list(domain.build_segments([Searchable(0, "user", "violin")]))
    engine = service_engine(service.settings, "test")
    with pytest.raises(DBAPIError), transaction(engine, service.tenant_id) as connection:
        segments.insert_segments(connection, service.tenant_id, conversation_at(path), -1, late)
    engine.dispose()
    assert rows(service, path) == []


def test_two_that_prepare_at_once_store_it_once(service: Service) -> None:
    path = talk(service, 130)
    items = list(domain.build_segments([Searchable(seq, "user", "violin") for seq in range(128)]))
    engine = service_engine(service.settings, "test")
    for _ in range(2):
        with transaction(engine, service.tenant_id) as connection:
            segments.insert_segments(connection, service.tenant_id, conversation_at(path), -1, items)
    engine.dispose()
    assert [(row[0], row[1]) for row in rows(service, path)] == [(0, 127)]


def test_a_call_before_a_segment_names_the_result_that_begins_it(service: Service) -> None:
    path = talk(service, 127)
    call = {"type": "tool_use", "id": "toolu_1", "name": "recall", "input": {"query": "violin"}}
    result = {"type": "tool_result", "tool_use_id": "toolu_1", "content": "zanzibar"}
    service.append(path, {"role": "assistant", "content": [{"type": "text", "text": "I look."}, call]})
    service.append(path, {"role": "user", "content": [result]}, {"role": "assistant", "content": "Done."})
    recalled(service, path, query="violin")
    assert [(row[0], row[1]) for row in rows(service, path)] == [(0, 127)]
    assert recalled(service, path, query="zanzibar")["passages"] == []
