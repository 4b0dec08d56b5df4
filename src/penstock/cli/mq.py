"""`penstock mq`: reliable queues, with the five commands of the Redis protocol and the same arguments."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import click

import penstock
from penstock.broker.tube import Tube
from penstock.broker.tube_factory import find_tube
from penstock.cli import output, params
from penstock.cli.existing_store import exists
from penstock.core.ids import message_id
from penstock.core.names import queue_name
from penstock.core.task import Task
from penstock.errors import BadValue, NoSuchTube, TubeMismatch

KIND = "reliable"
key_argument = click.argument("key")


class InOrder(click.Group):
    """A command group that lists its commands in the order of a message's life."""

    def list_commands(self, context: click.Context) -> list[str]:
        """The commands in the order of this file."""
        return list(self.commands)


@click.group(cls=InOrder)
def mq() -> None:
    """Reliable queues: push, pop, ack, recover, inspect.

    \b
    penstock mq push orders '{"item": 7}' '{"item": 8}'
    penstock mq pop 10 orders
    penstock mq ack orders 1599352749159-1 1599352749159-2

    A message stays until anyone acks it by its id. The commands are those of the Redis protocol (MQ.PUSH and so on).
    KEY is a tube of kind reliable; a missing one is an empty queue.
    """


@mq.command()
@key_argument
@click.argument("elements", metavar="DATA...", nargs=-1, required=True)
@click.option("--bytes", "raw", is_flag=True, help="Push raw bytes instead of JSON or text.")
@output.json_option
@click.pass_obj
def push(url: str, key: str, elements: tuple[str, ...], raw: bool, as_json: bool) -> None:
    """Put messages at the end of a queue and print their ids.

    \b
    penstock mq push orders '{"item": 7}' '{"item": 8}'

    Creates a missing queue.
    """
    items: list[object] = [(params.data(element, raw=raw), {}) for element in elements]
    with _queue(url, key, create=True) as queue:
        assert queue is not None
        _show_ids([task.id for task in queue.put_many(items)], as_json)


@mq.command()
@click.argument("count", type=int)
@key_argument
@output.json_option
@click.pass_obj
def pop(url: str, count: int, key: str, as_json: bool) -> None:
    """Deliver up to COUNT messages, oldest first.

    \b
    penstock mq pop 10 orders
    """
    with _queue(url, key) as queue:
        _show([] if queue is None else queue.take_many(count), as_json)


@mq.command()
@key_argument
@click.argument("ids", metavar="ID...", nargs=-1, required=True)
@output.json_option
@click.pass_obj
def ack(url: str, key: str, ids: tuple[str, ...], as_json: bool) -> None:
    """Remove delivered messages and print the removed ids.

    \b
    penstock mq ack orders 1599352749159-1 1599352749159-2
    """
    with _queue(url, key) as queue:
        _show_ids([] if queue is None else list(queue.ack_many(_known(ids))), as_json)


@mq.command()
@key_argument
@click.argument("count", type=int)
@click.argument("elapsed", type=int)
@output.json_option
@click.pass_obj
def recover(url: str, key: str, count: int, elapsed: int, as_json: bool) -> None:
    """Deliver messages again that nobody acked in time.

    \b
    penstock mq recover orders 10 60000      up to 10, after a minute

    ELAPSED is the time since their last delivery, in milliseconds.
    """
    with _queue(url, key) as queue:
        _show([] if queue is None else queue.recover(count, elapsed / 1000), as_json)


# Unknown options are let through, so that a negative START needs no `--` before it.
@mq.command(context_settings={"ignore_unknown_options": True})
@key_argument
@click.argument("words", metavar="[PENDING] [START COUNT]", nargs=-1)
@output.json_option
@click.pass_obj
def inspect(url: str, key: str, words: tuple[str, ...], as_json: bool) -> None:
    """Read COUNT messages from START without delivering them.

    \b
    penstock mq inspect orders                   the first 100
    penstock mq inspect orders 0 10
    penstock mq inspect orders -2 2              the last two
    penstock mq inspect orders PENDING 0 10      delivered and not acked
    """
    pending = bool(words) and words[0].upper() == "PENDING"
    start, count = _range(words[1:] if pending else words)
    with _queue(url, key) as queue:
        _show([] if queue is None else queue.inspect(start, count, pending), as_json)


def _known(ids: tuple[str, ...]) -> list[str]:
    """The valid ids. Warns about invalid ones, so that the others are acked; a single invalid id is an error."""
    known = []
    for id in ids:
        try:
            known.append(message_id(id))
        except BadValue as error:
            if len(ids) == 1:
                raise
            output.warn(str(error))
    return known


def _range(words: tuple[str, ...]) -> tuple[int, int]:
    try:
        start, count = map(int, words or ("0", "100"))
    except ValueError:
        raise BadValue(f"{' '.join(words)!r} is not START COUNT: give two whole numbers") from None
    return start, count


@contextmanager
def _queue(url: str, key: str, *, create: bool = False) -> Iterator[Tube | None]:
    """Open the queue. If the queue or the store is missing, it is created with `create`, otherwise None."""
    name = queue_name(key)
    if not create and not exists(url):
        yield None
        return
    with penstock.connect(url) as broker:
        try:
            tube: Tube | None = find_tube(broker.runtime, broker.session_handle, name)
        except NoSuchTube:
            tube = broker.tube(name, kind=KIND) if create else None
        if tube is not None and tube.kind != KIND:
            raise TubeMismatch(f"tube {key} is of kind {tube.kind}, not {KIND}: use penstock take and ack")
        yield tube


def _show(tasks: list[Task], as_json: bool) -> None:
    if as_json:
        output.as_json([output.task_facts(task) for task in tasks])
    elif tasks:
        rows = [[task.id, task.attempts, output.as_text(task.data, output.data_width())] for task in tasks]
        output.table(("id", "deliveries", "data"), rows)


def _show_ids(ids: list[object], as_json: bool) -> None:
    if as_json:
        return output.as_json(ids)
    for id in ids:
        click.echo(id)
    return None
