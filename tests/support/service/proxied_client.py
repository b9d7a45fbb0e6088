"""The Python client behind a proxy that can go wrong; import the fixtures into a test module to use them."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from palimpsest_client import Client

from tests.support.servers.faulty_proxy import FaultyProxy, faulty_proxy

if TYPE_CHECKING:
    from collections.abc import Iterator

    from palimpsest_client import Context

    from tests.support.service.running_api import Service


@pytest.fixture
def key(service: Service) -> str:
    return str(service.client.headers["authorization"]).removeprefix("Bearer ")


@pytest.fixture
def proxy(service: Service) -> Iterator[FaultyProxy]:
    with faulty_proxy(service.api.url) as made:
        yield made


@pytest.fixture
def client(proxy: FaultyProxy, key: str) -> Iterator[Client]:
    with Client(proxy.url, key) as made:
        yield made


@pytest.fixture
def conversation(service: Service) -> str:
    return service.conversation().rpartition("/")[2]


def labels(context: Context) -> list[str]:
    return [message["content"].partition(":")[0] for message in context.messages]
