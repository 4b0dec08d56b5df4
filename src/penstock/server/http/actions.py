"""The dashboard's buttons: each is a form that is posted, sealed, done, and answered by the way back to a page."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any

from starlette.requests import Request
from starlette.responses import RedirectResponse, Response
from starlette.routing import BaseRoute, Route

from penstock import aio
from penstock.broker import admin
from penstock.errors import BadValue, NoSuchTube
from penstock.schedule import schedule_status
from penstock.schedule.schedule_status import SCHEDULE_TUBE
from penstock.server.auth import Role
from penstock.server.http.api_tasks import task_id
from penstock.server.http.authentication import COOKIE
from penstock.server.http.formatting import part
from penstock.server.http.http_errors import Refused
from penstock.server.http.operations import Server
from penstock.server.http.request_parsing import read_form
from penstock.server.http.store_access import Access

#: What a page says after a button; nothing of it comes from the address.
NOTICES = {
    "kick": "The task is ready again.",
    "retry": "The task is ready again.",
    "release": "The task is released.",
    "bury": "The task is buried.",
    "delete": "The task is deleted.",
    "cancel": "The task is cancelled.",
    "kicked": "Buried tasks that are ready again: {count}.",
    "paused": "The tube is paused: nothing is taken from it.",
    "resumed": "Tube resumed.",
    "released": "Tasks released: {count}.",
    "truncated": "Tasks removed: {count}.",
    "dropped": "The tube is dropped.",
    "started": "The group is started.",
    "cancelled": "The group is cancelled.",
    "run": "The schedule's work is put, and runs when a worker takes it.",
    "held": "The schedule is paused: from a few seconds on it puts nothing.",
    "unheld": "Schedule resumed.",
    "forgotten": "The schedule is not shown any more.",
}


@dataclass(frozen=True, slots=True)
class FormAction:
    """A button that was pressed."""

    access: Access
    tube: aio.Tube
    path: dict[str, str]
    form: dict[str, str]

    @property
    def home(self) -> str:
        """The tube's page."""
        return f"/tubes/{part(self.tube.name)}"


Action = Callable[[FormAction], Awaitable[str]]


async def _kick(form: FormAction) -> str:
    text = form.form.get("count", "1")
    if not text.isdecimal() or len(text) > 6:
        raise BadValue("how many to kick is not a number: give one from 1 to 999999")
    return f"{form.home}?done=kicked&count={await form.tube.kick(int(text))}"


async def _pause(form: FormAction) -> str:
    await form.tube.pause()
    return f"{form.home}?done=paused"


async def _resume(form: FormAction) -> str:
    await form.tube.resume()
    return f"{form.home}?done=resumed"


async def _release_all(form: FormAction) -> str:
    return f"{form.home}?done=released&count={await form.tube.release_all()}"


async def _truncate(form: FormAction) -> str:
    return f"{form.home}?done=truncated&count={await form.tube.truncate()}"


async def _drop(form: FormAction) -> str:
    await form.tube.drop()
    return "/?done=dropped"


def _on_task(verb: str, change: Callable[[Any, Any], object]) -> Action:
    async def action(form: FormAction) -> str:
        id = task_id(form.tube, form.path["id"])
        await form.access.call(change, form.tube.sync, id)
        gone = verb in ("delete", "cancel")
        return f"{form.home}?done={verb}" if gone else f"{form.home}/tasks/{part(id)}?done={verb}"

    return action


async def _start_group(form: FormAction) -> str:
    await (await form.tube.group(form.path["group"])).start()
    return f"{form.home}/groups?done=started"


async def _cancel_group(form: FormAction) -> str:
    await (await form.tube.group(form.path["group"])).cancel()
    return f"{form.home}/groups?done=cancelled"


def _on_schedule(change: Callable[[Any, str], object], done: str) -> Action:
    async def action(form: FormAction) -> str:
        await form.access.call(change, form.tube.sync, form.path["key"])
        return f"/schedules?done={done}"

    return action


_TUBE = "/tubes/{name}"
_TASK = _TUBE + "/tasks/{id:path}/"
_GROUP = _TUBE + "/groups/{group}/"
_SCHEDULE = "/schedules/{key}/"
ACTIONS: dict[str, tuple[Role, Action]] = {
    _TASK + "kick": (Role.OPERATE, _on_task("kick", admin.kick_one)),
    _TASK + "retry": (Role.OPERATE, _on_task("retry", admin.retry)),
    _TASK + "release": (Role.OPERATE, _on_task("release", admin.release_one)),
    _TASK + "bury": (Role.OPERATE, _on_task("bury", lambda tube, id: tube.bury(id, "buried in the dashboard"))),
    _TASK + "cancel": (
        Role.OPERATE,
        _on_task("cancel", lambda tube, id: admin.cancel(tube, id, "cancelled in the dashboard")),
    ),
    _TASK + "delete": (Role.OPERATE, _on_task("delete", lambda tube, id: tube.delete(id))),
    _TUBE + "/kick": (Role.OPERATE, _kick),
    _TUBE + "/pause": (Role.ADMIN, _pause),
    _TUBE + "/resume": (Role.ADMIN, _resume),
    _TUBE + "/release_all": (Role.ADMIN, _release_all),
    _TUBE + "/truncate": (Role.ADMIN, _truncate),
    _TUBE + "/drop": (Role.ADMIN, _drop),
    _GROUP + "start": (Role.OPERATE, _start_group),
    _GROUP + "cancel": (Role.OPERATE, _cancel_group),
    _SCHEDULE + "run": (Role.OPERATE, _on_schedule(schedule_status.run_now, "run")),
    _SCHEDULE + "pause": (Role.OPERATE, _on_schedule(schedule_status.pause, "held")),
    _SCHEDULE + "resume": (Role.OPERATE, _on_schedule(schedule_status.resume, "unheld")),
    _SCHEDULE + "forget": (Role.OPERATE, _on_schedule(schedule_status.forget, "forgotten")),
}


def action_routes(server: Server, refuse: Callable[[Request, Exception], Response]) -> list[BaseRoute]:
    """The buttons as routes; `refuse` makes a page of an error."""
    return [
        Route(path, _endpoint(server, role, action, refuse), methods=["POST"])
        for path, (role, action) in ACTIONS.items()
    ]


def _endpoint(
    server: Server, role: Role, action: Action, refuse: Callable[[Request, Exception], Response]
) -> Callable[[Request], Awaitable[Response]]:
    async def form(request: Request) -> Response:
        try:
            await server.authentication.need(request, role)
            form = await read_form(request, server.options)
            cookie = "" if server.authentication.open else request.cookies.get(COOKIE, "")
            if not server.authentication.logins.sealed(cookie, form.get("seal", "")):
                raise Refused(403, "this form is not one of this server's pages, or is old: load the page again")
            tube = await server.access.tube(request.path_params.get("name", SCHEDULE_TUBE))
            return RedirectResponse(await action(FormAction(server.access, tube, request.path_params, form)), 303)
        except Exception as error:
            if isinstance(error, NoSuchTube):
                server.access.forget(request.path_params.get("name", SCHEDULE_TUBE))
            return refuse(request, error)

    return form
