"""`penstock`: the global options, and errors as one line."""

from __future__ import annotations

import os
import sys

import click

import penstock
from penstock.broker.broker import DEFAULT_URL
from penstock.cli.commands import Commands
from penstock.core.store_url import with_pool
from penstock.errors import NoSuchTube, NotFound, PenstockError, TubeExists

EXIT_FAILED = 1  # the command failed, or found something wrong
EXIT_USAGE = 2  # click's code for a wrong command line
EXIT_INTERRUPTED = 130

# Remedies for the shell, instead of Python calls.
_REMEDIES: dict[type[PenstockError], str] = {
    NoSuchTube: "penstock tubes lists the tubes, penstock create creates one",
    TubeExists: "use it as it is, remove it with penstock drop, or choose another name",
    NotFound: "take again; penstock sessions lists the live sessions",
}


@click.group(cls=Commands, context_settings={"help_option_names": ["-h", "--help"]})
@click.option(
    "--url", envvar="PENSTOCK_URL", default=DEFAULT_URL, show_default=True, help="The store; else PENSTOCK_URL."
)
@click.option("--pool", metavar="URL", help="The database of a pool, if --url is its Redis.")
@click.version_option(penstock.__version__, prog_name="penstock")
@click.pass_context
def cli(context: click.Context, url: str, pool: str | None) -> None:
    """A durable work queue that starts on one SQLite file.

    \b
    penstock put mail '{"to": "ada@example.org"}'
    penstock take mail --timeout 5
    penstock ack mail 1 --session ID        the ID that take printed
    """
    context.obj = url if pool is None else with_pool(url, pool)


def main() -> None:
    """Run a command. An error is printed as one line on standard error, without a traceback."""
    # The caller may have closed the standard streams; the command still runs.
    sys.stdout, sys.stderr = (stream or open(os.devnull, "w") for stream in (sys.stdout, sys.stderr))  # noqa: SIM115
    try:
        cli.main(prog_name="penstock", standalone_mode=False)
        sys.stdout.flush()
    except click.exceptions.NoArgsIsHelpError as nothing:
        nothing.show()
        sys.exit(EXIT_USAGE)
    except click.ClickException as error:
        _print_error(_usage(error), EXIT_USAGE)
    except (click.Abort, KeyboardInterrupt):
        sys.exit(EXIT_INTERRUPTED)
    except BrokenPipeError:  # the reader has closed the pipe: the rest of the buffer must not be written
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.exit(EXIT_FAILED)
    except (PenstockError, TimeoutError) as error:
        _print_error(_for_a_shell(error))
    except Exception as error:
        if os.environ.get("PENSTOCK_DEBUG"):
            raise
        _print_error(f"unexpected {type(error).__name__}: {error} (PENSTOCK_DEBUG=1 shows the traceback)")


def _usage(error: click.ClickException) -> str:
    """The text of a usage error, with the --help that explains the command."""
    context = error.ctx if isinstance(error, click.UsageError) else None
    help = "" if context is None else f" ({context.command_path} --help)"
    if isinstance(error, click.NoSuchOption) and error.option_name in ("--url", "--pool"):
        return f"{error.option_name} goes before the command: penstock {error.option_name} URL COMMAND …{help}"
    return error.format_message().rstrip(".") + help


def _print_error(message: str, code: int = EXIT_FAILED) -> None:
    click.echo(f"penstock: {' '.join(message.split())}", err=True)
    sys.exit(code)


def _for_a_shell(error: Exception) -> str:
    """The error as one line, with a remedy for the shell."""
    # The problem is before the last ": ", which no name can contain, and the remedy after it.
    wrong, colon, remedy = " ".join(str(error).split()).rpartition(": ")
    if "broker." in remedy:
        remedy = next((words for kind, words in _REMEDIES.items() if isinstance(error, kind)), remedy)
    # Verbs are commands here, and None is an option that is left out.
    remedy = remedy.replace("()", "").replace("on_duplicate", "--on-duplicate").removesuffix(", or None")
    return wrong + colon + remedy
