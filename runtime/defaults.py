"""Defaults of settings that are known before there are settings."""

from __future__ import annotations

from typing import Final

SERVICE_ROLE: Final = "palimpsest_service"
"""The role that services act in."""
GATEWAY_PORT: Final = 8081
"""Where the gateway listens."""
