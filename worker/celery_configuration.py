"""The application's configuration. It is a module of its own because Celery imports it when it is first needed."""

from __future__ import annotations

from typing import Any, Final

from runtime.broker import celery_settings
from runtime.settings import read_once

CONFIGURATION: Final[dict[str, Any]] = celery_settings(read_once())
