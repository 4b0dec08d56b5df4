"""`manage.py penstock_worker`: runs the tasks of a Django backend, like `penstock worker` those of an app."""

from __future__ import annotations

from argparse import ArgumentParser
from typing import Any

import click
from django.core.management.base import BaseCommand, CommandError

from penstock.cli.worker_command import worker
from penstock.django.backend import PenstockBackend
from penstock.django.task_results import DEFAULT_TASK_BACKEND_ALIAS, task_backends
from penstock.errors import PenstockError

# Options of `penstock worker` that the backend sets, or that do not apply to Django's tasks.
_LEFT_OUT = {"own_url", "reload", "callbacks", "allowed", "secret_file", "per_host"}
_OPTIONS = [each for each in worker.params if isinstance(each, click.Option) and each.name not in _LEFT_OUT]


class Command(BaseCommand):
    """Runs a worker; accepts the options of `penstock worker`."""

    help = "Run the tasks of a penstock backend until SIGTERM or Ctrl-C."

    def add_arguments(self, parser: ArgumentParser) -> None:
        """Add the options of `penstock worker`, taken from its parser."""
        parser.add_argument(
            "--backend",
            default=DEFAULT_TASK_BACKEND_ALIAS,
            metavar="ALIAS",
            help="A backend of TASKS. [default: default]",
        )
        for option in _OPTIONS:
            how: dict[str, Any] = {
                "action": "append" if option.multiple else "store",
                "metavar": option.metavar or "FILE",
            }
            if option.is_flag:
                how = {"action": "store_true"}
            parser.add_argument(*option.opts, dest=option.name, help=(option.help or "").replace("%", "%%"), **how)

    def handle(self, **given: Any) -> None:
        """Run until a signal stops it."""
        backend = task_backends[given["backend"]]
        if not isinstance(backend, PenstockBackend):
            raise CommandError(f"TASKS[{given['backend']!r}] is not a PenstockBackend: name another one by --backend")
        app = backend.app
        app.load()
        try:
            with worker.make_context("penstock_worker", _words(given), obj=app) as context:
                worker.invoke(context)
        except click.ClickException as error:
            raise CommandError(error.format_message()) from None
        except PenstockError as error:
            raise CommandError(str(error)) from None


def _words(given: dict[str, Any]) -> list[str]:
    """Convert parsed options back to arguments for the parser of `penstock worker`."""
    words: list[str] = []
    for option in _OPTIONS:
        value = given[option.name or ""]
        if value is True:
            words.append(option.opts[0])
        elif value not in (None, False):
            words += [word for each in (value if option.multiple else [value]) for word in (option.opts[0], str(each))]
    return words
