"""What a MySQL store promises by the server's real settings, and what should be done about them."""

from __future__ import annotations

from penstock.core.results import Description
from penstock.store.mysql.location import Location
from penstock.store.mysql.pool import Link
from penstock.store.mysql.queries import Q

# A put of the default max_payload needs twice its size, and some.
_LEAST_PACKET = 4 * 1024 * 1024
# From here on an open transaction keeps so many removed rows that takes become slow.
_LONG_SECONDS = 300

_PROMISES = {
    1: "a put that returned survives a power cut (innodb_flush_log_at_trx_commit=1)",
    2: "a put that returned survives the end of the server's process; a power cut may lose the last second "
    "(innodb_flush_log_at_trx_commit=2)",
    0: "a put that returned survives the end of any client; a crash of the server may lose the last second "
    "(innodb_flush_log_at_trx_commit=0)",
}


def describe(link: Link, location: Location) -> Description:
    """The store as it is now."""
    version, flush, log_bin, sync_binlog, connections = link.rows(Q.settings)[0]
    schema = int(dict(link.rows(Q.all_meta))["schema"])
    advice = []
    if log_bin and sync_binlog != 1:
        advice.append("sync_binlog is not 1: after a power cut replicas may differ from this server; set it to 1")
    if location.pool_size >= connections:
        advice.append(f"pool_size is {location.pool_size}, max_connections {connections}: lower one or raise the other")
    if link.max_packet < _LEAST_PACKET:
        advice.append(f"max_allowed_packet is {link.max_packet}: raise it to {_LEAST_PACKET} or more, for large tasks")
    oldest = _oldest(link)
    if oldest > _LONG_SECONDS:
        advice.append(f"a transaction is open for {oldest} s and keeps removed rows from being purged: end it")
    name = "MariaDB" if "mariadb" in version.lower() else "MySQL"
    return Description(name, version, location.name, promise(flush), schema, advice)


def promise(flush: object) -> str:
    """What innodb_flush_log_at_trx_commit means for a put that returned."""
    return _PROMISES.get(int(str(flush)), _PROMISES[1])  # 3 of MariaDB is 1 with one flush more


def _oldest(link: Link) -> int:
    """Seconds since the oldest open transaction began; 0 where this user may not know (it needs PROCESS)."""
    if not any("PROCESS" in grant or "ALL PRIVILEGES ON *.*" in grant for (grant,) in link.rows(Q.grants)):
        return 0
    return int(link.rows(Q.oldest_transaction)[0][0] or 0)
