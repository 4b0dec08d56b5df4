"""The commands of docs/cli.md, written from their help: `python -m tests.docs.commands`."""

from __future__ import annotations

from inspect import cleandoc

import click

from penstock.cli.commands import COMMANDS
from penstock.cli.main import cli
from tests.docs.pages import ROOT

PAGE = ROOT / "docs" / "cli.md"
BEGIN = "<!-- written from the help: begin -->"
END = "<!-- written from the help: end -->"


def chapter(name: str) -> str:
    """A command: its usage, what it does with examples, its options."""
    command = cli.get_command(click.Context(cli), name)
    assert command is not None
    words = [parameter.make_metavar(click.Context(command)) for parameter in _arguments(command)]
    usage = " ".join(["penstock", name, *words, "[OPTIONS]"])
    options = "\n".join(map(_row, _options(command)))
    return f"### {name}\n\n`{usage}`\n\n{_prose(cleandoc(command.help or ''))}\n\n| option | |\n|---|---|\n{options}"


def written() -> str:
    """What stands between the markers."""
    sections = [
        "\n\n".join([f"## {section}", *(chapter(name) for name in commands)]) for section, commands in COMMANDS.items()
    ]
    return "\n\n".join([BEGIN, *sections, END])


def rewritten(page: str) -> str:
    """The page with what stands between the markers written anew."""
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
    return f"| `{', '.join(option.opts)}{value}` | {option.help}{shown} |".replace("||", "| |")


def _prose(help: str) -> str:
    """The help, its examples as blocks."""
    parts = []
    for part in help.split("\n\n"):
        lines = part.removeprefix("\b\n").splitlines()
        parts.append("\n".join(["```sh", *lines, "```"]) if part.startswith("\b") else " ".join(lines))
    return "\n\n".join(parts)


if __name__ == "__main__":
    PAGE.write_text(rewritten(PAGE.read_text()))
