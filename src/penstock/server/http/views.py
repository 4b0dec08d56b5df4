"""What each page shows: a template and its values. No view counts rows."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Annotated, Any

from msgspec import Meta

from penstock.broker import admin
from penstock.broker.outcome import GONE, make_outcome, never_put
from penstock.broker.tube import Tube
from penstock.core.group import Group
from penstock.core.kind import kinds_with
from penstock.core.names import MAX_ID
from penstock.core.options import Tube as StoredTube
from penstock.core.results import Counts
from penstock.core.task import Status, Task, record_of
from penstock.errors import NoSuchTube, NotFound, UnsupportedOption
from penstock.schedule import schedule_status
from penstock.schedule.schedule_status import SCHEDULE_TUBE
from penstock.server.http.actions import PUT_FIELDS
from penstock.server.http.api_tasks import task_id
from penstock.server.http.charts import SPANS, make_charts
from penstock.server.http.history import History, summed
from penstock.server.http.operations import Server
from penstock.server.http.requests import Query
from penstock.server.http.sampler import STATES, Sampler, total
from penstock.server.http.store_access import Access
from penstock.worker.worker_stats import Runs

ROWS = 100
# The most rows of pages that have no second page.
MOST_ROWS = 200
TASK_ROWS = 50
# Tubes that one page searches for groups.
TUBES_SEARCHED = 200
# Tubes, and tasks of all of them, that one page searches for callbacks.
CALLBACK_TUBES, CALLBACK_TASKS = 50, 2500


SpanName = Annotated[str, Meta(pattern="^(|1h|24h)$")]


class Overview(Query):
    """Parameters of the overview: filter, order and page of the tubes."""

    q: Annotated[str, Meta(max_length=200)] = ""
    order: Annotated[str, Meta(pattern="^(name|ready|taken|delayed|buried|oldest)$")] = "name"
    page: Annotated[int, Meta(ge=1, le=100_000)] = 1
    span: SpanName = ""
    done: Annotated[str, Meta(max_length=40)] = ""


class TubeQuery(Query):
    """Parameters of a tube's page: filter and page of its tasks."""

    status: Annotated[str, Meta(pattern="^(|ready|taken|delayed|buried)$")] = ""
    q: Annotated[str, Meta(max_length=200)] = ""
    after: Annotated[int, Meta(ge=0, le=MAX_ID)] | None = None
    span: SpanName = ""
    done: Annotated[str, Meta(max_length=40)] = ""
    count: Annotated[int, Meta(ge=0, le=MAX_ID)] = 0


class Handlers(Query):
    """Parameters of the handlers' page: time span and order."""

    span: Annotated[str, Meta(pattern="^(1h|24h|live)$")] = "1h"
    order: Annotated[str, Meta(pattern="^(name|runs|failures|slowest)$")] = "name"
    done: Annotated[str, Meta(max_length=40)] = ""


class AuditQuery(Query):
    """Parameters of the audit page."""

    page: Annotated[int, Meta(ge=1, le=1000)] = 1
    done: Annotated[str, Meta(max_length=40)] = ""


class Plain(Query):
    """Parameters of all other pages."""

    done: Annotated[str, Meta(max_length=40)] = ""


@dataclass(frozen=True, slots=True)
class Sources:
    """What views read: the store, recent samples of its counters, and their history."""

    server: Server
    sampler: Sampler
    history: History

    @property
    def access(self) -> Access:
        """Access to the broker."""
        return self.server.access


View = tuple[str, dict[str, Any]]


async def overview(sources: Sources, path: dict[str, str], query: Overview) -> View:
    """All tubes, and charts of their totals."""
    sources.sampler.note_request()
    sample = await sources.sampler.read(2.0)
    wanted = query.q.strip().casefold()
    names = [name for name in sample.counts if wanted in name.casefold()]
    if query.order == "oldest":
        names.sort(key=lambda name: (-sample.waits[name], name))
    elif query.order != "name":
        names.sort(key=lambda name: (-getattr(sample.counts[name], query.order), name))
    pages = max(1, -(-len(names) // ROWS))
    page = min(query.page, pages)
    shown = names[(page - 1) * ROWS : page * ROWS]
    rows = [
        (sample.tubes[name], sample.counts[name], sample.waits[name], sources.sampler.rates(name)) for name in shown
    ]
    values = {
        "rows": rows,
        "matches": len(names),
        "tubes": len(sample.counts),
        "counts": total(sample.counts),
        "oldest": max(sample.waits.values(), default=0.0),
        "paused": sample.paused,
        "pages": pages,
        "page": page,
    }
    return "overview.html", values | _charts(sources, query.span, None) | {"query": query}


async def tube(sources: Sources, path: dict[str, str], query: TubeQuery) -> View:
    """One tube: charts, options, tasks."""
    sources.sampler.note_request()
    handle = await sources.access.tube(path["name"])
    status = Status[query.status.upper()] if query.status else None
    seen = await sources.access.call(_see_tube, handle.sync, status, query)
    charts = _charts(sources, query.span, handle.name)
    return "tube.html", {"tube": handle.stored} | seen | charts | {"query": query}


def _charts(sources: Sources, span: str, tube: str | None) -> dict[str, Any]:
    """The charts of one tube or of all: the last minutes from memory, more from the history."""
    if span:
        points = sources.history.points(tube, SPANS[span].seconds)
    else:
        points = list(sources.sampler.totals) if tube is None else sources.sampler.chart(tube)
    until = round(time.time(), 1)
    charts = make_charts(points, SPANS[span], until)
    return {"states": STATES, "span": SPANS[span], "spans": list(SPANS.values()), "charts": charts, "until": until}


def _see_tube(tube: Tube, status: Status | None, query: TubeQuery) -> dict[str, Any]:
    found = admin.search(tube, status, query.q, query.after, TASK_ROWS)
    counters = tube.runtime.store.counters([tube.stored]).get(tube.stored.no)
    return {
        "stats": tube.stats(),
        "paused": admin.is_paused(tube),
        "found": found,
        "oldest": time.time() - counters.waits if counters and counters.waits else None,
    }


async def task(sources: Sources, path: dict[str, str], query: Plain) -> View:
    """One task: data, times, what holds it back, and its buttons."""
    handle = await sources.access.tube(path["name"])
    template, seen = await sources.access.call(_see_task, handle.sync, task_id(handle, path["id"]))
    return template, {"tube": handle.stored} | seen


def _see_task(tube: Tube, id: Any) -> View:
    """The task, or how it ended if it has left its tube."""
    try:
        task = tube.peek(id)
    except NotFound:
        if not tube.stored.kind.leased:
            raise
        found = tube.runtime.store.outcomes(tube.stored, [id])[0]
        if found.unknown:
            raise never_put(tube.stored, id) from None
        return "ended.html", {"id": id, "outcome": GONE if found.ending is None else make_outcome(found.ending)}
    leased = isinstance(task.id, int)
    return "task.html", {
        "task": task,
        "record": record_of(task),
        "options": record_of(task).options,
        "why": _why(tube, task) if leased else None,
        "holder": admin.holder(tube, record_of(task)),
        "verbs": admin.verbs_for(task.status) if leased else ["delete"],
    }


def _why(tube: Tube, task: Task) -> str:
    """Why a task is not running. For a buried task, the text says "retried", like the button, instead of "kicked"."""
    if task.status is Status.BURIED:
        return "The task is buried. No worker takes it until it is retried."
    return tube.why(task.id)


async def put(sources: Sources, path: dict[str, str], query: Plain) -> View:
    """The form to put a task."""
    return put_form((await sources.access.tube(path["name"])).stored, {})


def put_form(tube: StoredTube, given: dict[str, str]) -> View:
    """The put form, filled in with `given` values, and with their error if there was one."""
    fields = [name for name in PUT_FIELDS if tube.kind.has(name)]
    return "put.html", {"tube": tube, "fields": fields, "given": given, "problem": given.get("problem", "")}


async def bulk(sources: Sources, path: dict[str, str], query: Plain) -> View:
    """The bulk actions and their progress."""
    return "bulk.html", {"jobs": await sources.server.jobs.newest_first()}


async def audit(sources: Sources, path: dict[str, str], query: AuditQuery) -> View:
    """The audit trail, newest first."""
    lines = await sources.server.audit_trail.newest_first()
    pages = max(1, -(-len(lines) // ROWS))
    page = min(query.page, pages)
    return "audit.html", {"lines": lines[(page - 1) * ROWS : page * ROWS], "page": page, "pages": pages}


async def utubes(sources: Sources, path: dict[str, str], query: Plain) -> View:
    """The micro-queues of a tube: which are busy, which are blocked."""
    handle = await sources.access.tube(path["name"])
    if not handle.stored.kind.per_utube:
        kinds = kinds_with("per_utube")
        raise UnsupportedOption(
            f"kind {handle.kind} of tube {handle.name} has no micro-queues: kinds with micro-queues are {kinds}"
        )
    micro_queues = await sources.access.call(admin.micro_queues, handle.sync)
    return "utubes.html", {"tube": handle.stored, "micro_queues": micro_queues, "sample": admin.SAMPLE}


async def groups(sources: Sources, path: dict[str, str], query: Plain) -> View:
    """The live groups, of one tube or of all."""
    found = await find_groups(sources, path)
    shown = {"groups": found[:MOST_ROWS], "more": len(found) > MOST_ROWS}
    return "groups.html", shown | {"tube_name": path.get("name")}


async def find_groups(sources: Sources, path: dict[str, str]) -> list[tuple[str, Group]]:
    """Live groups with the names of their tubes, of one tube or of all: more than `MOST_ROWS` if there are more."""
    return await sources.access.call(_live_groups, await _handles(sources, path))


def _live_groups(tubes: list[Tube]) -> list[tuple[str, Group]]:
    found: list[tuple[str, Group]] = []
    for tube in tubes:
        found += [(tube.name, group) for group in admin.live_groups(tube, limit=MOST_ROWS + 1)]
        if len(found) > MOST_ROWS:
            break
    return found


async def callbacks(sources: Sources, path: dict[str, str], query: Plain) -> View:
    """The hosts of callbacks, with failures and retries."""
    hosts = await find_callbacks(sources)
    return "callbacks.html", {"hosts": hosts[:MOST_ROWS], "more": max(0, len(hosts) - MOST_ROWS)}


async def find_callbacks(sources: Sources) -> list[admin.Host]:
    """The hosts that some tasks of some tubes call, those with the most failures first."""
    handles = await _handles(sources, {}, CALLBACK_TUBES)
    sample = max(5, CALLBACK_TASKS // (4 * max(1, len(handles))))  # of each of four states
    found = await sources.access.call(lambda: [row for tube in handles for row in admin.callbacks(tube, sample)])
    return admin.by_host(found)


async def _handles(sources: Sources, path: dict[str, str], most: int = TUBES_SEARCHED) -> list[Tube]:
    """The tube in the path, or else up to `most` tubes that have tasks, those with the most buried first."""
    if "name" in path:
        return [(await sources.access.tube(path["name"])).sync]
    sample = await sources.sampler.read(2.0)
    names = [name for name, counts in sample.counts.items() if _holds(counts)]
    if len(names) > most:
        names.sort(key=lambda name: (-sample.counts[name].buried, -sample.counts[name].delayed))
    found = []
    for name in names[:most]:
        try:
            found.append((await sources.access.tube(name)).sync)
        except NoSuchTube:
            sources.access.forget(name)
    return found


def _holds(counts: Counts) -> bool:
    return any(getattr(counts, state) for state in STATES)


async def sessions(sources: Sources, path: dict[str, str], query: Plain) -> View:
    """Workers, and sessions with what each holds and waits for."""
    live = await sources.access.broker.sessions()
    workers = await sources.history.workers()
    seen = {"workers": workers[:MOST_ROWS], "more_workers": max(0, len(workers) - MOST_ROWS)}
    return "sessions.html", seen | {"sessions": live[:MOST_ROWS], "more": max(0, len(live) - MOST_ROWS)}


async def handlers(sources: Sources, path: dict[str, str], query: Handlers) -> View:
    """Runs, failures and times of handlers on all workers, in a span of the history or since the workers started."""
    workers = await sources.history.workers()
    live = summed(each for worker in workers for each in worker.handlers)
    found = live if query.span == "live" else sources.history.runs(SPANS[query.span].seconds)
    names = sorted(found.keys() | live.keys())
    rows = [(name, tube, found.get((name, tube), Runs())) for name, tube in names]
    if query.order != "name":
        rows.sort(key=lambda row: -_ORDERS[query.order](row[2]))
    known = {"rows": rows[:MOST_ROWS], "more": max(0, len(rows) - MOST_ROWS), "workers": len(workers)}
    return "handlers.html", known | {"query": query, "orders": ["name", *_ORDERS]}


_ORDERS: dict[str, Callable[[Runs], float]] = {
    "runs": lambda runs: runs.count,
    "failures": lambda runs: runs.failed / max(1, runs.count),
    "slowest": lambda runs: runs.percentile(0.95),
}


async def schedules(sources: Sources, path: dict[str, str], query: Plain) -> View:
    """All schedules with their next times, and the ticks that are already put, soonest first."""
    try:
        schedule_tube = (await sources.access.tube(SCHEDULE_TUBE)).sync
        seen = await sources.access.call(_see_schedules, schedule_tube)
    except NoSuchTube:
        sources.access.forget(SCHEDULE_TUBE)
        seen = {"schedules": [], "ticks": []}
    return "schedules.html", seen | {"tube_name": SCHEDULE_TUBE}


def _see_schedules(schedule_tube: Tube) -> dict[str, Any]:
    found = schedule_tube.tasks(limit=schedule_status.TASKS_SEARCHED)
    ticks = [task for task in found if isinstance(task.data, dict) and "tick" in task.data]
    due = sorted(ticks, key=lambda task: task.due or 0)[:ROWS]
    return {"schedules": schedule_status.listed(schedule_tube), "ticks": due}
