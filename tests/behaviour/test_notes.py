"""Records that penstock keeps for operators, apart from the tubes of programs."""

from __future__ import annotations

import penstock
from penstock.broker.notes import Notes
from penstock.testing import Clock
from tests.conftest import Connect


def test_notes_are_kept_by_key_and_hidden(broker: penstock.Broker, connect: Connect) -> None:
    notes = Notes(broker.runtime, "workers", 100)
    assert notes.read() == {}
    assert notes.write("a", {"n": 1}, 60) == {"n": 1}
    assert notes.write("b", {"n": 2}, 60) == {"n": 2}
    assert notes.write("a", {"n": 3}, 60) == {"n": 3}
    assert notes.write("b", {"n": 4}, 60, keep=True) == {"n": 2}
    others = Notes(connect().runtime, "workers", 100)
    assert others.read() == {"a": {"n": 3}, "b": {"n": 2}}
    others.remove("a")
    others.remove("never")
    assert notes.read() == {"b": {"n": 2}}
    assert Notes(broker.runtime, "other", 100).read() == {}
    assert broker.tubes() == []
    assert broker.check() == []


def test_notes_end_and_are_bounded(broker: penstock.Broker, clock: Clock) -> None:
    notes = Notes(broker.runtime, "workers", 5)
    notes.write("short", 1, 10)
    notes.write("long", 2, 100)
    clock.advance(11)
    assert notes.read() == {"long": 2}
    for number in range(8):
        notes.write(f"n{number}", number, 100)
    assert len(notes.read()) <= 5
    assert "n7" in notes.read()
