"""The stores that every behaviour is tested on, and brokers whose clock only the test moves."""

from __future__ import annotations

import gc
import os
import random
import signal
from collections.abc import Callable, Generator, Iterator
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from uuid import uuid4

import pytest
from _pytest.runner import runtestprotocol
from hypothesis import HealthCheck, settings

import penstock
from penstock.core.store_url import with_pool
from penstock.testing import Clock
from tests.servers import DURABLE as DURABLE_SERVERS
from tests.servers import SERVERS, empty_url, running
from tests.servers.base import Server
from tests.servers.redis import Redis
from tests.servers.vaults import empty_vault
from tests.support.fault_injection import KillingClock, ServerKiller, caught_outages, seed
from tests.support.leak_check import no_leaks as no_leaks
from tests.support.process_pauses import Pauses
from tests.support.scratch_dir import keep_files_in_memory
from tests.support.xdist_schedule import Units, is_quick, place

Connect = Callable[[], penstock.Broker]

# No example fails because the machine is slow, and every run has the same ones, unless PENSTOCK_CAMPAIGN=long.
settings.register_profile(
    "steady",
    deadline=None,
    derandomize=os.environ.get("PENSTOCK_CAMPAIGN") != "long",
    suppress_health_check=[HealthCheck.too_slow],
)
settings.load_profile("steady")


def pooled(database: str) -> str:
    """The URL of a new Redis store in front of that database."""
    return with_pool(empty_url("redis"), database)


# name -> the URL of an empty store; one line here adds a store to the whole suite
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
# PENSTOCK_STORES=memory,redis runs the tests of every store on these only.
_ASKED = os.environ.get("PENSTOCK_STORES", ",".join(STORES)).split(",")
# The stores whose content outlives their last broker.
DURABLE = tuple(name for name in STORES if name != "memory")
# The server of each, for --restart-servers.
_POOLS = tuple(name for name in STORES if name.startswith("pool-"))
_SERVER = {name: name for name in SERVERS} | dict.fromkeys(_POOLS, "redis")


_RESTART = "--restart-servers"
_ONE_OF = 4
_KILLER = pytest.StashKey[ServerKiller]()
_PAUSE = "--pauses"
_QUICK = "--quick"
_PAUSES = pytest.StashKey[Pauses]()


def pytest_addoption(parser: pytest.Parser) -> None:
    help = f"kill the store's server, with -9, under one of N tests (default {_ONE_OF}): between calls, or inside one"
    parser.addoption(_RESTART, nargs="?", const=_ONE_OF, type=int, metavar="N", help=help)
    parser.addoption(_PAUSE, action="store_true", help="stop processes and servers of the run for moments, at random")
    parser.addoption(_QUICK, action="store_true", help="run no test that needs a server or declares that it is long")


def pytest_configure(config: pytest.Config) -> None:
    keep_files_in_memory()
    # A background job of a shell ignores Ctrl-C, and so would all processes that it starts.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    if config.getoption(_RESTART):
        SERVERS.update(DURABLE_SERVERS)
        seed()
    if config.getoption(_PAUSE) and not hasattr(config, "workerinput"):  # once for all xdist processes
        config.stash[_PAUSES] = Pauses(seed())


def pytest_report_header(config: pytest.Config) -> str | None:
    one_of = config.getoption(_RESTART)
    if one_of:
        return f"servers are killed under one of {one_of} tests, PENSTOCK_SEED={seed()}"
    return f"processes are paused, PENSTOCK_SEED={seed()}" if config.getoption(_PAUSE) else None


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter, config: pytest.Config) -> None:
    if config.getoption(_RESTART):
        done = [report for reports in terminalreporter.stats.values() for report in reports if hasattr(report, "when")]
        kills = [value for report in done for name, value in report.user_properties if name == "kills"]
        terminalreporter.write_line(f"servers killed: {sum(kills)} times, in {len(kills)} tests")
    if config.getoption(_PAUSE):
        terminalreporter.write_line(f"processes paused: {config.stash[_PAUSES].end()} times")


@pytest.hookimpl(wrapper=True)
def pytest_fixture_setup(request: pytest.FixtureRequest) -> Generator[None, object, object]:
    return (yield from _with_outages(request.node))


@pytest.hookimpl(wrapper=True)
def pytest_pyfunc_call(pyfuncitem: pytest.Function) -> Generator[None, object, object]:
    return (yield from _with_outages(pyfuncitem))


def _with_outages(node: pytest.Item | pytest.Collector) -> Generator[None, object, object]:
    """Run a part of a test; skip the rest after an error that a kill of the server explains."""
    killer = node.stash.get(_KILLER, None)
    if killer is None:
        return (yield)
    with caught_outages(killer) as errors:
        return (yield)
    pytest.skip(f"cut short by {errors[0]}")


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    if config.getoption(_QUICK):
        slow = [item for item in items if not is_quick(item)]
        config.hook.pytest_deselected(items=slow)
        items[:] = [item for item in items if is_quick(item)]
    items.sort(key=place)


def pytest_runtest_protocol(item: pytest.Item, nextitem: pytest.Item | None) -> bool | None:
    """In an xdist process, report only what the run shows: calls, and what went wrong before and after them."""
    if not hasattr(item.config, "workerinput"):
        return None
    hook, where = item.ihook, {"nodeid": item.nodeid, "location": item.location}
    hook.pytest_runtest_logstart(**where)
    for report in runtestprotocol(item, log=False, nextitem=nextitem):
        if report.when == "call" or not report.passed or report.user_properties:
            hook.pytest_runtest_logreport(report=report)
    hook.pytest_runtest_logfinish(**where)
    return True


def pytest_collection_finish() -> None:
    gc.freeze()  # otherwise each full collection visits all the tests, which took a sixth of the time of a small one


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: object) -> object:
    config.option.loadscopereorder = False  # xdist orders by number of tests
    return Units(config, log)


@pytest.fixture(params=[name for name in STORES if name in _ASKED])
def store_url(request: pytest.FixtureRequest) -> str:
    """A new store of each kind."""
    return _new_store(request)


@pytest.fixture(params=[name for name in DURABLE if name in _ASKED])
def durable_url(request: pytest.FixtureRequest) -> str:
    """A new store of each kind that keeps its content without a broker."""
    return _new_store(request)


def _new_store(request: pytest.FixtureRequest) -> str:
    # A folder only for a file, because it takes longer than a short test.
    folder = request.getfixturevalue("tmp_path") if "sqlite" in request.param else Path()
    return STORES[request.param](folder)


@pytest.fixture
def killer(request: pytest.FixtureRequest) -> Iterator[ServerKiller | None]:
    """With --restart-servers, what kills the server during this test, if the test was drawn."""
    given = request.node.callspec.params if hasattr(request.node, "callspec") else {}
    store, one_of = str(given.get("store_url", given.get("durable_url"))), request.config.getoption(_RESTART)
    dice = random.Random(f"{seed()} {request.node.nodeid}") if one_of and store in _SERVER else None
    if dice is None or dice.randrange(one_of) != 0 or request.node.get_closest_marker("never_restarted"):
        yield None
        return
    server = running(_SERVER[store])
    forbidden = partial(_has_sessions, server) if store in _POOLS else None
    killer = request.node.stash[_KILLER] = ServerKiller(partial(server.restart_some, dice), dice, forbidden)
    yield killer
    killer.stop()
    request.node.user_properties.append(("kills", killer.kills))


def _has_sessions(server: Server) -> bool:
    assert isinstance(server, Redis)
    parts = {key.rpartition(":")[2] for key in server.ask("KEYS", "*").splitlines()}
    # In the registry or still in a tube, or its end is not in the database yet: a pool may lose these by design.
    return bool(parts & {"sessions", "ends"}) or {"ended_sessions", "marks"} <= parts


@pytest.fixture
def clock(killer: ServerKiller | None, monkeypatch: pytest.MonkeyPatch) -> Clock:
    """The store's clock, which only the test moves. Advance it by less than 15 s in all, or sessions lapse."""
    monkeypatch.setattr("penstock.runtime.store_clock.CLOCK_SECONDS", 600.0)
    return KillingClock(killer) if killer else Clock()


@pytest.fixture
def connect(store_url: str, clock: Clock) -> Iterator[Connect]:
    """Opens brokers on the test's store and closes them after the test."""
    with ExitStack() as opened:
        yield lambda: opened.enter_context(penstock.connect(store_url, clock=clock))


@pytest.fixture
def broker(connect: Connect, killer: ServerKiller | None) -> Iterator[penstock.Broker]:
    """A broker on each store; after the test, everything stored must be consistent."""
    broker = connect()
    yield broker
    if killer is not None:
        killer.at_end()
    try:
        findings = broker.check()
    except penstock.StoreUnavailable:  # the test closed it
        return
    assert findings == []


@pytest.fixture
def unscanned(monkeypatch: pytest.MonkeyPatch) -> None:
    """Brokers opened later do not scan: only a notification wakes their blocked calls."""
    monkeypatch.setattr("penstock.runtime.heartbeat.SCAN_SECONDS", 600.0)
    monkeypatch.setattr("penstock.runtime.runtime.SCAN_SECONDS", 600.0)
    monkeypatch.setattr("penstock.runtime.store_clock.CLOCK_SECONDS", 600.0)
    # Scans also keep receiving threads alive: without scans these must not end during a test.
    monkeypatch.setattr("penstock.store.receiver.LINGER_SECONDS", 600.0)


@pytest.fixture
def live(store_url: str, killer: ServerKiller | None) -> Iterator[penstock.Broker]:
    """A broker in real time, for tests of waiting and waking."""
    with penstock.connect(store_url) as broker:
        if killer is not None:
            killer.kill()
        yield broker
        if killer is not None:
            killer.stop()  # time for the broker to end its sessions when it is closed
