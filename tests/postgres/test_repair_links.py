"""check finds what must not exist among addresses, outcomes and groups, and repair mends it."""

from __future__ import annotations

import psycopg
import pytest

import penstock
from penstock.store.postgres.location import locate
from tests.behaviour.helpers import drain
from tests.sqlite.test_repair_links import DAMAGE as COMMON

# The same statements damage both; only the mark differs, which is set too long without harm.
DAMAGE: dict[str, tuple[str, str, list[object]]] = {
    **COMMON,
    "a wrong mark": (
        "UPDATE penstock_group SET state = 'cancelling', moving = true WHERE name = 'open'",
        "the mark",
        ["s", "end"],
    ),
    "an end too early": (
        "UPDATE penstock_group SET state = 'done', until = 9e15 WHERE name = 'started'",
        "has 1 tasks left",
        ["s", "end"],
    ),
}


@pytest.mark.parametrize("name", DAMAGE)
def test_damage_is_found_and_mended(broker: penstock.Broker, url: str, name: str) -> None:
    statement, found, expected = DAMAGE[name]
    tube = broker.tube("t")
    tube.group("open").put("o")
    started = tube.group("started")
    started.put("s")
    started.on_end("end")
    started.start()
    assert broker.check() == []
    with psycopg.connect(locate(url).conninfo) as db:
        db.execute(f"SET search_path = {locate(url).quoted}")
        db.execute(statement)
    assert any(found in finding.what for finding in broker.check()), broker.check()
    broker.check(repair=True)
    assert broker.check() == []
    assert sorted(map(str, drain(tube))) == sorted(map(str, expected))
    assert broker.check() == []
