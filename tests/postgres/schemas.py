"""Fresh stores on a running server: one schema per test process, made once and emptied for each test.

Creating it costs some 0.2 s, emptying it a hundredth of that. The store's random id is renewed with it, so that
brokers of an earlier test that still run are strangers to the next one.
"""

from __future__ import annotations

import atexit
import os
from functools import cache
from uuid import uuid4

import psycopg

import penstock
from penstock.store.postgres.postgres_connection import locate
from penstock.store.postgres.postgres_store import PostgresStore
from tests.servers.kept import keep_connections

_EMPTY = """DO $$
DECLARE place text;
BEGIN
    SET LOCAL lock_timeout = '10s';
    {deletes}
    FOR place IN SELECT relname FROM pg_class
        WHERE relnamespace = '{schema}'::regnamespace AND relkind = 'S' AND relname ~ '_[0-9]+$'
    LOOP EXECUTE 'DROP SEQUENCE {schema}.' || place; END LOOP;
    UPDATE {schema}.penstock_meta SET value = '{id}' WHERE name = 'id';
END $$"""
_TABLES = "SELECT tablename FROM pg_tables WHERE schemaname = %s AND tablename <> 'penstock_meta'"


def emptied_url(base: str) -> str:
    """The URL of an empty store on the server that `base` names."""
    schema = _schema(base, os.getpid())
    statement = _EMPTY.format(schema=schema, deletes=_deletes(base, schema), id=uuid4()).encode()
    try:
        _connection(base, os.getpid()).execute(statement)
    except psycopg.OperationalError:  # the server was restarted
        _connection.cache_clear()
        _connection(base, os.getpid()).execute(statement)
    return keep_connections(f"{base}?schema={schema}")


@cache
def _deletes(base: str, schema: str) -> str:
    tables = _connection(base, os.getpid()).execute(_TABLES, (schema,)).fetchall()
    return "".join(f"DELETE FROM {schema}.{table}; " for (table,) in tables)


@cache
def _connection(base: str, pid: int) -> psycopg.Connection:
    """One for all tests: a new one costs the server more than the emptying."""
    connection = psycopg.connect(base, autocommit=True)
    atexit.register(connection.close)
    return connection


def database_of(broker: penstock.Broker) -> PostgresStore:
    """What a broker's store is kept in."""
    store = broker.runtime.store
    assert isinstance(store, PostgresStore)
    return store


def damage(url: str, statement: str) -> None:
    """Run a statement in the store's schema, behind its back."""
    with psycopg.connect(locate(url).conninfo) as connection:
        connection.execute(f"SET search_path = {locate(url).quoted}")
        connection.execute(statement.encode())


@cache
def _schema(base: str, pid: int) -> str:
    name = f"t{pid}_{uuid4().hex[:6]}"
    penstock.connect(f"{base}?schema={name}").close()
    return name
