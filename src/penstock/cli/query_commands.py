"""The commands that only read."""

from __future__ import annotations

import click
import msgspec

import penstock
from penstock.broker.admin import is_paused, live_group, live_groups
from penstock.broker.group_handle import Group
from penstock.broker.stats import TaskCounts
from penstock.broker.tube import MAX_PAGE
from penstock.broker.tube_factory import find_tube
from penstock.cli import completion, output, params
from penstock.cli.existing_store import connect_existing
from penstock.core.task import Status
from penstock.core.transfer import moved_to, plain_name
from penstock.core.values import whole
from penstock.errors import BadValue

_COUNTS = ("ready", "taken", "delayed", "buried", "done")
# A done task has left its tube, so none is listed.
_STATUSES = {status.name.lower(): status for status in Status if status is not Status.DONE}


class TubeRow(msgspec.Struct, frozen=True):
    """A tube in a list."""

    name: str
    kind: str
    options: dict[str, object]
    paused: bool
    tasks: TaskCounts


@click.command()
@click.argument("tube", required=False, shell_complete=completion.tubes)
@output.json_option
@click.pass_context
def ls(context: click.Context, tube: str | None, as_json: bool) -> None:
    """List the tubes, or the tasks of one.

    \b
    penstock ls
    penstock ls mail      the first 100; penstock tasks has more options
    """
    if tube is None:
        context.invoke(tubes, as_json=as_json)
    else:
        context.invoke(tasks, tube=tube, as_json=as_json)


@click.command()
@output.json_option
@click.pass_obj
def tubes(url: str, as_json: bool) -> None:
    """List the tubes and what is in them.

    \b
    penstock tubes
    """
    with connect_existing(url) as broker:
        found = [_tube_row(broker, info) for info in broker.tubes()]
        moved = broker.runtime.store.load_tubes(frozen=True)
    if as_json:
        return output.as_json(found)
    rows = [
        [each.name, each.kind, *(f"{getattr(each.tasks, name):,}" for name in _COUNTS), "paused" if each.paused else ""]
        for each in found
    ]
    if rows or not moved:
        output.listed(("tube", "kind", *_COUNTS, ""), rows, "no tubes yet: penstock put TUBE DATA creates one")
    for tube in moved:
        click.echo(output.as_text(f"{plain_name(tube.name)} has moved to {moved_to(tube)}"))
    return None


def _tube_row(broker: penstock.Broker, info: penstock.TubeInfo) -> TubeRow:
    tube = find_tube(broker.runtime, broker.session_handle, info.name)
    return TubeRow(info.name, info.kind, info.options, is_paused(tube), tube.stats().tasks)


@click.command()
@params.tube_argument
@click.option(
    "--status", shell_complete=completion.words(*_STATUSES), help="ready, taken, delayed or buried; or its letter."
)
@click.option("--limit", type=int, default=100, show_default=True, help="Maximum number to list.")
@click.option("--after", metavar="ID", help="Continue after this one.")
@output.json_option
@click.pass_obj
def tasks(url: str, tube: str, status: str | None, limit: int, after: str | None, as_json: bool) -> None:
    """List the tasks of a tube.

    \b
    penstock tasks mail --status buried
    penstock tasks mail --limit 1000 --after 1000
    """
    with params.opened(url, tube) as opened:
        last = None if after is None else params.task_id(opened, after)
        found = opened.tasks(_status(status), limit=limit, after=last)
    if as_json:
        output.as_json([output.task_facts(task) for task in found])
    else:
        output.listed(output.TASK_HEADINGS, list(map(output.task_row, found)), f"no such tasks in {tube}")


@click.command()
@params.tube_argument
@params.optional_id_argument
@params.address_option
@output.json_option
@click.pass_obj
def peek(url: str, tube: str, id: str | None, address: str | None, as_json: bool) -> None:
    """Show one task.

    \b
    penstock peek mail 1
    penstock peek mail --address order-7
    """
    with params.opened(url, tube) as opened:
        task = opened.peek(params.selected(opened, id, address))
    facts = output.task_facts(task)
    if as_json:
        output.as_json({**facts, "errors": task.errors})
    else:
        output.sheet(facts)
        output.attempts(task.errors)


@click.command()
@params.tube_argument
@params.optional_id_argument
@params.address_option
@output.json_option
@click.pass_obj
def why(url: str, tube: str, id: str | None, address: str | None, as_json: bool) -> None:
    """Explain why a task is not running.

    \b
    penstock why mail 1
    penstock why mail --address order-7
    """
    with params.opened(url, tube) as opened:
        sentence = opened.why(params.selected(opened, id, address))
    if as_json:
        output.as_json({"why": sentence})
    else:
        click.echo(output.as_text(sentence))


@click.command()
@params.tube_argument
@output.json_option
@click.pass_obj
def stats(url: str, tube: str, as_json: bool) -> None:
    """Show the counters of a tube.

    \b
    penstock stats mail

    Under tasks: what is in it now, and how many ever left it (done). Under calls: the number of tasks for each verb and
    each deadline since the tube was created.
    """
    with params.opened(url, tube) as opened:
        found = opened.stats()
    if as_json:
        return output.as_json(found)
    for section in ("tasks", "calls"):
        click.echo(section)
        for name, count in msgspec.structs.asdict(getattr(found, section)).items():
            click.echo(f"  {name:<8}{count:>12,}")
    return None


@click.command()
@params.tube_argument
@click.option("--start", metavar="GROUP", help="Start this group, so that its tasks can be taken.")
@click.option(
    "--cancel",
    metavar="GROUP",
    help="Cancel this group: remove all its tasks, including taken ones.",
)
@click.option("--limit", type=int, default=100, show_default=True, help="Maximum number to list.")
@click.option("--after", metavar="NAME", default="", help="Continue after this one.")
@output.json_option
@click.pass_obj
def groups(url: str, tube: str, start: str | None, cancel: str | None, limit: int, after: str, as_json: bool) -> None:
    """List the live groups of a tube; start or cancel one.

    \b
    penstock groups render
    penstock groups render --start page-7

    After a start or cancel it lists the remaining groups.
    """
    with params.opened(url, tube) as opened:
        for name, verb in ((start, Group.start), (cancel, Group.cancel)):
            if name is not None:
                live_group(opened, name)  # raises if there is none; start would create it
                verb(opened.group(name))
        found = live_groups(opened, after, whole("limit", limit, 1, MAX_PAGE))
    if as_json:
        return output.as_json(
            [{"name": g.name, "state": g.state, "done": g.total - g.left, "total": g.total} for g in found]
        )
    rows = [[group.name, group.state, group.total - group.left, group.total] for group in found]
    return output.listed(("group", "state", "done", "total"), rows, f"no live groups in {tube}")


@click.command()
@output.json_option
@click.pass_obj
def sessions(url: str, as_json: bool) -> None:
    """List the sessions and the tasks they hold.

    \b
    penstock sessions
    """
    with connect_existing(url) as broker:
        found = broker.sessions()
        now = broker.runtime.store.now() / 1000
    if as_json:
        return output.as_json(found)
    rows = [
        [info.id, info.host, info.pid, f"{max(0.0, now - info.heartbeat):.1f} s ago", _held(info), " ".join(info.waits)]
        for info in found
    ]
    return output.listed(("session", "host", "pid", "heartbeat", "holds", "waits for"), rows, "no sessions")


def _held(info: penstock.SessionInfo, most: int = 3) -> str:
    named = [f"{tube}:{id}" for tube, id in info.held[:most]]
    more = len(info.held) - most
    return " ".join([*named, f"and {more:,} more"] if more > 0 else named)


def _status(text: str | None) -> Status | None:
    if text is None:
        return None
    if text in _STATUSES:
        return _STATUSES[text]
    try:
        return Status(text)
    except ValueError:
        raise BadValue(f"status {text!r} is unknown: use one of {', '.join(_STATUSES)}") from None
