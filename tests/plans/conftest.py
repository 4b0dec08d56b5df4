"""SQLite files at several sizes, filled through the store itself."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import apsw
import pytest

import penstock

FILLED = 20_000


def fill(url: str, count: int) -> None:
    """A tube of each sort with tasks in every state, and a second tube that no query may read."""
    with penstock.connect(url) as broker:
        for name, kind in (("plain", "fifottl"), ("per_utube", "utubettl"), ("neighbour", "fifottl")):
            tube = broker.tube(name, kind=kind)
            for number in range(0, count, 10_000):
                chunk = range(number, min(number + 10_000, count))
                tube.put_many([(n, _options(n, per_utube="utube" in kind)) for n in chunk])
            with broker.session(ttr=1000) as session:  # its leases survive it
                taken = session.tube(name).take_many(max(1, count // 20))
            for task in taken[::2]:
                tube.bury(task.id)
            _link(tube, count // 20)
        _deliver(broker, count)


def _deliver(broker: penstock.Broker, count: int) -> None:
    """Tubes without leases: half of the messages delivered, half of the elements handed out."""
    queue, feeds = broker.tube("queue", kind="reliable"), broker.tube("feeds", kind="round", period=60)
    queue.put_many(range(count))
    feeds.put_many((n, {"id": str(n), "ttl": 7200 if n % 10 else None}) for n in range(count))
    for tube in (queue, feeds):
        tube.take_many(max(1, count // 2))


def _link(tube: penstock.Tube, count: int) -> None:
    """Addresses with and without outcomes, and groups in every state."""
    tube.put_many((n, {"address": f"a{n}", "utube": None}) for n in range(count))
    for n in range(count // 2):
        tube.delete(tube.put(n, address=f"b{n}").id)
    for name in ("open", "started", "cancelled"):
        tube.put_many(range(count), group=name)
    tube.group("started").start()
    tube.group("cancelled").cancel()


def _options(number: int, *, per_utube: bool) -> dict[str, object]:
    """A tenth is delayed, a tenth has a ttl."""
    options: dict[str, object] = {"pri": number % 5}
    if number % 10 == 0:
        options["delay"] = 3600
    if number % 10 == 1:
        options["ttl"] = 7200
    if per_utube:
        options["utube"] = number % 50
    return options


@pytest.fixture(scope="module", params=["empty", "one row", "filled", "filled and analyzed"])
def database(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[apsw.Connection]:
    """A connection configured like the store's own."""
    path = tmp_path_factory.mktemp("plans") / "queue.db"
    url = f"sqlite:///{path}?durability=relaxed"
    count = {"empty": 0, "one row": 1}.get(request.param, FILLED)
    if count:
        fill(url, count)
    else:
        penstock.connect(url).close()
    yield from opened(path, analyze=request.param.endswith("analyzed"))


def opened(path: Path, *, analyze: bool) -> Iterator[apsw.Connection]:
    db = apsw.Connection(str(path))
    db.config(apsw.SQLITE_DBCONFIG_ENABLE_QPSG, 1)
    if analyze:
        db.execute("ANALYZE")
    yield db
    db.close()
