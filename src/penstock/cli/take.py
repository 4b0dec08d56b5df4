"""`penstock take` and `penstock wait`: the commands that wait."""

from __future__ import annotations

import sys
from contextlib import closing, suppress

import click

import penstock
from penstock.broker.outcome import await_task
from penstock.cli import completion, output, params
from penstock.cli.existing_store import connect_existing
from penstock.core.names import task_id
from penstock.core.task import lease_text
from penstock.core.values import span_ms
from penstock.errors import BadValue
from penstock.operations.operation import blocking
from penstock.store.open import open_store

EXIT_NOTHING = 3


@click.command()
@click.argument("tubes", metavar="TUBE...", nargs=-1, required=True, shell_complete=completion.tubes)
@click.option("--timeout", type=float, help="Seconds to wait for a task; default: no limit.")
@click.option("--hold", type=float, default=60, show_default=True, help="Seconds to hold the task.")
@click.option("--max-pri", type=int, help="Only tasks of this priority or more urgent.")
@click.option("--exit-code", is_flag=True, help=f"Exit with {EXIT_NOTHING} if nothing came.")
@output.json_option
@click.pass_obj
def take(
    url: str, tubes: tuple[str, ...], timeout: float | None, hold: float, max_pri: int | None, exit_code: bool,
    as_json: bool,
) -> None:  # fmt: skip
    """Take the next task and hold it for some time.

    \b
    penstock take mail --timeout 5
    penstock take urgent mail --timeout 0      the first tube that has one
    penstock ack mail 1 --session ID           with the session that take printed

    The task stays taken for --hold seconds after this command ends, or until its ttr. Use its session with ack,
    release, touch and fail in that time. Then it is ready for others again.
    """
    hold_ms = span_ms("hold", hold)
    with connect_existing(url) as broker, broker.session(ttr=hold) as session:
        task = None
        try:
            task = session.take(tubes, timeout, max_pri=max_pri)
            facts = (
                None if task is None else {**output.task_facts(task), "lease": lease_text(task), "session": session.id}
            )
        finally:
            if task is None:
                _end_now(url, session, hold_ms)
    if as_json:
        output.as_json(facts)
    elif facts is not None:
        output.sheet(facts)
    elif sys.stderr.isatty():  # only for people: a script sees the empty output
        click.echo("nothing came", err=True)
    if facts is None and exit_code:
        sys.exit(EXIT_NOTHING)


def _end_now(url: str, session: penstock.Session, hold_ms: int) -> None:
    """End a session that holds nothing now, instead of after its hold, by a clock that is that much behind."""
    handle, now = session.session_handle.handle, session.runtime.store.now
    with (
        suppress(penstock.PenstockError),  # harmless: the session then ends after its hold
        closing(open_store(url, lambda: now() - hold_ms)) as store,
    ):
        store.leave([handle])
        session.session_handle.lose(handle)


@click.command()
@params.tube_argument
@click.argument("address", required=False)
@click.option("--id", type=int, help="The task's id, instead of an address.")
@click.option("--timeout", type=float, help="Seconds to wait; default: no limit.")
@output.json_option
@click.pass_obj
def wait(url: str, tube: str, address: str | None, id: int | None, timeout: float | None, as_json: bool) -> None:
    """Wait until the task with an address or an id has ended.

    \b
    penstock put render '{"page": 7}' --address page-7
    penstock wait render page-7 --timeout 60
    penstock wait render --id 3

    Prints the outcome with its result or error. Exit code 1 unless it is done.
    """
    if (address is None) == (id is None):
        raise BadValue("give the task's address, or its id with --id N")
    with params.opened(url, tube) as opened:
        if address is not None:
            outcome = opened.wait(address, timeout)
        else:
            outcome = blocking(await_task)(opened.runtime, opened.stored, task_id(id), timeout)
    facts = {"status": outcome.status, "error": outcome.error, "code": outcome.code}
    if as_json:
        output.as_json(facts | output.value_facts("result", outcome.result))
    else:
        output.sheet(facts | {"result": outcome.result})
    if outcome.status != "done":
        sys.exit(1)
