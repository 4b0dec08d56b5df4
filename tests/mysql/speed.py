"""How fast the store is beside the bare driver on the same server: `python -m tests.mysql.speed mysql://…/database`.

Both sides take turns call by call, so that a noisy machine is noisy for both. Prints ratios at full durability
(innodb_flush_log_at_trx_commit=1) and relaxed (2); the user needs SUPER to switch. Never part of the test run.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable

import penstock
from tests.mysql.databases import bare, fresh_url

ROUNDS = 3
DATA = "x" * 98
_SCHEMA = """CREATE TABLE bare (id BIGINT AUTO_INCREMENT PRIMARY KEY, state CHAR(1) NOT NULL, pri INT NOT NULL,
attempts INT NOT NULL DEFAULT 0, lease INT NOT NULL DEFAULT 0, created BIGINT NOT NULL, taken BIGINT, at BIGINT,
owner BIGINT, data LONGBLOB NOT NULL, KEY ready (state, pri, id), KEY due (at)) ENGINE = InnoDB"""
_INSERT = "INSERT INTO bare (state, pri, created, data) VALUES ('r', 0, %s, %s)"
_CLAIM = "SELECT id, data FROM bare WHERE state = 'r' ORDER BY pri, id LIMIT 100 FOR UPDATE SKIP LOCKED"
_TAKE = "UPDATE bare SET state = 't', attempts = attempts + 1, lease = lease + 1, taken = 1, owner = 1 WHERE id IN ({})"


class Bare:
    """What a careful author would write by hand, one transaction a step."""

    def __init__(self, url: str) -> None:
        self._connection = bare(url)
        self._cursor = self._connection.cursor()
        self._cursor.execute("DROP TABLE IF EXISTS bare")
        self._cursor.execute(_SCHEMA)
        self._cursor.execute("SET SESSION TRANSACTION ISOLATION LEVEL READ COMMITTED")
        self._connection.autocommit(False)

    def put(self) -> None:
        self._cursor.execute(_INSERT, (1, DATA.encode()))
        self._connection.commit()

    def fill(self, count: int) -> None:
        self._cursor.executemany(_INSERT, [(1, DATA.encode())] * count)
        self._connection.commit()

    def drain(self) -> None:
        self._cursor.execute(_CLAIM)
        ids = ",".join(str(id) for id, _ in self._cursor.fetchall())
        self._cursor.execute(_TAKE.format(ids))
        self._connection.commit()
        self._cursor.execute(f"DELETE FROM bare WHERE id IN ({ids})")
        self._connection.commit()


def in_turns(count: int, *calls: Callable[[], object]) -> list[float]:
    """The mean time of each call in microseconds."""
    spent = [0.0] * len(calls)
    for _ in range(count):
        for place, call in enumerate(calls):
            began = time.perf_counter()
            call()
            spent[place] += time.perf_counter() - began
    return [seconds / count * 1e6 for seconds in spent]


def main(base: str) -> None:
    url = fresh_url(base)
    with penstock.connect(url) as broker, bare(url) as admin:
        tube, hand = broker.tube("t"), Bare(url)
        for flush in (1, 2):
            admin.cursor().execute(f"SET GLOBAL innodb_flush_log_at_trx_commit = {flush}")
            for _ in range(ROUNDS):
                ours, theirs = in_turns(400, lambda: tube.put(DATA), hand.put)
                _tell(flush, "put", ours, theirs)
                tube.put_many([DATA] * 4000)
                hand.fill(4000)
                ours, theirs = in_turns(40, lambda: tube.ack_many(tube.take_many(100)), hand.drain)
                _tell(flush, "take 100 + ack 100", ours, theirs)


def _tell(flush: int, what: str, ours: float, theirs: float) -> None:
    sys.stdout.write(f"flush={flush} {what:20} {ours:8.0f} µs, bare {theirs:8.0f} µs, ratio {theirs / ours:.2f}\n")


if __name__ == "__main__":
    main(sys.argv[1])
