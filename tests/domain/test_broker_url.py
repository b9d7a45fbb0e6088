"""Which Redis, or which Sentinels, a broker's URL names."""

from __future__ import annotations

import pytest
from pydantic import SecretStr

from runtime.addresses.redis_clients import check_broker_url, redis_client, sentinels_of
from runtime.broker import celery_app
from runtime.settings import Settings

SEVERAL = "sentinel://user:p%40ss@one:26380,[::1],three/2?master_name=main&sentinel_password=other"


@pytest.mark.parametrize("url", ["redis://localhost:6379/0", "rediss://user:x@one/1?ssl_cert_reqs=required"])
def test_a_redis_itself_has_no_sentinels(url: str) -> None:
    check_broker_url(url)
    assert sentinels_of(url) is None


def test_sentinels_have_a_password_of_their_own() -> None:
    check_broker_url(SEVERAL)
    of = sentinels_of(SEVERAL)
    assert of is not None
    assert of.places == (("one", 26380), ("::1", 26379), ("three", 26379))
    assert (of.master_name, of.own) == ("main", {"password": "other"})
    assert of.redis == {"username": "user", "password": "p@ss", "db": 2}
    assert redis_client(SEVERAL).connection_pool.connection_kwargs["password"] == "p@ss"


def test_celery_is_told_of_each_sentinel_and_of_the_master() -> None:
    app = celery_app(Settings(broker_url=SecretStr(SEVERAL)), "test")
    with app.connection_for_write() as connection:
        assert connection.alt == [
            "sentinel://user:p%40ss@one:26380/2",
            "sentinel://user:p%40ss@[::1]:26379/2",
            "sentinel://user:p%40ss@three:26379/2",
        ]
        assert connection.transport_options["master_name"] == "main"
        assert connection.transport_options["sentinel_kwargs"]["password"] == "other"
    app.close()


@pytest.mark.parametrize(
    "url",
    [
        "amqp://one/0",
        "redis://one:0/0",
        "redis://one:a/0",
        "sentinel://one:26379/0",
        "sentinel://one,/0?master_name=main",
        "sentinel://one/main?master_name=main",
        "sentinel://one/0?master_name=main&ssl=true",
    ],
)
def test_what_is_no_url_is_refused_without_a_word_of_it(url: str) -> None:
    with pytest.raises(ValueError, match="expected redis://") as refused:
        check_broker_url(url)
    assert url not in str(refused.value)
