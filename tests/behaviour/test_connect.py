"""connect and close: URLs, errors of a closed broker, and what survives it (sections 2 and 9)."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

import penstock
from penstock.core.store_url import split_url
from penstock.testing import Clock
from tests.conftest import Connect
from tests.support.inspection import calls, tasks
from tests.support.verbs import drain, take


@pytest.mark.parametrize(
    "url",
    [
        "", "queue.db", "ftp://host/x", "sqlite", "MEMORY", "://x", "memory://x?colour=red", "sqlite:///x.db?colour=red",
        "sqlite:///x.db?durability=sometimes", "sqlite:///x#1.db", 5, b"memory://x",
    ],
    ids=ascii,
)  # fmt: skip
def test_a_bad_url_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, url: str) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(penstock.BadValue):
        penstock.connect(url)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("rest", ["x\0y", "x\ny", "x\ud800y", "pw@[::1/x"], ids=ascii)
@pytest.mark.parametrize(
    "scheme", ["sqlite:///", "memory://", "postgresql://", "mysql://", "redis://", "redis+cluster://"]
)
def test_characters_that_a_url_cannot_have_are_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, scheme: str, rest: str
) -> None:
    if scheme == "sqlite:///" and "[" in rest:
        return  # a file may have that name
    monkeypatch.chdir(tmp_path)
    with pytest.raises(penstock.BadValue, match=scheme.rstrip("/").replace("+", r"\+")) as refused:
        penstock.connect(scheme + rest)
    assert "pw" not in str(refused.value)
    with pytest.raises(penstock.BadValue, match="pool"):
        penstock.connect("redis://127.0.0.1:1", pool=scheme + rest)
    assert list(tmp_path.iterdir()) == []


def test_the_error_for_an_unknown_scheme_names_the_known_ones() -> None:
    with pytest.raises(penstock.BadValue, match=r"(?s)(?=.*gopher)(?=.*sqlite)(?=.*memory)"):
        penstock.connect("gopher://x")


@pytest.mark.parametrize(
    "url",
    [
        "postgres://ada:pw@host/jobs", "mariadb://host/jobs?password=pw", "ada:pw@host/jobs",
        "postgresql://ada:pw@host/jobs?notify=x", "postgresql://host/jobs?password=pw&notify=x",
        "postgresql://ada:pw%@host/jobs", "postgresql://ada:pw x@host/jobs", "postgresql://ada:pw%00@host/jobs", "postgresql://host/jobs?password=pw%",
        "redis://ada:pw#x@host/0", "redis://ada:pw/x@host/0", "redis://ada:12/pw@host/0", "redis://ada:?pw@host/0",
        "mysql://ada:pw?x@host/jobs", "mysql://ada:pw[x@host/jobs", "redis+cluster://ada:#pw@host", "redis://ada:/pw@host/0",
        "redis://:pw@host/0?colour=red", "redis+sentinel://host/main?sentinel_password=pw&colour=red",
        "mysql://ada:pw@host/jobs?colour=red", "mysql://ada:pw@host", "sqlite://ada:pw@host/jobs", "memory://ada:pw@host?colour=red",
        "ada:pw@postgresql://host/jobs", "postgresql:/ada:pw@host/jobs", "postgresql://ada:%ffpw@host/jobs",
        "mysql://ada:%ffpw@host/jobs", "sqlite://ada:pw/x@host/jobs", "sqlite://ada:pw?x@host/jobs",
        "sqlite:///jobs.db?password=pw", "memory://host/jobs?password=pw",
    ],
)  # fmt: skip
def test_the_error_of_a_bad_url_has_no_password(url: str) -> None:
    for given, pool in ((url, None), ("redis://host/0", url)):
        with pytest.raises(penstock.BadValue) as refused:
            penstock.connect(given, pool=pool)
        assert "pw" not in str(refused.value)


@pytest.mark.parametrize("url", ["ada:pw@host/jobs", "redis:ada:pw@host"])
def test_a_search_for_the_pool_in_a_url_without_a_scheme_shows_no_password(url: str) -> None:
    with pytest.raises(penstock.BadValue) as refused:
        split_url(url)
    assert "pw" not in str(refused.value)


def test_without_a_url_the_environment_decides(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PENSTOCK_URL", f"sqlite:///{tmp_path}/mine.db")
    with penstock.connect() as broker:
        broker.tube("t").put("x")
    assert (tmp_path / "mine.db").exists()


def test_without_url_and_environment_it_is_a_file_here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("PENSTOCK_URL", raising=False)
    monkeypatch.chdir(tmp_path)
    with penstock.connect() as broker:
        broker.tube("t").put("x")
    assert (tmp_path / "penstock.db").exists()


USES: dict[str, Callable[[penstock.Broker, penstock.Tube], object]] = {
    "tube.put": lambda broker, tube: tube.put("x"),
    "tube.take": lambda broker, tube: tube.take(0),
    "tube.ack": lambda broker, tube: tube.ack(1),
    "tube.peek": lambda broker, tube: tube.peek(1),
    "tube.stats": lambda broker, tube: tube.stats(),
    "tube.kick": lambda broker, tube: tube.kick(),
    "tube.drop": lambda broker, tube: tube.drop(),
    "broker.tube": lambda broker, tube: broker.tube("t"),
    "broker.create_tube": lambda broker, tube: broker.create_tube("u", "fifo"),
    "broker.tubes": lambda broker, tube: broker.tubes(),
    "broker.take": lambda broker, tube: broker.take(["t"], timeout=0),
    "broker.session": lambda broker, tube: broker.session(),
    "broker.sessions": lambda broker, tube: broker.sessions(),
    "broker.check": lambda broker, tube: broker.check(),
}


def test_a_closed_broker_is_unavailable(connect: Connect) -> None:
    broker = connect()
    tube = broker.tube("t")
    broker.close()
    for use in USES.values():
        with pytest.raises(penstock.StoreUnavailable, match="closed"):
            use(broker, tube)


def test_closing_twice_is_harmless(broker: penstock.Broker, connect: Connect) -> None:
    other = connect()
    other.close()
    other.close()
    assert broker.tube("t").put("x").id == 1


def test_closing_one_broker_leaves_the_others_open(broker: penstock.Broker, connect: Connect) -> None:
    connect().close()
    broker.tube("t").put("x")
    assert drain(broker.tube("t")) == ["x"]


def test_a_memory_store_is_gone_with_its_last_broker() -> None:
    first = penstock.connect("memory://vanishing")
    second = penstock.connect("memory://vanishing")
    first.tube("t").put("x")
    first.close()
    assert [info.name for info in second.tubes()] == ["t"]
    second.close()
    with penstock.connect("memory://vanishing") as third:
        assert third.tubes() == []


def test_memory_urls_with_different_names_are_different_stores() -> None:
    with penstock.connect("memory://one") as one, penstock.connect("memory://two") as two:
        one.tube("t")
        assert two.tubes() == []


def test_what_was_put_is_there_after_a_restart(durable_url: str, clock: Clock) -> None:
    with penstock.connect(durable_url, clock=clock) as broker:
        tube = broker.tube("t", kind="utubettl", ttr=3, utube_limit=2)
        tube.put_many([("a", {"pri": 2}), ("b", {"pri": 1}), ("c", {"delay": 5}), ("d", {"ttl": 8})], utube="u")
        tube.bury(4, "odd")
        take(tube)
        before = [(info.name, info.kind, info.options) for info in broker.tubes()]
    with penstock.connect(durable_url, clock=clock) as broker:
        tube = broker.tube("t")
        assert [(info.name, info.kind, info.options) for info in broker.tubes()] == before
        assert [str(task.status) for task in tube.tasks()] == ["r", "r", "~", "!"]
        assert tube.peek(4).reason == "odd"
        assert calls(tube) == {"put": 4, "bury": 1, "take": 1, "release": 1}
        assert drain(tube) == ["b", "a"]
        assert tube.put("e").id > 4


def test_time_passes_while_no_broker_is_open(durable_url: str, clock: Clock) -> None:
    with penstock.connect(durable_url, clock=clock) as broker:
        broker.tube("t").put_many([("a", {"ttl": 5}), ("b", {"delay": 5}), "c"])
    clock.advance(60)
    with penstock.connect(durable_url, clock=clock) as broker:
        assert tasks(broker.tube("t")) == {"ready": 2, "done": 1, "total": 2}


def test_a_pause_outlives_a_restart(durable_url: str) -> None:
    with penstock.connect(durable_url) as broker:
        broker.tube("t").put("x")
        broker.tube("t").pause()
    with penstock.connect(durable_url) as broker:
        assert broker.tube("t").take(0) is None


def test_a_session_with_a_ttr_outlives_its_broker(durable_url: str, clock: Clock) -> None:
    with penstock.connect(durable_url, clock=clock) as broker:
        broker.tube("t").put("x")
        session = broker.session(ttr=5)
        take(session.tube("t"))
    clock.advance(4)
    with penstock.connect(durable_url, clock=clock) as broker:
        broker.session(id=session.id).tube("t").ack(1)
        assert calls(broker.tube("t")) == {"put": 1, "take": 1, "ack": 1}


def test_a_missing_folder_is_reported(tmp_path: Path) -> None:
    with pytest.raises(penstock.StoreUnavailable, match="nowhere"):
        penstock.connect(f"sqlite:///{tmp_path}/nowhere/queue.db")


def test_a_file_that_is_not_a_database_is_left_unchanged(tmp_path: Path) -> None:
    file = tmp_path / "letter.txt"
    file.write_text("Dear Ada, " * 1000)
    with pytest.raises(penstock.StoreCorrupt, match="letter"):
        penstock.connect(f"sqlite:///{file}")
    assert file.read_text() == "Dear Ada, " * 1000
