"""Private servers for the tests: real ones, on free ports, with their data in temporary folders."""

from __future__ import annotations

from tests.servers.base import Server
from tests.servers.mariadb import Mariadb
from tests.servers.postgres import Postgres
from tests.servers.redis import Redis, RedisCluster

SERVERS: dict[str, type[Server]] = {
    "postgres": Postgres,
    "mariadb": Mariadb,
    "redis": Redis,
    "redis-cluster": RedisCluster,
}

__all__ = ["SERVERS", "Server"]
