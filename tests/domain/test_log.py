"""Logs: ids as answers and commands have them, and what an error may say."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest
from sqlalchemy import create_engine
from sqlalchemy.exc import DBAPIError

from runtime import ids
from runtime.log import as_clients_see, fault

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


def test_a_name_that_somebody_chose_stays_as_it_is() -> None:
    assert as_clients_see(None, "info", {"conversation": "a-b-c-d-e"}) == {"conversation": "a-b-c-d-e"}


def test_a_database_that_lets_nobody_in_is_told_apart_and_a_statement_is_not() -> None:
    engine = create_engine("postgresql+psycopg://somebody:a-secret@127.0.0.1:1/chats")
    with pytest.raises(DBAPIError) as raised:
        engine.connect()
    assert fault(raised.value).startswith("OperationalError: ")
    assert "Connection refused" in fault(raised.value)
    assert "a-secret" not in fault(raised.value)

    class SaidError(Exception):
        sqlstate = "28P01"

    wrong = SaidError('password authentication failed for user "somebody"\nDETAIL: more')
    assert fault(DBAPIError(None, None, wrong)) == f"DBAPIError: {str(wrong).splitlines()[0]} (PALIMPSEST_DATABASE_URL)"
    assert (
        fault(DBAPIError("select 1", None, wrong))
        == "DBAPIError: 28P01 the database refuses the password of this login"
    )
    wrong.sqlstate = "22023"  # a role that is not there
    assert fault(DBAPIError(None, None, wrong)) == f"DBAPIError: {str(wrong).splitlines()[0]} (PALIMPSEST_DATABASE_URL)"
    wrong.sqlstate = "23505"
    assert fault(DBAPIError(None, None, wrong)) == "DBAPIError: 23505"
    wrong.sqlstate = "53100"
    assert fault(DBAPIError("insert", None, wrong)) == "DBAPIError: 53100 the database's disk is full"
    assert fault(wrong) == "SaidError: 53100 the database's disk is full"
    assert fault(ValueError("somebody's words")) == "ValueError"


RAISES = """
import logging
from runtime.log import configure_logging
from runtime.settings import Settings

configure_logging(Settings())
try:
    {}["somebody's words"]
except KeyError as error:
    logging.getLogger("celery.worker").critical("Unrecoverable error", exc_info=True)
    logging.getLogger("celery.worker").critical("Another", exc_info=error)
"""


def test_an_exception_of_a_library_is_told_by_its_type_and_its_place() -> None:
    done = subprocess.run([sys.executable, "-c", RAISES], capture_output=True, text=True, check=True)
    for line in map(json.loads, done.stderr.splitlines()):
        assert (line["error"], line["raised_at"], "exc_info" in line) == ("KeyError", ["__main__:8"], False)
    assert "somebody's words" not in done.stderr
