"""URLs of stores, and the URL of a pool's database in them."""

from __future__ import annotations

import pytest

import penstock
from penstock.core.store_url import split_url, with_pool


def test_the_url_of_a_pool_is_taken_out_again() -> None:
    for front in ("redis://host/0", "redis://host/0?prefix=mine"):
        for database in ("sqlite:////var/lib/pool.db?durability=relaxed", "mysql://ada:p%40ss@host/jobs"):
            assert split_url(with_pool(front, database)) == ("redis", front, database)


def test_the_argument_names_the_pool_if_the_url_does_not() -> None:
    assert split_url("redis://host", "mysql://host/jobs") == ("redis", "redis://host", "mysql://host/jobs")
    assert split_url("sqlite:///x.db") == ("sqlite", "sqlite:///x.db", None)
    with pytest.raises(penstock.BadValue, match="given twice"):
        split_url(with_pool("redis://host", "mysql://host/jobs"), "mysql://host/jobs")
