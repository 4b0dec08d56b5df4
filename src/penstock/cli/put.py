"""`penstock put`: puts one task, or one task per line."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable
from itertools import chain, islice
from pathlib import Path
from typing import BinaryIO, cast

import click

import penstock
from penstock.broker.tube import Tube
from penstock.broker.tube_factory import open_for_put
from penstock.cli import completion, output, params
from penstock.core.options import PutOptions
from penstock.core.values import timeout as check_timeout
from penstock.errors import BadValue

# The number of lines that are put in one step.
_BATCH = 1000


@click.command()
@params.tube_argument
@click.argument("data", required=False)
@click.option("--lines", is_flag=True, help="Put one task per line of DATA, which is - or @FILE.")
@click.option("--bytes", "raw", is_flag=True, help="Put raw bytes instead of JSON or text.")
@click.option("--pri", type=int, help="Priority; smaller numbers come first.")
@click.option("--ttl", type=float, help="Seconds until it expires.")
@click.option("--ttr", type=float, help="Seconds until the lease of a taker ends.")
@click.option("--delay", type=float, default=0, help="Seconds until it is ready.")
@click.option("--utube", help="Its micro-queue.")
@click.option("--id", help="Its id (kind round).")
@click.option("--rank", type=float, help="Its rank (kinds ordered by rank).")
@click.option("--address", help="A unique name in the tube, for wait.")
@click.option(
    "--on-duplicate", help="If the address or id is in use: error, ignore or replace.",
    shell_complete=completion.words("error", "ignore", "replace"),
)  # fmt: skip
@click.option("--group", help="The group it belongs to.")
@click.option("--callback", metavar="URL", help="A URL to POST the task to.")
@click.option("--reply-to", metavar="TUBE", shell_complete=completion.tubes, help="The tube that gets its outcome.")
@click.option("--max-attempts", type=int, help="Bury it after this many attempts.")
@click.option("--timeout", type=float, default=0, help="Seconds to wait for room in a full tube.")
@output.json_option
@click.pass_obj
def put(
    url: str, /, tube: str, data: str | None, lines: bool, raw: bool, timeout: float, as_json: bool, **options: object
) -> None:
    """Put a task, or one task per line.

    \b
    penstock put mail '{"to": "ada@example.org"}' --pri 1
    penstock put mail hello --delay 60          anything but JSON is a string
    penstock put mail @letter.json              a file; - is standard input
    penstock put mail @urls.txt --lines         one task per line
    grep -h http *.txt | penstock put mail      the same, from a pipe

    Creates a missing tube (kind fifottl). Prints the id, or with --lines the number of tasks put.
    """
    chosen = cast(PutOptions, {name: value for name, value in options.items() if value is not None})
    check_timeout(timeout)
    if data is None:
        if sys.stdin.isatty():
            raise click.UsageError("Missing argument 'DATA': give it, or send lines through a pipe.")
        data, lines = "-", True
    with penstock.connect(url) as broker:
        if lines:
            with _source(data) as source:
                total, feed = _lines_of(source), (_item(line, raw) for line in source)
                first = list(islice(feed, _BATCH))
                opened = _opened(broker, tube, [content for content, _ in first], chosen)
                with output.counting("putting", total) as on_progress:
                    count = _put_all(opened, chain(first, feed), timeout, chosen, on_progress)
            return output.counted("put", opened, count, as_json)
        content = params.data(data, raw=raw)
        task = _opened(broker, tube, [content], chosen).put_many([(content, {})], timeout=timeout, **chosen)[0]
        return output.as_json(output.task_facts(task)) if as_json else click.echo(task.id)


def _opened(broker: penstock.Broker, tube: str, data: list[object], options: PutOptions) -> Tube:
    """Open the tube. A missing one is created only if the data can be put."""
    return open_for_put(broker.runtime, broker.session_handle, tube, ((each, options) for each in data))


def _put_all(
    tube: Tube, items: Iterable[object], timeout: float, options: PutOptions, on_progress: Callable[[int], object]
) -> int:
    count, feed = 0, iter(items)
    try:
        for chunk in iter(lambda: list(islice(feed, _BATCH)), []):
            count += len(tube.put_many(chunk, timeout=timeout, **options))
            on_progress(len(chunk))
    except penstock.PenstockError as error:
        raise type(error)(f"{error} ({count:,} tasks of earlier lines were put)") from None
    return count


def _source(data: str) -> BinaryIO:
    if data == "-":
        return sys.stdin.buffer
    if not data.startswith("@"):
        raise BadValue(f"--lines with DATA {data[:60]!r}: give - for standard input, or @FILE")
    try:
        return Path(data[1:]).open("rb")
    except OSError as error:
        raise BadValue(f"DATA {data} names a file that cannot be read: {error.strerror}") from None


def _lines_of(source: BinaryIO) -> int | None:
    """The number of lines, for the progress bar; None without a terminal or if the source can be read only once."""
    if not sys.stderr.isatty() or not source.seekable():
        return None
    start = source.tell()
    count = sum(1 for _ in source)
    source.seek(start)
    return count


def _item(line: bytes, raw: bool) -> tuple[object, dict[str, object]]:
    content = line.rstrip(b"\r\n")
    return (content if raw else params.parsed(content)), {}
