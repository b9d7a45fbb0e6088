"""`palimpsest migrate`: the schema brought up to date, and the login of the services with it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from alembic.util import CommandError
from sqlalchemy.exc import DBAPIError, SQLAlchemyError

from cli.failures import database_fault
from cli.output import failed, noted
from migrations.run import NEWEST, NewerSchemaError, Upgrade, downgrade, is_past, upgrade
from store.engine import owner_engine
from store.tenants.logins import LoginError, keep_login

if TYPE_CHECKING:
    from runtime.settings import Settings


def run_migrate(settings: Settings, revision: str, service_login: str | None, *, back: bool) -> int:
    """Migrate, and say what was done; 1 if that could not be.

    A schema of a newer release is left as it is, and is no failure: services of the release before work with it, and
    who goes back to them has this come before them.
    `service_login` is made, or given its password of the settings, in the end: the role that it takes on comes with the
    schema.
    """
    url = settings.database_url.get_secret_value()
    if service_login is not None and settings.service_password is None:
        return failed("--service-login needs its password, as PALIMPSEST_SERVICE_PASSWORD or as a file", code=2)
    if back and revision in {NEWEST, "base"}:
        return failed("--back needs the revision to go back to", code=2)
    try:
        done = downgrade(url, revision) if back else _upgrade(url, revision)
        print(_describe(done))  # noqa: T201 - the command's output
        if service_login is not None and settings.service_password is not None:
            role = settings.database_role or "palimpsest_service"
            is_new = _login(url, service_login, settings.service_password.get_secret_value(), role)
            print(f"The login {service_login} {'is new' if is_new else 'was there'}; it may act as {role}.")  # noqa: T201 - the same
    except SQLAlchemyError as error:
        reason = database_fault(error) if isinstance(error, DBAPIError) else type(error).__name__
        return failed(f"the database could not be migrated: {reason}")
    except CommandError as error:
        return failed(f"the schema cannot be brought to {revision!r}: {error}")
    except LoginError as error:
        return failed(str(error))
    return 0


def _upgrade(url: str, revision: str) -> Upgrade:
    try:
        done = upgrade(url, revision)
    except NewerSchemaError as error:
        if revision != NEWEST:
            raise
        noted(f"{error}; it is left as it is, and services of the release before that one work with it")
        return Upgrade(error.revision, error.revision, [])
    if is_past(done, revision):
        raise CommandError(f"it is at {done.after}, past that; with --back it goes back")
    return done


def _describe(done: Upgrade) -> str:
    if not done.steps:
        return f"The schema is at revision {done.after}: nothing to do."
    began = "was empty" if done.before is None else f"was at revision {done.before}"
    ends = "is empty" if done.after is None else f"is at {done.after}"
    return "\n".join([f"The schema {began} and {ends}:", *(f"  {step.revision}  {step.what}" for step in done.steps)])


def _login(url: str, name: str, password: str, role: str) -> bool:
    engine = owner_engine(url)
    try:
        with engine.begin() as connection:
            return keep_login(connection, name, password, role)
    finally:
        engine.dispose()
