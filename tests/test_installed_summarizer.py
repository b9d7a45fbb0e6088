"""A summarizer of another package, found by its entry point: the example in docs/examples/summarizer."""

from __future__ import annotations

import tomllib
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from pydantic import ValidationError

from store.settings import SUMMARIZER_GROUP, Settings
from tests.in_process import Chat, Workers
from tests.talk import exchanges

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.conftest import Tenant

EXAMPLE = Path(__file__).parent.parent / "docs" / "examples" / "summarizer"


@pytest.fixture
def installed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Put the example where an installer would: its module, and the metadata that names its entry points."""
    project = tomllib.loads((EXAMPLE / "pyproject.toml").read_text())["project"]
    metadata = tmp_path / f"{project['name'].replace('-', '_')}-{project['version']}.dist-info"
    metadata.mkdir()
    (metadata / "METADATA").write_text(f"Name: {project['name']}\nVersion: {project['version']}\n")
    named = project["entry-points"][SUMMARIZER_GROUP]
    entries = "\n".join(f"{name} = {value}" for name, value in named.items())
    (metadata / "entry_points.txt").write_text(f"[{SUMMARIZER_GROUP}]\n{entries}\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.syspath_prepend(str(EXAMPLE))


@pytest.mark.usefixtures("installed")
def test_the_example_summarizes(make_settings: Callable[..., Settings], tenant: Tenant) -> None:
    with Chat(make_settings(summarizer="first-words"), tenant.id) as chat:
        conversation = chat.begin({"input_token_budget": 0})
        chat.append(conversation, exchanges(12, 200))
        Workers(chat).settle(conversation)
        run = chat.run(conversation)
        assert (run.state, run.reason) == ("committed", None)
        assert chat.steps(run.id)[-1].summarizer == "first-words"
        first, *_ = chat.valid_context(conversation)
        assert "user: request 3: lorem ipsum dolor sit amet lorem" in first["content"]


def test_a_summarizer_that_is_not_installed_is_refused_with_those_that_are() -> None:
    with pytest.raises(ValidationError, match="there are anthropic, anthropic-native, extractive, none"):
        Settings(summarizer="first-words")
