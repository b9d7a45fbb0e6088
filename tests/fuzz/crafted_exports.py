"""Exports that were changed and sealed again: refused with their line and nothing written, or they live on.

An import writes rows that nobody else may: what it takes has to be served and compacted as what came by turns.
"""

from __future__ import annotations

import hashlib
import io
import json
from collections import Counter
from typing import TYPE_CHECKING, Any, Final

import psycopg
from hypothesis import strategies as st

from actions.export_file import write_export as export
from cli.archive.export_file import ExportFileError, check
from cli.archive.imports import write as import_
from runtime import ids
from store.engine import owner_engine, transaction
from tests.fuzz.planted import Planted
from tests.fuzz.structure import changed_documents, json_lines
from tests.support.messages_api import problems
from tests.support.service.in_process_worker import work

if TYPE_CHECKING:
    from hypothesis.strategies import DrawFn, SearchStrategy

    from tests.support.service.running_api import Service

WORKED_EVERY: Final = 4
"""One import in so many is compacted; that takes most of the time."""
_LISTS: Final = ("messages", "runs", "snapshots", "context-blocks", "pins")


class Crafted:
    """The rows of an export, and a number."""

    def __init__(self, sound: list[Any], lines: list[Any], number: int) -> None:
        self.lines, self.number = lines, number
        self._sound = sound

    def __repr__(self) -> str:
        """Show what was changed alone: the whole has a hundred thousand characters."""
        changed = [
            f"{place}: {json.dumps(line)[:1_500]}" for place, line in enumerate(self.lines) if line not in self._sound
        ]
        gone = [f"-{place} {line['type']}" for place, line in enumerate(self._sound) if line not in self.lines]
        return f"{self.number} {' '.join(gone)} {' '.join(changed)}"


class CraftedExports:
    """A conversation with something of everything, exported once, and the changes of it imported by another tenant."""

    def __init__(self, service: Service) -> None:
        self._service = service
        self._engine = owner_engine(service.database_url)
        planted = Planted(service.settings, service.tenant_id, service.client)
        external = f"external_id-{planted.canary}"
        (row,) = service.client.get("/v1/conversations", params={"external_id": external}).json()["data"]
        work(service.settings, f"/v1/conversations/{row['id']}")
        file = io.BytesIO()
        with transaction(self._engine, service.tenant_id) as connection:
            export(connection, service.tenant_id, ids.parse("conv", row["id"]) or planted.tenant_id, file)
        self.lines: Final[list[Any]] = [json.loads(line) for line in file.getvalue().splitlines()][:-1]
        self._stranger = self._tenant()
        self.outcomes: Counter[str] = Counter()

    def close(self) -> None:
        """Close every connection."""
        self._engine.dispose()

    def _tenant(self) -> Any:
        with psycopg.connect(self._service.database_url) as connection:
            row = connection.execute("select id from tenants where id <> %s", (self._service.tenant_id,)).fetchone()
        assert row
        return row[0]

    def drawn(self) -> SearchStrategy[Crafted]:
        """Draw the export with some rows changed, and a number."""

        @st.composite
        def lines(draw: DrawFn) -> Crafted:
            chosen: list[Any] = json.loads(json.dumps(self.lines))
            for _ in range(draw(st.integers(1, 3))):
                place = draw(st.integers(1, len(chosen) - 1))
                match draw(st.sampled_from(["change", "change", "change", "remove", "double", "swap"])):
                    case "change":
                        chosen[place] = draw(changed_documents(st.just(chosen[place]), most=2))
                    case "remove":
                        del chosen[place]
                    case "double":
                        chosen.insert(place, json.loads(json.dumps(chosen[place])))
                    case "swap":
                        other = draw(st.integers(1, len(chosen) - 1))
                        chosen[place], chosen[other] = chosen[other], chosen[place]
                if len(chosen) < 2:
                    break
            return Crafted(self.lines, chosen, draw(st.integers(0, 2**16)))

        return lines()

    def imported_or_refused(self, drawn: Crafted) -> None:
        """Assert that a file is refused with nothing written, or lives on as any conversation."""
        lines, number = drawn.lines, drawn.number
        body = json_lines(lines)
        end = {"type": "end", "lines": len(lines), "sha256": hashlib.sha256(body).hexdigest()}
        file = io.BytesIO(body + json_lines([end]))
        before = self._count()
        try:
            checked = check(file)
            with transaction(self._engine, self._stranger) as connection:
                imported = import_(
                    connection, self._stranger, checked, file, (self._service.settings.policy, {}), external_id=None
                )
        except ExportFileError as error:
            refused: ExportFileError | None = error
        else:
            refused = None
        self.outcomes["imported" if refused is None else "refused"] += 1
        if refused is not None:
            assert 1 <= refused.line <= len(lines) + 2, refused
            assert self._count() == before
            return
        self._lives(f"/v1/conversations/{ids.external('conv', imported.id)}", number)

    def _lives(self, path: str, number: int) -> None:
        self._readable(path)
        turn = {"messages": [{"role": "user", "content": "And now?"}]}
        answer = self._service.stranger.post(f"{path}/turns", json=turn)
        assert answer.status_code == 201, answer.text
        if number % WORKED_EVERY == 0:
            work(self._service.settings, path)
        self._readable(path)

    def _readable(self, path: str) -> None:
        client = self._service.stranger
        for what in ("", *(f"/{each}" for each in _LISTS)):
            answer = client.get(f"{path}{what}")
            assert answer.status_code == 200, (what, answer.text)
        for snapshot in client.get(f"{path}/snapshots").json()["data"]:
            for what in ("", "/diff"):
                answer = client.get(f"{path}/snapshots/{snapshot['version']}{what}")
                assert answer.status_code == 200, (what, answer.text)
        answer = client.get(f"{path}/context")
        assert answer.status_code == 200, answer.text
        messages = answer.json()["messages"]
        assert not messages or problems(messages) == [], problems(messages)
        payload = client.post(f"{path}/context", json={"user_message": "And now?"})
        assert payload.status_code in {200, 422}, payload.text

    def _count(self) -> Any:
        with psycopg.connect(self._service.database_url) as connection:
            row = connection.execute("select (select count(*) from conversations), (select count(*) from messages)")
            return row.fetchone()
