"""Calls that the OpenAPI document allows, and some that it does not, with ids of two tenants in them.

Schemathesis draws each call; ids of things that exist then take the place of some of what it drew, so that calls
build on each other. A failure is noted and the search goes on.
"""

from __future__ import annotations

import json
import re
from collections import Counter, defaultdict
from contextlib import suppress
from random import Random
from time import monotonic
from typing import TYPE_CHECKING, Any, Final
from warnings import catch_warnings, simplefilter

import schemathesis
from hypothesis import HealthCheck, Phase, Verbosity, given, seed, settings
from hypothesis import strategies as st
from hypothesis.errors import Unsatisfiable
from schemathesis import GenerationMode
from schemathesis.checks import load_all_checks
from schemathesis.core.failures import Failure, FailureGroup
from schemathesis.core.result import Ok
from schemathesis.specs.openapi import checks

from store.tenants.api_keys import SCOPES
from tests.fuzz.planted import EXTERNAL_ID, Planted
from tests.support.service.documented_answers import PREFIXES
from tests.support.service.in_process_worker import work

if TYPE_CHECKING:
    from collections.abc import Callable

    import httpx2

    from tests.support.service.running_api import Service

CHECKS: Final = [
    schemathesis.checks.not_a_server_error,
    checks.status_code_conformance,
    checks.content_type_conformance,
    checks.response_headers_conformance,
    checks.response_schema_conformance,
]
MOST_KNOWN: Final = 30
SHARE_OF_THEIRS: Final = 0.3
CURSORS: Final = {"after_id", "before_id"}
PROBLEM: Final = {"type", "title", "status", "detail", "code", "request_id"}


class Failures(Counter[tuple[str, str]]):
    """How often each failure was seen, by call and by what was wrong; `shown` has one example of each."""

    def __init__(self) -> None:
        super().__init__()
        self.shown: dict[tuple[str, str], str] = {}

    def note(self, call: str, kind: str, example: str) -> None:
        """Count a failure."""
        self[call, kind] += 1
        self.shown.setdefault((call, kind), example)

    def report(self) -> str:
        """Return every failure with its example."""
        return "\n\n".join(f"{call}: {kind}, {self[call, kind]} times\n{self.shown[call, kind]}" for call, kind in self)


class ApiFuzz:
    """A tenant that calls everything, with its own ids and with those of another who has something to hide."""

    def __init__(self, service: Service, random_seed: int) -> None:
        self.service = service
        self.client = service.stranger
        every = self.client.post("/v1/keys", json={"name": "every scope", "scopes": SCOPES}).json()
        self.client.headers["authorization"] = f"Bearer {every['key']}"
        self.planted = Planted(service.settings, service.tenant_id, service.client)
        self.failures = Failures()
        self.statuses: Counter[int] = Counter()
        self.foreign = 0
        self._seed = random_seed
        self._known: dict[str, list[str]] = defaultdict(list)
        self._theirs: dict[str, list[str]] = defaultdict(list)
        for identifier in sorted(self.planted.ids):
            self._theirs[identifier.partition("_")[0]].append(identifier)
        with catch_warnings():
            simplefilter("ignore")
            load_all_checks()
            schema = schemathesis.openapi.from_dict(self.client.get("/openapi.json").json())
            self.operations = [found.ok() for found in schema.get_all_operations() if isinstance(found, Ok)]

    @property
    def requests(self) -> int:
        """The number of calls so far."""
        return self.statuses.total()

    def run(self, examples: int, *, until: float | None = None) -> None:
        """Call each operation so many times with calls that fit and with calls that do not; end at a clock's time."""
        for operation in self.operations:
            for mode in (GenerationMode.POSITIVE, GenerationMode.NEGATIVE):
                if until is not None and monotonic() > until:
                    return
                self._seed += 1
                with catch_warnings():
                    simplefilter("ignore")
                    strategy = operation.as_strategy(generation_mode=mode)
                    _search(st.tuples(strategy, st.integers(0, 2**32)), self._seed, examples, self._call)
            if changed := self.planted.changed():
                self.failures.note(operation.label, "changed another tenant's rows", str(changed))
                return
            self._compact()

    def _compact(self) -> None:
        """Let the workers do what is due for the newest conversation, so that there are runs and snapshots."""
        for conversation in self._known["conv"][-1:]:
            work(self.service.settings, f"/v1/conversations/{conversation}")

    def _call(self, drawn: tuple[Any, int]) -> None:
        case, number = drawn
        random = Random(number)  # noqa: S311 - a choice of examples
        theirs = self._substitute(case, random)
        try:
            sent = case.as_transport_kwargs(base_url=self.service.api.url)
            answer = self._send(case.method, sent)
        except (UnicodeEncodeError, ValueError):
            return  # no HTTP client sends such a header or URL
        self.statuses[answer.status_code] += 1
        for identifier in EXTERNAL_ID.findall(answer.text) if answer.status_code < 300 else ():
            self._remember(identifier)
        shown = f"{case.method} {sent.get('url')} {json.dumps(case.body, default=str)[:2_000]}\n→ {answer.status_code}"
        shown += f" {answer.text[:2_000]}"
        for kind in [*self._breaches(answer, theirs), *_nonconformities(case, answer)]:
            self.failures.note(case.operation.label, kind, shown)

    def _send(self, method: str, sent: dict[str, Any]) -> httpx2.Response:
        given_headers = {name: value for name, value in dict(sent.get("headers") or {}).items() if value is not None}
        drop = {"authorization", "user-agent", "host", "content-length"}
        headers = {name: value for name, value in given_headers.items() if name.lower() not in drop}
        content = sent.get("data")
        return self.client.request(
            method,
            sent["url"],
            params=sent.get("params") or None,
            headers=headers,
            **({"json": sent["json"]} if "json" in sent else {"content": content} if content is not None else {}),
        )

    def _remember(self, identifier: str) -> None:
        kind = identifier.partition("_")[0]
        known = self._known[kind]
        # A tenant that revokes the key it calls with has ended the search.
        if identifier not in known and not (kind == "key" and identifier in self._own_key):
            known.append(identifier)
            del known[:-MOST_KNOWN]

    @property
    def _own_key(self) -> str:
        return self.client.headers["authorization"]

    def _substitute(self, case: Any, random: Random) -> bool:
        """Put ids that exist where some were drawn; return whether one of the other tenant's is among them."""
        theirs = random.random() < SHARE_OF_THEIRS
        used = False
        for place in (case.path_parameters, case.query):
            for name, value in dict(place or {}).items():
                chosen = self._choice(name, value, random, theirs=theirs)
                place[name] = chosen
                used = used or (theirs and name in PREFIXES and place is case.path_parameters and chosen != value)
        self.foreign += used
        return used

    def _choice(self, name: str, value: Any, random: Random, *, theirs: bool) -> Any:
        """Return what a parameter is to be: something that exists, or mostly so."""
        if name == "wait":
            return 0
        if name in {"user_ref", "external_id"} and theirs:
            return f"{name}-{self.planted.canary}"
        if random.random() < 0.1:
            return value
        if name in {"seq", "version", "position"}:
            return random.choice([0, 0, 1, 2])
        known = self._theirs if theirs else self._known
        of_cursor: str = random.choice(sorted(known)) if name in CURSORS and known else ""
        prefix: str = PREFIXES.get(name) or of_cursor
        return random.choice(known[prefix]) if known.get(prefix) else value

    def _breaches(self, answer: httpx2.Response, theirs: bool) -> list[str]:
        """Return what an answer gives away of the other tenant, or does to it."""
        items = []
        sent = f"{answer.request.url} {answer.request.content!r}"
        told = f"{answer.headers} {answer.text}"
        if self.planted.canary in told and self.planted.canary not in sent:
            items.append("shows another tenant's text")
        if theirs and answer.status_code < 400:
            items.append("takes another tenant's id")
        if strange := [each for each in self.planted.ids if each in told and each not in sent]:
            items.append(f"names another tenant's {strange[0].partition('_')[0]}")
        return items


def _search(strategy: st.SearchStrategy[Any], number: int, examples: int, do: Callable[[Any], None]) -> None:
    """Draw so many examples, and do something with each; hypothesis only draws, it does not judge."""

    @seed(number)
    @settings(
        max_examples=examples,
        database=None,
        deadline=None,
        derandomize=False,
        phases=[Phase.generate],
        verbosity=Verbosity.quiet,
        suppress_health_check=list(HealthCheck),
    )
    @given(strategy)
    def draw(example: Any) -> None:
        do(example)

    # What takes no parameters can't be called wrongly.
    with suppress(Unsatisfiable):
        draw()


def _nonconformities(case: Any, answer: httpx2.Response) -> list[str]:
    """Return what an answer is that the document does not say."""
    items = []
    try:
        case.validate_response(answer, checks=CHECKS)
    except (Failure, FailureGroup) as failure:
        each = failure.exceptions if isinstance(failure, FailureGroup) else [failure]
        items = [f"{type(one).__name__}: {_first_line(one)}" for one in each]
    if answer.status_code >= 400:
        items += _problem_faults(answer)
    return items


def _problem_faults(answer: httpx2.Response) -> list[str]:
    try:
        document = answer.json()
    except ValueError:
        return ["an error that is no JSON"]
    if not set(document) >= PROBLEM or document["status"] != answer.status_code:
        return ["an error that is no problem document"]
    if answer.status_code == 422 and "pointer" not in document and document["code"] == "invalid":
        return ["a refusal without a pointer"]
    return []


def _first_line(failure: BaseException) -> str:
    text = re.sub(r"[0-9a-f]{32}", "…", str(failure))
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    return " ".join(lines[:3])[:200]
