"""The stores that every behaviour is tried on, and brokers on them whose clock moves only when told."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from uuid import uuid4

import pytest

import penstock
from penstock.store.open import with_pool
from penstock.testing import Clock
from tests.scratch import settle_in_memory
from tests.servers import DURABLE as DURABLE_SERVERS
from tests.servers import SERVERS, empty_url, running
from tests.servers.vaults import empty_vault
from tests.sharing import Units, place

Connect = Callable[[], penstock.Broker]


def pooled(database: str) -> str:
    """The URL of a fresh Redis store with that database behind it."""
    return with_pool(empty_url("redis"), database)


# name -> the URL of a store that nobody used before; a new store joins the whole suite by one line here
STORES: dict[str, Callable[[Path], str]] = {
    "memory": lambda folder: f"memory://{uuid4().hex}",
    "sqlite": lambda folder: f"sqlite:///{folder}/queue.db?durability=relaxed",
    "postgres": lambda folder: empty_url("postgres"),
    "mariadb": lambda folder: empty_url("mariadb"),
    "redis": lambda folder: empty_url("redis"),
    "redis-cluster": lambda folder: empty_url("redis-cluster"),
    "pool-sqlite": lambda folder: pooled(f"sqlite:///{folder}/pool.db?durability=relaxed"),
    "pool-postgres": lambda folder: pooled(empty_vault("postgres")),
    "pool-mariadb": lambda folder: pooled(empty_vault("mariadb")),
}
# The stores whose content outlives their last broker.
DURABLE = tuple(name for name in STORES if name != "memory")


_RESTART = "--restart-servers"


def pytest_addoption(parser: pytest.Parser) -> None:
    help = (
        "kill a store's server under each test: under its broker, in the middle, and before what is stored is checked"
    )
    parser.addoption(_RESTART, action="store_true", help=help)


def pytest_configure(config: pytest.Config) -> None:
    settle_in_memory()
    if config.getoption(_RESTART):
        SERVERS.update(DURABLE_SERVERS)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    items.sort(key=place)


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: object) -> object:
    config.option.loadscopereorder = False  # xdist's order is by number of tests
    return Units(config, log)


@pytest.fixture(params=STORES)
def store_url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """A fresh store of each sort."""
    return STORES[request.param](tmp_path)


@pytest.fixture(params=DURABLE)
def durable_url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """A fresh store of each sort that keeps its content without a broker."""
    return STORES[request.param](tmp_path)


@pytest.fixture
def restart(request: pytest.FixtureRequest) -> Callable[[], None]:
    """With --restart-servers kills the server of the test's store and starts it again; else does nothing."""
    name = request.node.callspec.params.get("store_url") if hasattr(request.node, "callspec") else None
    if name not in SERVERS or not request.config.getoption(_RESTART):
        return lambda: None
    return running(name).restart


class _RestlessClock(Clock):
    """In the middle of a test, the first time that it lets time pass, the server is killed."""

    def __init__(self, restart: Callable[[], None]) -> None:
        super().__init__()
        self._restart: Callable[[], None] | None = restart

    def advance(self, seconds: float) -> None:
        restart, self._restart = self._restart, None
        if restart is not None:
            restart()
        super().advance(seconds)


@pytest.fixture
def clock(restart: Callable[[], None]) -> Clock:
    """The store's clock. Keep the total of a test below 15 s, or sessions lapse."""
    return _RestlessClock(restart)


@pytest.fixture
def connect(store_url: str, clock: Clock) -> Iterator[Connect]:
    """Opens brokers on the one store, which are closed after the test."""
    with ExitStack() as opened:
        yield lambda: opened.enter_context(penstock.connect(store_url, clock=clock))


@pytest.fixture
def broker(connect: Connect, restart: Callable[[], None]) -> Iterator[penstock.Broker]:
    """A broker on each store; afterwards everything that is stored must still fit together."""
    broker = connect()
    restart()
    yield broker
    restart()
    try:
        findings = broker.check()
    except penstock.StoreUnavailable:  # the test closed it
        return
    assert findings == []


@pytest.fixture
def unscanned(monkeypatch: pytest.MonkeyPatch) -> None:
    """For brokers opened after it: what they are not told, no scan finds, and their blocked calls wait in vain."""
    monkeypatch.setattr("penstock.keeper.SCAN_SECONDS", 600.0)
    monkeypatch.setattr("penstock.hub.SCAN_SECONDS", 600.0)


@pytest.fixture
def live(store_url: str, restart: Callable[[], None]) -> Iterator[penstock.Broker]:
    """A broker in real time, for what waits and is woken."""
    with penstock.connect(store_url) as broker:
        restart()
        yield broker
