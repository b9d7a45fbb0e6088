"""What `palimpsest doctor` finds about the summarizer: the workers' where they say it, else this environment's."""

from __future__ import annotations

from contextlib import suppress
from importlib.metadata import entry_points
from typing import TYPE_CHECKING, Final

from redis.exceptions import RedisError
from sqlalchemy.exc import SQLAlchemyError

from cli.doctor.findings import ok, problem, warning
from runtime.broker import SUMMARIES
from runtime.summarizers import SUMMARIZER_GROUP, SUMMARIZERS, provider_of
from store.engine import service_engine, transaction
from store.operations import diagnosis
from store.operations.processes import MISSED_BEATS

if TYPE_CHECKING:
    from collections.abc import Iterator

    from cli.doctor.findings import Finding
    from runtime.settings import Settings
    from runtime.summarizers import Provider
    from store.operations.diagnosis import ProcessSeen

_ANSWER_SECONDS: Final = 30.0
_NO_KEY: Final = "the API refuses calls without a key, and every summary falls back to a lower rung"


def summarizer_findings(settings: Settings) -> Iterator[Finding]:
    """Yield what summaries are made with; of this environment only where no worker that is alive says it."""
    if workers := [each for each in _workers(settings) if each.summarizer is not None]:
        yield _of_workers(workers)
    else:
        yield _of_settings(settings)
    asked = _asked(workers) if workers else _asked_here(settings)
    here = {provider for provider in asked if settings.model_access(provider).is_open}
    for provider in sorted(here):
        yield _breaker(settings, provider)
    if workers and asked - here:
        yield from _breaker_of_workers(settings)


def model_findings(settings: Settings) -> Iterator[Finding]:
    """Ask the model one short question, and yield what came of it."""
    from worker.parts import choose_model  # noqa: PLC0415 - only where a model is asked
    from worker.summarizers.base import SummaryError  # noqa: PLC0415 - as above

    quick = {"summarizer_deadline_seconds": _ANSWER_SECONDS, "breaker_failures": 0}
    make_model = choose_model(settings.model_copy(update=quick))
    if make_model is None:
        yield _not_asked(settings)
        return
    key = str(settings.chosen_provider).upper()
    try:
        answer = make_model().ask("Answer with one word.", "Say: ready", max_tokens=16)
    except SummaryError as error:
        yield problem(
            "model",
            f"{settings.chosen_model} gave no answer: {error}",
            why="every summary falls back to a lower rung",
            mend=f"check {key}_API_KEY, {key}_BASE_URL, PALIMPSEST_SUMMARIZER_MODEL and the network",
        )
        return
    read, written = answer.spent.input_tokens, answer.spent.output_tokens
    tokens = "tokens not told" if read is None or written is None else f"{read:,} + {written:,} tokens"
    yield ok("model", f"{settings.chosen_model} answers ({tokens})")


def _not_asked(settings: Settings) -> Finding:
    workers = _workers(settings)
    if not (asked := _asked(workers)):
        return ok("model", "no model is asked for summaries")
    names = " and ".join(sorted({repr(each.summarizer) for each in workers if provider_of(str(each.summarizer))}))
    variables = " and ".join(f"{provider.upper()}_API_KEY" for provider in sorted(asked))
    return warning(
        "model",
        f"the workers have {names}, this environment has not: no model was asked",
        why="whether it answers them is not known",
        mend=f"run palimpsest doctor --model where a worker for summaries runs, or with its {variables} and "
        "PALIMPSEST_SUMMARIZER",
    )


def _asked(workers: list[ProcessSeen]) -> set[Provider]:
    return {provider for each in workers if (provider := provider_of(str(each.summarizer))) is not None}


def _asked_here(settings: Settings) -> set[Provider]:
    provider = provider_of(settings.chosen_summarizer)
    return set() if provider is None else {provider}


def _workers(settings: Settings) -> list[ProcessSeen]:
    """Return the workers for summaries that are alive, none where the database cannot be asked."""
    engine = service_engine(settings, "doctor")
    try:
        with transaction(engine, None) as connection:
            seen = diagnosis.processes_seen(connection)
    except SQLAlchemyError:
        return []
    finally:
        engine.dispose()
    patience = settings.heartbeat_seconds * MISSED_BEATS
    return [each for each in seen if SUMMARIES in each.queues and each.seen_seconds <= patience]


def _of_workers(workers: list[ProcessSeen]) -> Finding:
    ways = sorted({f"{each.summarizer!r}" + (f" with {each.model}" if each.model else "") for each in workers})
    if len(ways) > 1:
        where = "; ".join(f"{each.host}:{each.pid} has {each.summarizer!r}" for each in workers)
        return warning(
            "summarizer",
            f"workers make summaries in different ways: {where}",
            why="which one a summary comes from is left to chance",
            mend="give all workers for summaries the same PALIMPSEST_SUMMARIZER and model",
        )
    if workers[0].summarizer == "none":
        return _none("the workers have no summarizer")
    return ok("summarizer", f"summaries are made by {ways[0]}, as {len(workers):,} of the workers say")


def _none(what: str) -> Finding:
    return warning(
        "summarizer",
        what,
        why="over the threshold, the oldest exchanges are dropped instead of summarized",
        mend="set PALIMPSEST_SUMMARIZER to another one, or leave it out",
    )


def _of_settings(settings: Settings) -> Finding:
    name, here = settings.chosen_summarizer, "by this environment, as no worker says"
    provider = settings.chosen_provider
    if name == "none":
        return _none(f"there is no summarizer ({here})")
    if name not in SUMMARIZERS:
        return _installed(name)
    if provider is None:
        by_itself = "" if settings.summarizer else ", because ANTHROPIC_API_KEY is not set"
        return ok("summarizer", f"summaries are made by {name!r}, without a model{by_itself} ({here})")
    key = f"{provider.upper()}_API_KEY"
    if not settings.model_access(provider).is_open:
        return problem(
            "summarizer",
            f"{name!r} is chosen, and {key} is not set ({here})",
            why=_NO_KEY,
            mend=f"set {key}, or PALIMPSEST_SUMMARIZER=extractive",
        )
    if provider == "openai" and settings.openai_base_url and not settings.summarizer_model:
        return warning(
            "summarizer",
            f"{settings.openai_base_url} is asked for {settings.chosen_model}, since no model is named ({here})",
            why="servers of one's own have models of other names, and refuse this one",
            mend="set PALIMPSEST_SUMMARIZER_MODEL to a name that the server has",
        )
    return ok("summarizer", f"summaries are made by {name!r} with {settings.chosen_model} ({here})")


def _installed(name: str) -> Finding:
    (entry_point,) = entry_points(group=SUMMARIZER_GROUP, name=name)
    try:
        entry_point.load()
    except Exception as error:  # noqa: BLE001 - whatever another package does wrong
        return problem(
            "summarizer",
            f"the summarizer {name!r} cannot be loaded: {type(error).__name__}: {error}",
            why="every summary falls back to a lower rung",
            mend=f"repair the package that brings {entry_point.value}",
        )
    return ok("summarizer", f"summaries are made by {name!r}, of {entry_point.value}")


def _breaker(settings: Settings, provider: Provider) -> Finding:
    from worker.summarizers.breaker import CircuitBreaker  # noqa: PLC0415 - only where a model is asked

    return _circuit(CircuitBreaker.of(settings, provider).seconds_left())


def _breaker_of_workers(settings: Settings) -> Iterator[Finding]:
    """Yield how the workers' circuit is where their key is not known here; nothing where Redis does not tell."""
    from worker.summarizers.breaker import longest_wait  # noqa: PLC0415 - only where a model is asked

    with suppress(RedisError, OSError):
        yield _circuit(longest_wait(settings))


def _circuit(left: float) -> Finding:
    if left:
        return warning(
            "breaker",
            f"the model is not asked for another {left:,.0f} s",
            why="it failed several times in a row, or refused the key: summaries fall back to a lower rung meanwhile",
            mend="palimpsest runs --state failed names the reasons; palimpsest doctor --model asks it once",
        )
    return ok("breaker", "the model may be asked")
