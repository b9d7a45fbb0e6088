"""What the image promises, shown without an engine: a read-only root, no capabilities, nothing but /tmp to write to."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.support.eventually import eventually
from tests.support.places import ROOT
from tests.support.processes import product
from tests.support.talk import exchanges

if TYPE_CHECKING:
    from tests.conftest import Tenant
    from tests.support.processes import Product

__all__ = ["product"]

READ_ONLY = ROOT / "tests/support/service/read_only.py"


@pytest.fixture
def confined(product: Product) -> Product:
    """The product's processes with a read-only root."""
    if subprocess.run([sys.executable, str(READ_ONLY)], check=False).returncode:
        pytest.skip("this machine allows no mount namespace (unshare, setpriv)")
    product.program = [str(READ_ONLY)]
    return product


@pytest.mark.slow
def test_every_service_works_with_a_read_only_root_and_no_capabilities(confined: Product, tenant: Tenant) -> None:
    command = [sys.executable, str(READ_ONLY), "migrate"]
    migrated = subprocess.run(command, env=confined.env, capture_output=True, text=True, check=False)
    assert migrated.returncode == 0, migrated.stderr
    policy = {"input_token_budget": 0, "compaction_threshold_tokens": 4_000, "min_savings_tokens": 100}
    with (
        confined.worker("beat") as sweeper,
        confined.worker("checks") as checks,
        confined.worker("summaries") as summaries,
        confined.api() as api,
        api.client(tenant.key) as client,
    ):
        response = client.post("/v1/conversations", json={"policy": policy})
        assert response.status_code == 201, response.text
        path = f"/v1/conversations/{response.json()['id']}"
        done = client.post(f"{path}/turns", json={"messages": exchanges(12, 200)})
        assert done.status_code == 201, done.text
        before = client.get(f"{path}/context").json()["messages"]
        eventually(lambda: len(client.get(f"{path}/context").json()["messages"]) < len(before), 90)
        processes = [sweeper, checks, summaries, api]
        assert [each.process.poll() for each in processes] == [None] * 4
        assert [each.log.name for each in processes if "Read-only file system" in each.log.read_text()] == []
        for process in processes:
            status = Path(f"/proc/{process.process.pid}/status").read_text()
            assert "CapBnd:\t0000000000000000" in status
            assert "NoNewPrivs:\t1" in status
