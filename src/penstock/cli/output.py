"""Prints results as text or as JSON. Tasks in JSON look as in the HTTP API."""

from __future__ import annotations

import base64
import stat
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from pathlib import Path
from shutil import get_terminal_size

import click
import msgspec

from penstock.broker.tube import Tube
from penstock.core.attempts import Attempt
from penstock.core.task import Status, Task

json_option = click.option("--json", "as_json", is_flag=True, help="Print JSON.")

_TASK = "pri utube attempts lease created taken due expires address group progress reason".split()
# Data in a list of tasks is cut to this length, or to the width of the terminal.
_WIDE = 60
_DATA_BEGINS = 34
# verb -> its past tense, for messages
_DONE = {
    "put": "put", "ack": "acked", "fail": "failed", "release": "released", "touch": "touched", "bury": "buried",
    "kick": "kicked", "retry": "retried", "cancel": "cancelled", "delete": "deleted", "pause": "paused",
    "resume": "resumed", "truncate": "removed", "drop": "dropped",
}  # fmt: skip


def as_json(value: object) -> None:
    """Print a value as one line of JSON."""
    click.echo(msgspec.json.encode(value))


def task_facts(task: Task) -> dict[str, object]:
    """A task as a dict; bytes are in `base64` instead of `data`."""
    facts: dict[str, object] = {"id": task.id, "status": task.status.value, "tube": task.tube}
    return facts | value_facts("data", task.data) | {name: getattr(task, name) for name in _TASK}


def value_facts(name: str, value: object) -> dict[str, object]:
    """A value as a dict under its name; bytes are in `base64`."""
    return {"base64": base64.b64encode(value).decode()} if isinstance(value, bytes) else {name: value}


def sheet(facts: Mapping[str, object]) -> None:
    """Print names and values, one per line; values of None are left out."""
    there = {name: value for name, value in facts.items() if value is not None}
    wide = max(map(len, there), default=0)
    for name, value in there.items():
        click.echo(f"{name:<{wide}}  {_SHOWN.get(name, as_text)(value)}")


def attempts(errors: Sequence[Attempt]) -> None:
    """Print the failed attempts with their tracebacks, the newest last."""
    for each in errors:
        where = f" on {as_text(each.host)}" if each.host else ""
        click.echo(f"\nattempt {each.attempt} failed at {_moment(each.at)}{where}: {as_text(each.error)}")
        for line in each.traceback.splitlines():
            click.echo(f"  {as_text(line)}")


def table(headings: Sequence[str], rows: Iterable[Sequence[object]]) -> None:
    """A table with headings, numbers aligned right."""
    cells = [[as_text(cell) for cell in row] for row in rows]
    numeric = [bool(cells) and all(_is_number(row[column]) for row in cells) for column in range(len(headings))]
    widths = [max(len(row[column]) for row in [list(headings), *cells]) for column in range(len(headings))]
    for row in [list(headings), *cells]:
        aligned = (
            cell.rjust(width) if right else cell.ljust(width)
            for cell, width, right in zip(row, widths, numeric, strict=True)
        )  # fmt: skip
        click.echo("  ".join(aligned).rstrip())


def listed(headings: Sequence[str], rows: Sequence[Sequence[object]], none: str) -> None:
    """Print a table, or the text `none` if there are no rows."""
    if rows:
        table(headings, rows)
    else:
        click.echo(none, err=True)


def _is_number(cell: str) -> bool:
    return cell.replace(",", "").replace(".", "", 1).isdigit()


def as_text(value: object, most: int | None = None) -> str:
    """A value in one line, without control characters, cut to `most`."""
    if isinstance(value, bytes):
        text = f"{len(value)} bytes"
    else:
        text = value if isinstance(value, str) else "" if value is None else msgspec.json.encode(value).decode()
    text = "".join(char if char.isprintable() else char.encode("unicode_escape").decode() for char in text)
    return text if most is None or len(text) <= most else f"{text[: most - 1]}…"


def task_row(task: Task) -> list[object]:
    """The cells of a task in a list: id, status, priority, attempts, data."""
    return [task.id, task.status.name.lower(), task.pri, task.attempts, as_text(task.data, data_width())]


def data_width() -> int:
    """How many characters of a task's data fit into a line."""
    return max(20, get_terminal_size().columns - _DATA_BEGINS) if sys.stdout.isatty() else _WIDE


TASK_HEADINGS = ("id", "status", "pri", "attempts", "data")


def settled(tube: Tube, id: int | str, what: str, json: bool) -> None:
    """Print what a verb did to one task."""
    if json:
        as_json({"tube": tube.name, "id": id, "verb": what})
    else:
        click.echo(f"{_DONE[what]} {id} of {tube.name}")


def counted(what: str, tube: Tube, count: int, json: bool) -> None:
    """Print how many tasks a verb changed."""
    if json:
        as_json({"tube": tube.name, "verb": what, "count": count})
    else:
        where = "into" if what == "put" else "of"
        click.echo(f"{_DONE[what]} {count:,} task{'' if count == 1 else 's'} {where} {tube.name}")


def tube_changed(tube: str, what: str, json: bool) -> None:
    """Print what a verb did to a tube."""
    if json:
        as_json({"tube": tube, "verb": what})
    else:
        click.echo(f"{_DONE[what]} {tube}")


def warn(message: str) -> None:
    """Print a warning on standard error."""
    click.echo(f"penstock: warning: {message}", err=True)


def warn_if_readable(file: Path, what: str) -> None:
    """Warn if other users of this host can read a file with secrets."""
    with suppress(OSError):  # then reading it fails as well, and reports it
        if stat.S_IMODE(file.stat().st_mode) & (stat.S_IRGRP | stat.S_IROTH):
            warn(f"other users can read {what} in {file}: chmod 600 {file}")


def working(what: str) -> AbstractContextManager[object]:
    """Show a spinner on a terminal inside the block."""
    if not sys.stderr.isatty():
        return nullcontext()
    from rich.console import Console  # only here: its import takes longer than most commands

    return Console(stderr=True).status(what)


@contextmanager
def counting(what: str, total: int | None = None) -> Iterator[Callable[[int], object]]:
    """Yields a function to call with numbers of tasks; shows their sum on a terminal, as a bar if `total` is given."""
    if not sys.stderr.isatty():
        yield lambda count: None
        return
    from rich.console import Console  # only here: its import takes longer than a put
    from rich.progress import BarColumn, Progress, ProgressColumn, TextColumn, TimeElapsedColumn
    from rich.progress import Task as Counted
    from rich.text import Text

    class Rate(ProgressColumn):
        """Tasks per second."""

        def render(self, task: Counted) -> Text:
            return Text(f"{task.speed or 0:,.0f}/s")

    of = "" if total is None else f" of {total:,}"
    done = TextColumn(f"{{task.completed:,.0f}}{of} tasks")
    with Progress(
        TextColumn(what), BarColumn(), done, Rate(), TimeElapsedColumn(), console=Console(stderr=True), transient=True
    ) as progress:
        counter = progress.add_task(what, total=total)
        yield lambda count: progress.advance(counter, count)


def _moment(value: object) -> str:
    assert isinstance(value, float)
    seconds, ms = divmod(round(value * 1000), 1000)
    return time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(seconds)) + f".{ms:03d}"


def _status(value: object) -> str:
    return Status(value).name.lower() if isinstance(value, str) and value in list(Status) else as_text(value)


# How values that are not text are printed.
_SHOWN = {"status": _status, **dict.fromkeys(("created", "taken", "due", "expires"), _moment)}
