"""The dashboard, the alerts, the autoscaler and the pages: every metric and label that they name is one there is."""

from __future__ import annotations

import json
import os
import re
import runpy
import shutil
import subprocess
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

import httpx2
import promql_parser
import pytest
import yaml

from cli.local.embedded import free_port
from tests.support.eventually import eventually
from tests.support.places import ROOT
from tests.support.processes import START_SECONDS, Product, ended, long_talk, product

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from tests.conftest import Tenant

__all__ = ["product"]

ALERTS = ROOT / "deploy" / "prometheus" / "alerts.yml"
DASHBOARD: dict[str, Any] = json.loads((ROOT / "deploy" / "grafana" / "palimpsest.json").read_text())
GROUPS: list[dict[str, Any]] = yaml.safe_load(ALERTS.read_text())["groups"]
RULES: list[dict[str, Any]] = [rule for group in GROUPS for rule in group["rules"]]
PANELS: list[dict[str, Any]] = DASHBOARD["panels"]
OPERATIONS = (ROOT / "docs" / "operations.md").read_text()
OF_PROMETHEUS = {"job", "instance", "le"}
"""Labels that Prometheus and histograms add."""
VARIABLES = {"$__rate_interval": "5m", "$__range": "3h", "$__interval": "15s"}


class Query(NamedTuple):
    """An expression, and where it stands."""

    where: str
    text: str


class Used(NamedTuple):
    """A metric that an expression names, with its labels."""

    metric: str
    labels: frozenset[str]


def metrics() -> dict[str, set[str]]:
    """Return every metric as queries name it, with its labels; those that rules record included."""
    found: dict[str, set[str]] = {"process_resident_memory_bytes": set(), "up": {"job", "instance"}}
    for section in runpy.run_path(str(ROOT / "docs" / "metrics.py"))["families"]():
        for each in section:
            names = [f"{each.name}_{part}" for part in ("bucket", "sum", "count")]
            for name in names if each.type == "histogram" else [each.name]:
                found.setdefault(name, set()).update(each.labels)
    for rule in RULES:
        if "record" in rule:
            found[rule["record"]] = set(re.findall(r"\w+", " ".join(re.findall(r"by \(([^)]*)\)", rule["expr"]))))
    return found


def queries() -> Iterator[Query]:
    """Return every expression of the dashboard, the rules and the autoscaler."""
    for panel in PANELS:
        for target in panel.get("targets", ()):
            text = target["expr"]
            for name, value in VARIABLES.items():
                text = text.replace(name, value)
            yield Query(f"panel {panel['title']}", text)
    for rule in RULES:
        yield Query(rule.get("alert") or rule["record"], rule["expr"])
    for path in (ROOT / "deploy" / "kubernetes").glob("*.yaml"):
        for text in re.findall(r"^\s*query: (.+)$", path.read_text(), re.MULTILINE):
            yield Query(path.name, text)


def used(node: Any) -> Iterator[Used]:
    """Return the metrics of a parsed expression, with the labels that are matched or grouped by above them."""
    match type(node).__name__:
        case "VectorSelector":
            yield Used(node.name, frozenset(matcher.name for matcher in node.matchers.matchers))
        case "MatrixSelector":
            yield from used(node.vector_selector)
        case "SubqueryExpr" | "ParenExpr" | "UnaryExpr":
            yield from used(node.expr)
        case "AggregateExpr":
            grouped = node.modifier.labels if node.modifier is not None else ()
            for each in used(node.expr):
                yield each._replace(labels=each.labels | frozenset(grouped))
        case "BinaryExpr":
            yield from used(node.lhs)
            yield from used(node.rhs)
        case "Call":
            for argument in node.args:
                yield from used(argument)
        case "NumberLiteral" | "StringLiteral":
            return
        case other:
            raise AssertionError(f"unknown node {other}")


QUERIES = list(queries())


@pytest.mark.parametrize("query", QUERIES, ids=[query.where for query in QUERIES])
def test_every_query_parses_and_names_what_there_is(query: Query) -> None:
    known = metrics()
    parsed = list(used(promql_parser.parse(query.text)))
    assert parsed or query.text == "vector(0)"
    for each in parsed:
        assert each.metric in known, each
        assert each.labels <= known[each.metric] | OF_PROMETHEUS, each
        # A counter says nothing without its rate, and a gauge has none.
        if each.metric.endswith("_total") and "recorded" not in each.metric:
            assert re.search(rf"(rate|increase)\({each.metric}[{{\[]", query.text), query


def test_legends_name_labels_that_are_left() -> None:
    for panel in PANELS:
        for target in panel.get("targets", ()):
            named = set(re.findall(r"\{\{(\w+)\}\}", target["legendFormat"]))
            grouped = re.findall(r"by \(([^)]*)\)", target["expr"])
            left = set(re.findall(r"\w+", " ".join(grouped))) if grouped else OF_PROMETHEUS
            assert named <= left, (panel["title"], target)


def test_the_dashboard_is_one_that_grafana_takes() -> None:
    assert DASHBOARD["title"] == "Palimpsest"
    assert DASHBOARD["uid"] == "palimpsest"
    numbers = [panel["id"] for panel in PANELS]
    assert sorted(numbers) == sorted(set(numbers))
    taken: set[tuple[int, int]] = set()
    for panel in PANELS:
        place = panel["gridPos"]
        assert place["x"] + place["w"] <= 24
        cells = {(place["x"] + x, place["y"] + y) for x in range(place["w"]) for y in range(place["h"])}
        assert not cells & taken, panel["title"]
        taken |= cells
        if panel["type"] != "row":
            assert panel["datasource"] == {"type": "prometheus", "uid": "${datasource}"}
            assert panel["fieldConfig"]["defaults"]["unit"]
    (variable,) = DASHBOARD["templating"]["list"]
    assert (variable["name"], variable["type"]) == ("datasource", "datasource")


def test_alerts_are_graded_and_explained() -> None:
    known = metrics()
    alerts = [rule for rule in RULES if "alert" in rule]
    watched = {each.metric for rule in RULES for each in used(promql_parser.parse(rule["expr"]))}
    for rule in alerts:
        assert rule["labels"]["severity"] in {"page", "ticket"}
        assert rule["annotations"]["summary"].endswith(".")
        named = set(re.findall(r"\$labels\.(\w+)", rule["annotations"]["summary"]))
        labels = {label for each in used(promql_parser.parse(rule["expr"])) for label in known[each.metric]}
        assert named <= labels, rule
        assert f"`{rule['alert']}`" in OPERATIONS, rule
    told = set(re.findall(r"^\| `(Palimpsest\w+)`", OPERATIONS, re.MULTILINE))
    assert told == {rule["alert"] for rule in alerts}
    assert watched >= {
        f"palimpsest_{name}"
        for name in (
            "oldest_due_check_seconds",
            "due_checks",
            "expired_leases",
            "active_runs",
            "dead_runs",
            "workers_alive",
            "beats_alive",
            "queue_depth",
            "oldest_waiting_summary_seconds",
            "oldest_overdue_summary_seconds",
            "pool_timeouts_total",
            "overflows_total",
            "gateway_refused_total",
            "gateway_requests_total",
            "gateway_turns_total",
        )
    }


def test_every_metric_that_a_page_names_is_one_there_is() -> None:
    known = metrics()
    bases = {re.sub(r"_(bucket|sum|count)$", "", name) for name in known} | set(known)
    not_metrics = {"palimpsest_service", "palimpsest_background", "palimpsest_auditor", "palimpsest_app"}
    for path in [ROOT / "README.md", *(ROOT / "docs").rglob("*.md")]:
        text = path.read_text()
        for name, labels in re.findall(r"`(palimpsest_[a-z_]+)(?:\{([a-z, ]+)\})?`", text):
            if name in not_metrics or name in {"palimpsest_database_url", "palimpsest_broker_url"}:
                continue
            if "password" in name or name.endswith("_token"):
                continue
            assert name in bases, f"{name} in {path.name}"
            wanted = {label.strip() for label in labels.split(",") if label.strip()}
            assert wanted <= set().union(*(known[each] for each in known if each.startswith(name))), name


def program(name: str) -> str:
    """Return a program of Prometheus; skip the test where it is not installed."""
    found = os.environ.get(name.upper()) or shutil.which(name)
    if found is None:
        pytest.skip(f"{name} is not installed (Debian: apt-get install prometheus)")
    return found


def test_promtool_takes_the_rules() -> None:
    promtool = program("promtool")
    for arguments in (["rules", str(ALERTS)], ["config", str(ALERTS.parent / "prometheus.yml")]):
        done = subprocess.run([promtool, "check", *arguments], capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr


def fires(alert: str, series: dict[str, int | str], tmp_path: Path, **labels: str) -> bool:
    """Tell whether an alert is raised after 50 minutes in which series grow by so much a minute, or are as given."""
    (rule,) = (each for each in RULES if each.get("alert") == alert)
    summary = re.sub(r"\{\{ \$labels\.(\w+) \}\}", lambda name: labels[name[1]], rule["annotations"]["summary"])
    raised = {"exp_labels": rule["labels"] | labels, "exp_annotations": {"summary": summary}}
    outcomes = []
    for expected in ([raised], []):
        case = {
            "interval": "1m",
            "input_series": [
                {"series": name, "values": step if isinstance(step, str) else f"0+{step}x60"}
                for name, step in series.items()
            ],
            "alert_rule_test": [{"eval_time": "50m", "alertname": alert, "exp_alerts": expected}],
        }
        written = {"rule_files": [str(ALERTS)], "evaluation_interval": "1m", "tests": [case]}
        (tmp_path / "case.yml").write_text(yaml.safe_dump(written))
        command = [program("promtool"), "test", "rules", str(tmp_path / "case.yml")]
        outcomes.append(subprocess.run(command, capture_output=True, check=False).returncode == 0)
    assert outcomes.count(True) == 1
    return outcomes[0]


@pytest.mark.parametrize(
    ("reason", "expected"),
    [
        ("summary_rejected", True),
        ("model_refused", True),
        ("model_garbage", True),
        ("model_overloaded", False),
        ("circuit_open", False),
    ],
)
def test_summaries_of_no_use_raise_an_alert_that_an_outage_does_not(
    reason: str, tmp_path: Path, *, expected: bool
) -> None:
    steps = 'palimpsest_run_steps_total{step="%s",state="%s",reason="%s"}'
    series: dict[str, int | str] = {
        steps % ("summary", "failed", reason): 3,
        steps % ("summary", "committed", ""): 2,
        steps % ("extract", "committed", ""): 9,
    }
    assert fires("PalimpsestSummariesRefused", series, tmp_path) is expected


@pytest.mark.parametrize(("failed", "expected"), [(3, True), (0, False)])
def test_model_requests_that_a_repeat_mends_raise_no_alert(failed: int, tmp_path: Path, *, expected: bool) -> None:
    steps = 'palimpsest_run_steps_total{step="summary",state="%s",reason="%s"}'
    series: dict[str, int | str] = {
        'palimpsest_model_requests_total{model="m",outcome="overloaded"}': 9,
        'palimpsest_model_requests_total{model="m",outcome="ok"}': 2,
        steps % ("committed", ""): 2,
        steps % ("failed", "model_overloaded"): failed,
    }
    assert fires("PalimpsestModelFails", series, tmp_path) is expected


@pytest.mark.parametrize(("value", "expected"), [(0, True), (1, False)])
def test_a_process_that_cannot_be_scraped_raises_an_alert(value: int, tmp_path: Path, *, expected: bool) -> None:
    series: dict[str, int | str] = {'up{job="palimpsest-worker",instance="sweeper:9464"}': f"{value}x60"}
    labels = {"job": "palimpsest-worker", "instance": "sweeper:9464"}
    assert fires("PalimpsestScrapeFails", series, tmp_path, **labels) is expected


@pytest.mark.parametrize(("unanswered", "answered", "expected"), [(60, 0, True), (8, 60, True), (1, 60, False)])
def test_a_provider_that_fails_now_and_then_calls_nobody(
    unanswered: int, answered: int, tmp_path: Path, *, expected: bool
) -> None:
    series: dict[str, int | str] = {
        'palimpsest_gateway_refused_total{door="messages",status="502"}': unanswered,
        'palimpsest_gateway_requests_total{door="messages",outcome="unchanged"}': answered,
    }
    assert fires("PalimpsestGatewayProviderAway", series, tmp_path, door="messages") is expected


@pytest.mark.parametrize(("values", "expected"), [("0x40 _x20", True), ("0x60", False), (None, False)])
def test_a_gateway_is_missed_by_whoever_had_one(values: str | None, tmp_path: Path, *, expected: bool) -> None:
    gateways = 'palimpsest_gateway_answers_under_way{instance="gateway:8081"}'
    assert fires("PalimpsestNoGateway", {} if values is None else {gateways: values}, tmp_path) is expected


@pytest.mark.timeout(300)
def test_prometheus_scrapes_a_running_service_and_answers_every_query(
    product: Product, tenant: Tenant, tmp_path: Path
) -> None:
    prometheus = program("prometheus")
    ports = {name: free_port() for name in ("worker", "beat", "prometheus")}
    with (
        product.api() as api,
        product.worker("checks,summaries", "--metrics-port", str(ports["worker"])),
        product.worker("beat", env={"PALIMPSEST_METRICS_PORT": str(ports["beat"])}),
    ):
        with api.client(tenant.key) as client:
            path = f"/v1/conversations/{client.post('/v1/conversations', json={}).json()['id']}"
            client.post(f"{path}/turns", json={"messages": [{"role": "user", "content": "Hello."}]})
            client.get(f"{path}/context")
        conversation = long_talk(product)
        targets = {
            "palimpsest-api": api.url.removeprefix("http://"),
            "palimpsest-worker": f"127.0.0.1:{ports['worker']}",
            "palimpsest-beat": f"127.0.0.1:{ports['beat']}",
        }
        config = {
            "global": {"scrape_interval": "500ms", "scrape_timeout": "500ms", "evaluation_interval": "500ms"},
            "rule_files": [str(ALERTS)],
            "scrape_configs": [
                {"job_name": job, "static_configs": [{"targets": [target]}]} for job, target in targets.items()
            ],
        }
        (tmp_path / "prometheus.yml").write_text(yaml.safe_dump(config))
        url = f"http://127.0.0.1:{ports['prometheus']}"
        arguments = [
            f"--config.file={tmp_path / 'prometheus.yml'}",
            f"--storage.tsdb.path={tmp_path / 'data'}",
            f"--web.listen-address={url.removeprefix('http://')}",
        ]
        with (
            (tmp_path / "prometheus.log").open("wb") as output,
            subprocess.Popen([prometheus, *arguments], stdout=output, stderr=output) as server,
        ):
            try:
                eventually(ended(product, conversation), START_SECONDS)

                def ask(text: str) -> list[Any]:
                    try:
                        answer = httpx2.get(f"{url}/api/v1/query", params={"query": text})
                    except httpx2.TransportError:
                        assert server.poll() is None, (tmp_path / "prometheus.log").read_text()
                        return []
                    assert answer.status_code in {200, 503}, f"{text}: {answer.text}"
                    found: list[Any] = answer.json()["data"]["result"] if answer.status_code == 200 else []
                    return found

                eventually(lambda: {each["metric"]["job"] for each in ask("up == 1")} == set(targets), START_SECONDS)
                eventually(lambda: bool(ask('palimpsest_runs_total{state="committed"} >= 1')), START_SECONDS)
                eventually(lambda: bool(ask("sum(rate(palimpsest_turns_total[5m]))")), START_SECONDS)
                for query in QUERIES:
                    ask(query.text)
                # Everything that a healthy service has had is drawn.
                for name in ("Oldest due check", "Requests by route", "Runs by outcome", "Steps by name and state"):
                    (panel,) = [each for each in PANELS if each["title"] == name]
                    text = panel["targets"][0]["expr"].replace("$__rate_interval", "5m")
                    # A rate is one of two looks at a counter.
                    eventually(partial(ask, text), START_SECONDS)
                rules = httpx2.get(f"{url}/api/v1/rules").json()["data"]["groups"]
                assert sum(len(group["rules"]) for group in rules) == len(RULES)
                eventually(lambda: bool(ask("palimpsest:http_requests:rate5m")), START_SECONDS)
                health = {
                    rule["health"]
                    for group in httpx2.get(f"{url}/api/v1/rules").json()["data"]["groups"]
                    for rule in group["rules"]
                }
                assert health == {"ok"}
            finally:
                server.terminate()
