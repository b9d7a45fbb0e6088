"""deploy/failover/kubernetes.yaml against deploy/kubernetes, the example for Compose and the page with their URLs."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import urlsplit

import pytest
import yaml

from runtime.addresses.database_url import hosts_of
from runtime.addresses.redis_clients import sentinels_of
from runtime.settings import Settings
from tests.support.places import ROOT
from tests.system.test_deployment import SERVICES
from tests.system.test_failover_example import ADDED, EXAMPLE
from tests.system.test_kubernetes import CONTAINERS, secret_files
from tests.system.test_kubernetes import of_kind as of_ours

if TYPE_CHECKING:
    from pathlib import Path

DOCUMENTS: Final[list[dict[str, Any]]] = [
    *yaml.safe_load_all((ROOT / "deploy" / "failover" / "kubernetes.yaml").read_text())
]
PAGE: Final = (ROOT / "docs" / "deployment.md").read_text()
URLS: Final = dict(re.findall(r'^printf %s "([^"]+)" >(\S+)$', PAGE, flags=re.MULTILINE))
"""What the page has written into files, by the text with which it begins."""


def of_kind(kind: str) -> dict[str, dict[str, Any]]:
    """The documents of a kind, by name."""
    return {each["metadata"]["name"]: each for each in DOCUMENTS if each["kind"] == kind}


SETS: Final = of_kind("StatefulSet")
PODS: Final = {name: each["spec"]["template"] for name, each in SETS.items()}
STORES: Final[dict[str, dict[str, Any]]] = {name: pod["spec"]["containers"][0] for name, pod in PODS.items()}
COMPOSED: Final = {
    **{name: SERVICES[name] for name in ("postgres", "redis")},
    "postgres-standby": ADDED["postgres-standby"],
    "redis-replica": ADDED["redis-replica"],
    "sentinel": ADDED["sentinel-1"],
}


def url(file: str) -> str:
    """The URL that the page has written into a file, with a password in it."""
    (written,) = [text for text, name in URLS.items() if name == file]
    return re.sub(r"\$\(cat [\w-]+\)", "word", written)


def port_at(host: str | None) -> tuple[str, int]:
    """Return the set whose pod has the name of a service, or of a pod in one, and the port that it has there."""
    pod, _, service = (host or "").rpartition(".")
    spec = of_kind("Service")[service]["spec"]
    (name,) = [name for name, each in PODS.items() if each["metadata"]["labels"] == spec["selector"]]
    count = SETS[name]["spec"]["replicas"]
    assert SETS[name]["spec"]["serviceName"] == service
    assert pod in {f"{name}-{number}" for number in range(count)} if pod else count == 1
    (port,) = spec["ports"]
    (own,) = STORES[name]["ports"]
    assert (port["targetPort"], port["port"]) == (own["name"], own["containerPort"])
    return name, port["port"]


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda each: f"{each['kind']}-{each['metadata']['name']}")
def test_the_manifests_are_what_kubernetes_takes(document: dict[str, Any]) -> None:
    validator = pytest.importorskip("kubernetes_validate", reason="its schemas: pip install kubernetes-validate")
    validator.validate(document, "1.30", strict=True)


@pytest.mark.parametrize("name", PODS)
def test_a_store_meets_the_restricted_profile(name: str) -> None:
    pod, container = PODS[name]["spec"], STORES[name]
    assert len(pod["containers"]) == 1
    assert pod["securityContext"]["runAsNonRoot"] is True
    assert pod["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
    assert pod["automountServiceAccountToken"] is False
    assert container["securityContext"] == CONTAINERS["palimpsest-api"]["securityContext"]
    volumes = {each["name"] for each in pod["volumes"]}
    claimed = {each["metadata"]["name"] for each in SETS[name]["spec"].get("volumeClaimTemplates", ())}
    assert {each["name"] for each in container["volumeMounts"]} == volumes | claimed


@pytest.mark.parametrize("name", PODS)
def test_a_store_is_as_the_example_for_compose_has_it(name: str) -> None:
    container, composed = STORES[name], COMPOSED[name]
    assert container["image"] == composed["image"]
    command = {**composed, **EXAMPLE["services"].get(name, {})}["command"]
    given = container.get("command") or container["args"]
    if given[0] == "sh":
        # Where Compose knows nothing of it, a Sentinel also says under what name it will be there again.
        script = re.sub(r' *"sentinel announce-ip \S+" \\\n', "", given[-1])
        assert script == command[-1].replace("$$", "$")
    else:
        assert [each for each in command if each not in given] == []
    probe = container["readinessProbe"]["exec"]["command"]
    assert probe == composed["healthcheck"]["test"][1:]
    for kind in ("startup", "liveness"):
        assert container.get(f"{kind}Probe", {"exec": {"command": probe}})["exec"]["command"] == probe


def test_the_servers_are_let_into_each_other_as_in_compose() -> None:
    (settings,) = of_kind("ConfigMap").values()
    assert settings["data"]["pg_hba.conf"] == EXAMPLE["configs"]["pg_hba"]["content"]
    for name in ("postgres", "postgres-standby"):
        files = {each["name"]: each["mountPath"] for each in STORES[name]["volumeMounts"]}
        given = str(STORES[name].get("command") or STORES[name]["args"])
        assert f"hba_file={files['settings']}/pg_hba.conf" in given
        environment = {each["name"]: each["value"] for each in STORES[name]["env"]}
        assert environment["PGDATA"].startswith(files["data"] + "/")
    environment = {each["name"]: each["value"] for each in STORES["postgres"]["env"]}
    assert environment["POSTGRES_PASSWORD_FILE"].rpartition("/")[::2] == (
        "/run/secrets",
        "palimpsest_database_password",
    )
    for name in ("postgres", "postgres-standby"):
        (source,) = [each["secret"] for each in PODS[name]["spec"]["volumes"] if "secret" in each]
        assert [each["path"] for each in source["items"]] == ["palimpsest_database_password"]
        assert f"create secret generic {source['secretName']} --from-file={source['items'][0]['key']}=" in PAGE


@pytest.mark.parametrize("file", ["app-url", "owner-url"])
def test_the_urls_of_the_page_name_both_databases(file: str) -> None:
    urls = hosts_of(url(file))
    assert [port_at(each.host) for each in urls] == [("postgres", 5432), ("postgres-standby", 5432)]
    assert [each.port for each in urls] == [5432, 5432]
    assert {each.query["target_session_attrs"] for each in urls} == {"read-write"}
    environment = {each["name"]: each["value"] for each in STORES["postgres"]["env"]}
    assert {each.database for each in urls} == {environment["POSTGRES_DB"]}
    login = environment["POSTGRES_USER"] if file == "owner-url" else CONTAINERS["palimpsest-migrate"]["args"][-1]
    assert {each.username for each in urls} == {login}


def test_the_broker_of_the_page_is_what_every_sentinel_watches() -> None:
    of = sentinels_of(url("broker-url"))
    assert of is not None
    assert {port_at(host) for host, _ in of.places} == {("sentinel", 26379)}
    assert {port for _, port in of.places} == {26379}
    replicas = SETS["sentinel"]["spec"]["replicas"]
    assert len({host for host, _ in of.places}) == replicas
    (script,) = [each for each in STORES["sentinel"]["args"] if "sentinel monitor" in each]
    monitored = re.search(r"sentinel monitor (\S+) (\S+) (\d+) (\d+)", script)
    assert monitored is not None
    assert monitored[1] == of.master_name
    assert port_at(monitored[2]) == ("redis", int(monitored[3]))
    assert int(monitored[4]) > replicas / 2
    assert of_kind("PodDisruptionBudget")["sentinel"]["spec"]["maxUnavailable"] < replicas / 2
    assert re.search(r"sentinel announce-ip \$HOSTNAME\.(\S+)\"", script)[1] == "sentinel"  # type: ignore[index] # it is there
    for name in ("redis", "redis-replica"):
        arguments = STORES[name]["args"]
        assert arguments[arguments.index("--replica-announce-ip") + 1] == name


def test_the_files_of_the_page_are_settings_of_every_pod(tmp_path: Path) -> None:
    for file, key in (("app-url", "palimpsest_database_url"), ("broker-url", "palimpsest_broker_url")):
        assert f"--from-file={key}={file}" in PAGE
        assert {name for name in CONTAINERS if key not in secret_files(name)} <= {"palimpsest-migrate"}
        (tmp_path / key).write_text(url(file))
    settings = Settings(_secrets_dir=tmp_path)  # type: ignore[call-arg] # as /run/secrets
    assert urlsplit(settings.database_url.get_secret_value()).scheme == "postgresql"
    assert settings.broker_url.get_secret_value() == url("broker-url")


@pytest.mark.parametrize("app", ["postgres", "redis"])
def test_who_may_reach_out_to_a_store_is_let_in_there(app: str) -> None:
    labels = {"app.kubernetes.io/name": app}
    (out,) = [
        rule
        for rule in of_ours("NetworkPolicy")["palimpsest"]["spec"]["egress"]
        if rule.get("to") == [{"podSelector": {"matchLabels": labels}}]
    ]
    policy = of_kind("NetworkPolicy")[app]["spec"]
    assert policy["podSelector"]["matchLabels"] == labels
    (into,) = policy["ingress"]
    assert into["ports"] == out["ports"]
    ours = of_ours("NetworkPolicy")["palimpsest"]["spec"]["podSelector"]
    assert into["from"] == [{"podSelector": ours}, {"podSelector": {"matchLabels": labels}}]
    (among,) = [rule for rule in policy["egress"] if "to" in rule]
    assert among == {"to": [{"podSelector": {"matchLabels": labels}}], "ports": into["ports"]}
    selected = [name for name, pod in PODS.items() if labels.items() <= pod["metadata"]["labels"].items()]
    assert {port["containerPort"] for name in selected for port in STORES[name]["ports"]} == {
        each["port"] for each in into["ports"]
    }


def test_a_promotion_by_the_page_names_what_there_is() -> None:
    stopped = re.search(r"kubectl scale statefulset (\S+) --replicas=0", PAGE)
    promoted = re.search(r"kubectl exec (\S+)-0 -- psql -U (\S+) -c \"select pg_promote\(\)\"", PAGE)
    assert stopped is not None
    assert promoted is not None
    hosts = [each.host for each in hosts_of(url("owner-url"))]
    assert [stopped[1], promoted[1]] == hosts
    assert promoted[2] == hosts_of(url("owner-url"))[0].username
