"""`penstock`: the group of commands, the store's URL, and errors as one clear line."""

from __future__ import annotations

import sys

import click

import penstock
from penstock.broker import DEFAULT_URL
from penstock.cli.doctor import doctor
from penstock.cli.serve import serve
from penstock.cli.token import token
from penstock.cli.worker import worker

EXIT_FAILED = 1  # the command could not do it
EXIT_USAGE = 2  # click's own, for a command line it cannot read
EXIT_INTERRUPTED = 130


@click.group(context_settings={"help_option_names": ["-h", "--help"]})
@click.option(
    "--url", envvar="PENSTOCK_URL", default=DEFAULT_URL, show_default=True, help="The store; else PENSTOCK_URL."
)
@click.version_option(penstock.__version__, prog_name="penstock")
@click.pass_context
def cli(context: click.Context, url: str) -> None:
    """A durable work queue that starts on one SQLite file.

    \b
    penstock worker shop:app                     run the tasks of an app
    penstock doctor                              is the store in order?
    penstock --url sqlite:///jobs.db doctor      another store
    penstock serve                               for Redis clients of any language
    """
    context.obj = url


cli.add_command(doctor)
cli.add_command(serve)
cli.add_command(token)
cli.add_command(worker)


def main() -> None:
    """Run a command; an error is one line on standard error, without a traceback."""
    try:
        cli.main(prog_name="penstock", standalone_mode=False)
    except click.ClickException as error:
        error.show()
        sys.exit(EXIT_USAGE)
    except (click.Abort, KeyboardInterrupt):
        sys.exit(EXIT_INTERRUPTED)
    except penstock.PenstockError as error:
        click.echo(f"penstock: {error}", err=True)
        sys.exit(EXIT_FAILED)
