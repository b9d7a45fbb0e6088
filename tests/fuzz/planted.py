"""What a tenant has that nobody else may see: a canary in every text, and its rows as they were."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any, Final
from uuid import uuid4

import psycopg

from tests.support.service.in_process_worker import work

if TYPE_CHECKING:
    from uuid import UUID

    import httpx2

    from runtime.settings import Settings

EXTERNAL_ID: Final = re.compile(r"\b(?:conv|run|key|pin|rule|hook|evt|era)_[0-9a-f]{32}\b")
_TABLES = """
select table_name from information_schema.columns
where table_schema = 'public' and column_name = 'tenant_id'
  and table_name in (select relname from pg_class where relkind in ('r', 'p'))
order by 1
"""
_NOT_ITS_DOING: Final = {"api_keys": "- 'last_used_at'"}
"""A key's last use is written down some time after it."""


class Planted:
    """A tenant's conversation with something in everything the API keeps, made by its own calls."""

    def __init__(self, settings: Settings, tenant_id: UUID, client: httpx2.Client) -> None:
        self.canary: Final = f"plover{uuid4().hex}"
        self.tenant_id = tenant_id
        self._client = client
        self._url = settings.database_url.get_secret_value()
        self.ids: set[str] = set()
        self.user_ref = f"user_ref-{self.canary}"
        conversation = self._plant()
        work(settings, conversation)
        run = self._call("POST", f"{conversation}/compactions", {"instructions": self.canary})
        assert run["run_id"] in self.ids
        self.paths: Final = [
            *(f"{conversation}{rest}" for rest in ("", "/context", "/messages", "/messages/0", "/pins", "/rules")),
            *(
                f"{conversation}{rest}"
                for rest in ("/runs", "/snapshots", "/snapshots/1", "/snapshots/1/diff", "/context-blocks")
            ),
            *(
                "/v1/conversations",
                "/v1/runs",
                "/v1/webhooks",
                "/v1/webhook-deliveries",
                "/v1/tenant",
                f"/v1/exports?user_ref={self.user_ref}",
            ),
        ]
        self._before = self.as_it_is()
        self._read_before = self._read()
        assert self.canary in self._read_before

    def _call(self, method: str, path: str, body: Any = None) -> Any:
        answer = self._client.request(method, path, json=body)
        assert answer.status_code < 300, (method, path, answer.text)
        self.ids |= set(EXTERNAL_ID.findall(answer.text))
        return answer.json() if answer.content else None

    def _plant(self) -> str:
        text = f"{self.canary} " * 40
        fields = {
            "external_id": f"external_id-{self.canary}",
            "user_ref": self.user_ref,
            "system": text,
            "metadata": {"note": self.canary},
            "tools": [{"name": "look", "description": self.canary, "input_schema": {"type": "object"}}],
            "policy": {"input_token_budget": 200, "min_savings_tokens": 1},
        }
        conversation = f"/v1/conversations/{self._call('POST', '/v1/conversations', fields)['id']}"
        for number in range(4):
            call = {"type": "tool_use", "id": f"call_{number}", "name": "look", "input": {"for": self.canary}}
            result = {"type": "tool_result", "tool_use_id": f"call_{number}", "content": text * 10}
            turn = {
                "messages": [
                    {"role": "user", "content": text},
                    {"role": "assistant", "content": [call]},
                    {"role": "user", "content": [result]},
                    {"role": "assistant", "content": [{"type": "text", "text": text}]},
                ],
                "context": [{"source": self.canary, "title": self.canary, "text": f"# {self.canary}\n{text}"}],
            }
            self._call("POST", f"{conversation}/turns", turn)
        self._call("POST", f"{conversation}/pins", {"seq": 0, "text": self.canary})
        self._call("POST", "/v1/webhooks", {"url": f"https://hooks.example.com/{self.canary}"})
        self._call("POST", f"{conversation}/fork", {"through_seq": 1, "external_id": f"fork-{self.canary}"})
        return conversation

    def _read(self) -> str:
        """Return everything that the tenant reads of it, but ids of requests."""
        self._call("GET", "/v1/keys")
        answers = [self._client.get(path) for path in self.paths]
        assert [answer.status_code for answer in answers] == [200] * len(answers), [a.text for a in answers]
        for answer in answers:
            self.ids |= set(EXTERNAL_ID.findall(answer.text))
        return "\n".join(answer.text for answer in answers)

    def as_it_is(self) -> dict[str, list[str]]:
        """Return every row of the tenant, by table."""
        with psycopg.connect(self._url) as connection:
            names = [name for (name,) in connection.execute(_TABLES)]
            return {
                name: [
                    row
                    for (row,) in connection.execute(
                        f"select (to_jsonb(t) {_NOT_ITS_DOING.get(name, '')})::text from {name} as t"  # noqa: S608
                        " where tenant_id = %s order by 1".encode(),
                        (self.tenant_id,),
                    )
                ]
                for name in names
            }

    def changed(self) -> set[str]:
        """Return the tables in which a row of the tenant is not what it was."""
        now = self.as_it_is()
        return {name for name in now if now[name] != self._before[name]}

    def reads_differently(self) -> bool:
        """Tell whether the tenant itself reads anything else than it did."""
        return self._read() != self._read_before
