"""Redis URLs."""

from __future__ import annotations

import pytest

import penstock
from penstock.store.redis.location import locate


def test_a_plain_url() -> None:
    where = locate("redis://ada:p%40ss@db.example:7000/3?prefix=mine")
    assert (where.hosts, where.db, where.prefix) == ((("db.example", 7000),), 3, "mine")
    assert (where.username, where.password, where.tls) == ("ada", "p@ss", False)
    assert "p@ss" not in where.label
    assert "p%40ss" not in where.label


def test_defaults() -> None:
    where = locate("redis://")
    assert (where.hosts, where.db, where.prefix) == ((("localhost", 6379),), 0, "penstock")


def test_tls() -> None:
    assert locate("rediss://h?ssl_ca_certs=/ca.pem").settings == {"ssl_ca_certs": "/ca.pem"}
    assert locate("rediss://h").tls
    assert locate("redis+cluster://h?tls=1").tls


def test_several_hosts() -> None:
    where = locate("redis+sentinel://a,b:1,[::1]:2/mymaster/4")
    assert where.hosts == (("a", 26379), ("b", 1), ("::1", 2))
    assert (where.master, where.db) == ("mymaster", 4)
    assert locate("redis+cluster://a:1,b").hosts == (("a", 1), ("b", 6379))


@pytest.mark.parametrize(
    "url",
    [
        "redis://h/x", "redis://h/1/2", "redis://h:x/0", "redis://h?colour=red", "redis://h?prefix=", "redis://h?prefix=a{b",
        "redis+sentinel://h", "redis+cluster://h/1", "redis+cluster://h?tls=yes", "redis://h?prefix=a%20b", "redis://h:99999",
    ],
)  # fmt: skip
def test_a_bad_url_is_refused(url: str) -> None:
    with pytest.raises(penstock.BadValue):
        penstock.connect(url)


def test_an_error_shows_no_password() -> None:
    with pytest.raises(penstock.BadValue) as caught:
        penstock.connect("redis://ada:secret@h/x")
    assert "secret" not in str(caught.value)
