"""`penstock completion`, and the completion of names: tubes, kinds, schedules, sessions."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterable
from contextlib import suppress

import click
from click.shell_completion import get_completion_class

import penstock
from penstock.broker.broker import DEFAULT_URL
from penstock.cli import output
from penstock.cli.existing_store import connect_existing
from penstock.core.store_url import with_pool

# If the store does not answer in this time, nothing is completed.
PATIENCE = 1.0

Complete = Callable[[click.Context, click.Parameter, str], list[str]]


def words(*known: str) -> Complete:
    """A completer for these words."""
    return lambda context, parameter, begun: [word for word in known if word.startswith(begun)]


kinds = words("fifo", "fifottl", "utube", "utubettl", "round", "reliable")


def _from_store(read: Callable[[penstock.Broker], Iterable[str]]) -> Complete:
    """A completer for names that are read from the store; none if it does not exist or does not answer."""

    def complete(context: click.Context, parameter: click.Parameter, begun: str) -> list[str]:
        found: list[str] = []

        def look() -> None:
            with suppress(Exception), connect_existing(_url(context)) as broker:
                found.extend(read(broker))

        asking = threading.Thread(target=look, daemon=True)
        asking.start()
        asking.join(PATIENCE)
        listed, comma, last = begun.rpartition(",")  # as in --tubes a,b
        return [listed + comma + name for name in found if name.startswith(last)]

    return complete


def _url(context: click.Context) -> str:
    given = context.find_root().params
    url = given.get("url") or os.environ.get("PENSTOCK_URL") or DEFAULT_URL
    return with_pool(url, given["pool"]) if given.get("pool") else str(url)


def _schedules(broker: penstock.Broker) -> Iterable[str]:
    from penstock.schedule import schedule_status

    [tube] = [info for info in broker.tubes() if info.name == schedule_status.SCHEDULE_TUBE]
    return [each.key for each in schedule_status.listed(broker.tube(tube.name))]


tubes = _from_store(lambda broker: [info.name for info in broker.tubes()])
sessions = _from_store(lambda broker: [info.id for info in broker.sessions()])
schedules = _from_store(_schedules)


@click.command()
@click.argument("shell", type=click.Choice(["bash", "zsh", "fish"]))
@output.json_option
@click.pass_context
def completion(context: click.Context, shell: str, as_json: bool) -> None:
    """Print the completion script of a shell.

    \b
    eval "$(penstock completion bash)"                     in ~/.bashrc
    eval "$(penstock completion zsh)"                      in ~/.zshrc
    penstock completion fish > ~/.config/fish/completions/penstock.fish

    It completes commands, options and their values, tubes, kinds, schedules and sessions.
    """
    made = get_completion_class(shell)
    assert made is not None
    script = made(context.find_root().command, {}, "penstock", "_PENSTOCK_COMPLETE").source()
    if as_json:
        output.as_json({"shell": shell, "script": script})
    else:
        click.echo(script)
