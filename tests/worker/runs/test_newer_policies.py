"""Policies that a newer release stored: read as far as they are known, refused when a request sends them."""

from __future__ import annotations

import json
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Final

import psycopg
import pytest
from structlog.testing import capture_logs

from runtime import ids
from tests.support.service.console_client import signed_in, text_of
from tests.support.service.in_process import SMALL
from tests.support.service.in_process_worker import QUEUED, task_services
from tests.support.service.problem_documents import problem
from tests.support.talk import exchanges
from worker.tasks import check as check_task
from worker.tasks import run as run_task

if TYPE_CHECKING:
    from collections.abc import Iterator
    from uuid import UUID

    from tests.support.service.running_api import Service

NEWER: Final[dict[str, Any]] = {"prune_by_moonlight": {"phase": "full"}, "input_token_budget": "forty thousand"}
"""A key that comes with a later release, and one whose values it may take that this one does not."""


@pytest.fixture
def newer(service: Service) -> Iterator[str]:
    """The path of a conversation in whose policy and whose tenant's a newer release has written."""
    path = service.conversation(policy={**SMALL, "input_token_budget": 0})
    add_keys(service, "tenants", service.tenant_id)
    add_keys(service, "conversations", ids.parse("conv", path.rpartition("/")[2]))
    yield path
    with psycopg.connect(service.database_url, autocommit=True) as owner:
        owner.execute("update tenants set policy = '{}' where id = %s", (service.tenant_id,))


def add_keys(service: Service, table: str, identifier: Any) -> None:
    """Write as a newer release would."""
    with psycopg.connect(service.database_url, autocommit=True) as owner:
        changed = owner.execute(
            f"update {table} set policy = policy || %s where id = %s",  # noqa: S608 - a table's name
            (json.dumps(NEWER), identifier),
        )
        assert changed.rowcount == 1


@contextmanager
def tasks(service: Service) -> Iterator[tuple[Any, Any]]:
    """Yield a worker's tasks, of a check and of a run."""
    with task_services(service.settings):
        yield check_task, run_task


def checked(service: Service, path: str, check: Any) -> tuple[UUID, UUID]:
    """Have a conversation's check queue a run, and its policy written anew; return the tenant and the run."""
    service.append(path, *exchanges(12, 400))
    conversation = ids.parse("conv", path.rpartition("/")[2])
    check([str(conversation)])
    with psycopg.connect(service.database_url, autocommit=True) as owner:
        ((tenant_id, run_id),) = owner.execute(QUEUED, (conversation,)).fetchall()
    add_keys(service, "runs", run_id)
    return tenant_id, run_id


def test_a_run_is_claimed_and_carried_out_although_a_newer_release_has_written_its_policy(
    service: Service, newer: str
) -> None:
    """The check's own policy, and that of the queued run, each with keys that only the newer release knows."""
    with capture_logs() as events, tasks(service) as (check, run):
        tenant_id, run_id = checked(service, newer, check)
        run(str(tenant_id), str(run_id))
    ignored = [event for event in events if event["event"] == "policy.ignored"]
    assert [("conversation_id" in event, "run_id" in event) for event in ignored] == [(True, False), (False, True)]
    for event in ignored:
        for key in NEWER:
            assert any(key in reason for reason in event["reasons"])

    done = service.client.get(f"/v1/runs/{ids.external('run', run_id)}").json()
    assert (done["state"], done["policy"]["prune_by_moonlight"]) == ("committed", NEWER["prune_by_moonlight"])
    assert service.client.get(f"{newer}/context").json()["snapshot"]["version"] == done["snapshot_version"]


def test_what_is_read_has_the_keys_that_are_known_and_says_which_are_not(service: Service, newer: str) -> None:
    for path in (newer, "/v1/tenant"):
        body = service.client.get(path).json()
        assert body["policy"].keys().isdisjoint({"prune_by_moonlight"})
        assert body["policy_overrides"].items() >= NEWER.items()
        for key in NEWER:
            assert any(key in warning for warning in body["warnings"])
    context = service.client.get(f"{newer}/context")
    assert context.status_code == 200
    assert any("prune_by_moonlight" in warning for warning in context.json()["warnings"])
    assert service.client.post(f"{newer}/context", json={}).status_code == 200
    dry = {"dry_run": True, "policy": {"protected_tail_messages": 3}}
    assert service.client.post(f"{newer}/compactions", json=dry).status_code == 200


def test_the_console_shows_it(service: Service, newer: str) -> None:
    with tasks(service) as (check, _):
        _, run_id = checked(service, newer, check)
    page = f"/console{newer.removeprefix('/v1')}"
    with signed_in(service) as client:
        for path in ("/console", page, f"{page}/compact?strategy=auto", f"/console/runs/{ids.external('run', run_id)}"):
            answer = client.get(path)
            assert answer.status_code == 200, (path, text_of(answer.text))


def test_a_request_that_sends_such_a_key_is_refused_with_a_pointer_to_it(service: Service, newer: str) -> None:
    """Also where the same key is stored already: what a client sends back is what it asks for."""
    for path in (newer, "/v1/tenant"):
        refused = service.client.patch(path, json={"policy": {"prune_by_moonlight": {"phase": "full"}}})
        problem(refused, 422, "invalid", "/policy/prune_by_moonlight")
    refused = service.client.post(f"{newer}/compactions", json={"policy": {"prune_by_moonlight": 1}})
    problem(refused, 422, "invalid", "/policy/prune_by_moonlight")
    merged = service.client.patch(newer, json={"policy": SMALL}).json()["policy_overrides"]
    assert merged == SMALL | {"prune_by_moonlight": NEWER["prune_by_moonlight"]}
