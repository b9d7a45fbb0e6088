"""The manual: every link and anchor leads somewhere, every sample works, every name exists, and the site builds."""

from __future__ import annotations

import importlib.util
import json
import os
import re
import shlex
import subprocess
import sys
import warnings
from collections import Counter
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import httpx2
import msgspec
import pytest
import typer

from cli.doctor.command import VARIABLES
from cli.local.serve import running_service
from cli.main import app
from compaction.policy import FIELDS, Policy, merge
from compaction.presets import AUTO, window_named
from gateway.doors import door_of
from runtime.settings import Settings
from tests.clients.gateway.test_coding_agents import AGENTS
from tests.clients.gateway.test_open_webui import CLIENT
from tests.clients.gateway.test_programs import PROGRAMS
from tests.support.eventually import eventually
from tests.support.places import ROOT
from tests.support.processes import environment
from tests.support.servers.loopback_model import LoopbackModel
from tests.support.servers.loopback_steps import ok
from tests.support.service.documented_answers import document

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterator, Mapping
    from types import ModuleType

DOCS: Final = ROOT / "docs"
FOLDERS: Final = ("docs", "bench", "deploy", "clients", "examples")
SKIPPED: Final = {"_build", "dist", "node_modules", "out"}
GENERATED: Final = (
    *("requirements", "settings"),
    *("reference-http", "reference-presets", "reference-refusals", "reference-shapes", "reference-cli"),
)
SETTING: Final = re.compile(r"PALIMPSEST_[A-Z0-9]+(?:_[A-Z0-9]+)*(?!_?[A-Z0-9]|_…)")
METRIC: Final = re.compile(r"\bpalimpsest_[a-z0-9]+(?:_[a-z0-9]+)*\b(?!_…)")
PLACEHOLDER: Final = re.compile(r"\{[^}]*\}|(?:conv|run|key|pin|wh)_[\w…]+|…")


class Sample(NamedTuple):
    """A fenced block: the page it is on, its language and its text."""

    page: str
    language: str
    text: str


def pages() -> list[Path]:
    below = (file for folder in FOLDERS for file in (ROOT / folder).rglob("*.md"))
    return sorted([*ROOT.glob("*.md"), *filter(is_ours, below)])


def is_ours(file: Path) -> bool:
    parts = file.relative_to(ROOT).parts
    return not SKIPPED & set(parts) and (parts[0] == ".ci" or not any(part.startswith(".") for part in parts))


PAGES: Final = {str(file.relative_to(ROOT)): file.read_text(encoding="utf-8") for file in pages()}


def samples(*languages: str) -> list[Sample]:
    return [
        Sample(page, found[1], found[2])
        for page, text in PAGES.items()
        for found in re.finditer(r"^ *```([\w{}-]+)\n(.*?)^ *```$", text, re.MULTILINE | re.DOTALL)
        if found[1] in languages
    ]


def prose(text: str) -> str:
    return re.sub(r"^ *```.*?^ *```$", "", text, flags=re.MULTILINE | re.DOTALL)


@cache
def anchors(page: str) -> frozenset[str]:
    """Return the anchors of a page's headings, as Git hosts and MyST name them."""
    seen: Counter[str] = Counter()
    items = []
    for heading in re.findall(r"^#{1,6} +(.+?) *#*$", prose(PAGES[page]), re.MULTILINE):
        plain = re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", heading).replace("`", "")
        slug = re.sub(r"[^\w\- ]", "", plain.strip().lower()).replace(" ", "-")
        items.append(f"{slug}-{seen[slug]}" if seen[slug] else slug)
        seen[slug] += 1
    return frozenset(items)


def load(name: str) -> ModuleType:
    """Return a script of docs/."""
    spec = importlib.util.spec_from_file_location(name, DOCS / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize("page", PAGES)
def test_links_and_anchors_lead_somewhere(page: str) -> None:
    broken = []
    for target in re.findall(r"\]\(<?([^)\s>]+)", prose(PAGES[page])):
        if re.match(r"[a-z]+:", target):
            continue
        path, _, anchor = target.partition("#")
        file = Path(os.path.normpath((ROOT / page).parent / path)) if path else ROOT / page
        name = str(file.relative_to(ROOT))
        if not file.exists() or (anchor and anchor not in anchors(name)):
            broken.append(target)
    assert broken == []


def test_every_page_of_the_manual_is_in_its_navigation() -> None:
    listed = set(re.findall(r"^([\w/-]+)$", PAGES["docs/index.md"], re.MULTILINE))
    assert {file.stem for file in DOCS.glob("*.md")} - {"index"} == listed - {"decisions/index"}


@pytest.mark.parametrize("sample", samples("json"), ids=lambda each: each.page)
def test_json_samples_are_json(sample: Sample) -> None:
    json.loads(sample.text)


@pytest.mark.parametrize("sample", samples("python", "py"), ids=lambda each: each.page)
def test_python_samples_compile(sample: Sample) -> None:
    compile(sample.text, sample.page, "exec")


def test_policies_in_samples_can_be_set() -> None:
    policies = [json.loads(sample.text) for sample in samples("json") if sample.page == "docs/policies.md"]
    assert len(policies) > 4
    for body in policies:
        assert merge(body["policy"])
        if wanted := body.get("policy_preset"):
            assert wanted == AUTO or window_named(wanted)


def commands() -> Iterator[tuple[str, list[str]]]:
    """Yield every call of the product's command in a shell sample or a line of text, as a page and its words."""
    for page, text in PAGES.items():
        for found in re.findall(r"`palimpsest ([a-z][^`\n]*)`", prose(text)):
            yield page, found.split()
    for page, _, text in samples("sh", "bash", "shell"):
        for line in text.replace("\\\n", " ").splitlines():
            words = re.split(r" #|[|;&]|\$\(", line)[0].split()
            while words and "=" in words[0]:
                words = words[1:]
            if words and Path(words[0]).name == "palimpsest":
                yield page, words[1:]


@cache
def command_line() -> Any:
    """Return the whole command, which takes long to put together."""
    return typer.main.get_command(app)


def of_command(words: list[str]) -> tuple[Any, list[str]]:
    """Return the command that words name, of whatever class Typer makes it, and the words after its name."""
    command: Any = command_line()
    while words and hasattr(command, "commands"):
        assert words[0] in command.commands, f"there is no command {words[0]!r}"
        command, words = command.commands[words[0]], words[1:]
    return command, words


def test_commands_in_samples_exist_with_their_options() -> None:
    items = list(commands())
    assert len(items) > 8
    for page, words in items:
        command, rest = of_command(words)
        known = {name for each in command.params for name in (*each.opts, *each.secondary_opts)} | {"--help"}
        given = {word.partition("=")[0] for word in rest if word.startswith("--")}
        assert given <= known, (page, words)


def test_make_targets_that_are_named_exist() -> None:
    targets = set(re.findall(r"^([a-z]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    named = {
        (page, target)
        for page, text in PAGES.items()
        for target in re.findall(r"(?:^|`)make ([a-z]+)", text, re.MULTILINE)
    }
    assert {each for each in named if each[1] not in targets} == set()
    assert {"demo", "test", "serve"} <= {target for page, target in named if page == "README.md"}


@cache
def source() -> str:
    """Return all text of the product and its tools."""
    folders = (
        "api",
        "worker",
        "store",
        "compaction",
        "cli",
        "migrations",
        "tests",
        "bench",
        ".ci",
        "deploy",
        "clients",
    )
    kinds = {".py", ".sql", ".yaml", ".yml", ".sh", ".ts", ""}
    files = [
        file
        for folder in folders
        for file in (ROOT / folder).rglob("*")
        if file.suffix in kinds and file.is_file() and is_ours(file) and file != Path(__file__)
    ]
    extra = [ROOT / name for name in ("docker-compose.yml", "Dockerfile", "Makefile")]
    return "\n".join(file.read_text(encoding="utf-8", errors="ignore") for file in [*files, *extra])


def variables() -> set[str]:
    name_of = load("settings").variable
    return {name_of(field) for field in Settings.model_fields} | {f"PALIMPSEST_{key.upper()}" for key in FIELDS}


@pytest.mark.parametrize("page", PAGES)
def test_settings_that_are_named_exist(page: str) -> None:
    known = variables()
    unknown = {name for name in SETTING.findall(PAGES[page]) if name not in known and name not in source()}
    assert unknown == set()


@pytest.mark.parametrize("page", PAGES)
def test_metrics_roles_and_secrets_that_are_named_exist(page: str) -> None:
    """docs/metrics.md is generated from the metrics themselves."""
    known = set(METRIC.findall(PAGES["docs/metrics.md"]))
    unknown = {
        name
        for name in METRIC.findall(PAGES[page])
        if name not in known
        and re.sub(r"_(bucket|sum|count)$", "", name) not in known
        and name not in source()
        and name.upper() not in variables()
    }
    assert unknown == set()


def routes() -> set[tuple[str, str]]:
    paths = document()["paths"]
    return {(method.upper(), PLACEHOLDER.sub("{}", path)) for path, item in paths.items() for method in item}


def test_calls_that_are_named_exist() -> None:
    known = routes()
    named = [
        (page, method, PLACEHOLDER.sub("{}", path.rstrip(".,;:)`")))
        for page, text in PAGES.items()
        if page != "CHANGELOG.md"  # it also has the calls that were removed since
        for method, path in re.findall(r"\b(GET|POST|PUT|PATCH|DELETE) (/v1/[^\s`?\"']+)", text)
    ]
    assert len(named) > 30
    missing = [each for each in named if each[1:] not in known]
    assert [each for each in missing if door_of(each[1], each[2], {}) is None] == []


def test_the_policy_page_has_every_key_with_its_default() -> None:
    by_name: dict[str, str] = {}
    for keys, defaults in re.findall(r"^\| ((?:`\w+`(?:, )?)+) \| ([^|]+) \|", PAGES["docs/policies.md"], re.MULTILINE):
        names, values = re.findall(r"`(\w+)`", keys), [value.strip() for value in defaults.split(",")]
        by_name |= dict(zip(names, values if len(values) == len(names) else values * len(names), strict=True))
    actual = {
        field.name: {(): "none", "": "empty", msgspec.NODEFAULT: "none"}.get(field.default, str(field.default))
        if not isinstance(field.default, bool)
        else str(field.default).lower()
        for field in msgspec.structs.fields(Policy)
    }
    assert by_name == actual


@pytest.mark.parametrize("name", GENERATED)
def test_generated_pages_are_up_to_date(name: str) -> None:
    assert load(name.replace("-", "_")).page() == PAGES[f"docs/{name}.md"], "run make docs"


def test_the_clients_of_the_gateway_are_those_that_were_measured() -> None:
    script = load("gateway_clients")
    assert script.page() == PAGES["docs/gateway.md"], "run make docs"
    record = json.loads(script.RECORD.read_text())
    assert {each["client"] for each in record} == {*PROGRAMS, *AGENTS, CLIENT}
    with pytest.raises(ValueError, match="LangChain chat"):
        script.table([each for each in record if each["client"] != "LangChain chat"])


def test_the_drawing_of_the_demo_shows_what_the_demo_says() -> None:
    script = load("life_plot")
    turns = script.read(
        [
            "turn   1  search       context  39,000 of  39,000  #",
            "turn   2  open 1 page  context  45,671 of  45,671  #",
            "          12 tool results cut, 45,671 → 12,380; kept: the newest, 500 characters of each",
            "          prune skipped: nothing_to_prune",
            "turn   3  next         context  97,425 of 200,100  ##",
            "          summary (extractive) for 86 messages, 97,425 → 74,717; kept: the first request",
        ]
    )
    assert [turn.cuts for turn in turns] == [[], [("tool results", 12_380)], [("summary", 74_717)]]
    drawn = script.plot(turns)
    assert "200,100 tokens stored, at most 97,425 served" in drawn
    marks = {group.partition('"')[0]: group.count("<use ") for group in drawn.split('<g id="')}
    assert (marks["cuts-tool-results"], marks["cuts-summary"]) == (1, 1)


@pytest.fixture(scope="module")
def installation(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, str]]:
    """What `make serve` starts, and the environment in which a reader types."""
    log = tmp_path_factory.mktemp("manual") / "log"
    with log.open("w") as out, running_service(durable=False, environ=environment(), log=out) as service:
        yield environment(PALIMPSEST_URL=service.url, PALIMPSEST_KEY=service.api_key)


def typed(env: dict[str, str], *blocks: str) -> str:
    """Type blocks into one shell, as a reader does; a call that is refused ends it."""
    program = f"{shlex.quote(sys.executable)} -m cli.main"
    script = "\n".join(re.sub(r"^export .*$", "", block, flags=re.MULTILINE) for block in blocks)
    commands = f'curl() {{ command curl --fail-with-body "$@"; echo; }}\npalimpsest() {{ {program} "$@"; }}\n'
    script = f"set -euo pipefail\n{commands}{script}"
    done = subprocess.run(
        ["bash", "-c", script], cwd=ROOT, env=env, capture_output=True, text=True, timeout=170, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def section(page: str, heading: str) -> str:
    return PAGES[page].partition(f"\n## {heading}\n")[2].partition("\n## ")[0]


def blocks_of(text: str) -> list[str]:
    return re.findall(r"^```sh\n(.*?)^```$", text, re.MULTILINE | re.DOTALL)


def test_the_calls_of_a_session_with_curl_in_their_order(installation: dict[str, str]) -> None:
    (session,) = blocks_of(section("docs/integrate.md", "A session with curl"))
    printed = typed(installation, session)
    items = [json.loads(line.removeprefix("# ")) for line in re.findall(r'^# \{"first.*$', session, re.MULTILINE)]
    answers = [json.loads(line) for line in printed.splitlines() if line.startswith("{")]
    assert items[0] in answers
    (context,) = (answer for answer in answers if "messages" in answer)
    assert context["tokens"] == {"context": 41, "measured": 24, "budget": 128_000}
    match = re.search(r'"tokens":(\{[^}]*\})', session)
    assert match is not None
    assert json.loads(match[1]) == context["tokens"]


def test_the_python_of_the_readme(installation: dict[str, str], monkeypatch: pytest.MonkeyPatch) -> None:
    sample, by_base_url = python_of_the_readme()
    url, key = installation["PALIMPSEST_URL"], installation["PALIMPSEST_KEY"]
    monkeypatch.syspath_prepend(str(ROOT / "clients/python"))
    with (
        warnings.catch_warnings(),
        LoopbackModel(default=ok("On 4 May, at 07:05.")) as model,
        httpx2.Client(base_url=url, headers={"authorization": f"Bearer {key}"}) as client,
    ):
        monkeypatch.setenv("ANTHROPIC_API_KEY", "sk-test")
        monkeypatch.setenv("ANTHROPIC_BASE_URL", model.url)
        # The SDK warns of a model that is about to go.
        warnings.simplefilter("error", DeprecationWarning)
        scope, alone = ({"PALIMPSEST_URL": at, "PALIMPSEST_KEY": key} for at in (url, "http://127.0.0.1:1"))
        for names in (scope, alone):
            exec(compile(sample, "README.md", "exec"), names)  # noqa: S102 - the sample is what is tested
        conversation = client.post("/v1/conversations", json={}).json()["id"]
        for number in range(2):
            assert reply_of(scope)(conversation, f"When, {number}?", []) == "On 4 May, at 07:05."
        stored = client.get(f"/v1/conversations/{conversation}/messages").json()["data"]
        assert [message["role"] for message in stored] == ["user", "assistant"] * 2
        # Without the service: the history that was given, and the turn is kept.
        own = [{"role": "user", "content": "Hello?"}, {"role": "assistant", "content": "Hello."}]
        assert reply_of(alone)(conversation, "When?", own) == "On 4 May, at 07:05."
        assert [len(request.body["messages"]) for request in model.requests] == [1, 3, 3]
        for names in (scope, alone):
            made: dict[str, Any] = names
            assert len(made["palimpsest"].outbox) == (names is alone)
            made["palimpsest"].close()
            made["claude"].close()
    with LoopbackModel(default=ok("At 07:05.")) as model:
        direct: dict[str, Any] = {"GATEWAY_URL": model.url, "PALIMPSEST_KEY": key}
        exec(compile(by_base_url, "README.md", "exec"), direct)  # noqa: S102 - the sample is what is tested
        assert [direct["ask"](text) for text in ("When?", "Sure?")] == ["At 07:05."] * 2
        direct["claude"].close()
    assert [len(request.body["messages"]) for request in model.requests] == [1, 3]


def python_of_the_readme() -> list[str]:
    return re.findall(r"^```python\n(.*?)^```$", PAGES["README.md"], re.MULTILINE | re.DOTALL)


def reply_of(names: Mapping[str, Any]) -> Callable[[str, str, list[Any]], str]:
    reply: Callable[[str, str, list[Any]], str] = names["reply"]
    return reply


def test_every_variable_that_something_reads_is_on_the_page_of_settings() -> None:
    named = set(re.findall(r"^\| `([A-Z_]+)` \|", PAGES["docs/settings.md"], re.MULTILINE))
    fields = {f"PALIMPSEST_{name.upper()}" for name in (*FIELDS, *Settings.model_fields)}
    of_commands = VARIABLES - fields
    assert "PALIMPSEST_REDIS_BIN" in of_commands
    assert of_commands <= named


def assert_recalled(played: Collection[str], context: str) -> None:
    """Assert that the demo's question had its handle in the context, and its answer nowhere there."""
    said = "\n".join(
        line for line in played if line.startswith(("in the context [", "the model calls", "the original"))
    )
    handle = re.search(r"in the context (\[.* more characters: recall (m\d+\.\d+)\])", said)
    answer = re.search(r"the original “(.+)” \((m\d+\.\d+), ", said)
    assert handle is not None, said
    assert answer is not None, said
    assert f'recall {{"ref":"{handle[2]}"}}' in said
    assert handle[2] == answer[2]
    assert json.dumps(handle[1], ensure_ascii=False)[1:-1] in context
    assert answer[1] not in context


@pytest.mark.parametrize("page", PAGES)
def test_commands_are_written_in_one_way(page: str) -> None:
    code = "\n".join(re.findall(r"^```.*?^```$|^ {4}.*$|`[^`\n]+`", PAGES[page], re.MULTILINE | re.DOTALL))
    assert not re.findall(r"\.venv/bin/palimpsest|\$URL\b|\$KEY\b|-H ['\"]x-api-key|\bexport URL=", code)


def test_the_quickstart_as_a_newcomer_types_it(installation: dict[str, str]) -> None:
    blocks = blocks_of(PAGES["docs/quickstart.md"])
    assert blocks[0] == "make serve ARGS=--show-keys\n"
    demo, newest, inspect, begin, turn, context, runs, restore = blocks[2:]
    assert demo == 'palimpsest demo --url "$PALIMPSEST_URL"\n'
    played = {" ".join(line.split()) for line in typed(installation, demo).splitlines()}
    table = PAGES["README.md"].partition("The conversation, stored and served\n")[2].partition("```")[0]
    assert {" ".join(line.split()) for line in table.splitlines()} <= played
    assert "conv_" in typed(installation, newest)
    (listed,) = json.loads(typed(installation, newest.rstrip() + " --json"))["conversations"]
    assert_recalled(played, typed(installation, context.replace("$ID", listed["id"])))
    assert listed["head_version"] > 0
    assert listed["id"] in typed(installation, inspect.replace("conv_…", listed["id"]))

    identifier = typed(installation, begin, 'echo "$ID"').strip()
    installation = {**installation, "ID": identifier}
    assert json.loads(typed(installation, turn))["last_seq"] == 7

    def committed() -> bool:
        return any(
            run["state"] == "committed" for run in json.loads(typed(installation, runs.rstrip() + " --json"))["runs"]
        )

    eventually(committed, 60)
    results = [
        block["content"]
        for message in json.loads(typed(installation, context))["messages"]
        if isinstance(message["content"], list)
        for block in message["content"]
        if block["type"] == "tool_result"
    ]
    assert ["[truncated for context management]" in result for result in results] == [True, True, False]
    assert typed(installation, restore)
    assert "truncated" not in typed(installation, context)


@pytest.mark.slow
def test_the_site_builds_without_a_warning_and_fetches_nothing(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "sphinx", "--builder", "html", "--fail-on-warning", "--keep-going", "--quiet", DOCS,
         "-d", tmp_path / "trees", tmp_path / "site"],
        capture_output=True, text=True, timeout=170, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    built = [*(tmp_path / "site").rglob("*.html"), *(tmp_path / "site").rglob("*.css")]
    assert len(built) > 20
    for file in built:
        text = file.read_text(encoding="utf-8")
        fetched = re.findall(r"<(?:script|img|link|iframe)\b[^>]*(?:src|href)=\"((?:https?:)?//[^\"]*)\"", text)
        fetched += re.findall(r"(?:url\(|@import )['\"]?((?:https?:)?//[^'\")]*)", text)
        assert fetched == [], file.name
