"""Dockerfile and docker-compose.yml against the code: what they name has to exist."""

from __future__ import annotations

import ast
import importlib
import json
import os
import re
import shutil
import socket
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import psycopg
import pytest
import yaml
from pydantic import AliasChoices
from typer.main import get_command

from compaction.policy import FIELDS
from runtime.broker import QUEUES, celery_app
from runtime.settings import Settings
from tests.support.places import ROOT

PYPROJECT: dict[str, Any] = tomllib.loads((ROOT / "pyproject.toml").read_text())
COMPOSE: dict[str, Any] = yaml.safe_load((ROOT / "docker-compose.yml").read_text())
SERVICES: dict[str, dict[str, Any]] = COMPOSE["services"]
OWN = {name: service for name, service in SERVICES.items() if "build" in service}
WORKERS = {name: service for name, service in OWN.items() if service["command"][0] == "worker"}
LONG_RUNNING = {name: service for name, service in SERVICES.items() if name != "migrate"}


def dockerfile() -> list[tuple[str, str]]:
    """Every instruction of the Dockerfile with its arguments, continuation lines joined."""
    text = re.sub(r"^#.*\n", "", (ROOT / "Dockerfile").read_text(), flags=re.MULTILINE)
    lines = text.replace("\\\n", " ").splitlines()
    return [(line.split()[0], line.split(maxsplit=1)[1]) for line in lines if line.strip()]


def final_stage() -> dict[str, list[str]]:
    """The instructions of the last stage: name to the arguments of each use."""
    instructions = dockerfile()
    start = max(index for index, (name, _) in enumerate(instructions) if name == "FROM")
    stage: dict[str, list[str]] = {}
    for name, arguments in instructions[start:]:
        stage.setdefault(name, []).append(arguments)
    return stage


def image_environment() -> dict[str, str]:
    pairs = " ".join(final_stage()["ENV"]).split()
    return dict(pair.split("=", 1) for pair in pairs)


def interpolated(value: str) -> str:
    """The value that compose would pass with nothing set but what it insists on."""
    value = re.sub(r"\$\{\w+:-([^}]*)\}", r"\1", value)
    return re.sub(r"\$\{\w+:\?[^}]*\}", "chosen", value)


def parse(arguments: list[str]) -> dict[str, Any]:
    """Parse a command line of ours as the program would, without running it; wrong usage raises."""
    from cli.main import app  # noqa: PLC0415 - the tests of the files alone need no command line

    group: Any = get_command(app)
    name, *rest = arguments
    assert name in group.commands, f"palimpsest has no subcommand {name!r}"
    parameters: dict[str, Any] = group.commands[name].make_context(name, rest).params
    return parameters


def queues(service: dict[str, Any]) -> set[str]:
    value = parse(service["command"])["queues"]
    return {queue for part in ([value] if isinstance(value, str) else value) for queue in part.split(",")}


def secrets_of(name: str) -> dict[str, str]:
    """The secrets of a service: what each is called, to the file that the container sees."""
    listed: list[Any] = SERVICES[name].get("secrets", [])
    return {each["source"]: each["target"] for each in listed if isinstance(each, dict)} | {
        each: each for each in listed if isinstance(each, str)
    }


@pytest.mark.parametrize("name", OWN)
def test_the_command_of_a_service_is_a_real_one(name: str) -> None:
    parse(OWN[name]["command"])


def test_the_image_runs_the_installed_command_and_the_api_by_default() -> None:
    stage = final_stage()
    (entrypoint,) = json.loads(stage["ENTRYPOINT"][0])
    assert entrypoint in PYPROJECT["project"]["scripts"]
    parse(json.loads(stage["CMD"][0]))
    assert json.loads(stage["CMD"][0]) == ["api"]


def test_every_role_has_a_service() -> None:
    assert {service["command"][0] for service in OWN.values()} == {"api", "gateway", "worker", "beat", "migrate"}


@pytest.mark.parametrize("name", [*OWN, "image"])
def test_every_variable_is_a_setting(name: str) -> None:
    environment = image_environment() if name == "image" else OWN[name]["environment"]
    known = {f"PALIMPSEST_{field}".upper() for field in (*Settings.model_fields, *FIELDS)}
    assert {variable for variable in environment if variable.startswith("PALIMPSEST_")} <= known
    others = {variable for variable in environment if not variable.startswith("PALIMPSEST_")}
    assert others <= {
        "ANTHROPIC_BASE_URL",
        "OPENAI_BASE_URL",
        "PATH",
        "PYTHONDONTWRITEBYTECODE",
        "PYTHONUNBUFFERED",
    }


@pytest.mark.parametrize("name", OWN)
def test_the_settings_of_a_service_are_valid_and_lead_to_the_other_services(
    name: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    for variable in [variable for variable in os.environ if variable.startswith("PALIMPSEST_")]:
        monkeypatch.delenv(variable)
    for variable, value in (image_environment() | OWN[name]["environment"]).items():
        if variable.startswith("PALIMPSEST_") and value is not None:
            monkeypatch.setenv(variable, interpolated(value))
    for source, file in secrets_of(name).items():
        (tmp_path / file).write_text(f"{source}/\n")
    settings = Settings(_secrets_dir=tmp_path)  # type: ignore[call-arg] # as /run/secrets
    assert settings.host == "0.0.0.0"  # noqa: S104 - a container listens on its own address
    url = urlsplit(settings.database_url.get_secret_value())
    login, secret = ("palimpsest", "database") if name == "migrate" else ("palimpsest_app", "service")
    assert (url.hostname, url.username, url.password) == ("postgres", login, f"palimpsest_{secret}_password%2F")
    assert urlsplit(settings.broker_url.get_secret_value()).hostname == "redis"


def test_only_what_asks_models_gets_the_model_keys() -> None:
    for key in ("anthropic_api_key", "openai_api_key"):
        assert {name for name in SERVICES if key in secrets_of(name)} == {*WORKERS, "gateway"}


def test_the_owners_login_is_the_migrations_alone() -> None:
    """Services log in as what the migration makes, which is no superuser and owns nothing."""
    assert {name for name in SERVICES if "palimpsest_database_password" in secrets_of(name)} == {"postgres", "migrate"}
    assert secrets_of("migrate")["palimpsest_service_password"] == "palimpsest_service_password"
    made = parse(SERVICES["migrate"]["command"])["service_login"]
    users = {
        urlsplit(OWN[name]["environment"]["PALIMPSEST_DATABASE_URL"]).username for name in OWN if name != "migrate"
    }
    assert users == {made}
    assert made != SERVICES["postgres"]["environment"]["POSTGRES_USER"]


def test_prometheus_finds_what_compose_starts() -> None:
    config = yaml.safe_load((ROOT / "deploy" / "prometheus" / "prometheus.yml").read_text())
    asked = {
        (name, each["port"])
        for job in config["scrape_configs"]
        for each in job.get("dns_sd_configs", [])
        for name in each["names"]
    }
    metrics = {name for name in OWN if OWN[name]["command"][0] in {"worker", "beat"}}
    ports = {name: int(OWN[name]["environment"]["PALIMPSEST_METRICS_PORT"]) for name in metrics}
    assert asked == {*ports.items(), ("gateway", Settings.model_fields["gateway_port"].default)}
    assert {OWN[name]["environment"]["PALIMPSEST_METRICS_HOST"] for name in metrics} == {"0.0.0.0"}  # noqa: S104
    (api,) = [each["targets"] for job in config["scrape_configs"] for each in job.get("static_configs", [])]
    assert api == [f"api:{Settings.model_fields['port'].default}"]


def test_every_secret_that_is_a_setting_can_come_from_a_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever is secret: settings that are added later have to hold to it as well."""
    fields = {name: field for name, field in Settings.model_fields.items() if "SecretStr" in str(field.annotation)}
    assert {"database_url", "database_password", "broker_url", "metrics_token"} <= set(fields)
    assert {"anthropic_api_key", "openai_api_key"} <= set(fields)
    for name, field in fields.items():
        alias = field.validation_alias
        variable = alias.choices[0] if isinstance(alias, AliasChoices) else f"PALIMPSEST_{name}"
        monkeypatch.delenv(str(variable).upper(), raising=False)
        scheme = {"database_url": "postgresql", "broker_url": "redis"}.get(name, "scheme")
        (tmp_path / str(variable).lower()).write_text(f"{scheme}://of-{name}/\n")
    settings = Settings(_secrets_dir=tmp_path)  # type: ignore[call-arg] # as /run/secrets
    for name in fields:
        assert getattr(settings, name).get_secret_value().endswith(f"://of-{name}/")


def test_a_password_of_its_own_leaves_a_url_that_has_one_alone() -> None:
    given = {"database_url": "postgresql://me:mine@db/x", "database_password": "other"}
    assert Settings(**given).database_url.get_secret_value() == given["database_url"]  # type: ignore[arg-type]
    socket = "postgresql:///x?host=/run/postgresql"
    assert Settings(database_url=socket, database_password="other").database_url.get_secret_value() == socket  # type: ignore[arg-type]


def test_every_secret_is_a_file_that_is_kept_out_of_the_repository_and_the_image() -> None:
    named = {secret for name in SERVICES for secret in secrets_of(name)}
    assert named == set(COMPOSE["secrets"])
    assert {Path(secret["file"]).parent for secret in COMPOSE["secrets"].values()} == {Path("secrets")}
    assert "secrets/" in (ROOT / ".gitignore").read_text().splitlines()
    assert "!secrets" not in (ROOT / ".dockerignore").read_text()


@pytest.mark.parametrize("name", SERVICES)
def test_every_service_has_bounds_on_memory_processes_and_logs(name: str) -> None:
    assert re.fullmatch(r"\d+[mg]", SERVICES[name]["mem_limit"])
    assert 0 < SERVICES[name]["pids_limit"] <= 256
    assert SERVICES[name]["logging"] == {"driver": "local", "options": {"max-size": "20m", "max-file": "5"}}


def test_a_summary_worker_may_have_a_thread_for_each_summary() -> None:
    assert SERVICES["worker-summaries"]["pids_limit"] > 2 * Settings.model_fields["summaries_concurrency"].default


def test_the_port_is_the_same_everywhere() -> None:
    port = Settings.model_fields["port"].default
    assert final_stage()["EXPOSE"] == [str(port)]
    (published,) = SERVICES["api"]["ports"]
    address, host_port, container_port = interpolated(published).split(":")
    assert (address, host_port, container_port) == ("127.0.0.1", str(port), str(port))
    (url,) = re.findall(r"http://[^']+", " ".join(SERVICES["api"]["healthcheck"]["test"]))
    assert urlsplit(url).port == port
    (of_gateway,) = SERVICES["gateway"]["ports"]
    own = str(Settings.model_fields["gateway_port"].default)
    assert interpolated(of_gateway) == f"127.0.0.1:{own}:{own}"


def test_health_checks_ask_paths_that_the_api_serves() -> None:
    from api.app import create_app  # noqa: PLC0415 - as above

    asked = {
        urlsplit(url).path
        for service in SERVICES.values()
        for url in re.findall(r"http://[^']+", " ".join(service.get("healthcheck", {}).get("test", [])))
    }
    assert asked == {"/readyz"}
    assert asked <= {route.path for route in create_app().routes}


def test_every_queue_is_served_by_one_service() -> None:
    served = [queue for service in WORKERS.values() for queue in queues(service)]
    assert sorted(served) == sorted(QUEUES)


@pytest.mark.parametrize("name", [name for name in OWN if name != "migrate"])
def test_a_process_is_given_the_time_its_shutdown_takes(name: str) -> None:
    grace = int(OWN[name]["stop_grace_period"].removesuffix("s"))
    assert grace >= celery_app(Settings(), "test").conf.worker_soft_shutdown_timeout + 15


def health_programs() -> dict[str, str]:
    """The Python source of every health check that is written in it, by service."""
    checks = {name: service["healthcheck"]["test"] for name, service in LONG_RUNNING.items()}
    return {name: test[3] for name, test in checks.items() if test[:3] == ["CMD", "python", "-c"]}


def test_health_checks_are_programs_whose_imports_exist() -> None:
    programs = health_programs()
    assert set(programs) == set(OWN) - {"migrate"}
    for source in programs.values():
        for node in ast.walk(ast.parse(source)):
            if isinstance(node, ast.ImportFrom):
                module = importlib.import_module(str(node.module))
                assert all(hasattr(module, alias.name) for alias in node.names)


def test_a_worker_is_healthy_as_long_as_its_heartbeat_is_fresh(tmp_path: Path, database_url: str) -> None:
    """The check of a worker fails rather than hangs or passes without one, and without a database."""
    (source,) = {health_programs()[name] for name in WORKERS}

    def check(url: str) -> int:
        environment = os.environ | {"PALIMPSEST_DATABASE_URL": url}
        command = [sys.executable, "-c", source]
        return subprocess.run(
            command, cwd=tmp_path, env=environment, capture_output=True, timeout=60, check=False
        ).returncode

    def beat(host: str, age: str) -> None:
        with psycopg.connect(database_url, autocommit=True) as connection:
            connection.execute(
                "insert into processes (id, kind, host, pid, queues, version, slots, seen_at)"
                " values (gen_random_uuid(), 'worker', %s, 1, '{checks}', '0', 1, now() - %s::interval)",
                (host, age),
            )

    assert check("postgresql://127.0.0.1:1/none") != 0
    beat("another", "0")
    beat(socket.gethostname(), "1 hour")
    assert check(database_url) == 1
    beat(socket.gethostname(), "0")
    assert check(database_url) == 0


@pytest.mark.parametrize("name", WORKERS)
def test_workers_scale_by_themselves(name: str) -> None:
    assert not {"container_name", "ports", "hostname"} & set(WORKERS[name])


@pytest.mark.parametrize("name", SERVICES)
def test_images_are_pinned(name: str) -> None:
    image = interpolated(SERVICES[name]["image"])
    if name in OWN:
        assert image == f"palimpsest:{PYPROJECT['project']['version']}"
    else:
        assert re.fullmatch(r"\w+:\d+@sha256:[0-9a-f]{64}", image)


def test_base_images_are_pinned_and_match_the_supported_python() -> None:
    images = [arguments.split()[0] for name, arguments in dockerfile() if name == "FROM"]
    assert set(images) == {"${BASE}"}
    (base,) = [arguments for name, arguments in dockerfile() if name == "ARG"]
    match = re.fullmatch(r"BASE=python:3\.(\d+)\.\d+-slim-\w+@sha256:[0-9a-f]{64}", base)
    assert match
    assert int(match[1]) >= int(PYPROJECT["project"]["requires-python"].removeprefix(">=3."))


def test_the_image_runs_as_a_numbered_user_who_is_not_root() -> None:
    assert final_stage()["USER"] == ["10001:10001"]


def test_the_image_carries_the_version_of_the_package() -> None:
    (version,) = re.findall(r'image\.version="([^"]+)"', final_stage()["LABEL"][0])
    assert version == PYPROJECT["project"]["version"]


def test_the_image_has_no_embedded_servers_and_no_compiler() -> None:
    text = " ".join(arguments for name, arguments in dockerfile() if name == "RUN")
    assert "embedded" not in text
    assert "apt-get" not in text
    environment = " ".join(arguments for name, arguments in dockerfile() if name == "ENV")
    assert "PIP_ONLY_BINARY=:all:" in environment
    assert all("--require-hashes" in line for line in re.findall(r"pip [^&]*--requirement \S+", text))
    assert len(re.findall(r"--requirement (\S+)", text)) == 2
    assert "RUN" not in final_stage()


def test_the_build_sees_what_the_wheel_is_made_of() -> None:
    lines = (ROOT / ".dockerignore").read_text().splitlines()
    allowed = {line.removeprefix("!") for line in lines if line.startswith("!")}
    packages = set(PYPROJECT["tool"]["hatch"]["build"]["targets"]["wheel"]["packages"])
    project = PYPROJECT["project"]
    assert allowed == packages | {
        project["readme"],
        *project["license-files"],
        "pyproject.toml",
        "requirements.txt",
        "requirements-build.txt",
        ".ci/sbom.py",
    }


@pytest.mark.parametrize("name", SERVICES)
def test_services_have_no_more_rights_than_they_need(name: str) -> None:
    service = SERVICES[name]
    assert service["read_only"] is True
    assert service["cap_drop"] == ["ALL"]
    assert service["security_opt"] == ["no-new-privileges:true"]
    assert "privileged" not in service
    assert name in OWN or service["user"] not in {"root", "0"}


@pytest.mark.parametrize("name", LONG_RUNNING)
def test_what_keeps_running_is_restarted_and_checked(name: str) -> None:
    assert LONG_RUNNING[name]["restart"] == "unless-stopped"
    assert LONG_RUNNING[name]["healthcheck"]["test"]


@pytest.mark.parametrize("name", [name for name in OWN if name != "migrate"])
def test_services_start_after_the_migration(name: str) -> None:
    assert OWN[name]["depends_on"]["migrate"] == {"condition": "service_completed_successfully"}


def test_the_migration_runs_once_when_the_database_is_ready() -> None:
    migrate = SERVICES["migrate"]
    assert migrate["restart"] == "no"
    assert migrate["depends_on"] == {"postgres": {"condition": "service_healthy"}}
    assert "pg_isready" in SERVICES["postgres"]["healthcheck"]["test"]
    assert int(SERVICES["postgres"]["image"].partition(":")[2].partition("@")[0]) >= 17


def test_the_broker_refuses_rather_than_evicts() -> None:
    command = SERVICES["redis"]["command"]
    assert command[command.index("--maxmemory-policy") + 1] == "noeviction"


def test_only_api_and_gateway_are_reachable_from_outside_and_only_what_needs_it_reaches_out() -> None:
    assert {name for name, service in SERVICES.items() if "ports" in service} == {"api", "gateway"}
    assert COMPOSE["networks"]["store"]["internal"] is True
    assert {name for name, service in SERVICES.items() if "outside" in service["networks"]} == {
        "api",
        "gateway",
        "worker-summaries",
    }


def test_no_secret_is_written_down() -> None:
    for service in SERVICES.values():
        for variable, value in service.get("environment", {}).items():
            assert not variable.endswith(("PASSWORD", "_KEY", "_TOKEN"))
            assert urlsplit(value or "").password is None


def test_docker_compose_accepts_the_file() -> None:
    program = shutil.which("docker-compose")
    if program is None:
        pytest.skip("docker-compose is not installed (package docker-compose; no engine needed)")
    environment = {
        "PATH": os.environ["PATH"],
        "HOME": os.environ.get("HOME", "/"),
    }
    command = [program, "--file", str(ROOT / "docker-compose.yml"), "config", "--quiet"]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
