"""What waits in rows of its own, for the sweep and housekeeping: neither has to load what does it."""

from __future__ import annotations

from typing import Final

from runtime.broker import DELIVER_TASK
from store.tenants import webhooks
from worker.sweeping.resending import Errand

ERRANDS: Final = (
    Errand(
        "webhooks",
        "webhook_deliveries",
        DELIVER_TASK,
        webhooks.due,
        webhooks.expire,
        lambda settings: settings.webhook_delivery_retention_days,
    ),
)
"""What waits in rows of its own, for the sweep and housekeeping."""
