"""docs/protocol.md has every command with its arguments, every option and every error."""

from __future__ import annotations

import pytest

from penstock import errors
from penstock.core.options import PutOptions, TubeOptions
from penstock.server.resp import command_args
from penstock.server.resp.dispatch import COMMANDS
from tests.docs.pages import ROOT

PAGE = (ROOT / "docs" / "protocol.md").read_text().replace("\\|", "|")


@pytest.mark.parametrize("name", [name.decode() for name in COMMANDS])
def test_every_command_is_documented_with_its_arguments(name: str) -> None:
    assert f"`{name} {COMMANDS[name.encode()].usage}".rstrip() + "`" in PAGE


def test_the_options_of_puts_and_tubes_are_those_of_python() -> None:
    assert set(command_args.PUT) == {*PutOptions.__annotations__, "timeout"}
    assert set(command_args.TUBE) == set(TubeOptions.__annotations__)


@pytest.mark.parametrize("option", sorted({*command_args.PUT, *command_args.TUBE}))
def test_every_option_is_documented(option: str) -> None:
    assert option.upper() in PAGE


# Never sent over the wire: the protocol opens no tubes with options, a failure is an outcome and not an error, and
# handlers run in workers.
ELSEWHERE = {"PenstockError", "StoreError", "TubeMismatch", "TaskFailed", "SchemaMismatch", "LeaseLost", "Cancelled"}


@pytest.mark.parametrize("name", [name for name in vars(errors) if name[0].isupper() and name not in ELSEWHERE])
def test_every_error_is_documented(name: str) -> None:
    assert f"`{name.upper()}`" in PAGE
