"""Credentials of every kind, made up at run time so that no scanner of repositories takes them for real ones."""

from __future__ import annotations

import base64
from typing import Final

ALNUM: Final = "x9ZkQ2mB7tWc4LpR8vNd3HsJ6yGf1KaTe5Ub0XoIiDqEwSzVhYnMjPlCrFgOuA"
HEX: Final = "3f9c1e7ab04d5862"


def mixed(count: int) -> str:
    """Return letters and digits."""
    return (ALNUM * (count // len(ALNUM) + 1))[:count]


def hexadecimal(count: int) -> str:
    """Return hexadecimal digits."""
    return (HEX * (count // len(HEX) + 1))[:count]


_LINE: Final = base64.b64encode(bytes(range(48))).decode()
BODY: Final = "\n".join([_LINE] * 5)
PEM: Final = f"-----BEGIN {'PRIVATE KEY'}-----\n{BODY}\n-----END {'PRIVATE KEY'}-----"
RSA: Final = PEM.replace(" PRIVATE", " RSA PRIVATE")
PASSWORD: Final = "hunter2-Tr0ub4dor"
JWT: Final = ".".join(("eyJ" + "hbGciOiJIUzI1NiJ9", "eyJ" + "zdWIiOiIxIiwiaWF0IjoxfQ", mixed(43)))
CARD: Final = "4111 1111 1111 1111"
AWS_SECRET: Final = "wJalrXUtnFEMI/K7MDENG/" + "bPxRfiCYzEXAMPLEKE"

TOKENS: Final[dict[str, str]] = {
    "anthropic key": "sk-ant-" + "api03-" + mixed(60),
    "openai key": "sk-" + "proj-" + mixed(48),
    "api key": "sk-" + mixed(48),
    "openrouter key": "sk-or-" + "v1-" + hexadecimal(64),
    "hugging face token": "hf_" + mixed(34),
    "groq key": "gsk_" + mixed(52),
    "xai key": "xai-" + mixed(80),
    "perplexity key": "pplx-" + mixed(48),
    "aws key": "AKIA" + "Q7ZXJ4LMN2OPR5TU",
    "google key": "AIza" + mixed(35),
    "google token": "ya29." + mixed(60),
    "google secret": "GOCSPX-" + mixed(28),
    "github token": "ghp_" + mixed(36),
    "gitlab token": "glpat-" + mixed(20),
    "npm token": "npm_" + mixed(36),
    "pypi token": "pypi-" + "AgEIcHlwaS5vcmc" + mixed(60),
    "stripe key": "sk_" + "live_" + mixed(24),
    "webhook secret": "whsec_" + mixed(32),
    "slack token": "xoxb-" + "123456789012-1234567890123-" + mixed(24),
    "discord token": "M" + mixed(25) + "." + mixed(6) + "." + mixed(38),
    "telegram token": "123456789:" + "AA" + mixed(33),
    "twilio key": "SK" + hexadecimal(32),
    "sendgrid key": "SG." + mixed(22) + "." + mixed(43),
    "digitalocean token": "dop_v1_" + hexadecimal(64),
    "databricks token": "dapi" + hexadecimal(32),
    "vault token": "hvs." + mixed(24),
    "linear key": "lin_api_" + mixed(40),
    "notion token": "ntn_" + mixed(46),
    "grafana token": "glsa_" + mixed(32) + "_" + hexadecimal(8),
    "shopify token": "shpat_" + hexadecimal(32),
    "atlassian token": "ATATT3xFfGF0" + mixed(180),
    "docker token": "dckr_pat_" + mixed(27),
    "azure secret": "abc8Q~" + mixed(34),
    "jwt": JWT,
    "private key": PEM,
}
"""A token of each of the usual vendors, by the kind that a mask names."""
