"""Puts that differ in their data alone: what is the same for all of them is found out and packed once."""

from __future__ import annotations

from collections.abc import Callable
from struct import Struct, pack

from penstock.core.entry import stands_alone
from penstock.core.options import Tube
from penstock.core.task import Entry, Record
from penstock.store.postgres.connection import Connections
from penstock.store.postgres.listener import Teller
from penstock.store.postgres.prepared import Prepared

# An array of three: a head of five numbers, then each with its length before it.
_ANSWER = Struct("!20x4xq4xq4xq")


def plain_put(
    connections: Connections, query: str, tube: Tube, entry: Entry, moment: Callable[[], int | None], teller: Teller
) -> Callable[[bytes], Record | None] | None:
    """Stores a payload each time it is called; None where its place depends on more, or nothing can be prepared."""
    if not stands_alone(tube, entry) or tube.temporary or not connections.prepares:
        return None
    statement, rank1, rank2 = Prepared("penstock_put_plain", query), entry.rank1.base, entry.rank2.base
    number = pack("!i", tube.no)
    shape = (
        pack("!d", rank1), pack("!d", rank2), pack("!i", entry.pri), _packed("!q", entry.ttl), _packed("!q", entry.ttr),
        _packed("!i", entry.max_attempts), None if entry.callback is None else entry.callback.encode(),
    )  # fmt: skip

    def put(payload: bytes) -> Record | None:
        name = teller.name
        values = (number, payload, *shape, _packed("!q", moment()), None if name is None else name.encode())
        answer = connections.answer(statement, values)
        if answer is None:
            return None
        created, id, told = _ANSWER.unpack(answer)
        if told:
            teller.told()
        expires = None if entry.ttl is None else created + entry.ttl
        return Record(
            id, "r", rank1, rank2, entry.pri, None, 0, 0, created, None, expires, expires, entry.ttr,
            entry.max_attempts, None, None, entry.callback, payload,
        )  # fmt: skip

    return put


def _packed(form: str, number: int | None) -> bytes | None:
    return None if number is None else pack(form, number)
