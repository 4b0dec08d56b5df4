"""What all commands share: help, errors in one line, exit codes, a fast start."""

from __future__ import annotations

import subprocess
import sys

import click
import pytest

from penstock.cli.commands import COMMANDS
from penstock.cli.main import cli
from penstock.cli.mq import mq
from penstock.cli.output import sheet
from tests.support.shell import Shell

NAMES = [name for section in COMMANDS.values() for name in section]


def test_the_help_fits_a_screen(shell: Shell) -> None:
    lines = shell("--help").splitlines()
    assert len(lines) <= 24
    assert max(map(len, lines)) <= 80
    assert set(NAMES) <= set(" ".join(lines).split())


@pytest.mark.parametrize("name", [*NAMES, *(f"mq {name}" for name in mq.commands)])
def test_every_command_has_its_line_examples_and_json(name: str) -> None:
    first, _, second = name.partition(" ")
    command = mq.commands[second] if second else cli.get_command(click.Context(cli), first)
    assert command is not None
    assert command.name == name.split()[-1]
    about, _, rest = (command.help or "").partition("\n\n")
    assert second or about == next(section[name].about for section in COMMANDS.values() if name in section)
    assert about.endswith(".")
    assert f"penstock {name}" in rest or f" {name}" in rest
    assert isinstance(command, click.Group) or "--json" in [
        option for parameter in command.params for option in parameter.opts
    ]
    assert all(parameter.help for parameter in command.params if isinstance(parameter, click.Option))


@pytest.mark.parametrize(
    ("words", "named", "help"),
    [
        (["putt"], "there is no command 'putt': did you mean 'put'?", "penstock --help"),
        (["stats"], "'TUBE'", "penstock stats --help"),
        (["take", "mail", "--timeout", "soon"], "'soon'", "penstock take --help"),
        (["mq", "pop", "--nope"], "--nope", "penstock mq pop --help"),
        (["--nope"], "--nope", "penstock --help"),
        (["stats", "mail", "--url", "memory://"], "--url goes before the command", "penstock stats --help"),
    ],
)
def test_a_command_line_that_cannot_be_read_is_one_line_and_exit_2(
    shell: Shell, words: list[str], named: str, help: str
) -> None:
    result = shell.run(*words)
    assert (result.returncode, result.stdout, result.stderr.count("\n")) == (2, "", 1)
    assert result.stderr.startswith("penstock: ")
    assert named in result.stderr
    assert result.stderr.endswith(f" ({help})\n")


@pytest.mark.parametrize(
    ("words", "error"),
    [
        (["put", "", "x"], "tube is empty"),
        (["put", "../x", "x"], "tube '../x' is not a name"),
        (["put", "a\nb", "x"], "tube 'a\\nb' is not a name"),
        (["put", "x" * 10_000, "x"], "tube "),
        (["peek", "mail", "1"], "there is no store at "),
        (["--url", "nonsense://x", "tubes"], ""),
        (["--url", "sqlite:////nowhere/at/all.db", "create", "mail"], "/nowhere/at/all.db cannot be opened"),
        (["--url", "redis://127.0.0.1:1", "tubes"], ""),
        (
            ["--url", "sqlite:///y.db", "--pool", "sqlite:///x.db", "tubes"],
            "pool= needs a Redis in front, and sqlite:// is none",
        ),
        (["take", "mail", "--hold", "-1"], "hold -1.0 is out of range"),
        (["--url", "redis:///0", "--pool", "nonsense://x", "tubes"], "pool 'nonsense://x' is not a database"),
    ],
)
def test_an_error_is_one_line(shell: Shell, words: list[str], error: str) -> None:
    assert shell.refused(*words).startswith(error)


def test_a_reader_that_stops_early_is_not_an_error(shell: Shell) -> None:
    shell("put", "mail", "-", "--lines", stdin="x" * 100 + "\n" + ("y" * 100 + "\n") * 5000)
    words = [sys.executable, "-m", "penstock", "tasks", "mail", "--limit", "5000"]
    with subprocess.Popen(words, env=shell.environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as listing:
        assert listing.stdout is not None
        assert listing.stderr is not None
        listing.stdout.readline()
        listing.stdout.close()
        assert listing.stderr.read() == b""


def test_a_closed_standard_output_is_not_an_error(shell: Shell) -> None:
    for words in (["put", "mail", "x"], ["tasks", "mail"]):
        command = ["sh", "-c", 'exec "$@" >&-', "sh", sys.executable, "-m", "penstock", *words]
        done = subprocess.run(command, cwd=shell.folder, env=shell.environment, stderr=subprocess.PIPE, check=False)
        assert (done.returncode, done.stderr) == (0, b"")
    assert shell.json("stats", "mail")["tasks"]["ready"] == 1


def test_times_are_shown_to_the_millisecond(capsys: pytest.CaptureFixture[str]) -> None:
    sheet({"created": 1794778643.018})  # a float just below it
    assert capsys.readouterr().out.endswith(".018\n")


def test_putting_loads_neither_rich_nor_a_driver_of_a_server(shell: Shell) -> None:
    code = "import sys; from penstock.cli import main, put; print('rich' in sys.modules, 'redis' in sys.modules)"
    loaded = subprocess.run(
        [sys.executable, "-c", code], env=shell.environment, capture_output=True, text=True, check=True
    )
    assert loaded.stdout.split() == ["False", "False"]


def test_completion_scripts_are_printed_for_shells(shell: Shell) -> None:
    assert "_PENSTOCK_COMPLETE=bash_complete" in shell("completion", "bash")
    assert "#compdef penstock" in shell("completion", "zsh")
    assert shell.json("completion", "fish") == {"shell": "fish", "script": shell("completion", "fish") + "\n"}
    shell.environment |= {"_PENSTOCK_COMPLETE": "bash_complete", "COMP_WORDS": "penstock mq p", "COMP_CWORD": "2"}
    assert shell().splitlines() == ["plain,push", "plain,pop"]
