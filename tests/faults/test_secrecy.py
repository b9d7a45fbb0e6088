"""Whatever fails: no log, no answer, no message and no error that is kept has the words of a user or a key.

Canaries stand in everything that is secret. Every process logs as much as it can.
"""

from __future__ import annotations

import base64
import binascii
import json
import re
from typing import TYPE_CHECKING, Any
from uuid import uuid4

import pytest
import redis
from sqlalchemy import make_url

from runtime.broker import CHECK_TASK, CHECKS
from tests.faults.installation import installed
from tests.support.eventually import eventually
from tests.support.servers.loopback_steps import garbage, hang_up, html, ok, refusal, status, summary
from tests.support.servers.otlp_collector import Collector, otlp_collector
from tests.support.servers.own_servers import query
from tests.support.servers.webhook_receiver import Receiver
from tests.support.talk import rounds

if TYPE_CHECKING:
    from collections.abc import Iterator

    import httpx2

    from cli.local.embedded import EmbeddedPostgres, EmbeddedRedis
    from tests.faults.installation import Installation, Talk
    from tests.support.servers.loopback_http import Answering

WORDS = f"plover-{uuid4().hex}"
MODEL_KEY = f"sk-ant-{uuid4().hex}"
PASSWORD = f"password-{uuid4().hex}"
TELLING = """
create function tell() returns trigger language plpgsql as $$
begin
    raise exception 'cannot take %', row_to_json(new) using errcode = '{code}', detail = row_to_json(new)::text;
end $$;
create trigger telling after insert on {table} for each row execute function tell();
"""
SERVICES = {"palimpsest-api", "palimpsest-worker"}
SILENT = "drop trigger telling on {table}; drop function tell"
KEPT = (
    "select r.error, r.reason, s.error, s.reason, s.detail from runs as r left join run_steps as s on s.run_id = r.id",
    "select body, error from webhook_deliveries",
    "select to_json(p)::text from processes as p",
    "select application_name from pg_stat_activity where datname = current_database()",
)
"""What is kept of failures, is sent to others, or is seen by every tenant and by whoever looks at the server."""
FAILING_ROW = "alter table messages add constraint telling check (role = '') not valid"


@pytest.fixture(scope="module")
def collector() -> Iterator[Collector]:
    with otlp_collector() as made:
        yield made


@pytest.fixture(scope="module")
def installation(
    postgres: EmbeddedPostgres, template: str, redis_server: EmbeddedRedis, collector: Collector
) -> Iterator[Installation]:
    env = collector.env | {
        "ANTHROPIC_API_KEY": MODEL_KEY,
        "PALIMPSEST_LOG_LEVEL": "debug",
        "PALIMPSEST_WEBHOOK_PRIVATE_ADDRESSES": "true",
    }
    with installed(postgres.url, template, redis_server.url, **env) as made, made.api():
        yield made


class Ears:
    """Everything that could tell: answers, logs, traces, what waits in Redis, errors that are kept."""

    def __init__(self, installation: Installation, collector: Collector) -> None:
        self.installation = installation
        self.collector = collector
        self.answers: list[str] = []
        self.waiting: list[str] = []
        self.delivered: list[str] = []
        self.secrets = {
            WORDS,
            MODEL_KEY,
            PASSWORD,
            installation.tenant.key.rpartition(".")[2],
            make_url(installation.database_url).password or "",
            make_url(installation.broker_url).password or "",
        }

    def refused(self, answer: httpx2.Response, *statuses: int) -> None:
        """Expect an error, and remember what it says."""
        assert answer.status_code in statuses, answer.text
        self.answers.append(f"{answer.headers} {answer.text}")

    def listen(self) -> None:
        """Remember what waits in Redis at this moment."""
        with redis.Redis.from_url(self.installation.broker_url) as client:
            for key in client.scan_iter():
                value = client.dump(key) if client.type(key) not in {b"string", b"list"} else None
                values = [value] if value else client.lrange(key, 0, -1) if client.type(key) == b"list" else []
                for raw in [key, *values, client.get(key) if client.type(key) == b"string" else b""]:
                    self.waiting.append(decoded(raw or b""))

    def heard(self) -> dict[str, str]:
        """Return everything by where it was said."""
        kept = [query(self.installation.database_url, statement) for statement in KEPT]
        logs = {path.name: path.read_text() for path in self.installation.folder.glob("*.log")}
        return {
            **logs,
            "answers": " ".join(self.answers),
            "redis": " ".join(self.waiting),
            "errors that are kept": str(kept),
            "traces": " ".join(each.text for each in self.collector.spans),
            "webhooks": " ".join(self.delivered),
            "metrics": self.installation.client.get("/metrics").text,
            "health": self.installation.client.get("/readyz").text,
        }

    @property
    def events(self) -> set[str]:
        """The names of the events in all logs."""
        return set(re.findall(r'"event": "([a-z_]+\.[a-z_]+)"', " ".join(self.heard().values())))


def decoded(raw: bytes) -> str:
    """Return bytes as text, with the bodies of messages, which are base64, beside it."""
    text = raw.decode(errors="replace")
    bodies = re.findall(r'"body": "([A-Za-z0-9+/=]+)"', text)
    for body in bodies:
        try:
            text += base64.b64decode(body).decode(errors="replace")
        except binascii.Error:
            continue
    return text


def say(talk: Talk) -> None:
    """Append what needs a summary; the words stand in texts, in calls of tools, in their results and beside them."""
    marked = [*talk.long(), *rounds(1, 50)]
    for message in marked:
        text = json.dumps(message["content"]).replace("lorem", WORDS).replace("answer ", f"{WORDS} ")
        message["content"] = json.loads(text)
    talk.append(*marked, context=[{"source": WORDS, "title": WORDS, "text": f"{WORDS} " * 100}])


def bad_requests(ears: Ears, talk: Talk) -> None:
    """Send what is refused at the door."""
    client = ears.installation.client
    turns, said = f"{talk.path}/turns", {"role": "user", "content": WORDS}
    good: dict[str, Any] = {"messages": [said]}
    ears.refused(client.post(turns, content=f'{{"messages": [{{"role": "{WORDS}'.encode()), 400)
    ears.refused(client.post(turns, json={"messages": [{"role": "narrator", "content": WORDS}]}), 422)
    ears.refused(client.post(turns, json={"messages": [{"role": "user", "content": f"{WORDS}\0"}]}), 422)
    ears.refused(client.post(turns, json={**good, "usage": {"input_tokens": WORDS}}), 422)
    ears.refused(client.post(turns, json=good, headers={"idempotency-key": WORDS * 10}), 400)
    ears.refused(client.post(turns, json=good, headers={"x-api-key": f"key_{uuid4().hex}.{PASSWORD}"}), 401)
    ears.refused(client.post(turns, json=good, headers={"x-api-key": PASSWORD}), 401)
    token = base64.urlsafe_b64encode(json.dumps({"alg": "none", "sub": WORDS}).encode()).decode().rstrip("=")
    ears.refused(client.get("/v1/tenant", headers={"authorization": f"Bearer {token}.{token}.{WORDS}"}), 401)
    ears.refused(client.get(f"/v1/conversations/{WORDS}"), 404)
    ears.refused(client.get(f"/v1/{WORDS}?{WORDS}={WORDS}"), 404)
    ears.refused(client.request("BREW", f"/v1/{WORDS}"), 400, 404, 405)
    ears.refused(client.get(f"/v1/users/{WORDS}/nothing"), 404)
    ears.refused(client.patch(talk.path, json={"metadata": {WORDS: f"{WORDS} " * 4_000}}), 422)
    ears.refused(client.patch(talk.path, json={"metadata": {"a": [WORDS] * 300_000}}), 422)
    ears.refused(client.post("/v1/webhooks", json={"url": f"ftp://{WORDS}/{PASSWORD}"}), 422)
    ears.refused(client.post("/v1/conversations", json={"policy": {"input_token_budget": WORDS}}), 422)


def database_faults(ears: Ears, talk: Talk) -> None:
    """Have the database refuse rows in words that quote them."""
    installation = ears.installation
    good = {"messages": [{"role": "user", "content": WORDS}]}
    for code in ("P0001", "22P02", "23514", "40001", "53100"):
        query(installation.database_url, TELLING.format(table="messages", code=code))
        ears.refused(installation.client.post(f"{talk.path}/turns", json=good), 500, 503)
        query(installation.database_url, SILENT.format(table="messages"))
    query(installation.database_url, FAILING_ROW)
    ears.refused(installation.client.post(f"{talk.path}/turns", json=good), 500)
    query(installation.database_url, "alter table messages drop constraint telling")


def model_faults(ears: Ears) -> list[Talk]:
    """Return conversations of whose summaries nothing comes, each for another reason that quotes what it was sent."""
    echo = f"I was asked about {WORDS} with {MODEL_KEY}"
    steps = (
        status(400, echo),
        status(401, echo),
        html(400, echo),
        garbage(f'{{"id": "{echo}'.encode()),
        refusal(echo),
        ok(echo * 2_000),
        ok(json.dumps({"tool": echo})),
        hang_up(),
    )
    installation = ears.installation
    faults = {installation.talk(system=WORDS, metadata={"note": WORDS}): step for step in steps}

    def answer(answering: Answering) -> None:
        asked = answering.received.prompt
        next((step for talk, step in faults.items() if talk.label in asked), summary())(answering)

    installation.model.default = answer
    return list(faults)


@pytest.mark.fault("F30")
@pytest.mark.slow
@pytest.mark.timeout(240)
def test_nobody_tells(installation: Installation, collector: Collector) -> None:
    ears = Ears(installation, collector)
    with Receiver([500]) as receiver:
        response = installation.client.post("/v1/webhooks", json={"url": f"{receiver.url}/{PASSWORD}"})
        assert response.status_code == 201, response.text
        ears.secrets.add(response.json()["secret"])
        with installation.running("checks,summaries", "beat") as (worker, _):
            bad_requests(ears, installation.talk())
            database_faults(ears, installation.talk())
            talks = model_faults(ears)
            for talk in talks:
                say(talk)
                ears.listen()
            for talk in talks:
                talk.end_state(runs=1)
            dead = installation.talk()
            query(installation.database_url, TELLING.format(table="snapshot_parts", code="P0001"))
            say(dead)
            eventually(lambda: {run.state for run in installation.chat.runs(dead.id)} == {"dead"}, 60)
            query(installation.database_url, SILENT.format(table="snapshot_parts"))
            installation.app.send_task(CHECK_TASK, args=[[WORDS]], queue=CHECKS)
            eventually(lambda: "message.refused" in ears.events, 60)
            installation.model.hold()
            given_up = installation.talk()
            say(given_up)
            eventually(lambda: given_up.calls == 1, 60)
            ears.listen()
            assert worker.end() == 0
        ears.delivered += [f"{headers} {body}" for headers, body in receiver.received]
        assert ears.delivered
    nowhere = {
        "PALIMPSEST_DATABASE_URL": f"postgresql://palimpsest:{PASSWORD}@127.0.0.1:1/{WORDS}",
        "PALIMPSEST_BROKER_URL": f"redis://:{PASSWORD}@127.0.0.1:1/0",
    }
    with (
        installation.worker("summaries", env=nowhere) as worker,
        installation.worker("beat", env=nowhere) as beat,
    ):
        eventually(lambda: "Cannot connect" in worker.log.read_text(), 60)
        eventually(lambda: "Connection error" in beat.log.read_text(), 60)
    # All of it has happened.
    assert ears.events >= {"request.failed", "store.unavailable", "summary.failed", "run.failed", "run.dead"}
    assert ears.events >= {"message.refused", "run.released"}
    assert ears.waiting
    eventually(lambda: {each.service for each in collector.spans} == SERVICES, 60)
    assert {each.name for each in collector.spans} >= {"run", "messages.create", "sweep", CHECK_TASK}
    for where, told in ears.heard().items():
        for secret in ears.secrets:
            assert secret not in told, f"{secret} in {where}"
