"""The commands that create, alter, pause, empty and drop tubes."""

from __future__ import annotations

import sys
from typing import cast

import click

import penstock
from penstock.broker.tube_factory import DEFAULT_KIND
from penstock.cli import completion, output, params
from penstock.core.options import ALTERABLE, AlterOptions, TubeOptions
from penstock.errors import BadValue

yes_option = click.option("--yes", is_flag=True, help="Do not ask for confirmation; needed where there is no terminal.")


@click.command()
@params.tube_argument
@click.argument("kind", default=DEFAULT_KIND, shell_complete=completion.kinds)
@click.option("--ttl", type=float, help="Seconds until a task expires.")
@click.option("--ttr", type=float, help="Seconds until the lease of a taker ends.")
@click.option("--pri", type=int, help="Default priority of its tasks.")
@click.option("--callback", metavar="URL", help="A URL to POST every task to.")
@click.option("--capacity", type=int, help="Maximum number of tasks in the tube.")
@click.option("--temporary", is_flag=True, default=None, help="Faster but not durable.")
@click.option("--max-attempts", type=int, help="Bury tasks after this many attempts.")
@click.option("--backoff", metavar="BASE,FACTOR,LIMIT,JITTER", help="Delays between attempts, such as 1,2,300,0.1.")
@click.option("--period", type=float, help="Minimum seconds between two hand-outs of an element (kind round).")
@click.option("--utube-limit", type=int, help="Tasks of one micro-queue that may be taken at once.")
@click.option("--fair", is_flag=True, default=None, help="Micro-queues take turns.")
@click.option("--aging", type=float, help="Seconds of waiting that are worth one step of priority.")
@click.option("--retention", type=float, help="Seconds to keep outcomes.")
@click.option("--max-payload", type=int, help="Maximum size of a task's data, in bytes.")
@click.option("--shards", type=int, help="Shards to spread over the nodes of a Redis Cluster.")
@output.json_option
@click.pass_obj
def create(url: str, /, tube: str, kind: str, backoff: str | None, as_json: bool, **options: object) -> None:
    """Create a tube.

    \b
    penstock create mail --ttr 60 --max-attempts 5
    penstock create crawl utubettl --fair
    penstock create feeds round --period 300

    KIND is fifo, fifottl (default), utube, utubettl, round or reliable.
    """
    chosen = {name: value for name, value in options.items() if value is not None}
    if backoff is not None:
        chosen["backoff"] = _backoff(backoff)
    with penstock.connect(url) as broker:
        made = broker.create_tube(tube, kind, **cast(TubeOptions, chosen))
    if as_json:
        output.as_json({"name": made.name, "kind": made.kind, "options": chosen})
    else:
        click.echo(f"created {made.name} of kind {made.kind}")


@click.command()
@params.tube_argument
@click.option("--ttl", type=float, help="Seconds until a task expires.")
@click.option("--ttr", type=float, help="Seconds until the lease of a taker ends.")
@click.option("--pri", type=int, help="Default priority of its tasks.")
@click.option("--callback", metavar="URL", help="A URL to POST every task to.")
@click.option("--capacity", type=int, help="Maximum number of tasks in the tube.")
@click.option("--max-attempts", type=int, help="Bury tasks after this many attempts.")
@click.option("--backoff", metavar="BASE,FACTOR,LIMIT,JITTER", help="Delays between attempts, such as 1,2,300,0.1.")
@click.option("--period", type=float, help="Minimum seconds between two hand-outs of an element (kind round).")
@click.option("--utube-limit", type=int, help="Tasks of one micro-queue that may be taken at once.")
@click.option("--retention", type=float, help="Seconds to keep outcomes.")
@click.option("--max-payload", type=int, help="Maximum size of a task's data, in bytes.")
@click.option(
    "--default", "reset", metavar="OPTION", multiple=True, help="Set an option back to its default.",
    shell_complete=completion.words(*sorted(ALTERABLE)),
)  # fmt: skip
@output.json_option
@click.pass_obj
def alter(
    url: str, /, tube: str, backoff: str | None, reset: tuple[str, ...], as_json: bool, **options: object
) -> None:
    """Change options of a tube, for what is put or taken from now on.

    \b
    penstock alter mail --ttr 30
    penstock alter mail --capacity 1000 --default ttl
    """
    chosen = {name: value for name, value in options.items() if value is not None}
    if backoff is not None:
        chosen["backoff"] = _backoff(backoff)
    chosen |= {name.replace("-", "_"): None for name in reset}
    if not chosen:
        raise BadValue("there is nothing to alter: give an option, such as --ttr 30")
    with params.opened(url, tube) as opened:
        opened.alter(**cast(AlterOptions, chosen))
        altered = opened.stored.given
    if as_json:
        output.as_json({"name": tube, "options": altered})
    else:
        click.echo(f"altered {tube}: {', '.join(chosen)}")


@click.command()
@params.tube_argument
@output.json_option
@click.pass_obj
def pause(url: str, tube: str, as_json: bool) -> None:
    """Pause a tube: takes get nothing, puts still work.

    \b
    penstock pause mail
    """
    with params.opened(url, tube) as opened:
        opened.pause()
    output.tube_changed(tube, "pause", as_json)


@click.command()
@params.tube_argument
@output.json_option
@click.pass_obj
def resume(url: str, tube: str, as_json: bool) -> None:
    """Resume a paused tube.

    \b
    penstock resume mail
    """
    with params.opened(url, tube) as opened:
        opened.resume()
    output.tube_changed(tube, "resume", as_json)


@click.command()
@params.tube_argument
@yes_option
@output.json_option
@click.pass_obj
def truncate(url: str, tube: str, yes: bool, as_json: bool) -> None:
    """Remove every task of a tube.

    \b
    penstock truncate mail --yes
    """
    with params.opened(url, tube) as opened:
        _confirm(f"Remove all {opened.stats().tasks.total:,} tasks of {tube}?", yes)
        with output.working(f"removing the tasks of {tube}"):
            count = opened.truncate()
        output.counted("truncate", opened, count, as_json)


@click.command()
@params.tube_argument
@yes_option
@output.json_option
@click.pass_obj
def drop(url: str, tube: str, yes: bool, as_json: bool) -> None:
    """Remove a tube with all its tasks.

    \b
    penstock drop mail --yes

    Refused while tasks are taken or a take waits.
    """
    with params.opened(url, tube) as opened:
        _confirm(f"Drop {tube} with {opened.stats().tasks.total:,} tasks?", yes)
        with output.working(f"dropping {tube}"):
            opened.drop()
    output.tube_changed(tube, "drop", as_json)


def _confirm(question: str, yes: bool) -> None:
    if yes:
        return
    if not sys.stdin.isatty():
        raise BadValue(f"refused: {question} There is no terminal to ask: add --yes")
    click.confirm(question, abort=True, err=True)


def _backoff(text: str) -> penstock.Backoff:
    try:
        return penstock.Backoff(*map(float, text.split(",")))
    except (TypeError, ValueError) as error:
        if isinstance(error, BadValue):
            raise
        raise BadValue(f"backoff {text!r} is not BASE,FACTOR,LIMIT,JITTER: give up to four numbers") from None
