"""`palimpsest migrate`: the schema brought up to date, and the login of the services with it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from alembic.util import CommandError
from sqlalchemy.exc import DBAPIError, SQLAlchemyError

from cli.failures import database_fault
from cli.output import failed, noted
from migrations.run import NEWEST, NewerSchemaError, UnknownRevisionError, Upgrade, is_past, upgrade
from store.engine import owner_engine
from store.tenants.logins import LoginError, keep_login

if TYPE_CHECKING:
    from runtime.settings import Settings


def run_migrate(settings: Settings, revision: str, service_login: str | None) -> int:
    """Migrate the database and print the steps; return 1 for a failure.

    A schema of a newer release is left as it is and is no failure: services of this release work with it, and a
    deployment of an older release runs this command first. `service_login` is created, or given its password of the
    settings, at the end, because the schema creates its role.
    """
    url = settings.database_url.get_secret_value()
    if service_login is not None and settings.service_password is None:
        return failed("--service-login needs its password, as PALIMPSEST_SERVICE_PASSWORD or as a file", code=2)
    try:
        done = _upgrade(url, revision)
        print(_describe(done))  # noqa: T201 - the command's output
        if service_login is not None and settings.service_password is not None:
            role = settings.database_role or "palimpsest_service"
            is_new = _login(url, service_login, settings.service_password.get_secret_value(), role)
            told = f"The login {service_login} {'is new' if is_new else 'was there'}; it may act as {role}."
            print(told)  # noqa: T201 - the same
    except SQLAlchemyError as error:
        reason = database_fault(error) if isinstance(error, DBAPIError) else type(error).__name__
        return failed(f"the database could not be migrated: {reason}")
    except UnknownRevisionError as error:
        return failed(str(error), code=2)
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
        raise CommandError(f"it is at {done.after}, past that, and no schema goes back")
    return done


def _describe(done: Upgrade) -> str:
    if not done.steps:
        return f"The schema is at revision {done.after}: nothing to do."
    began = "was empty" if done.before is None else f"was at revision {done.before}"
    steps = [f"  {step.revision}  {step.what}" for step in done.steps]
    return "\n".join([f"The schema {began} and is at {done.after}:", *steps])


def _login(url: str, name: str, password: str, role: str) -> bool:
    engine = owner_engine(url)
    try:
        with engine.begin() as connection:
            return keep_login(connection, name, password, role)
    finally:
        engine.dispose()
