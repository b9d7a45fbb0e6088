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
        items = [(each.check, each.state) for each in gateway_findings(named)]
    assert items == [("gateway_tenants", "warning"), ("gateway_upstreams", "ok"), ("gateway_upstreams", "problem")]
    assert list(gateway_findings(settings.model_copy(update={"gateway_upstreams": {}, "gateway_tenants": {}}))) == []


def test_those_of_the_sdks_variables_are_reached_unless_others_take_their_place() -> None:
    settings = Settings(database_url=SecretStr("postgresql://localhost/none"))
    away = "http://127.0.0.1:1/v1"
    with LoopbackProviders() as providers:
        usual = {"anthropic_base_url": providers.url, "openai_base_url": away}
        named = settings.model_copy(update=usual)
        states = {each.what: (each.state, each.mend) for each in gateway_findings(named)}
        assert [state for state, _ in states.values()] == ["ok", "problem"]
        assert states[f"the provider at {away} can't be reached: ConnectError"][1] == (
            "correct OPENAI_BASE_URL, or check the network"
        )
        there = Upstream(base_url=providers.url)
        one = named.model_copy(update={"gateway_upstreams": {"chat": there}})
        assert [each.state for each in gateway_findings(one)] == ["ok", "problem"]
        every = named.model_copy(update={"gateway_upstreams": {"chat": there, "responses": there}})
        assert [each.state for each in gateway_findings(every)] == ["ok"]
