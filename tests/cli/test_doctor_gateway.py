"""What the doctor says of the providers that a gateway passes requests on to."""

from __future__ import annotations

from pydantic import SecretStr

from cli.doctor.gateway import gateway_findings
from runtime.settings import Settings, Upstream
from tests.support.servers.loopback_providers import LoopbackProviders


def test_providers_are_reached() -> None:
    settings = Settings(database_url=SecretStr("postgresql://localhost/none"))
    with LoopbackProviders() as providers:
        there = Upstream(base_url=providers.url)
        own = {"ten_of_nobody": {"chat": Upstream(base_url="http://127.0.0.1:1/v1")}}
        named = settings.model_copy(update={"gateway_upstreams": {"messages": there}, "gateway_tenants": own})
        found = [(each.check, each.state) for each in gateway_findings(named)]
    assert found == [("gateway_tenants", "warning"), ("gateway_upstreams", "ok"), ("gateway_upstreams", "problem")]
    assert list(gateway_findings(settings.model_copy(update={"gateway_upstreams": {}, "gateway_tenants": {}}))) == []
