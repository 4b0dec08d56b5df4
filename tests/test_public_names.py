"""The public names and signatures, spelled out, so that reviewers see every change."""

from __future__ import annotations

import ast
import inspect
import re
import subprocess
import sys
from collections.abc import Callable, Iterator
from importlib import metadata
from pathlib import Path

import pytest

import penstock
from penstock.app import handler_options
from penstock.core import options

SOURCE = Path(__file__).parents[1] / "src" / "penstock"

NAMES = """
    App Attempt Backoff BadValue Broker Bury Cancelled DuplicateAddress Fail Failures Finding Group Kind LeaseLost
    NoSuchTube NotFound NotTaken Outcome OutcomeUnknown PayloadTooLarge PenstockError Progress Retry Schedule
    SchemaMismatch Session SessionInfo Snooze Status StoreBusy StoreCorrupt StoreError StoreFull StoreUnavailable Task
    TaskFailed Tube TubeBusy TubeExists TubeFull TubeInfo TubeMismatch TubeStats UnsupportedOption __version__ chain
    connect current_task current_tasks register_kind waiting
"""

TUBE = (
    "aging, backoff, callback, capacity, fair, max_attempts, max_payload, period, pri, retention, shards, temporary, "
    "ttl, ttr, utube_limit"
)
PUT = (
    "address=None, at=None, callback=None, delay=0, group=None, id=None, max_attempts=None, on_duplicate='error', "
    "pri=None, rank=None, reply_to=None, timeout=0, ttl=None, ttr=None, utube=None"
)
PUT_MANY = (
    "address, at, callback, delay, group, id, max_attempts, on_duplicate, pri, rank, reply_to, timeout=0, ttl, ttr, "
    "utube"
)
# First positional parameters, in order; after *, keyword-only ones, sorted.
FUNCTIONS = {
    "connect": "url=None, *, clock=None, pool=None",
    "register_kind": "kind",
}
TASK_OPTIONS = (
    "address", "backoff", "callback", "delay", "executor", "group", "id", "max_attempts", "name", "on_duplicate", "pri",
    "rank", "reply_to", "time_limit", "ttl", "ttr", "tube", "utube",
)  # fmt: skip
SCHEDULE_OPTIONS = (*TASK_OPTIONS, "catch_up='none'", "overlap=True")
ALTERED = "backoff, callback, capacity, max_attempts, max_payload, period, pri, retention, ttl, ttr, utube_limit"
METHODS = {
    "App.close": "",
    "App.cron": "expression, *, "
    + ", ".join(sorted((*TASK_OPTIONS, "catch_up='none'", "overlap=True", "timezone='UTC'"))),
    "App.every": "seconds, *, " + ", ".join(sorted(SCHEDULE_OPTIONS)),
    "App.group": "name, tube=None, *, on_failure='hold'",
    "App.on_end": "callback",
    "App.around": "function",
    "App.handler": "name, *, tube=None",
    "App.put": "name, args, *, **",
    "App.on_bury": "callback",
    "App.on_put": "callback",
    "App.on_retry": "callback",
    "App.on_shutdown": "callback",
    "App.on_startup": "callback",
    "App.on_start": "callback",
    "App.task": "function=None, *, " + ", ".join(sorted((*TASK_OPTIONS, "batch", "linger"))),
    "Broker.bind": "connection",
    "Broker.check": "repair=False",
    "Broker.close": "",
    "Broker.create_tube": f"name, kind='fifottl', *, {TUBE}",
    "Broker.session": "ttr=0, id=None",
    "Broker.sessions": "*, since=None, until=None",
    "Broker.take": "names, timeout=None, *, max_pri=None",
    "Broker.tube": f"name, kind=None, *, {TUBE}",
    "Broker.tubes": "",
    "Group.cancel": "",
    "Group.on_cancel": "data",
    "Group.on_end": "data",
    "Group.progress": "",
    "Group.put": f"data, *, {PUT_MANY}",
    "Group.put_many": f"items, *, {PUT_MANY}",
    "Group.results": "",
    "Group.start": "",
    "Group.wait": "timeout=None",
    "Outcome.unwrap": "",
    "Session.close": "",
    "Session.take": "names, timeout=None, *, max_pri=None",
    "Session.tube": "name",
    "Task.ack": "result=None",
    "Task.bury": "reason=None",
    "Task.decode": "kind",
    "Task.fail": "error, code=None",
    "Task.release": "delay=0",
    "Task.touch": "seconds",
    "Tube.alter": f"*, {ALTERED}",
    "Tube.ack": "task_or_id, result=None",
    "Tube.ack_many": "tasks",
    "Tube.bury": "task_or_id, reason=None",
    "Tube.delete": "task_or_id=None, *, address=None",
    "Tube.cancel": "task_or_id=None, reason=None, *, address=None",
    "Tube.drop": "",
    "Tube.fail": "task_or_id, error, code=None",
    "Tube.group": "name, *, create=True",
    "Tube.inspect": "start, count, pending=False",
    "Tube.kick": "count=1",
    "Tube.on_change": "callback",
    "Tube.pause": "",
    "Tube.peek": "id=None, *, address=None",
    "Tube.put": f"data, *, {PUT}",
    "Tube.put_many": f"items, *, {PUT_MANY}",
    "Tube.recover": "count, elapsed",
    "Tube.release": "task_or_id, delay=0",
    "Tube.release_all": "",
    "Tube.resume": "",
    "Tube.stats": "",
    "Tube.take": "timeout=None, *, max_pri=None",
    "Tube.take_many": "count, timeout=0, *, max_pri=None",
    "Tube.tasks": "status=None, *, after=None, limit=100",
    "Tube.touch": "task_or_id, seconds",
    "Tube.truncate": "",
    "Tube.wait": "address, timeout=None",
    "Tube.why": "id=None, *, address=None",
}
TASK = "address attempts created data due errors expires group id lease pri progress reason status taken tube utube"
# Values: their fields.
FIELDS = {
    "Backoff": "base=1, factor=2, limit=300, jitter=0.1",
    "Finding": "tube, id, what, remedy",
    "Kind": "name, accepts=frozenset(), order=('id',), per_utube=False, hand_out='lease'",
    "Attempt": "attempt, at, host, error, traceback",
    "Outcome": "status, result=None, error=None, code=None, errors=<factory>",
    "Progress": "done, total, failed=0",
    "Schedule": "name, when, task, args, timezone, next, paused",
    "SessionInfo": "id, host, pid, heartbeat, held, waits",
    "TubeInfo": "name, kind, options",
    "TubeStats": "tasks, calls",
}


def parameters(function: Callable[..., object]) -> str:
    """The signature without types; `**x: Unpack[Options]` becomes the names in Options, other `**x` stays."""
    placed, named = [], []
    for parameter in inspect.signature(function).parameters.values():
        shown = parameter.name if parameter.default is parameter.empty else f"{parameter.name}={parameter.default!r}"
        unpacked = re.fullmatch(r"Unpack\[(\w+)\]", str(parameter.annotation))
        if unpacked:
            named += {**vars(options), **vars(handler_options)}[unpacked[1]].__annotations__
        elif parameter.kind is parameter.VAR_KEYWORD:
            named.append("**")
        elif parameter.kind is parameter.KEYWORD_ONLY:
            named.append(shown)
        elif parameter.name != "self":
            placed.append(shown)
    return ", ".join([*placed, *(["*"] if named else []), *sorted(named)])


def test_the_package_has_exactly_these_names() -> None:
    assert sorted(penstock.__all__) == NAMES.split()
    assert all(hasattr(penstock, name) for name in penstock.__all__)


@pytest.mark.parametrize("name", ["aio.connect", "testing.eager", "testing.run_queued", "testing.Clock"])
def test_a_submodule_is_imported_on_first_use(name: str) -> None:
    asked = f"import sys, penstock; assert 'asyncio' not in sys.modules; penstock.{name}"
    assert subprocess.run([sys.executable, "-c", asked], check=False).returncode == 0


def test_the_version_is_that_of_the_distribution() -> None:
    assert penstock.__version__ == metadata.version("penstock")


@pytest.mark.parametrize("name", FUNCTIONS)
def test_a_function_has_exactly_these_parameters(name: str) -> None:
    assert parameters(getattr(penstock, name)) == FUNCTIONS[name]


@pytest.mark.parametrize("name", METHODS)
def test_a_method_has_exactly_these_parameters(name: str) -> None:
    owner, _, method = name.partition(".")
    assert parameters(getattr(getattr(penstock, owner), method)) == METHODS[name]


@pytest.mark.parametrize("name", FIELDS)
def test_a_value_has_exactly_these_fields(name: str) -> None:
    assert parameters(getattr(penstock, name)) == FIELDS[name]


def public(owner: type) -> set[str]:
    return {name for name in dir(owner) if not name.startswith("_")}


def test_a_task_has_exactly_these_attributes_and_verbs() -> None:
    verbs = {name.removeprefix("Task.") for name in METHODS if name.startswith("Task.")}
    assert public(penstock.Task) == set(TASK.split()) | verbs


@pytest.mark.parametrize(
    ("owner", "attributes"),
    [("App", "broker"), ("Broker", ""), ("Group", "name status"), ("Session", "id"), ("Tube", "name kind")],
)
def test_a_handle_has_exactly_these_attributes_and_verbs(owner: str, attributes: str) -> None:
    verbs = {name.partition(".")[2] for name in METHODS if name.startswith(f"{owner}.")}
    assert public(getattr(penstock, owner)) == set(attributes.split()) | verbs


def test_handles_have_exactly_these_internal_attributes() -> None:
    """Instance attributes that other modules of penstock use; programs must not."""
    with penstock.connect("memory://") as broker:
        tube = broker.tube("mail")
        handles = {"Broker": broker, "Tube": tube, "Session": broker.session(), "Group": tube.group("g")}
        found = {name: {key for key in vars(handle) if key[0] != "_"} for name, handle in handles.items()}
    both = {"runtime", "session_handle"}
    assert found == {"Broker": both, "Tube": both | {"stored"}, "Session": both, "Group": set()}


def test_stats_count_these_tasks_and_calls() -> None:
    with penstock.connect("memory://") as broker:
        stats = broker.tube("mail").stats()
    assert parameters(type(stats.tasks)) == "ready, taken, delayed, buried, done, total"
    calls = "put, take, ack, release, delete, bury, kick, touch, ttl, ttr, delay, fail"
    assert parameters(type(stats.calls)) == calls


def test_status_has_the_letters_of_the_wire() -> None:
    letters = {status.name: status.value for status in penstock.Status}
    assert letters == {"READY": "r", "TAKEN": "t", "DONE": "-", "BURIED": "!", "DELAYED": "~"}


def undocumented(path: Path) -> Iterator[str]:
    """The module and its public classes and functions that have no docstring."""
    module = ast.parse(path.read_text())
    if not ast.get_docstring(module):
        yield "the module"
    for node in module.body:
        if not isinstance(node, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef) or node.name.startswith("_"):
            continue
        overloaded = any(ast.unparse(decorator) == "overload" for decorator in node.decorator_list)
        if not overloaded and not ast.get_docstring(node):  # the last overload has the docstring for all
            yield node.name


@pytest.mark.parametrize("path", sorted(SOURCE.rglob("*.py")), ids=lambda path: str(path.relative_to(SOURCE)))
def test_everything_public_in_a_module_has_a_docstring(path: Path) -> None:
    assert list(undocumented(path)) == []


@pytest.mark.parametrize("name", sorted(set(NAMES.split()) - {"__version__"}))
def test_a_public_name_and_its_methods_have_docstrings(name: str) -> None:
    thing = getattr(penstock, name)
    assert inspect.getdoc(thing)
    if inspect.isclass(thing):
        own = {key: value for key, value in vars(thing).items() if not key.startswith("_")}
        verbs = {key: value for key, value in own.items() if inspect.isfunction(value) or isinstance(value, property)}
        assert [key for key, value in verbs.items() if not inspect.getdoc(value)] == []
