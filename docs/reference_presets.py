#!/usr/bin/env python3
"""Prints docs/reference-presets.md from the presets; `make docs` writes the file."""

from __future__ import annotations

import sys
from typing import Final

from compaction.policy import Policy
from compaction.presets import preset
from compaction.windows import WINDOWS

SIZES: Final = (16_000, 32_000, 100_000, 200_000, 500_000, 1_000_000)
"""Tokens: the smallest window there may be, the smallest without a warning, and those of models."""

HEADER: Final = """\
# Presets by window

What `policy_preset` sets for a model's context window: `{"policy_preset": "claude-sonnet-5-5"}`, `"200k"`, or `"auto"`
for the window of the conversation's own model. The window of 200,000 tokens has the defaults.
`GET /v1/policy-presets/{window_or_model}` answers with any other. [policies.md](policies.md) says what each key does.
`make docs` writes this page.

"""

MODELS_HEADER: Final = """
Every key that is not in the table is the same whatever the window.

## Windows that are known

By the beginning of a model's name; names that clouds and gateways give to models are understood, and a size in the name
itself (`[1m]`, `:200k`) wins. A model that is not here has what `model_context_tokens` says, and so should one whose
server was started with less than its weights allow.

| model | tokens |
|---|---:|
"""


def page() -> str:
    """Return the page."""
    presets = {size: preset(size) for size in SIZES}
    keys = [key for key in Policy.__struct_fields__ if key in presets[SIZES[0]]]
    head = "| key | " + " | ".join(f"{size:,}" for size in SIZES) + " |\n|---|" + "---:|" * len(SIZES) + "\n"
    rows = [f"| `{key}` | " + " | ".join(f"{presets[size][key]:,}" for size in SIZES) + " |\n" for key in keys]
    models = [f"| `{model}` | {tokens:,} |\n" for model, tokens in WINDOWS.items()]
    return HEADER + head + "".join(rows) + MODELS_HEADER + "".join(models)


if __name__ == "__main__":
    sys.stdout.write(page())
