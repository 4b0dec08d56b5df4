"""The cost of round and reliable tubes as they grow, in pages that the server touched."""

from __future__ import annotations

from collections.abc import Callable

import pytest

import penstock
from tests.plans.test_scaling import must_not_grow
from tests.postgres.plans import broker as broker
from tests.postgres.plans import vacuum
from tests.postgres.test_group_scaling import pages as pages

SMALL, LARGE = 2_000, 20_000
Pages = Callable[[Callable[[], object]], int]


def all_costs(verbs: dict[str, Callable[[], object]], pages: Pages) -> dict[str, int]:
    return {name: pages(verb) for name, verb in verbs.items()}


def test_ten_times_the_delivered_messages_cost_no_more(broker: penstock.Broker, url: str, pages: Pages) -> None:
    def costs(tube: penstock.Tube, size: int) -> dict[str, int]:
        tube.put_many(range(size))
        names = [task.id for _ in range(size // 1000) for task in tube.take_many(1000)]
        tube.put_many(range(100))
        vacuum(url)
        verbs: dict[str, Callable[[], object]] = {
            "put": lambda: tube.put("x"),
            "take": lambda: tube.take(0),
            "ack": lambda: tube.ack(names[7]),
            "ack_many": lambda: tube.ack_many(names[10:20]),
            "recover": lambda: tube.recover(10, 0),
            "recover nothing": lambda: tube.recover(10, 3 * 10**9),
            "inspect": lambda: tube.inspect(0, 2, pending=True),
            "inspect the end": lambda: tube.inspect(-2, 2, pending=True),
            "inspect the undelivered": lambda: tube.inspect(-2, 2),
            "end of a session": lambda: broker.session().close(),
        }
        found = all_costs(verbs, pages)
        # Nine of the first ten were recovered (the other one is acked), so they follow the one that was popped last.
        assert [task.id for task in tube.inspect(-2, 2, pending=True)] == [names[9], names[20]]
        return found

    costs(broker.tube("warm", kind="reliable"), SMALL)  # fills the connection's caches
    small = costs(broker.tube("small", kind="reliable"), SMALL)
    must_not_grow(small, costs(broker.tube("large", kind="reliable"), LARGE))
    assert broker.check() == []


@pytest.mark.parametrize("share", [0.5, 1.0])
def test_ten_times_the_elements_cost_no_more(broker: penstock.Broker, url: str, pages: Pages, share: float) -> None:
    """`share` of the elements were handed out a moment ago: half, or all, so that none is due."""

    def costs(tube: penstock.Tube, size: int) -> dict[str, int]:
        tube.put_many((n, {"id": f"e{n}"}) for n in range(size))
        for _ in range(round(size * share) // 1000):
            assert len(tube.take_many(1000)) == 1000
        vacuum(url)
        verbs: dict[str, Callable[[], object]] = {
            "take": lambda: tube.take(0),
            "put": lambda: tube.put("x", id="x"),
            "put again": lambda: tube.put("y", id="x"),
            "replace": lambda: tube.put("z", id="x", on_duplicate="replace"),
            "take another": lambda: tube.take(0),
            "peek": lambda: tube.peek("x"),
            "delete": lambda: tube.delete("x"),
        }
        all_costs(verbs, pages)  # the vacuum has cleared the connection's caches
        return all_costs(verbs, pages)

    options = {"kind": "round", "period": 10_000}
    costs(broker.tube("warm", **options), SMALL)  # type: ignore[arg-type]
    small = costs(broker.tube("small", **options), SMALL)  # type: ignore[arg-type]
    must_not_grow(small, costs(broker.tube("large", **options), LARGE))  # type: ignore[arg-type]
