"""The two commands of tubes of kind reliable."""

from __future__ import annotations

import click

from penstock.cli import given, shown
from penstock.core.task import Task


@click.command()
@given.tube_argument
@click.argument("start", type=int, default=0)
@click.argument("count", type=int, default=100)
@click.option("--pending", is_flag=True, help="The delivered ones.")
@shown.json_option
@click.pass_obj
def inspect(url: str, tube: str, start: int, count: int, pending: bool, as_json: bool) -> None:
    """Read a reliable tube's messages, delivered ones or not.

    \b
    penstock inspect orders              the first 100
    penstock inspect orders -- -10 10    the last ten
    penstock inspect orders --pending
    """
    with given.opened(url, tube) as opened:
        _show(opened.inspect(start, count, pending), as_json)


@click.command()
@given.tube_argument
@click.argument("count", type=int)
@click.argument("elapsed", type=float)
@shown.json_option
@click.pass_obj
def recover(url: str, tube: str, count: int, elapsed: float, as_json: bool) -> None:
    """Take again what was delivered and never acked.

    \b
    penstock recover orders 10 60      up to 10 that were delivered a minute ago or longer
    """
    with given.opened(url, tube) as opened:
        _show(opened.recover(count, elapsed), as_json)


def _show(tasks: list[Task], as_json: bool) -> None:
    if as_json:
        shown.as_json([shown.task_facts(task) for task in tasks])
    elif tasks:
        shown.table(shown.TASK_HEADINGS, map(shown.task_row, tasks))
