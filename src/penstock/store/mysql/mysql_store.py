"""The store in a MySQL or MariaDB database: one packet per hot call, and none of penstock's rules on the server."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

from penstock.core.entry import record_maker, stands_alone
from penstock.core.options import Tube
from penstock.core.results import Description
from penstock.core.task import Entry, Record
from penstock.engine.port import Conflict
from penstock.engine.store import Store, finish_drops
from penstock.store.mysql.mysql_connection import BoundServer, Link, MysqlServer, parse
from penstock.store.mysql.mysql_queries import TIME, Q
from penstock.store.mysql.mysql_step import MysqlStep
from penstock.store.mysql.mysql_wire import Prepared, Raw, fill, literal
from penstock.store.sql.migrations import Schema, load_migrations, look, migrate
from penstock.store.sql.server import ServerVault
from penstock.store.sql.server_step import ServerStore, advice_on
from penstock.store.sql.sql_queries import ID_BITS, load_queries

Clock = Callable[[], int]
MIGRATIONS = load_migrations("penstock.store.mysql")
# A put of the default max_payload needs a bit more than twice its size.
_LEAST_PACKET = 4 * 1024 * 1024
# Poll interval after a change, how long it applies after the last change, and poll interval when idle.
LOOK_SECONDS = 0.02
ACTIVE_SECONDS = 2.0
IDLE_SECONDS = 1.0

_PROMISES = {
    1: "a power cut",
    2: "the end of the server's process; a power cut may lose the last second",
    0: "the end of any client; a crash of the server may lose the last second",
}


class MysqlStore(ServerStore):
    """The store in one database of a server."""

    server: MysqlServer
    step_type = MysqlStep
    fold_chance = 1 / 64

    def plain_put(self, tube: Tube, entry: Entry) -> Callable[[bytes], Record | None] | None:
        if self.clock is not None or entry.utube is not None or not stands_alone(tube, entry):
            return None
        make, reserve = record_maker(entry), Q.reserve_one.using(str(tube.no))
        place = tube.no, tube.no << ID_BITS, float(entry.rank1.base), float(entry.rank2.base), entry.pri
        options = {"expires": entry.ttl, "at": entry.ttl, "ttr": entry.ttr, "extra": entry.extra}
        given = {name: value for name, value in options.items() if value is not None}
        terms = [f"{TIME}+?" if name in ("expires", "at") else "?" for name in given]
        columns = {"columns": Raw(",".join([*given, "data"])), "terms": Raw(",".join([*terms, "?"]))}
        store, head = Prepared(fill(Q.store_one, **columns)), ",".join(map(literal, (*place, *given.values())))

        def put(payload: bytes) -> Record | None:
            try:
                id, time = self.server.send([reserve, store.using(head, literal(payload))]).oks[:2]
            except Conflict:  # the tube is gone, or another transaction interfered: `put` finds out
                return None
            return make(id.number, time.number, payload)

        return put

    def bind(self, connection: object) -> MysqlStore:
        bound = BoundServer(self.server, connection, self.identity)
        return MysqlStore(bound, self.identity, self.clock, None)

    def describe(self) -> Description:
        return self.server.attempt(lambda link: _describe(link, self.server), safe=True)

    def fold(self, tube: Tube) -> None:
        packet = [f"SET @p_t={abs(tube.no)}", Q.fold_find, Q.fold_add, Q.fold_drop]
        self.server.send(packet, safe=True)


class Watch:
    """Polls for changes by other processes: MySQL cannot notify. The value of `look` differs after each change."""

    def __init__(self, look: Callable[[], object]) -> None:
        self._look = look
        self._seen: object = None
        self._next = self._active_until = 0.0  # when to look again, and until when often
        self._watching = False

    def wait(self, wake: threading.Event, seconds: float, *, watch: bool) -> bool:
        """See `Store.wait`."""
        ends = time.monotonic() + seconds
        if watch and not self._watching:
            # A taker that starts to wait has just found the tube empty, and a task may arrive soon: poll fast.
            self._seen = None
            self._changed()
        self._watching = watch
        while (now := time.monotonic()) < ends:
            if wake.wait(max(min(ends, self._next if watch else ends) - now, 0)):
                return False
            if watch and time.monotonic() >= self._next and self._changed():
                return True
        return False

    def close(self) -> None:
        """Do nothing: there is no thread to end."""

    def _changed(self) -> bool:
        seen, now = self._look(), time.monotonic()
        changed, self._seen = seen != self._seen, seen
        if changed:
            self._active_until = now + ACTIVE_SECONDS
        self._next = now + (LOOK_SECONDS if now < self._active_until else IDLE_SECONDS)
        return changed


def _describe(link: Link, server: MysqlServer) -> Description:
    """Describe the durability that the server's settings give, and advise on settings that should change."""
    location = server.location
    version, flush, log_bin, sync_binlog, connections = link.rows(Q.settings)[0]
    grants = " ".join(grant for (grant,) in link.rows("SHOW GRANTS"))
    may_look = "PROCESS" in grants or "ALL PRIVILEGES ON *.*" in grants
    oldest = int(link.rows(Q.oldest_transaction)[0][0] or 0) if may_look else None
    advice = advice_on(location.pool_size, connections, oldest)
    if log_bin and sync_binlog != 1:
        advice.append("sync_binlog is not 1: after a power cut replicas may differ from this server; set it to 1")
    if link.max_packet < _LEAST_PACKET:
        advice.append(f"max_allowed_packet is {link.max_packet}: raise it to {_LEAST_PACKET} or more, for large tasks")
    name, schema = "MariaDB" if "mariadb" in version.lower() else "MySQL", int(server.meta(link)["schema"])
    link.finish()
    return Description(name, version, location.name, promise(flush), schema, advice)


def promise(flush: object) -> str:
    """Return what innodb_flush_log_at_trx_commit means for the durability of a put that returned."""
    survived = _PROMISES.get(int(str(flush)), _PROMISES[1])  # MariaDB's 3 is 1 with one more flush
    return f"a put that returned survives {survived} (innodb_flush_log_at_trx_commit={flush})"


def open_mysql(url: str, clock: Clock | None = None) -> Store:
    """Open the store of a mysql:// URL; create or migrate it if needed."""
    server = MysqlServer(parse(url))
    try:
        identity = f"mysql:{migrate(server, MIGRATIONS, server.place, new='database')}"
        watch = Watch(lambda: server.send([Q.watch], safe=True).results)
        store = MysqlStore(server, identity, clock, watch)
        finish_drops(store)
    except BaseException:
        server.close()
        raise
    return store


def look_at_mysql(url: str) -> Schema:
    """Return which schema a store has. Changes nothing."""
    return look(MysqlServer(parse(url)), MIGRATIONS)


# a pool's database

_VAULT = {
    "int": "BIGINT", "blob": "LONGBLOB", "serial": "BIGINT AUTO_INCREMENT PRIMARY KEY", "for_update": "FOR UPDATE",
    "table_end": ") ENGINE = InnoDB", "keyed_end": ") ENGINE = InnoDB", "tube_name": "VARBINARY(255)",
    "link_name": "VARBINARY(16)", "add": "INSERT IGNORE INTO", "unless_known": "",
    "or_set_task": "ON DUPLICATE KEY UPDATE record = VALUES(record), data = COALESCE(VALUES(data), data)",
    "or_set_link": "ON DUPLICATE KEY UPDATE value = VALUES(value)",
}  # fmt: skip


class MysqlVault(ServerVault):
    """A pool's database."""

    queries = load_queries("penstock.store.pool", fragments=_VAULT)

    def __init__(self, url: str) -> None:
        server = MysqlServer(parse(url))
        packet = server.attempt(lambda link: link.max_packet, safe=True)
        # Each byte may take two in a statement; 64 KiB are left for the other columns.
        super().__init__(server, f"MySQL {server.location.name}", (packet - 2**16) // 2)

    def promise(self) -> str:
        return promise(self.read("SELECT @@innodb_flush_log_at_trx_commit")[0][0])
