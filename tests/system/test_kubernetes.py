"""deploy/kubernetes against the code: what the manifests name has to exist."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

import httpx2
import pytest
import yaml

from api.app import create_app
from compaction.policy import FIELDS
from gateway.doors import CHAT, COUNT_TOKENS, MESSAGES, RESPONSES, door_of
from runtime.broker import QUEUES, celery_app
from runtime.settings import Settings
from tests.support.places import ROOT
from tests.system.test_deployment import PYPROJECT, parse, queues

if TYPE_CHECKING:
    from pathlib import Path

    from tests.support.service.running_api import Service

FOLDER = ROOT / "deploy" / "kubernetes"
DOCUMENTS: list[dict[str, Any]] = [
    document
    for path in sorted(FOLDER.glob("*.yaml"))
    if path.name != "kustomization.yaml"
    for document in yaml.safe_load_all(path.read_text())
]
CALLED = [MESSAGES, COUNT_TOKENS, CHAT, RESPONSES]
KUSTOMIZATION: dict[str, Any] = yaml.safe_load((FOLDER / "kustomization.yaml").read_text())


def of_kind(kind: str) -> dict[str, dict[str, Any]]:
    """The documents of a kind, by name."""
    return {each["metadata"]["name"]: each for each in DOCUMENTS if each["kind"] == kind}


DEPLOYMENTS = of_kind("Deployment")
PODS = {name: each["spec"]["template"] for name, each in {**DEPLOYMENTS, **of_kind("Job")}.items()}
CONTAINERS: dict[str, dict[str, Any]] = {name: pod["spec"]["containers"][0] for name, pod in PODS.items()}


def secret_files(name: str) -> set[str]:
    """The files of secrets that a pod finds in /run/secrets."""
    return {item["path"] for source in secret_sources(name) for item in source["items"]}


def secret_sources(name: str) -> list[dict[str, Any]]:
    """The secrets that a pod's volume of them is made of."""
    (volume,) = [each for each in PODS[name]["spec"]["volumes"] if each["name"] == "secrets"]
    if "secret" in volume:
        return [{"name": volume["secret"]["secretName"], **volume["secret"]}]
    return [source["secret"] for source in volume["projected"]["sources"]]


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda each: f"{each['kind']}-{each['metadata']['name']}")
def test_the_manifests_are_what_kubernetes_takes(document: dict[str, Any]) -> None:
    validator = pytest.importorskip("kubernetes_validate", reason="its schemas: pip install kubernetes-validate")
    try:
        validator.validate(document, "1.30", strict=True)
    except validator.SchemaNotFoundError:
        assert document["apiVersion"] in {"keda.sh/v1alpha1", "monitoring.coreos.com/v1"}


@pytest.mark.parametrize("name", PODS)
def test_the_command_of_a_pod_is_a_real_one(name: str) -> None:
    assert len(PODS[name]["spec"]["containers"]) == 1
    assert "command" not in CONTAINERS[name]  # the image's own entry point
    parse(CONTAINERS[name]["args"])


def test_every_role_is_there_and_every_queue_is_served_once() -> None:
    arguments = [container["args"] for container in CONTAINERS.values()]
    assert {each[0] for each in arguments} == {"api", "gateway", "worker", "beat", "migrate"}
    served = [queue for each in arguments if each[0] == "worker" for queue in queues({"command": each})]
    assert sorted(served) == sorted(QUEUES)


@pytest.mark.parametrize("name", PODS)
def test_a_pod_meets_the_restricted_profile(name: str) -> None:
    pod, container = PODS[name]["spec"], CONTAINERS[name]
    assert pod["securityContext"]["runAsNonRoot"] is True
    assert pod["securityContext"]["runAsUser"] == pod["securityContext"]["runAsGroup"] == 10001
    assert pod["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
    assert pod["automountServiceAccountToken"] is False
    assert not {"hostNetwork", "hostPID", "hostIPC"} & set(pod)
    assert container["securityContext"] == {
        "allowPrivilegeEscalation": False,
        "readOnlyRootFilesystem": True,
        "capabilities": {"drop": ["ALL"]},
    }
    assert {each["mountPath"] for each in container["volumeMounts"] if not each.get("readOnly")} == {"/tmp"}  # noqa: S108
    assert {"cpu", "memory"} == set(container["resources"]["requests"])
    assert container["resources"]["limits"]["memory"]
    (namespace,) = of_kind("Namespace").values()
    assert namespace["metadata"]["labels"]["pod-security.kubernetes.io/enforce"] == "restricted"


@pytest.mark.parametrize("name", PODS)
def test_images_carry_the_version_of_the_package(name: str) -> None:
    version = PYPROJECT["project"]["version"]
    assert CONTAINERS[name]["image"] == f"palimpsest:{version}"
    assert KUSTOMIZATION["images"] == [{"name": "palimpsest", "newTag": version}]


def test_settings_are_settings_and_no_secrets() -> None:
    (settings,) = of_kind("ConfigMap").values()
    known = {f"PALIMPSEST_{field}".upper() for field in (*Settings.model_fields, *FIELDS)}
    secret = {
        f"PALIMPSEST_{name}".upper() for name, f in Settings.model_fields.items() if "SecretStr" in str(f.annotation)
    }
    assert set(settings["data"]) <= known - secret
    assert not of_kind("Secret")
    for container in CONTAINERS.values():
        assert container["envFrom"] == [{"configMapRef": {"name": settings["metadata"]["name"]}}]
        assert "env" not in container


def test_secrets_are_files_that_the_settings_read_and_each_pod_has_only_its_own(tmp_path: Path) -> None:
    assert secret_files("palimpsest-migrate") == {"palimpsest_database_url", "palimpsest_service_password"}
    for key in ("anthropic_api_key", "openai_api_key"):
        assert {name for name in PODS if key in secret_files(name)} == {
            "palimpsest-gateway",
            "palimpsest-worker-summaries",
        }
    for source in secret_sources("palimpsest-worker-summaries"):
        assert source.get("optional", False) == all("api_key" in item["key"] for item in source["items"])
    for name, container in CONTAINERS.items():
        (mount,) = [each for each in container["volumeMounts"] if each["name"] == "secrets"]
        assert (mount["mountPath"], mount["readOnly"]) == ("/run/secrets", True)
        assert {"palimpsest_database_url"} <= secret_files(name)
    for file in set().union(*map(secret_files, PODS)):
        scheme = {"palimpsest_database_url": "postgresql", "palimpsest_broker_url": "redis"}.get(file, "scheme")
        (tmp_path / file).write_text(f"{scheme}://from-a-file/")
    settings = Settings(_secrets_dir=tmp_path)  # type: ignore[call-arg] # as /run/secrets
    read = [settings.database_url, settings.broker_url, settings.anthropic_api_key, settings.openai_api_key]
    assert [each.get_secret_value().partition("://")[2] for each in read if each] == ["from-a-file/"] * 4


def test_the_owners_login_is_the_migrations_alone() -> None:
    names = {(name, source["name"]) for name in PODS for source in secret_sources(name)}
    assert {name for name, secret in names if secret == "palimpsest-owner"} == {"palimpsest-migrate"}


def test_probes_and_service_lead_to_what_the_api_serves() -> None:
    container = CONTAINERS["palimpsest-api"]
    (port,) = container["ports"]
    assert port["containerPort"] == Settings.model_fields["port"].default
    probes = {kind: container[f"{kind}Probe"]["httpGet"] for kind in ("startup", "liveness", "readiness")}
    assert {kind: probe["path"] for kind, probe in probes.items()} == {
        "startup": "/healthz",
        "liveness": "/healthz",
        "readiness": "/readyz",
    }
    assert {probe["port"] for probe in probes.values()} == {port["name"]}
    assert {probe["path"] for probe in probes.values()} <= {route.path for route in create_app().routes}
    service = of_kind("Service")["palimpsest"]
    assert [each["targetPort"] for each in service["spec"]["ports"]] == [port["name"]]
    assert service["spec"]["selector"] == PODS["palimpsest-api"]["metadata"]["labels"]
    (allowed,) = of_kind("NetworkPolicy")["palimpsest-api"]["spec"]["ingress"]
    assert allowed["ports"] == [{"port": port["containerPort"]}]


@pytest.mark.parametrize("name", PODS)
def test_a_pod_is_given_the_time_its_shutdown_takes(name: str) -> None:
    grace = PODS[name]["spec"]["terminationGracePeriodSeconds"]
    assert grace >= 45
    if CONTAINERS[name]["args"][0] == "worker":
        assert grace > max(45, celery_app(Settings(), "test").conf.worker_soft_shutdown_timeout)


def test_selectors_select_the_pods_that_they_are_for() -> None:
    for name, deployment in DEPLOYMENTS.items():
        assert deployment["spec"]["selector"]["matchLabels"] == PODS[name]["metadata"]["labels"]
        budget = of_kind("PodDisruptionBudget")[name]["spec"]
        assert budget["selector"] == deployment["spec"]["selector"]
        assert budget["maxUnavailable"] == 1
    assert set(of_kind("PodDisruptionBudget")) == set(DEPLOYMENTS)
    labels = [pod["metadata"]["labels"] for pod in PODS.values()]
    for policy in of_kind("NetworkPolicy").values():
        wanted = policy["spec"]["podSelector"]["matchLabels"].items()
        assert any(wanted <= each.items() for each in labels)


def test_only_the_pods_that_call_a_model_reach_out() -> None:
    reaching = [name for name, each in of_kind("NetworkPolicy").items() if "ipBlock" in str(each["spec"].get("egress"))]
    assert sorted(reaching) == ["palimpsest-gateway", "palimpsest-worker-summaries"]
    assert set(of_kind("NetworkPolicy")["palimpsest"]["spec"]["policyTypes"]) == {"Ingress", "Egress"}


def test_what_is_scaled_exists_and_leaves_its_replicas_to_the_scaler() -> None:
    scalers = {**of_kind("HorizontalPodAutoscaler"), **of_kind("ScaledObject")}
    targets = {each["spec"]["scaleTargetRef"]["name"] for each in scalers.values()}
    assert targets == {"palimpsest-api", "palimpsest-worker-summaries"}
    assert {name for name, each in DEPLOYMENTS.items() if "replicas" not in each["spec"]} == targets


def test_summaries_are_scaled_by_metrics_that_the_api_has(service: Service) -> None:
    (scaled,) = of_kind("ScaledObject").values()
    queries = [trigger["metadata"]["query"] for trigger in scaled["spec"]["triggers"]]
    served = httpx2.get(f"{service.api.url}/metrics").text
    for query in queries:
        (name,) = re.findall(r"palimpsest_\w+", query)
        assert f"\n{name}{{" in served
        for label in re.findall(r"\{(\w+=\"\w+\")\}", query):
            assert f"{name}{{{label}}}" in served
        for label in re.findall(r"without \((\w+)\)", query):
            assert f"{name}{{{label}=" in served


def test_a_worker_for_summaries_is_added_before_the_ones_there_are_full() -> None:
    (scaled,) = of_kind("ScaledObject").values()
    (settings,) = of_kind("ConfigMap").values()
    slots = int(settings["data"]["PALIMPSEST_SUMMARIES_CONCURRENCY"])
    assert int(scaled["spec"]["triggers"][0]["metadata"]["threshold"]) < slots
    # Runs that a tenant's bound keeps waiting are no reason for another worker.
    assert 'palimpsest_active_runs{state="running"}' in scaled["spec"]["triggers"][0]["metadata"]["query"]
    assert scaled["spec"]["minReplicaCount"] >= 1  # webhooks and batches wait in the same queue


def test_everything_is_applied_but_the_migration_which_comes_before() -> None:
    files = {path.name for path in FOLDER.glob("*.yaml")}
    apart = {"kustomization.yaml", "migrate.yaml", "ingress.yaml", "podmonitor.yaml"}
    assert set(KUSTOMIZATION["resources"]) == files - apart


def test_the_way_in_leads_to_the_api_and_takes_what_it_takes(service: Service) -> None:
    for path in _ways_in("palimpsest", "max_body_bytes", longest_wait=25.0):
        asked = httpx2.get(f"{service.api.url}{'/v1/conversations' if path['path'] == '/v1' else path['path']}")
        assert asked.status_code != httpx2.codes.NOT_FOUND
        assert not "/metrics".startswith(path["path"])


def test_the_way_to_the_gateway_leads_to_its_doors_and_no_further() -> None:
    longest_wait = Settings.model_fields["gateway_upstream_seconds"].default
    (path,) = _ways_in("palimpsest-gateway", "gateway_max_body_bytes", longest_wait=longest_wait)
    assert [door_of("POST", f"{path['path']}{door.end}", {}) for door in CALLED] == CALLED
    annotations = of_kind("Ingress")["palimpsest-gateway"]["metadata"]["annotations"]
    assert annotations["nginx.ingress.kubernetes.io/proxy-buffering"] == "off"


def _ways_in(name: str, body_bytes: str, *, longest_wait: float) -> list[Any]:
    """Return the paths of an Ingress, which lead to the service of its name and take what that takes."""
    ingress, target = of_kind("Ingress")[name], of_kind("Service")[name]
    annotations = ingress["metadata"]["annotations"]
    limit = int(annotations["nginx.ingress.kubernetes.io/proxy-body-size"].removesuffix("m"))
    assert limit << 20 == Settings.model_fields[body_bytes].default
    assert int(annotations["nginx.ingress.kubernetes.io/proxy-read-timeout"]) > longest_wait
    (rule,) = ingress["spec"]["rules"]
    assert {rule["host"]} == {host for each in ingress["spec"]["tls"] for host in each["hosts"]}
    ports = {each["name"] for each in target["spec"]["ports"]}
    paths: list[Any] = rule["http"]["paths"]
    for path in paths:
        assert path["backend"]["service"]["name"] == name
        assert path["backend"]["service"]["port"]["name"] in ports
    return paths


def test_every_pod_that_lives_on_is_scraped_where_it_answers() -> None:
    (monitor,) = of_kind("PodMonitor").values()
    scraped = {each["port"] for each in monitor["spec"]["podMetricsEndpoints"]}
    wanted = monitor["spec"]["selector"]["matchLabels"].items()
    (settings,) = of_kind("ConfigMap").values()
    for name in DEPLOYMENTS:
        assert wanted <= PODS[name]["metadata"]["labels"].items()
        (port,) = [each for each in CONTAINERS[name]["ports"] if each["name"] in scraped]
        own = int(settings["data"]["PALIMPSEST_METRICS_PORT"])
        listening = {"palimpsest-api": "port", "palimpsest-gateway": "gateway_port"}.get(name)
        assert port["containerPort"] == (Settings.model_fields[listening].default if listening else own)


def test_the_manual_names_what_the_manifests_need() -> None:
    """Kinds that are not Kubernetes' own need their definitions first, a scaler by processor its metrics."""
    page = (ROOT / "docs" / "deployment.md").read_text()
    needs = {"ScaledObject": "KEDA", "PodMonitor": "Prometheus Operator", "HorizontalPodAutoscaler": "metrics-server"}
    for kind, name in needs.items():
        assert of_kind(kind)
        assert name in page
