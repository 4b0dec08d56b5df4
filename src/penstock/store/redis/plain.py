"""Puts that differ in their data alone: what is the same for all of them is found out and packed once."""

from __future__ import annotations

from collections.abc import Callable
from typing import cast

from penstock.core.entry import stands_alone
from penstock.core.options import Tube
from penstock.core.task import Entry, Record
from penstock.store.redis.link import Argument, Reply, packed
from penstock.store.redis.record import new_pieces
from penstock.store.redis.runner import Runner
from penstock.store.redis.servers import Request
from penstock.store.redis.snapshot import sortable


def plain_put(runner: Runner, tube: Tube, entry: Entry) -> Callable[[bytes], Record | None] | None:
    """Stores a payload each time it is called; None where its place depends on its moment, its id or other tasks."""
    if not stands_alone(tube, entry):
        return None
    bare = runner.tag_request("put_plain", tube.no)
    script, keys = bare.script, bare.keys
    words = plain_words(runner, tube, entry)
    calls = b"*%d\r\n" % (len(keys) + len(words) + 5)
    before = calls + packed(b"EVALSHA", script.digest, len(keys), *keys)
    after = packed(*words)

    def put(payload: bytes) -> Record:
        now = packed(runner.moment(None))
        command = b"%b%b%b$%d\r\n%b\r\n" % (before, now, after, len(payload), payload)
        reply = runner.servers.run(Request(script, keys, (), command), again=False)
        created, id = cast("list[int]", runner.known(tube, cast("list[Reply]", reply)))
        return _record(entry, id, created, payload)

    return put


def plain_words(runner: Runner, tube: Tube, entry: Entry) -> list[Argument]:
    """The arguments of the script between the moment and the data."""
    second = "2" in runner.shape(tube).letters
    head, middle, end = new_pieces(entry)
    ttl = "" if entry.ttl is None else entry.ttl
    return [head, middle, ttl, end, entry.rank1.base, sortable(entry.rank2.base) if second else b""]


def _record(entry: Entry, id: int, now: int, payload: bytes) -> Record:
    expires = None if entry.ttl is None else now + entry.ttl
    return Record(
        id, "r", entry.rank1.base, entry.rank2.base, entry.pri, None, 0, 0, now, None, expires, expires, entry.ttr,
        entry.max_attempts, None, None, entry.callback, payload,
    )  # fmt: skip
