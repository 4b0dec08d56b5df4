"""Generate the commands of docs/cli.md from their help: `python -m tests.docs.commands`."""

from __future__ import annotations

from inspect import cleandoc

import click

from penstock.cli.commands import COMMANDS
from penstock.cli.main import cli
from tests.docs.pages import ROOT

PAGE = ROOT / "docs" / "cli.md"
BEGIN = "<!-- written from the help: begin -->"
END = "<!-- written from the help: end -->"


def chapter(name: str, command: click.Command | None = None) -> str:
    """Document one command: usage, description with examples, options, and the subcommands of a group."""
    command = command or cli.get_command(click.Context(cli), name)
    assert command is not None
    words = [parameter.make_metavar(click.Context(command)) for parameter in _arguments(command)]
    words += ["COMMAND"] if isinstance(command, click.Group) else []
    own = _options(command)
    usage = " ".join(["penstock", name, *words, *(["[OPTIONS]"] if own else [])])
    parts = [f"### {name}", f"`{usage}`", _prose(cleandoc(command.help or ""))]
    parts += ["\n".join(["| option | |", "|---|---|", *map(_row, own)])] if own else []
    if isinstance(command, click.Group):
        parts += [chapter(f"{name} {word}", each) for word, each in command.commands.items()]
    return "\n\n".join(parts)


def examples(name: str, command: click.Command | None = None) -> list[str]:
    """The lines of the examples of a command, and of the subcommands of a group."""
    command = command or cli.get_command(click.Context(cli), name)
    assert command is not None
    found = [
        line
        for part in cleandoc(command.help or "").split("\n\n")
        if part.startswith("\b")
        for line in part.splitlines()[1:]
    ]
    if isinstance(command, click.Group):
        found += [line for word, each in command.commands.items() for line in examples(f"{name} {word}", each)]
    return found


def written() -> str:
    """Returns the text between the markers."""
    sections = [
        "\n\n".join([f"## {section}", *(chapter(name) for name in commands)]) for section, commands in COMMANDS.items()
    ]
    return "\n\n".join([BEGIN, *sections, END])


def rewritten(page: str) -> str:
    """Returns the page with a new text between the markers."""
    before, _, rest = page.partition(BEGIN)
    _, _, after = rest.partition(END)
    return before + written() + after


def _arguments(command: click.Command) -> list[click.Argument]:
    return [parameter for parameter in command.params if isinstance(parameter, click.Argument)]


def _options(command: click.Command) -> list[click.Option]:
    return [parameter for parameter in command.params if isinstance(parameter, click.Option)]


def _row(option: click.Option) -> str:
    value = "" if option.is_flag else f" {option.make_metavar(click.Context(cli))}"
    shown = f" Default: {option.default}." if option.show_default else ""
    name = f"{', '.join(option.opts)}{value}".replace("|", "\\|")
    return f"| `{name}` | {option.help}{shown} |"


def _prose(help: str) -> str:
    """Format the help, with its examples as code blocks."""
    parts = []
    for part in help.split("\n\n"):
        lines = part.removeprefix("\b\n").splitlines()
        parts.append("\n".join(["```sh", *lines, "```"]) if part.startswith("\b") else " ".join(lines))
    return "\n\n".join(parts)


if __name__ == "__main__":
    PAGE.write_text(rewritten(PAGE.read_text()))
