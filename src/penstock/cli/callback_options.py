"""The options by which callbacks are called, the same for `worker` and `serve`."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import click

from penstock.callbacks.allow_list import PER_HOST, Settings, allow_list
from penstock.callbacks.signing import key
from penstock.core.numbers import whole
from penstock.errors import BadValue

Decorated = TypeVar("Decorated", bound=Callable[..., Any])

SECRET = "PENSTOCK_CALLBACK_SECRET"
_OPTIONS = [
    click.option("--callbacks", is_flag=True, help="Call the callback URLs of tasks."),
    click.option(
        "--callback-allow", "allowed", multiple=True, metavar="HOST", envvar="PENSTOCK_CALLBACK_ALLOW",
        help="An allowed host: name, *.name, address or network. Repeatable.",
    ),
    click.option(
        "--callback-secret-file", "secret_file", type=click.Path(path_type=Path), metavar="FILE",
        help=f"Secrets to sign calls with, one per line; else {SECRET}.",
    ),
    click.option("--callback-per-host", "per_host", type=int, default=PER_HOST, show_default=True, metavar="N",
                 help="Concurrent calls per host."),
]  # fmt: skip


def callback_options(command: Decorated) -> Decorated:
    """The options, to be read by `callback_settings`."""
    for option in reversed(_OPTIONS):
        command = option(command)
    return command


def callback_settings(
    callbacks: bool, allowed: tuple[str, ...], secret_file: Path | None, per_host: int
) -> Settings | None:
    """What was asked for, everything checked; None without --callbacks."""
    if not callbacks:
        return None
    if not allowed:
        raise BadValue("--callbacks without an allow-list calls nobody: name hosts with --callback-allow HOST")
    keys = tuple(map(key, _secrets(secret_file)))
    return Settings(allow_list(allowed), keys, whole("callback-per-host", per_host, 1, 10_000))


def _secrets(file: Path | None) -> list[str]:
    if file is None:
        text = os.environ.get(SECRET, "")
    else:
        try:
            text = file.read_text()
        except (OSError, UnicodeDecodeError) as error:
            raise BadValue(f"the callback secrets of {file} cannot be read: {error}") from None
    secrets = [line.strip() for line in text.splitlines() if line.strip()]
    if not secrets:
        raise BadValue(f"callbacks are signed, and there is no secret: set {SECRET}, or give --callback-secret-file")
    return secrets
