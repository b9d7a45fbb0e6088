"""Which hosts a database's URL names."""

from __future__ import annotations

import pytest
from sqlalchemy import URL, make_url

from runtime.addresses.database_url import hosts_of, with_password
from store.hosts import Hosts


def shown(url: str) -> list[str]:
    return [each.render_as_string(hide_password=False) for each in hosts_of(url)]


@pytest.mark.parametrize(
    "url",
    [
        "postgresql://one/palimpsest",
        "postgresql://login:pass%2Fword@one:5433/palimpsest?sslmode=require",
        "postgresql:///palimpsest?host=/run/postgresql",
        "postgresql+psycopg://login:a,b@one/palimpsest",
    ],
)
def test_one_host_is_left_as_it_is(url: str) -> None:
    (only,) = hosts_of(url)
    assert only == make_url(url)
    assert "target_session_attrs" not in only.query


@pytest.mark.parametrize(
    "url",
    [
        "postgresql://login:pass%2Fword@one:5433,[::1]:5434,three/palimpsest?sslmode=require",
        "postgresql://login:pass%2Fword@/palimpsest?host=one:5433&host=[::1]:5434&host=three&sslmode=require",
    ],
)
def test_of_several_the_one_that_takes_writes_is_meant(url: str) -> None:
    rest = "/palimpsest?sslmode=require&target_session_attrs=read-write"
    assert shown(url) == [
        f"postgresql://login:pass%2Fword@{place}{rest}" for place in ("one:5433", "[::1]:5434", "three:5432")
    ]


def test_what_the_url_says_counts() -> None:
    assert {each.query["target_session_attrs"] for each in hosts_of("postgresql://a,b/x?target_session_attrs=any")} == {
        "any"
    }


@pytest.mark.parametrize(
    "url",
    ["mysql://one/x", "postgresql://one:99999/x", "postgresql://one:5432,/x", "postgresql://one:a,two/x", "one,two"],
)
def test_what_is_no_url_is_refused_without_a_word_of_it(url: str) -> None:
    with pytest.raises(ValueError, match="expected postgresql://") as refused:
        hosts_of(url)
    assert "one" not in str(refused.value).replace("host", "")


@pytest.mark.parametrize(
    ("url", "expected"),
    [
        (
            "postgresql://me@one:5433,[::1],three/x?sslmode=require",
            "postgresql://me:p%40%2F@one:5433,[::1],three/x?sslmode=require",
        ),
        ("postgresql+psycopg://me@[::1]", "postgresql+psycopg://me:p%40%2F@[::1]"),
        ("postgresql://me:mine@one/x", "postgresql://me:mine@one/x"),
        ("postgresql://me:@one/x", "postgresql://me:@one/x"),
        ("postgresql://one/x?user=a@b", "postgresql://one/x?user=a@b"),
        ("postgresql:///x?host=/run/postgresql", "postgresql:///x?host=/run/postgresql"),
    ],
)
def test_a_password_of_its_own_is_for_a_login_that_has_none(url: str, expected: str) -> None:
    assert with_password(url, "p@/") == expected


def test_who_was_at_fault_is_asked_last() -> None:
    hosts = Hosts("postgresql://one,two,three/x")
    asked: list[str | None] = []

    def connect(only: str) -> str:
        def connect_to(url: URL) -> str:
            asked.append(url.host)
            if url.host != only:
                raise ConnectionError
            return only

        return hosts.connect(connect_to, ConnectionError)

    assert connect("three") == "three"
    assert asked == ["one", "two", "three"]
    assert connect("one") == "one"
    assert asked == ["one", "two", "three", "three", "one"]
    assert connect("one") == "one"
    assert asked[5:] == ["one"]
    with pytest.raises(ConnectionError):
        connect("nowhere")
    assert set(asked[6:]) == {"one", "two", "three"}
