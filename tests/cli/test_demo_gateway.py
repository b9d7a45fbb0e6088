"""`palimpsest demo --gateway`: what its provider counts is what arrived, and what it prints is what it counted."""

from __future__ import annotations

import json
import subprocess
import sys
from typing import Any

import anthropic
import pytest
from typer.testing import CliRunner

from cli.demo.command import own_environment
from cli.demo.provider import StoryProvider
from cli.demo.scenario import job_search
from cli.demo.through_gateway import ChatClient
from cli.installation.accounting import tokens_of
from cli.main import app

SCENARIO = job_search()
STORY: list[dict[str, Any]] = [
    {"role": message.role, "content": json.loads(bytes(message.content))}
    for part in SCENARIO.turns
    for message in part.turn.messages
]
SECONDS = 170


def test_the_provider_answers_with_what_comes_next_and_counts_what_arrived() -> None:
    with StoryProvider(STORY) as provider:
        client = ChatClient(provider.url, "sk", SCENARIO)
        client.send(STORY[0])
        client.send(STORY[2])
        client.close()
    assert client.history == STORY[:4]
    first, second = provider.received
    assert (first.messages, second.messages) == (1, 3)
    assert second.tokens - first.tokens == sum(map(tokens_of, STORY[1:3]))
    assert second.bytes > len(json.dumps(STORY[:3], ensure_ascii=False, separators=(",", ":")).encode())


def test_the_provider_refuses_what_does_not_end_with_the_newest_message() -> None:
    with StoryProvider(STORY) as provider:
        client = ChatClient(provider.url, "sk", SCENARIO)
        with pytest.raises(anthropic.BadRequestError):
            client.send({"role": "user", "content": "Something else."})
        client.close()
    assert provider.received == []


@pytest.mark.parametrize("other", [["--shape", "chat"], ["--url", "http://127.0.0.1:1"]])
def test_it_is_for_the_messages_api_on_servers_of_its_own(other: list[str]) -> None:
    done = CliRunner().invoke(app, ["demo", "--gateway", *other])
    assert done.exit_code == 2
    assert "--gateway" in done.stderr


@pytest.mark.slow
def test_a_client_whose_base_url_is_changed_sends_the_same_and_its_provider_receives_less() -> None:
    command = [sys.executable, "-P", "-m", "cli.main", "demo", "--gateway", "--json"]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=SECONDS, env=own_environment())
    assert done.returncode == 0, done.stderr
    report = json.loads(done.stdout)
    without, through = report["without"], report["through"]
    requests = sum(message["role"] == "user" for message in STORY)
    assert without["requests"] == through["requests"] == sum(report["outcomes"].values()) == requests
    assert report["is_history_same"]
    assert report["outcomes"]["compacted"] > requests / 2
    assert report["steps"]["summary"] >= 1
    assert without["messages_of_last"] == len(STORY) - 1
    assert through["tokens"] < without["tokens"] / 2
    assert through["bytes"] < without["bytes"] / 2
    assert through["bytes_of_last"] < without["bytes_of_last"] / 4
