"""Logs: ids as answers and commands have them."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

from runtime import ids

LOGS = """
import sys, structlog
from runtime.log import configure_logging
from runtime.settings import Settings

configure_logging(Settings())
name, value = sys.argv[1:]
structlog.get_logger().error("said", **{name: value})
with structlog.contextvars.bound_contextvars(**{name: value}):
    structlog.get_logger("a").error("bound")
"""


@pytest.mark.parametrize(
    ("name", "prefix"),
    [("run_id", "run"), ("conversation_id", "conv"), ("tenant_id", "ten"), ("by", "key"), ("delivery_id", "evt")],
)
def test_what_an_answer_names_is_found_in_the_log(name: str, prefix: ids.Prefix) -> None:
    identifier = ids.new_id()
    outside = ids.external(prefix, identifier)
    for value in (str(identifier), outside):
        command = [sys.executable, "-c", LOGS, name, value]
        done = subprocess.run(command, capture_output=True, text=True, check=True)
        assert [json.loads(line)[name] for line in done.stderr.splitlines()] == [outside] * 2
