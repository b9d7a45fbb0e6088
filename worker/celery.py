"""The Celery application: `celery -A worker.celery worker`, `beat`, `inspect`, and Flower.

Its settings are `runtime.broker.celery_settings`, read from the environment when they are first needed.
"""

from __future__ import annotations

from typing import Final

from celery import Celery

app: Final = Celery("palimpsest", include=["worker.tasks", "worker.process.lifecycle"])
app.config_from_object("worker.celery_configuration:CONFIGURATION")
