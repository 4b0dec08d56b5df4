"""The statements of a put: everything in one packet, or in as few as the server takes, in one transaction."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import groupby

from penstock.core.options import Tube
from penstock.errors import PayloadTooLarge
from penstock.store.mysql.pool import Link
from penstock.store.mysql.records import INSERT
from penstock.store.mysql.wire import Rows

# Of a packet, for the statements around the rows.
_RESERVE = 4096


def put(link: Link, tube: Tube, reserve: str, values: list[str]) -> Rows:
    """Reserve ids, insert the rows, and let those of a micro-queue kind arrive there."""
    chunks = [",".join(chunk) for chunk in packed(values, link.max_packet, tube)]
    arrive = []
    if tube.kind.per_utube:
        span = f"@penstock_id + 1, @penstock_id + {len(values)}"
        arrive = [f"CALL penstock_arrive({tube.no}, {span}, @penstock_now)"]
    if len(chunks) == 1:
        return link.finish(reserve, INSERT + chunks[0], *arrive)
    rows = link.packet(reserve)
    for chunk in chunks[:-1]:
        link.packet(INSERT + chunk)
    return rows + link.finish(INSERT + chunks[-1], *arrive)


def packed(values: list[str], max_packet: int, tube: Tube) -> Iterator[list[str]]:
    """The rows, as many in each list as a packet holds."""
    room = max_packet - _RESERVE
    sizes = [len(value) if value.isascii() else len(value.encode()) for value in values]
    if max(sizes) > room:
        raise PayloadTooLarge(
            f"a task of {max(sizes)} bytes of SQL for tube {tube.name} is more than the server takes in one packet: "
            "raise its max_allowed_packet, or store the data elsewhere and put a reference"
        )
    filled = chunk = 0
    numbered: list[tuple[int, str]] = []
    for value, size in zip(values, sizes, strict=True):
        filled += size + 1
        if filled > room:
            chunk, filled = chunk + 1, size + 1
        numbered.append((chunk, value))
    for _, group in groupby(numbered, key=lambda pair: pair[0]):
        yield [value for _, value in group]
