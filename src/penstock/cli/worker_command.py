"""`penstock worker module:app`: take tasks and run their handlers until a signal stops it."""

from __future__ import annotations

import logging
import os
import select
import signal
import socket
import sys
import threading
import traceback
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING

import click
from click.core import ParameterSource

from penstock.app.app import App
from penstock.callbacks.callback_runner import calls_by
from penstock.cli import completion, output
from penstock.cli.callback_options import callback_options, callback_settings
from penstock.cli.params import Bytes
from penstock.errors import BadValue, PenstockError
from penstock.server.auth import Tokens
from penstock.server.sockets import Address
from penstock.worker.console import Status, configure_logging, log_handler
from penstock.worker.reload import run_reloading
from penstock.worker.settings import DEFAULT_CONCURRENCY, DEFAULT_GRACE, ImportFailed, load_app, make_settings
from penstock.worker.worker import Worker

if TYPE_CHECKING:
    from penstock.worker.monitor import Monitor

log = logging.getLogger("penstock.worker")


@click.command()
@click.argument("target", metavar="[MODULE:APP]", required=False)
@click.option("--url", "own_url", metavar="URL", help="The store; else PENSTOCK_URL, else the app's.")
@click.option(
    "--tubes", metavar="A,B", help="Only these tubes, earlier ones first; default: all tubes of the app, in turn.",
    shell_complete=completion.tubes,
)  # fmt: skip
@click.option(
    "--concurrency", type=int, metavar="N", help=f"Handlers that run at once. [default: {DEFAULT_CONCURRENCY}]"
)
@click.option("--processes", type=int, metavar="N", help="Processes for executor=process. [default: one per core]")
@click.option(
    "--limit",
    "limits",
    multiple=True,
    metavar="P=N",
    help="Start tasks of priority P or less urgent only while fewer than N run.",
)
@click.option(
    "--grace",
    type=float,
    default=DEFAULT_GRACE,
    show_default=True,
    metavar="S",
    help="Seconds that running handlers get when it stops.",
)
@click.option("--listen", metavar="HOST:PORT", help="Serve /health, /live and /metrics here, such as 127.0.0.1:9000.")
@click.option(
    "--token-file", type=click.Path(path_type=Path), help="Tokens for /metrics; required if other hosts can reach it."
)
@click.option("--max-tasks", type=int, metavar="N", help="Stop after this many tasks, for a supervisor to restart it.")
@click.option("--max-memory", type=Bytes(), metavar="SIZE", help="Stop when it uses more memory, such as 512M or 2G.")
@click.option("--name", metavar="NAME", help="Its name in the dashboard. [default: MODULE:APP]")
@click.option("--reload", is_flag=True, help="Restart when a .py file below this folder changes.")
@callback_options
@click.option("--json-logs", is_flag=True, help="Log one JSON object per line.")
@output.json_option
@click.pass_context
def worker(
    context: click.Context, target: str | None, own_url: str | None, tubes: str | None, concurrency: int | None,
    processes: int | None, limits: tuple[str, ...], grace: float, listen: str | None, token_file: Path | None,
    max_tasks: int | None, max_memory: int | None, name: str | None, reload: bool, callbacks: bool,
    allowed: tuple[str, ...], secret_file: Path | None, per_host: int, json_logs: bool, as_json: bool,
) -> None:  # fmt: skip
    """Run the handlers of an app until SIGTERM or Ctrl-C.

    \b
    penstock worker shop:app
    penstock worker shop:app --tubes urgent,mail --concurrency 8
    penstock worker shop:app --limit 0=16 --limit 5=4     keeps slots for urgent tasks
    penstock worker shop:app --listen 127.0.0.1:9000      /health and /metrics
    penstock worker --callbacks --callback-allow hooks.example.org

    The first signal stops taking and gives running handlers --grace seconds; the second releases them at once. --json
    prints one line when it is ready and one with its counts when it has stopped.
    """
    calling = callback_settings(callbacks, allowed, secret_file, per_host)
    settings = make_settings(
        tubes=() if tubes is None else tuple(name.strip() for name in tubes.split(",")),
        concurrency=concurrency,
        processes=processes,
        limits=_limits(limits),
        grace=grace,
        max_tasks=max_tasks,
        max_memory=max_memory,
        name=name or target,
    )
    url = own_url or _given_url(context)
    if reload:
        sys.exit(run_reloading(_words(context), url))
    signals = Signals()
    handler, make_status = _shown(json_logs)
    configure_logging(handler)
    if token_file is not None and listen is None:
        raise BadValue("--token-file protects /metrics: give --listen as well")
    address = None if listen is None else _Listen(listen, token_file)
    app = context.obj if isinstance(context.obj, App) else _app(target, url)
    running = Worker(app, settings, signals.hurry, None if calling is None else calls_by(calling))
    running.state.on_crash, running.state.on_limit = signals.crash, signals.finish
    monitor = None if address is None else address.monitor(running)
    status = make_status(running)
    run(running, signals, status, output.as_json if as_json else lambda facts: None)
    if monitor is not None:
        monitor.stop()
    with suppress(PenstockError):  # if the store is unavailable, its session lapses
        app.close()
    if signals.crashed:
        sys.exit(1)


def _shown(json: bool) -> tuple[logging.Handler, Callable[[Worker], Status]]:
    """How the worker reports what it does: live on a terminal, otherwise with log lines."""
    if json or not sys.stderr.isatty():
        return log_handler(json=json), Status
    from penstock.worker.terminal import on_terminal  # needs rich, which takes long to load

    return on_terminal()


class _Listen:
    """The address of health and metrics, checked before anything is started."""

    def __init__(self, text: str, token_file: Path | None) -> None:
        try:
            from penstock.worker.monitor import Monitor
        except ImportError as error:
            raise BadValue(f"--listen needs an extra package ({error}): pip install 'penstock[server]'") from error
        self._make = Monitor
        self._tokens = Tokens(token_file, os.environ.get("PENSTOCK_TOKEN"))
        self._address = Address("--listen", text)
        self._address.must_be_guarded(self._tokens.required)
        self._socket = self._address.bind()

    def monitor(self, worker: Worker) -> Monitor:
        """Start serving health and metrics of the worker."""
        monitor = self._make(worker, self._socket, self._may_read if self._tokens.required else None)
        monitor.start()
        where = self._address.shown(self._socket.getsockname()[1])
        log.info("health and metrics are at http://%s", where)
        return monitor

    def _may_read(self, token: str) -> bool:
        return self._tokens.check(token) is not None


class Signals:
    """Signals of the operator: the first SIGTERM or Ctrl-C stops the worker, a second one stops it at once."""

    def __init__(self) -> None:
        self.stop = threading.Event()
        self.hurry = threading.Event()
        self.crashed = False
        self._woken, self._waking = socket.socketpair()
        for end in (self._woken, self._waking):
            end.setblocking(False)
        signal.set_wakeup_fd(self._waking.fileno(), warn_on_full_buffer=False)
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, self._signalled)

    def crash(self) -> None:
        """Stop with an error exit code, because the worker cannot continue."""
        self.crashed = True
        self.finish()

    def finish(self) -> None:
        """Stop, as after a first signal."""
        self.stop.set()
        self._waking.send(b"\0")

    def wait(self, seconds: float) -> bool:
        """Wait for a signal. Returns whether to stop, at once when a signal comes, or after the time limit.

        It waits on a socket: a thread in Event.wait may keep sleeping when two signals come at once.
        """
        if not self.stop.is_set() and select.select([self._woken], [], [], seconds)[0]:
            self._woken.recv(4096)
        return self.stop.is_set()

    def _signalled(self, number: int, frame: FrameType | None) -> None:
        (self.hurry if self.stop.is_set() else self.stop).set()


def run(worker: Worker, signals: Signals, status: Status, report: Callable[[object], object]) -> None:
    """Work until a signal comes, then stop gracefully. `report` is called with the events of start and stop."""
    status.banner()
    worker.start()
    tubes = [source.tube.name for source in worker.sources]
    report({"event": "working", "store": worker.where, "tubes": tubes, "concurrency": worker.settings.concurrency})
    with status.shown():
        while not signals.wait(status.pause):
            status.update()
        status.update("stopping")
        worker.stop()
    status.update("stopped")
    report({"event": "stopped", "counts": worker.state.stats.facts()})


def _app(target: str | None, url: str | None) -> App:
    try:
        app = App() if target is None else load_app(target)
    except ImportFailed as failed:
        traceback.print_exception(failed.__cause__)
        raise BadValue(str(failed)) from None
    if url is not None:
        app.connection.use(url)
    return app


def _given_url(context: click.Context) -> str | None:
    """The URL of `penstock --url` or of the environment; None if it is only the default."""
    parent = context.parent
    if parent is None or parent.get_parameter_source("url") is ParameterSource.DEFAULT:
        return os.environ.get("PENSTOCK_URL") or None
    return str(context.obj)


def _words(context: click.Context) -> list[str]:
    """The command line without the options of the reloading parent process."""
    words: list[str] = []
    for parameter in context.command.params:
        value = context.params[parameter.name or ""]
        if parameter.name in ("reload", "own_url") or value in (None, False, ()):
            continue
        values = value if isinstance(value, tuple) else (value,)
        for each in values:
            words += [] if isinstance(parameter, click.Argument) else [parameter.opts[0]]
            words += [] if each is True else [str(each)]
    return words


def _limits(given: tuple[str, ...]) -> dict[int, int]:
    limits: dict[int, int] = {}
    for text in given:
        pri, _, most = text.partition("=")
        try:
            place, number = int(pri), int(most)
        except ValueError:
            raise BadValue(f"limit {text!r} is not P=N: give a priority and a number, such as 5=4") from None
        if limits.setdefault(place, number) != number:
            raise BadValue(f"limit {text!r} repeats {place}={limits[place]}: give one limit per priority")
    return limits
