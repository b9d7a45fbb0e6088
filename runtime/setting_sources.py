"""Where settings are read from: variables and files, whose texts may be no JSON where they should be."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from pydantic_settings import EnvSettingsSource, PydanticBaseSettingsSource, SecretsSettingsSource

if TYPE_CHECKING:
    from pydantic.fields import FieldInfo
    from pydantic_settings import BaseSettings


class _AsWritten(PydanticBaseSettingsSource):
    """What should be JSON and is none stays a text, so that it is told with all else that is wrong."""

    def decode_complex_value(self, field_name: str, field: FieldInfo, value: Any) -> Any:
        """Return the value that a text states."""
        try:
            return super().decode_complex_value(field_name, field, value)
        except ValueError:
            return value


class _Environment(_AsWritten, EnvSettingsSource):
    """Variables."""


class _Secrets(_AsWritten, SecretsSettingsSource):
    """Files."""


def as_written(settings: type[BaseSettings], secrets: PydanticBaseSettingsSource) -> tuple[_Environment, _Secrets]:
    """Return the variables and the files of settings, in the order in which they count; `secrets` knows the folder."""
    assert isinstance(secrets, SecretsSettingsSource)  # noqa: S101 - what pydantic makes
    return _Environment(settings), _Secrets(settings, secrets.secrets_dir)
