"""What our procedures refuse and answer, in penstock's words."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from penstock.core.options import Tube
from penstock.store.mysql import faults
from penstock.store.mysql.database import Refused
from penstock.store.mysql.wire import Rows
from penstock.store.refusals import tube_full, tube_missing


@contextmanager
def refusals(*asked: Tube | int) -> Iterator[None]:
    """What our procedures refuse, in penstock's words."""
    first, *rest = asked
    assert isinstance(first, Tube)
    try:
        yield
    except Refused as refused:
        if refused.code == faults.TUBE_FULL:
            wanted = rest[0] if rest and isinstance(rest[0], int) else 0
            raise tube_full(first, int(refused.text), wanted) from None
        if refused.code in (faults.NO_SUCH_TUBE, faults.NO_ID):
            raise tube_missing(first) from None
        raise


def moment_of(rows: Rows) -> int:
    """The moment of a settle, which is in its last row; 0 where it did nothing."""
    if not rows:
        return 0
    return int(rows[-1][1])


def sql(value: int | None) -> str:
    """A number or NULL."""
    return "NULL" if value is None else str(value)
