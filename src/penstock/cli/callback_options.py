"""The options for callbacks, shared by `worker` and `serve`."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import click

from penstock.callbacks.allow_list import PER_HOST, Entry, Settings, allow_list, entry
from penstock.callbacks.signing import key
from penstock.cli.output import warn_if_readable
from penstock.core.values import whole
from penstock.errors import BadValue

Decorated = TypeVar("Decorated", bound=Callable[..., Any])

SECRET = "PENSTOCK_CALLBACK_SECRET"
_OPTIONS = [
    click.option("--callbacks", is_flag=True, help="Call the callback URLs of tasks."),
    click.option(
        "--callback-allow", "allowed", multiple=True, metavar="HOST", envvar="PENSTOCK_CALLBACK_ALLOW",
        help="An allowed host: name, *.name, address or network, with an optional :port. Repeatable.",
    ),
    click.option(
        "--callback-secret-file", "secret_file", type=click.Path(path_type=Path), metavar="FILE",
        help=f"Secrets to sign calls with, one per line, `@HOST secret` for one receiver; else {SECRET}.",
    ),
    click.option("--callback-per-host", "per_host", type=int, default=PER_HOST, show_default=True, metavar="N",
                 help="Concurrent calls per host."),
]  # fmt: skip


def callback_options(command: Decorated) -> Decorated:
    """Add the options to a command; `callback_settings` reads them."""
    for option in reversed(_OPTIONS):
        command = option(command)
    return command


def callback_settings(
    callbacks: bool, allowed: tuple[str, ...], secret_file: Path | None, per_host: int
) -> Settings | None:
    """Validate the settings for callbacks; None without --callbacks."""
    if not callbacks:
        return None
    if not allowed:
        raise BadValue("--callbacks has no allowed hosts: name them with --callback-allow HOST")
    keys, receivers = _secrets(secret_file)
    return Settings(allow_list(allowed), keys, whole("callback-per-host", per_host, 1, 10_000), receivers)


def _secrets(file: Path | None) -> tuple[tuple[bytes, ...], tuple[tuple[Entry, bytes], ...]]:
    """Read the secrets for all receivers, and those for single receivers."""
    if file is None:
        text = os.environ.get(SECRET, "")
    else:
        warn_if_readable(file, "the callback secrets")
        try:
            text = file.read_text()
        except (OSError, UnicodeDecodeError) as error:
            raise BadValue(f"the callback secrets of {file} cannot be read: {error}") from None
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    if not lines:
        raise BadValue(f"callbacks need a secret to sign them: set {SECRET}, or give --callback-secret-file")
    own = [line[1:].split(None, 1) for line in lines if line.startswith("@")]
    if any(len(words) < 2 for words in own):
        raise BadValue(
            "a callback secret that begins with @ needs a host and a secret: write @hooks.example.org secret"
        )
    shared = tuple(key(line) for line in lines if not line.startswith("@"))
    return shared, tuple((entry(host), key(secret)) for host, secret in own)
