"""The operations on tubes, groups, addresses, schedules, sessions and the store."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Concatenate, ParamSpec, TypeVar

from penstock.broker import admin
from penstock.broker.session import SessionInfo
from penstock.broker.stats import TubeStats
from penstock.broker.tube import Tube
from penstock.core.group import Group
from penstock.core.results import Finding
from penstock.errors import NoSuchTube
from penstock.schedule import schedule_status
from penstock.schedule.schedule_status import SCHEDULE_TUBE, ScheduleStatus
from penstock.server.http import requests, responses
from penstock.server.http.operations import Call
from penstock.server.http.responses import (
    Count,
    GroupAnswer,
    Health,
    OutcomeAnswer,
    SessionAnswer,
    TaskAnswer,
    TubeAnswer,
    TubeLine,
)

P = ParamSpec("P")
R = TypeVar("R")


async def list_tubes(call: Call) -> list[TubeLine]:
    """List all tubes, by name."""
    return [responses.tube_line(info) for info in await call.access.broker.tubes()]


async def create_tube(call: Call, body: requests.CreateTube) -> TubeAnswer:
    """Create a tube."""
    options: Any = body.options()
    return await responses.tube(await call.access.broker.create_tube(body.name, body.kind, **options), False)


async def show_tube(call: Call) -> TubeAnswer:
    """Read a tube: its options and counters."""
    tube = await call.access.tube(call.path["name"])
    return await responses.tube(tube, await call.access.call(admin.is_paused, tube.sync))


async def stats(call: Call) -> TubeStats:
    """Read the exact counters of a tube, after applying everything that is due."""
    return await (await call.access.tube(call.path["name"])).stats()


async def drop(call: Call) -> None:
    """Remove a tube with all its tasks; refused while tasks are taken or a take waits."""
    await (await call.access.tube(call.path["name"])).drop()


async def truncate(call: Call, body: requests.NoBody) -> Count:
    """Remove every task of a tube, including taken ones."""
    return Count(await (await call.access.tube(call.path["name"])).truncate())


async def release_all(call: Call, body: requests.NoBody) -> Count:
    """Release every taken task of a tube, whichever session holds it."""
    return Count(await (await call.access.tube(call.path["name"])).release_all())


async def kick(call: Call, body: requests.Kick) -> Count:
    """Kick up to `count` buried tasks, in take order."""
    return Count(await (await call.access.tube(call.path["name"])).kick(body.count))


async def pause(call: Call, body: requests.NoBody) -> None:
    """Pause a tube: takes return nothing until it is resumed; puts continue."""
    await (await call.access.tube(call.path["name"])).pause()


async def resume(call: Call, body: requests.NoBody) -> None:
    """Resume a paused tube."""
    await (await call.access.tube(call.path["name"])).resume()


async def wait_for(call: Call, body: requests.WaitFor) -> OutcomeAnswer | None:
    """Wait until the task of an address has ended. Returns its outcome; 204 if it has not ended in time."""
    tube = await call.access.tube(call.path["name"])
    try:
        return responses.outcome(await call.while_connected(tube.wait(body.address, body.timeout or 0)))
    except TimeoutError:
        return None


# groups


async def list_groups(call: Call, query: requests.GroupListing) -> list[GroupAnswer]:
    """List the groups of a tube that have not ended, by name."""
    tube = await call.access.tube(call.path["name"])
    found = await call.access.call(admin.live_groups, tube.sync, query.after, query.limit)
    return [_group(group) for group in found]


async def show_group(call: Call) -> GroupAnswer:
    """Read a group that has not ended."""
    tube = await call.access.tube(call.path["name"])
    return _group(await call.access.call(admin.live_group, tube.sync, call.path["group"]))


async def start_group(call: Call, body: requests.NoBody) -> None:
    """Start a group, so that its tasks can be taken. A missing group is created, and ends at once."""
    tube = await call.access.tube(call.path["name"])
    await (await tube.group(call.path["group"])).start()


async def cancel_group(call: Call, body: requests.NoBody) -> None:
    """Cancel a group: remove all its tasks, including taken ones."""
    tube = await call.access.tube(call.path["name"])
    await (await tube.group(call.path["group"])).cancel()


async def set_end_work(call: Call, body: requests.Work) -> None:
    """Set the task that is put when all tasks of the started group have ended."""
    tube = await call.access.tube(call.path["name"])
    await (await tube.group(call.path["group"])).on_end(body.data)


async def set_cancel_work(call: Call, body: requests.Work) -> None:
    """Set the task that is put when the group was cancelled and all its tasks are removed."""
    tube = await call.access.tube(call.path["name"])
    await (await tube.group(call.path["group"])).on_cancel(body.data)


async def wait_group(call: Call, body: requests.WaitGroup) -> GroupAnswer | None:
    """Wait for the end of a group; 204 if it has not ended in time."""
    group = await (await call.access.tube(call.path["name"])).group(call.path["group"], create=False)
    try:
        state = await call.while_connected(group.wait(body.timeout or 0))
    except TimeoutError:
        return None
    progress = await group.progress()
    return GroupAnswer(group.name, state, progress.done, progress.total)


def _group(group: Group) -> GroupAnswer:
    return GroupAnswer(group.name, group.state, group.total - group.left, group.total)


# schedules


async def list_schedules(call: Call) -> list[ScheduleStatus]:
    """List the schedules of all applications, by name."""
    try:
        return await _on_schedules(call, schedule_status.listed)
    except NoSuchTube:
        return []


async def run_schedule(call: Call, body: requests.NoBody) -> TaskAnswer:
    """Run a schedule now: put its task."""
    return responses.task(await _on_schedules(call, schedule_status.run_now, call.path["key"]))


async def pause_schedule(call: Call, body: requests.NoBody) -> None:
    """Pause a schedule. Ticks of the next few seconds, which are already put, still run."""
    await _on_schedules(call, schedule_status.pause, call.path["key"])


async def resume_schedule(call: Call, body: requests.NoBody) -> None:
    """Resume a schedule. Its `catch_up` decides about the ticks it missed."""
    await _on_schedules(call, schedule_status.resume, call.path["key"])


async def forget_schedule(call: Call) -> None:
    """Forget a schedule. A worker whose application has it saves it again when it starts."""
    await _on_schedules(call, schedule_status.forget, call.path["key"])


async def _on_schedules(call: Call, act: Callable[Concatenate[Tube, P], R], *args: P.args, **kwargs: P.kwargs) -> R:
    """Run a function on the tube of saved schedules. If the tube was dropped, the next call opens it again."""
    schedule_tube = await call.access.tube(SCHEDULE_TUBE)
    try:
        return await call.access.call(act, schedule_tube.sync, *args, **kwargs)
    except NoSuchTube:
        call.access.forget(SCHEDULE_TUBE)
        raise


# sessions and the store


async def list_sessions(call: Call) -> list[SessionInfo]:
    """List the live sessions of the store, on all hosts."""
    return await call.access.broker.sessions()


async def begin_session(call: Call, body: requests.BeginSession) -> SessionAnswer:
    """Begin a session, for the header Penstock-Session. It ends when no call has named it for `idle` seconds."""
    return SessionAnswer(await call.access.begin(body.ttr, body.idle))


async def end_session(call: Call) -> None:
    """End a session that was begun or joined through this server."""
    await call.access.end(call.path["id"])


async def check(call: Call, body: requests.Check) -> list[Finding]:
    """Check everything stored, and repair it if asked. Locks the store while it runs: for maintenance."""
    return await call.access.broker.check(body.repair)


async def health(call: Call) -> Health:
    """Report whether the server is up. Needs no token."""
    return Health("ok")


async def ready(call: Call) -> Health:
    """Report whether the store answers. Needs no token."""
    await call.access.call(call.access.broker.sync.runtime.store.now)
    return Health("ok")
