"""A server for the models of this folder's tests, for whoever asks for one."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.support.servers.loopback_model import LoopbackModel

if TYPE_CHECKING:
    from collections.abc import Iterator


@pytest.fixture
def server() -> Iterator[LoopbackModel]:
    with LoopbackModel() as running:
        yield running
