"""How many calls run per host, which wait, and that a slow host does not delay others."""

from __future__ import annotations

from penstock.callbacks.host_limits import EXTRA_PER_SECOND, SLOW_SECONDS, Hosts


def busy(limit: int = 2) -> Hosts[str]:
    """A host with the maximum number of calls."""
    hosts: Hosts[str] = Hosts(limit)
    for _ in range(limit):
        assert not hosts.full("a")
        hosts.begin("a")
    return hosts


def test_each_host_has_its_own_limit() -> None:
    hosts = busy()
    assert hosts.full("a")
    assert not hosts.full("b")
    hosts.end("a")
    assert not hosts.full("a")
    assert hosts.unpark("a") is None


def test_the_first_parked_is_resumed_first() -> None:
    hosts = busy()
    assert hosts.park("a", "first", 0)
    assert hosts.park("a", "second", 0)
    assert not hosts.park("a", "third", 0)
    assert [hosts.unpark("a"), hosts.unpark("a"), hosts.unpark("a")] == ["first", "second", None]


def test_room_is_limited_by_the_busiest_host() -> None:
    hosts: Hosts[str] = Hosts(2)
    assert hosts.room(10) == 4
    hosts.begin("a")
    hosts.begin("b")
    assert hosts.room(10) == 3
    hosts.begin("a")
    assert hosts.room(10) == 2
    hosts.park("a", "x", 10)
    hosts.park("a", "y", 10)
    assert hosts.room(10) == 0
    hosts.end("a")
    assert hosts.room(10) == 1
    assert hosts.unpark("a") == "x"
    assert hosts.room(10) == 2


def test_behind_a_slow_host_a_bounded_number_is_examined() -> None:
    hosts = busy()
    hosts.park("a", "x", 10)
    hosts.park("a", "y", 10)
    later = 10 + SLOW_SECONDS + 0.1
    assert hosts.room(later) == EXTRA_PER_SECOND
    for _ in range(EXTRA_PER_SECOND):
        assert not hosts.park("a", "z", later)
    assert hosts.room(later) == 0
    assert hosts.room(later + 1) == EXTRA_PER_SECOND
