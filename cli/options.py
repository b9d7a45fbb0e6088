"""Options that several commands take, and what they mean."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Annotated, Any, Final, NamedTuple

import typer

if TYPE_CHECKING:
    from collections.abc import Sequence

    from runtime.settings import Settings

RUN: Final = "Run the service"
CONVERSATIONS: Final = "Look at conversations, and go back"
OPERATE: Final = "Operate an installation"
"""Panels of `palimpsest --help`."""


def _presentable(key: str | None) -> str | None:
    """Return a key without the line break of the file that it was read from; end with 2 for what no header may have."""
    key = key and key.strip()
    if key and not (key.isascii() and key.isprintable()):
        raise typer.BadParameter("it has characters that no key has")
    return key


Json = Annotated[bool, typer.Option("--json", help="Print JSON instead of a table.")]
Url = Annotated[str | None, typer.Option(envvar="PALIMPSEST_URL", help="Where the API is.")]
Key = Annotated[str | None, typer.Option(envvar="PALIMPSEST_KEY", help="The API key to use.", callback=_presentable)]
Yes = Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")]
Conversation = Annotated[str, typer.Argument(help="Id of the conversation, as conv_….", show_default=False)]
TenantName = Annotated[str | None, typer.Option(help="Name of the tenant; without it, all.")]


class Service(NamedTuple):
    """An API and the key to ask it with."""

    url: str
    key: str


def service(url: str | None, key: str | None) -> Service:
    """Return where to ask; end with 2 if that is not known. Retries are not logged from here on."""
    import stamina.instrumentation  # noqa: PLC0415 - commands that ask no API need it not

    if url is None or key is None:
        raise typer.BadParameter("give --url and --key, or set PALIMPSEST_URL and PALIMPSEST_KEY")
    if not url.startswith(("http://", "https://")):
        raise typer.BadParameter(f"{url!r} does not begin with http:// or https://", param_hint="--url")
    stamina.instrumentation.set_on_retry_hooks([])
    return Service(address_of(url), key)


def address_of(url: str) -> str:
    """Return where the API is, also where the URL of its calls is given, with `/v1`."""
    return url.rstrip("/").removesuffix("/v1")


def read_settings() -> Settings:
    """Return the settings, with logging set up by them; end with 2 if one is impossible."""
    from runtime.log import configure_logging  # noqa: PLC0415 - commands that ask the API need neither

    settings, wrong, _ = settings_as_far_as_they_go()
    if settings is None or wrong:
        for reason in wrong:
            print(f"palimpsest: {reason}", file=sys.stderr)  # noqa: T201
        raise typer.Exit(2)
    configure_logging(settings)
    return settings


class Reading(NamedTuple):
    """Settings with the default in the place of what is impossible, all that is, a line each, and its fields."""

    settings: Settings | None
    """None where no default helps."""
    wrong: Sequence[str]
    fields: frozenset[str]


def settings_as_far_as_they_go() -> Reading:
    """Read the settings, and find all that is wrong with them: some of it shows only once the rest holds."""
    # Loading them takes longer than most commands that ask the API, which have none.
    from pydantic import ValidationError  # noqa: PLC0415

    from runtime.settings import Settings, read_once  # noqa: PLC0415

    wrong: list[str] = []
    defaults: dict[str, Any] = {}
    while True:
        try:
            return Reading(Settings(**defaults) if defaults else read_once(), wrong, frozenset(defaults))
        except ValidationError as error:
            messages = [
                f"{'.'.join(map(str, detail['loc'])) or 'settings'}: {detail['msg']}" for detail in error.errors()
            ]
            wrong += [each for each in messages if each not in wrong]
            fields = {str(detail["loc"][0]) for detail in error.errors() if detail["loc"]} & set(Settings.model_fields)
            if not fields - set(defaults):
                return Reading(None, wrong, frozenset(defaults))
            defaults |= {name: Settings.model_fields[name].get_default(call_default_factory=True) for name in fields}
