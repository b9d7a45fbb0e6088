"""deploy/failover against docker-compose.yml and the code: what its URLs name has to exist, and be meant."""

from __future__ import annotations

import re
from typing import Any, Final

import yaml

from runtime.addresses.database_url import hosts_of
from runtime.addresses.redis_clients import sentinels_of
from tests.support.places import ROOT
from tests.system.test_deployment import OWN, SERVICES

EXAMPLE: Final[dict[str, Any]] = yaml.safe_load((ROOT / "deploy" / "failover" / "docker-compose.yml").read_text())
ADDED: Final[dict[str, dict[str, Any]]] = {
    name: service for name, service in EXAMPLE["services"].items() if name not in SERVICES
}
STORES: Final = {name for name in (*SERVICES, *ADDED) if name not in OWN}


def environment(name: str) -> dict[str, str]:
    """What a service gets, with what the example says over what docker-compose.yml does."""
    return {**OWN[name]["environment"], **EXAMPLE["services"][name].get("environment", {})}


def test_every_service_of_ours_is_told_of_both_databases() -> None:
    for name in OWN:
        urls = hosts_of(environment(name)["PALIMPSEST_DATABASE_URL"])
        assert [url.host for url in urls] == ["postgres", "postgres-standby"]
        assert {url.query["target_session_attrs"] for url in urls} == {"read-write"}
        (before,) = hosts_of(OWN[name]["environment"]["PALIMPSEST_DATABASE_URL"])
        assert {(url.username, url.database) for url in urls} == {(before.username, before.database)}
    assert {"postgres", "postgres-standby"} <= STORES


def test_every_service_of_ours_asks_all_sentinels_for_the_master_that_they_watch() -> None:
    watching = {name for name in ADDED if name.startswith("sentinel-")}
    for name in set(OWN) - {"migrate"}:
        of = sentinels_of(environment(name)["PALIMPSEST_BROKER_URL"])
        assert of is not None
        assert {host for host, _ in of.places} == watching
        for sentinel in watching:
            monitored = re.search(r"sentinel monitor (\S+) (\S+) 6379 (\d+)", ADDED[sentinel]["command"][-1])
            assert monitored is not None
            assert monitored[1] == of.master_name
            assert monitored[2] in STORES
            assert int(monitored[3]) > len(watching) / 2


def test_what_takes_over_is_as_what_it_takes_over_from() -> None:
    confined = ("user", "read_only", "tmpfs", "cap_drop", "security_opt", "pids_limit", "mem_limit")
    kept = ("image", *confined, "networks", "logging")
    for other, one in (("postgres-standby", "postgres"), ("redis-replica", "redis")):
        assert {key: ADDED[other].get(key) for key in kept} == {key: SERVICES[one].get(key) for key in kept}
    before = SERVICES["redis"]["command"][1:]
    assert " ".join(before) in " ".join(ADDED["redis-replica"]["command"])


def test_whatever_is_added_is_confined_and_has_a_health_check() -> None:
    for service in ADDED.values():
        assert service["read_only"] is True
        assert service["cap_drop"] == ["ALL"]
        assert service["networks"] == ["store"]
        assert service["healthcheck"]["test"][0] == "CMD"
