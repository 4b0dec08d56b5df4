"""The dashboard's buttons. Each posts a form: check its CSRF token, act, write the audit line, redirect to a page."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any

import msgspec
from starlette.requests import Request
from starlette.responses import RedirectResponse, Response
from starlette.routing import BaseRoute, Route

from penstock import aio
from penstock.broker import admin
from penstock.core.task import Record, Status
from penstock.errors import BadValue, NoSuchTube, PenstockError
from penstock.schedule import schedule_status
from penstock.schedule.schedule_status import SCHEDULE_TUBE
from penstock.server.auth import Role
from penstock.server.http.api_tasks import task_id
from penstock.server.http.authentication import COOKIE
from penstock.server.http.bulk import BULK, CANCELLED, Search
from penstock.server.http.formatting import part
from penstock.server.http.http_errors import Refused
from penstock.server.http.operations import Server
from penstock.server.http.request_parsing import Form, read_form

# The past tense of verbs on one task, for audit lines.
PAST = {**BULK, "release": "released", "bury": "buried"}
#: The message of a page after an action, by the URL parameter `done`. No text from the URL is shown.
NOTICES = {
    "put": "Task put.",
    "retry": "The task is ready again.",
    "release": "Task released.",
    "bury": "Task buried.",
    "delete": "Task deleted.",
    "cancel": "Task cancelled.",
    "paused": "Tube paused. Nothing is taken from it until it is resumed.",
    "resumed": "Tube resumed.",
    "released": "Tasks released: {count}.",
    "truncated": "Tasks removed: {count}.",
    "dropped": "Tube dropped.",
    "started": "Group started.",
    "cancelled": "Group cancelled.",
    "run": "Task put. It runs when a worker takes it.",
    "held": "Schedule paused. It stops putting tasks within a few seconds.",
    "unheld": "Schedule resumed.",
    "forgotten": "Schedule removed from the list.",
    "none": "No task is selected: tick some tasks, or all that match.",
    "bulk": "The bulk action is running. You can leave this page.",
    "stopping": "The bulk action stops after its current step.",
    **{f"bulk-{verb}": f"Tasks {done}: {{count}}." for verb, done in BULK.items()},
}


@dataclass(frozen=True, slots=True)
class FormAction:
    """A submitted form: its tube, the parameters of its path, its fields, and who sent it."""

    server: Server
    tube: aio.Tube
    path: dict[str, str]
    form: Form
    who: str

    @property
    def home(self) -> str:
        """The tube's page."""
        return f"/tubes/{part(self.tube.name)}"

    def call(self, function: Callable[..., Any], *arguments: object) -> Awaitable[Any]:
        """Run a blocking call on one of the broker's threads."""
        return self.server.access.call(function, *arguments)


@dataclass(frozen=True, slots=True)
class Done:
    """The result of an action: the page to show next, and the audit line with the page it refers to."""

    to: str
    what: str
    where: str = ""


class FormRefused(Exception):
    """A form with invalid values. It is shown again, with the reason."""

    def __init__(self, form: FormAction, error: PenstockError) -> None:
        super().__init__(str(error))
        self.form = form


Action = Callable[[FormAction], Awaitable[Done]]


def _on_tube(change: Callable[[aio.Tube], Awaitable[object]], what: str, done: str) -> Action:
    async def action(form: FormAction) -> Done:
        changed = await change(form.tube)
        count = f"&count={changed}" if isinstance(changed, int) else ""
        message = f"{what} tube {form.tube.name}" + (f" ({changed} tasks)" if count else "")
        return Done(f"{form.home}?done={done}{count}", message, form.home)

    return action


async def _drop(form: FormAction) -> Done:
    await form.tube.drop()
    return Done("/?done=dropped", f"dropped tube {form.tube.name}")


def _on_task(verb: str, change: Callable[[Any, Any], object]) -> Action:
    async def action(form: FormAction) -> Done:
        id = task_id(form.tube, form.path["id"])
        await form.call(change, form.tube.sync, id)
        own = f"{form.home}/tasks/{part(id)}"
        to = form.home if verb == "delete" else own
        return Done(f"{to}?done={verb}", f"{PAST[verb]} task {id} of tube {form.tube.name}", own)

    return action


async def _put(form: FormAction) -> Done:
    """Put a task from the form; empty fields count as not given."""
    try:
        data, options = read_put(form.form)
        task = await form.tube.put(data, **options)
    except PenstockError as error:
        raise FormRefused(form, error) from error
    own = f"{form.home}/tasks/{part(task.id)}"
    return Done(f"{own}?done=put", f"put task {task.id} into tube {form.tube.name}", own)


#: The options that the form offers, with their converters; which of them a tube accepts depends on its kind.
PUT_FIELDS: dict[str, Callable[[str], object]] = {
    "pri": int, "delay": float, "ttl": float, "ttr": float, "utube": str, "address": str, "id": str,
}  # fmt: skip


def read_put(form: Form) -> tuple[Any, dict[str, Any]]:
    """The data, which must be JSON, and the options that were given."""
    text = form.get("data", "")
    if not text.strip():
        raise BadValue("data is empty: give a JSON value, such as {} or null")
    try:
        data = msgspec.json.decode(text.encode("utf-8", "surrogatepass"))
    except (msgspec.DecodeError, RecursionError) as error:
        raise BadValue(f"data is not JSON ({error}): put a text in double quotes") from None
    options = {}
    for name, read in PUT_FIELDS.items():
        if given := form.get(name, "").strip():
            try:
                options[name] = read(given)
            except ValueError:
                raise BadValue(f"{name} {given[:60]!a} is not a number: give one, or leave it empty") from None
    return data, options


async def _bulk(form: FormAction) -> Done:
    """Apply a verb to the ticked tasks at once, or to all that match in the background."""
    verb, tube = form.form.get("verb", ""), form.tube
    if verb not in BULK:
        raise BadValue(f"{verb[:60]!a} is not a bulk action: use one of {', '.join(BULK)}")
    status, text = form.form.get("status", ""), form.form.get("q", "")[:200]
    back = f"{form.home}?status={part(status)}&q={part(text)}"
    if "all" in form.form:
        search = Search(Status[status.upper()] if status in ("ready", "taken", "delayed", "buried") else None, text)
        await form.server.jobs.start(tube.sync, verb, search, form.who)
        matching = f" with {text!a}" if text else ""
        what = f"started to {verb} all {status}{' ' if status else ''}tasks{matching} of tube {tube.name}"
        return Done("/bulk?done=bulk", what, back)
    ids = [task_id(tube, id) for id in form.form.getlist("id")]
    changed = await form.call(_change, tube.sync, verb, ids)
    if not ids:
        return Done(f"{back}&done=none", "")
    named = ", ".join(map(str, ids[:10])) + (" …" if len(ids) > 10 else "")
    return Done(f"{back}&done=bulk-{verb}&count={changed}", f"{PAST[verb]} tasks {named} of tube {tube.name}", back)


def _change(tube: Any, verb: str, ids: list[int | str]) -> int:
    found: list[Record | None] = tube.runtime.store.get(tube.stored, ids) if ids else []
    return admin.change_many(tube, verb, [record for record in found if record is not None], CANCELLED)


async def _stop_bulk(form: FormAction) -> Done:
    job = form.path["job"][:20]
    await form.server.jobs.stop(job)
    return Done("/bulk?done=stopping", f"stopped bulk action {job}", "/bulk")


async def _start_group(form: FormAction) -> Done:
    await (await form.tube.group(form.path["group"])).start()
    groups = f"{form.home}/groups"
    return Done(f"{groups}?done=started", f"started group {form.path['group']} of tube {form.tube.name}", groups)


async def _cancel_group(form: FormAction) -> Done:
    await (await form.tube.group(form.path["group"])).cancel()
    groups = f"{form.home}/groups"
    return Done(f"{groups}?done=cancelled", f"cancelled group {form.path['group']} of tube {form.tube.name}", groups)


def _on_schedule(change: Callable[[Any, str], object], what: str, done: str) -> Action:
    async def action(form: FormAction) -> Done:
        record = await form.call(schedule_status.find, form.tube.sync, form.path["key"])
        await form.call(change, form.tube.sync, form.path["key"])
        return Done(f"/schedules?done={done}", f"{what} schedule {record.schedule}", "/schedules")

    return action


_TUBE = "/tubes/{name}"
_TASK = _TUBE + "/tasks/{id:path}/"
_GROUP = _TUBE + "/groups/{group}/"
_SCHEDULE = "/schedules/{key}/"
ACTIONS: dict[str, tuple[Role, Action]] = {
    _TASK + "retry": (Role.OPERATE, _on_task("retry", admin.retry)),
    _TASK + "release": (Role.OPERATE, _on_task("release", admin.release_one)),
    _TASK + "bury": (Role.OPERATE, _on_task("bury", lambda tube, id: tube.bury(id, "buried in the dashboard"))),
    _TASK + "cancel": (
        Role.OPERATE,
        _on_task("cancel", lambda tube, id: admin.cancel(tube, id, CANCELLED)),
    ),
    _TASK + "delete": (Role.OPERATE, _on_task("delete", lambda tube, id: tube.delete(id))),
    _TUBE + "/put": (Role.OPERATE, _put),
    _TUBE + "/bulk": (Role.OPERATE, _bulk),
    _TUBE + "/pause": (Role.ADMIN, _on_tube(lambda tube: tube.pause(), "paused", "paused")),
    _TUBE + "/resume": (Role.ADMIN, _on_tube(lambda tube: tube.resume(), "resumed", "resumed")),
    _TUBE + "/release_all": (Role.ADMIN, _on_tube(lambda tube: tube.release_all(), "released all of", "released")),
    _TUBE + "/truncate": (Role.ADMIN, _on_tube(lambda tube: tube.truncate(), "truncated", "truncated")),
    _TUBE + "/drop": (Role.ADMIN, _drop),
    _GROUP + "start": (Role.OPERATE, _start_group),
    _GROUP + "cancel": (Role.OPERATE, _cancel_group),
    _SCHEDULE + "run": (Role.OPERATE, _on_schedule(schedule_status.run_now, "ran", "run")),
    _SCHEDULE + "pause": (Role.OPERATE, _on_schedule(schedule_status.pause, "paused", "held")),
    _SCHEDULE + "resume": (Role.OPERATE, _on_schedule(schedule_status.resume, "resumed", "unheld")),
    _SCHEDULE + "forget": (Role.OPERATE, _on_schedule(schedule_status.forget, "forgot", "forgotten")),
    _TUBE + "/bulk/{job}/stop": (Role.OPERATE, _stop_bulk),
}


def action_routes(server: Server, refuse: Callable[[Request, Exception], Response]) -> list[BaseRoute]:
    """The routes of all buttons; `refuse` renders an error as a page."""
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
            if not server.authentication.logins.accepts(cookie, form.get("csrf_token", "")):
                raise Refused(403, "this form is too old, or did not come from this server: load the page again")
            tube = await server.access.tube(request.path_params.get("name", SCHEDULE_TUBE))
            who = server.authentication.who(request)
            done = await action(FormAction(server, tube, request.path_params, form, who))
            if done.what:
                await server.audit_trail.note(who, done.what, done.where)
            return RedirectResponse(done.to, 303)
        except Exception as error:
            if isinstance(error, NoSuchTube):
                server.access.forget(request.path_params.get("name", SCHEDULE_TUBE))
            return refuse(request, error)

    return form
