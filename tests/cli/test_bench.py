"""`penstock bench`: rates of every sort of work, and nothing left behind."""

from __future__ import annotations

from tests.cli.running import Shell


def test_it_measures_and_leaves_nothing(shell: Shell) -> None:
    found = shell.json("bench", "--seconds", "0.2")
    works = ["put", "put_many of 100", "take and ack", "take_many and ack_many of 100"]
    assert [phase["work"] for phase in found["phases"]] == works
    assert all(phase["tasks"] > 0 and phase["per_second"] > 0 for phase in found["phases"])
    assert found["store"] == "SQLite"
    assert shell.json("tubes") == []


def test_it_says_what_a_kind_cannot_do_and_leaves_nothing(shell: Shell) -> None:
    assert "kind" in shell.refused("bench", "--kind", "nonsense")
    assert shell.refused("bench", "--kind", "round", "--seconds", "0.1") != ""
    assert shell.json("tubes") == []
