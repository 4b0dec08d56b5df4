"""`penstock schedules`: list the schedules of applications; run, pause, resume or forget one."""

from __future__ import annotations

import time
from collections.abc import Callable

import click

import penstock
from penstock.broker.tube import Tube
from penstock.broker.tube_factory import find_tube
from penstock.cli import completion, output
from penstock.cli.existing_store import connect_existing
from penstock.errors import NoSuchTube
from penstock.schedule import schedule_status

_NONE = "no schedules: they appear once a worker with schedules has started"


@click.command()
@click.option("--run", metavar="NAME", shell_complete=completion.schedules, help="Put its task now.")
@click.option("--pause", metavar="NAME", shell_complete=completion.schedules, help="Stop its ticks.")
@click.option("--resume", metavar="NAME", shell_complete=completion.schedules, help="Resume after a pause.")
@click.option(
    "--forget",
    metavar="NAME",
    shell_complete=completion.schedules,
    help="Remove it from the list, if no worker runs it any more.",
)
@output.json_option
@click.pass_obj
def schedules(url: str, /, as_json: bool, **names: str | None) -> None:
    """List the schedules that workers run; run or pause one.

    \b
    penstock schedules
    penstock schedules --run shop.make_report
    penstock schedules --pause shop.make_report

    NAME is the name of the function, or the key of the schedule if the function has several. A schedule appears once a
    worker that runs it has started.
    """
    verbs: dict[str, Callable[[Tube, str], object]] = {
        "run": schedule_status.run_now, "pause": schedule_status.pause, "resume": schedule_status.resume,
        "forget": schedule_status.forget,
    }  # fmt: skip
    with connect_existing(url) as broker:
        chosen = [(verb, name) for verb, name in names.items() if name is not None]
        try:
            schedule_tube = find_tube(broker.runtime, broker.session_handle, schedule_status.SCHEDULE_TUBE)
        except NoSuchTube:
            if chosen:
                raise penstock.NotFound("this store has no schedules: start a worker that has one") from None
            return output.as_json([]) if as_json else output.listed((), [], _NONE)
        for verb, name in chosen:
            verbs[verb](schedule_tube, schedule_status.key_of(schedule_tube, name))
        found = schedule_status.listed(schedule_tube)
    if as_json:
        return output.as_json(found)
    rows = [[each.schedule, each.plan, _next(each.next), each.tube, each.key, _last(each.last)] for each in found]
    return output.listed(("schedule", "when", "next", "tube", "key", "last run"), rows, _NONE)


def _next(moment: float | None) -> str:
    return "paused" if moment is None else _moment(moment)


def _last(run: schedule_status.Run | None) -> str:
    if run is None:
        return "-"
    return f"{_moment(run.at)}, {run.seconds:g} s, {'done' if run.error is None else run.error}"


def _moment(moment: float) -> str:
    return time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(moment))
