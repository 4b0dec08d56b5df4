"""`penstock export`, `import` and `move`: write and read a tube as a file, and move tubes between stores."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO

import click

import penstock
from penstock.cli import completion, output, params
from penstock.cli.existing_store import connect_existing
from penstock.core.values import span_ms
from penstock.errors import BadValue
from penstock.transfer.export_import import Import
from penstock.transfer.export_import import export_tube as write_out
from penstock.transfer.move import Move, all_tubes, check_names, shown_url, task_count
from penstock.transfer.tube_file import tasks_in

# How long holders may take to finish their tasks.
_WAIT_SECONDS = 60.0


@click.command(name="export")
@params.tube_argument
@click.option("--out", default="-", type=click.Path(), metavar="FILE", help="The file; - (default) is standard output.")
@output.json_option
@click.pass_obj
def export_tube(url: str, tube: str, out: str, as_json: bool) -> None:
    """Write a tube to a file.

    \b
    penstock export mail --out mail.jsonl
    penstock export mail | gzip > mail.jsonl.gz

    The file has everything: tasks in every state, groups, outcomes, counters. Changes during the export may or may not
    be in it; for a consistent snapshot pause the tube first and let its takers finish. FILE appears when it is
    complete.
    """
    with (
        params.opened(url, tube) as opened, _written(out) as file,
        output.counting(f"exporting {tube}", opened.stats().tasks.total) as on_progress,
    ):  # fmt: skip
        count = write_out(opened.runtime.store, opened.stored, file, on_progress)
    if as_json and out != "-":
        output.as_json({"tube": tube, "tasks": count, "file": out})
    else:
        click.echo(f"exported {_tasks(count)} of {tube}", err=out == "-")


@click.command(name="import")
@click.argument("file", type=click.Path())
@click.option("--tube", metavar="NAME", help="The new name of the tube; default: the name in the file.")
@click.option("--discard-partial", is_flag=True, help="First remove the remains of a killed import of this tube.")
@output.json_option
@click.pass_obj
def import_tube(url: str, file: str, tube: str | None, discard_partial: bool, as_json: bool) -> None:
    """Read a tube from a file.

    \b
    penstock import mail.jsonl
    gunzip < mail.jsonl.gz | penstock import - --tube mail-copy

    All or nothing: nobody sees the tube before it is complete, and a damaged file leaves nothing. An existing tube that
    is not empty is refused. FILE is - for standard input.
    """
    with (
        penstock.connect(url) as broker, _source(file) as source,
        output.counting("importing", tasks_in(source)) as on_progress,
    ):  # fmt: skip
        importing = Import(broker.runtime.store, source, "standard input" if file == "-" else file, tube)
        count = importing.run(on_progress, discard_partial=discard_partial)
    if as_json:
        output.as_json({"tube": importing.name, "tasks": count})
    else:
        click.echo(f"imported {_tasks(count)} into {importing.name}")


@click.command()
@click.argument("source", metavar="FROM")
@click.argument("target", metavar="TO")
@click.option(
    "--tube", "tubes", multiple=True, metavar="NAME", help="A tube to move; repeatable. Default: all.",
    shell_complete=completion.tubes,
)  # fmt: skip
@click.option(
    "--wait", type=float, default=_WAIT_SECONDS, show_default=True, metavar="SECONDS",
    help="How long holders have to finish their tasks.",
)  # fmt: skip
@output.json_option
def move(source: str, target: str, tubes: tuple[str, ...], wait: float, as_json: bool) -> None:
    """Move tubes to another store while programs use them.

    \b
    penstock move sqlite:///jobs.db postgresql://me@db.example/jobs
    penstock move sqlite:///jobs.db redis://localhost/0 --tube mail --tube crawl

    Ids, order, delays, attempts, groups and outcomes are kept. Programs that use a moved tube in the old store get an
    error with the new URL. If it is killed, run the same command again and it continues. A tube whose tasks stay taken
    longer than --wait is not moved.
    """
    seconds = span_ms("wait", wait) / 1000
    for url in (source, target):
        _must_be_shared_store(url)
    signal.signal(
        signal.SIGTERM, signal.default_int_handler
    )  # like Ctrl-C: tubes that are not frozen yet are not moved
    with connect_existing(source) as old, penstock.connect(target) as new:
        chosen = check_names(tubes) or all_tubes(old.runtime.store, target)
        with output.counting("moving", task_count(old.runtime.store, chosen)) as on_progress:
            moved = Move(old.runtime, new.runtime.store, target, wait=seconds, on_progress=on_progress).run(chosen)
    if as_json:
        output.as_json({"to": shown_url(target), "moved": moved})
        return
    for each in moved:
        paused = "; it is still paused: penstock resume ends that" if each.paused else ""
        click.echo(f"moved {_tasks(each.tasks)} of {each.tube} to {shown_url(target)}{paused}")
    if not moved:
        click.echo("there is nothing to move")


def _must_be_shared_store(url: str) -> None:
    if url.startswith("memory://"):
        raise BadValue(f"{url} exists only in this process: give the URL of a store that other programs can reach")


def _tasks(count: int) -> str:
    return f"{count:,} task{'' if count == 1 else 's'}"


@contextmanager
def _written(out: str) -> Iterator[BinaryIO]:
    """A file to write to, which gets its name when it is complete."""
    if out == "-":
        yield sys.stdout.buffer
        return
    part = Path(f"{out}.part")
    try:
        with open(part, "wb", opener=lambda path, flags: os.open(path, flags, 0o600)) as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        part.replace(out)
    except OSError as error:
        raise BadValue(f"{out} cannot be written ({error.strerror}): choose another place with --out") from None
    finally:
        part.unlink(missing_ok=True)


def _source(file: str) -> BinaryIO:
    if file == "-":
        return sys.stdin.buffer
    try:
        return Path(file).open("rb")
    except OSError as error:
        raise BadValue(f"{file} cannot be read: {error.strerror}") from None
