"""The commands that settle tasks: ack, fail, release and touch by the holder; the others by anyone."""

from __future__ import annotations

import re

import click

from penstock.broker.admin import cancel as cancel_task
from penstock.broker.admin import kick_one
from penstock.broker.admin import retry as run_again
from penstock.cli import output, params
from penstock.errors import BadValue


@click.command()
@params.tube_argument
@params.id_argument
@click.option("--result", metavar="DATA", help="Its result, kept if it has an address: JSON, else a string.")
@params.session_option
@params.lease_option
@output.json_option
@click.pass_obj
def ack(
    url: str, tube: str, id: str, result: str | None, session: str | None, lease: str | None, as_json: bool
) -> None:
    """Acknowledge a taken task: it is done and leaves its tube.

    \b
    penstock ack mail 1 --session ID
    penstock ack mail 1 --session ID --result '{"sent": true}'
    """
    value = None if result is None else params.data(result)
    with params.held(url, tube, id, session, lease) as opened:
        number = params.task_id(opened, id)
        opened.ack(params.which(opened, id, lease), value)
        output.settled(opened, number, "ack", as_json)


@click.command()
@params.tube_argument
@params.id_argument
@click.argument("error")
@click.option("--code", help="An error code: a short text or a number.")
@params.session_option
@params.lease_option
@output.json_option
@click.pass_obj
def fail(
    url: str, tube: str, id: str, error: str, code: str | None, session: str | None, lease: str | None, as_json: bool
) -> None:
    """Fail a taken task for good: it leaves its tube.

    \b
    penstock fail mail 1 "no such user" --code 550 --session ID
    """
    with params.held(url, tube, id, session, lease) as opened:
        number = params.task_id(opened, id)
        opened.fail(params.which(opened, id, lease), error, _code(code))
        output.settled(opened, number, "fail", as_json)


@click.command()
@params.tube_argument
@click.argument("id", required=False)
@click.option("--delay", type=float, default=0, help="Seconds until it is ready.")
@click.option("--all", "everything", is_flag=True, help="Every taken task, whichever session holds it.")
@params.session_option
@params.lease_option
@output.json_option
@click.pass_obj
def release(
    url: str, tube: str, id: str | None, delay: float, everything: bool, session: str | None, lease: str | None,
    as_json: bool,
) -> None:  # fmt: skip
    """Release a taken task to its old place.

    \b
    penstock release mail 1 --session ID
    penstock release mail 1 --delay 60 --session ID
    penstock release mail --all
    """
    if everything == (id is not None):
        raise BadValue("release needs the ID of a task, or --all: give one of them")
    if everything and delay:
        raise BadValue("--all cannot delay tasks: leave --delay out")
    with params.held(url, tube, id, session, lease) as opened:
        if id is None:
            return output.counted("release", opened, opened.release_all(), as_json)
        number = params.task_id(opened, id)
        opened.release(params.which(opened, id, lease), delay)
        return output.settled(opened, number, "release", as_json)


@click.command()
@params.tube_argument
@params.id_argument
@click.argument("seconds", type=float)
@params.session_option
@params.lease_option
@output.json_option
@click.pass_obj
def touch(url: str, tube: str, id: str, seconds: float, session: str | None, lease: str | None, as_json: bool) -> None:
    """Extend the lease of a taken task.

    \b
    penstock touch mail 1 30 --session ID      30 seconds more
    """
    with params.held(url, tube, id, session, lease) as opened:
        number = params.task_id(opened, id)
        opened.touch(params.which(opened, id, lease), seconds)
        output.settled(opened, number, "touch", as_json)


@click.command()
@params.tube_argument
@params.id_argument
@click.option("--reason", help="Shown with the task.")
@output.json_option
@click.pass_obj
def bury(url: str, tube: str, id: str, reason: str | None, as_json: bool) -> None:
    """Set a task aside until it is kicked.

    \b
    penstock bury mail 1 --reason "asks for a refund"
    """
    with params.opened(url, tube) as opened:
        number = params.task_id(opened, id)
        opened.bury(number, reason)
        output.settled(opened, number, "bury", as_json)


@click.command()
@params.tube_argument
@click.argument("count", type=int, required=False)
@click.option("--id", help="Only this task.")
@output.json_option
@click.pass_obj
def kick(url: str, tube: str, count: int | None, id: str | None, as_json: bool) -> None:
    """Make buried tasks ready again.

    \b
    penstock kick mail              the first
    penstock kick mail 100          up to 100
    penstock kick mail --id 7
    """
    if id is not None and count is not None:
        raise BadValue("kick accepts either a COUNT of tasks or the --id of one: give one of them")
    with params.opened(url, tube) as opened:
        if id is None:
            return output.counted("kick", opened, opened.kick(1 if count is None else count), as_json)
        number = params.task_id(opened, id)
        kick_one(opened, number)
        return output.settled(opened, number, "kick", as_json)


@click.command()
@params.tube_argument
@params.id_argument
@output.json_option
@click.pass_obj
def retry(url: str, tube: str, id: str, as_json: bool) -> None:
    """Make a task ready now, in any state.

    \b
    penstock retry mail 7

    A buried task is kicked, a delay ends, and a taken task is released: its holder's ack is refused.
    """
    with params.opened(url, tube) as opened:
        number = params.task_id(opened, id)
        run_again(opened, number)
        output.settled(opened, number, "retry", as_json)


@click.command()
@params.tube_argument
@params.optional_id_argument
@params.address_option
@click.option("--reason", help="Kept as the error of its outcome.")
@output.json_option
@click.pass_obj
def cancel(url: str, tube: str, id: str | None, address: str | None, reason: str | None, as_json: bool) -> None:
    """Cancel a task, even while it runs.

    \b
    penstock cancel mail 1 --reason "no longer wanted"
    penstock cancel mail --address order-7

    A handler that runs it loses its lease. Exit code 1 if the task is not there.
    """
    with params.opened(url, tube) as opened:
        number = params.selected(opened, id, address)
        cancel_task(opened, number, reason)
        output.settled(opened, number, "cancel", as_json)


@click.command()
@params.tube_argument
@params.optional_id_argument
@params.address_option
@output.json_option
@click.pass_obj
def delete(url: str, tube: str, id: str | None, address: str | None, as_json: bool) -> None:
    """Remove a task, in any state.

    \b
    penstock delete mail 1
    penstock delete mail --address order-7
    """
    with params.opened(url, tube) as opened:
        number = params.selected(opened, id, address)
        opened.delete(number)
        output.settled(opened, number, "delete", as_json)


def _code(text: str | None) -> int | str | None:
    return int(text) if text is not None and re.fullmatch(r"-?[0-9]{1,16}", text) else text
