"""New stores on a running server: one database per test process, created once and emptied for each test.

Creating the schema takes about 0.1 s (it is DDL, which is flushed), emptying it 3 ms. The store gets a new random id
each time, so that brokers of an earlier test that still run do not match it.
"""

from __future__ import annotations

import atexit
import contextlib
import os
from functools import cache
from urllib.parse import urlsplit, urlunsplit
from uuid import uuid4

import pymysql
from pymysql.constants import CLIENT

from penstock.store.mysql.mysql_connection import parse
from penstock.store.mysql.mysql_store import open_mysql

_TABLES = (
    "penstock_tube", "penstock_id", "penstock_counter", "penstock_task", "penstock_utube",
    "penstock_session", "penstock_handle", "penstock_waiter", "penstock_outcome", "penstock_group",
)  # fmt: skip


def bare(url: str) -> pymysql.Connection[pymysql.cursors.Cursor]:
    """A connection of the bare driver to the database of a URL."""
    return pymysql.connect(
        **parse(url).login,
        autocommit=True,
        ssl_disabled=True,  # otherwise PyMySQL first reads all certificates of the host, in 30 ms
        client_flag=CLIENT.MULTI_STATEMENTS,
    )


def numbers(low: int, high: int) -> str:
    """The WITH clause for a SELECT … FROM n, where `i` of n runs over a range."""
    digits = "(SELECT 0 AS i UNION ALL " + " UNION ALL ".join(f"SELECT {digit}" for digit in range(1, 10)) + ")"
    count = len(str(high))
    places = [f"{digits} d{place}" for place in range(count)]
    total = " + ".join(f"d{place}.i * {10**place}" for place in range(count))
    return f"WITH n AS (SELECT {total} AS i FROM {', '.join(places)} HAVING i BETWEEN {low} AND {high})"


def fresh_url(base: str) -> str:
    """The URL of an empty store on the server that `base` names (its database must exist, and is not changed)."""
    url = _database(base, os.getpid())
    _empty(url)
    return url


@cache
def _database(base: str, pid: int) -> str:
    name = f"penstock_test_{pid}_{uuid4().hex[:6]}"
    with bare(base) as connection:
        connection.cursor().execute(f"CREATE DATABASE {name}")
    atexit.register(_drop, base, name)
    url = urlunsplit(urlsplit(base)._replace(path=f"/{name}"))
    open_mysql(url).close()
    return url


def _empty(url: str) -> None:
    statements = [f"DELETE FROM {table}" for table in _TABLES]
    statements += [f"UPDATE penstock_meta SET value = '{uuid4()}' WHERE name = 'id'"]
    words = "START TRANSACTION; " + "; ".join(statements) + "; COMMIT"
    try:
        _execute(url, words)
    except pymysql.err.OperationalError:  # the server was restarted
        _connection.cache_clear()
        _execute(url, words)


def _execute(url: str, words: str) -> None:
    cursor = _connection(url, os.getpid()).cursor()
    cursor.execute(words)
    while cursor.nextset():
        pass


@cache
def _connection(url: str, pid: int) -> pymysql.Connection[pymysql.cursors.Cursor]:
    """One connection for all tests."""
    return bare(url)


def _drop(base: str, name: str) -> None:
    # A broker that a test left open may hold the database: then it stays until the test server is removed.
    with contextlib.suppress(pymysql.MySQLError), bare(base) as connection:
        cursor = connection.cursor()
        cursor.execute("SET SESSION lock_wait_timeout = 2")
        cursor.execute(f"DROP DATABASE IF EXISTS {name}")
