"""Verbs, commands and options in the tables of docs/coming-from and docs/troubleshooting.md exist."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import click
import pytest

import penstock
import penstock.testing
from penstock.app.call import Call
from penstock.app.call_group import CallGroup
from penstock.app.current import CurrentTask
from penstock.app.handle import Handle
from penstock.app.handler_options import TaskOptions
from penstock.app.schedules import Schedules
from penstock.cli.main import cli
from penstock.core.options import AlterOptions, PutOptions, TimedOptions, TubeOptions
from tests.docs.pages import ROOT

PAGES = [*sorted((ROOT / "docs" / "coming-from").glob("*.md")), ROOT / "docs" / "troubleshooting.md"]
OWNERS: dict[str, tuple[object, ...]] = {
    "penstock": (penstock,),
    "penstock.testing": (penstock.testing,),
    "broker": (penstock.Broker,),
    "tube": (penstock.Tube,),
    "task": (penstock.Task,),
    "current_task()": (CurrentTask,),
    "app": (penstock.App,),
    "app.schedules": (Schedules,),
    "app.broker": (penstock.Broker,),
    "handle": (Handle,),
    "call": (Call,),
    "group": (CallGroup, penstock.Group),
}
# Set in __init__, or only on some instances: not visible on the class.
ALSO = {"handle.id", "handle.handles", "handle.address", "app.schedules"}
_ROW = re.compile(r"^\|(.+)\|$", re.MULTILINE)
_CODE = re.compile(r"`([^`]+)`")
_NAME = re.compile(rf"(?<![\w.:/])({'|'.join(map(re.escape, sorted(OWNERS, reverse=True)))})\.([a-zA-Z][a-z]\w*)")
_COMMAND = re.compile(r"^penstock ([a-z]+)")
_OPTION = re.compile(r"(?<!\w)--([a-z-]+)")
_KEYWORD = re.compile(r"(?<![\w?])([a-z_]+)=(?!=)")


def counterparts(page: Path) -> Iterator[str]:
    """Returns the code in all columns but the first."""
    for row in _ROW.findall(page.read_text()):
        _, _, rest = row.partition(" | ")
        yield from _CODE.findall(rest)


def options_of(command: click.Command) -> Iterator[str]:
    for parameter in command.params:
        yield from parameter.opts
    if isinstance(command, click.Group):
        for name in command.list_commands(click.Context(command)):
            below = command.get_command(click.Context(command), name)
            assert below is not None
            yield from options_of(below)


OPTIONS = set(options_of(cli))
KEYWORDS = {
    *TimedOptions.__annotations__, *TubeOptions.__annotations__, *PutOptions.__annotations__,
    *TaskOptions.__annotations__, *AlterOptions.__annotations__,
    # options of other calls, and of Backoff and Kind
    *"timeout max_pri pool status limit create pending tube timezone overlap on_failure".split(),
    *"base factor jitter order reason kind".split(),
}  # fmt: skip


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_names_on_a_page_exist(page: Path) -> None:
    commands = cli.list_commands(click.Context(cli))
    unknown = []
    for code in counterparts(page):
        for owner, name in _NAME.findall(code):
            known = any(hasattr(each, name) for each in OWNERS[owner]) or f"{owner}.{name}" in ALSO
            unknown += [] if known else [f"{owner}.{name}"]
        unknown += [code for name in _COMMAND.findall(code) if name not in commands]
        unknown += [f"--{name}" for name in _OPTION.findall(code) if f"--{name}" not in OPTIONS]
        unknown += [f"{name}=" for name in _KEYWORD.findall(code) if name not in KEYWORDS]
    assert unknown == []
