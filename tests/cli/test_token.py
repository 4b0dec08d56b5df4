"""`penstock token`: created, shown once, accepted by the server."""

from __future__ import annotations

import json
import stat
from pathlib import Path

import pytest
from click.testing import CliRunner

from penstock.cli.main import cli
from penstock.errors import BadValue
from penstock.server.auth import Role, Tokens


def make(*arguments: str) -> str:
    result = CliRunner().invoke(cli, ["token", *arguments], catch_exceptions=False, standalone_mode=False)
    return result.output.strip()


def test_a_token_is_made_and_known(tmp_path: Path) -> None:
    file = tmp_path / "tokens"
    first, second = make(str(file)), make(str(file), "--role", "read", "--name", "grafana")
    tokens = Tokens(file)
    assert tokens.check(first) is Role.OPERATE
    assert tokens.check(second) is Role.READ
    assert first not in file.read_text()
    assert file.read_text().splitlines()[1].endswith(" grafana")
    assert stat.S_IMODE(file.stat().st_mode) == 0o600


def test_token_prints_what_it_made_as_json(tmp_path: Path) -> None:
    file = tmp_path / "tokens"
    made = json.loads(make(str(file), "--role", "admin", "--name", "ada", "--json"))
    assert {**made, "token": ""} == {"token": "", "role": "admin", "name": "ada", "file": str(file)}
    assert Tokens(file).check(made["token"]) is Role.ADMIN


def test_another_file_is_left_unchanged(tmp_path: Path) -> None:
    file = tmp_path / "notes"
    file.write_text("not tokens\n")
    with pytest.raises(BadValue, match="is not `role sha256"):
        make(str(file))
    assert file.read_text() == "not tokens\n"


def test_a_file_that_cannot_be_written_is_refused(tmp_path: Path) -> None:
    with pytest.raises(BadValue, match="cannot be written .No such file or directory.: choose another FILE"):
        make(str(tmp_path / "missing" / "tokens"))


def test_a_name_with_a_line_break_is_refused(tmp_path: Path) -> None:
    with pytest.raises(BadValue, match="the name has a line break"):
        make(str(tmp_path / "tokens"), "--name", "a\nadmin sha256:0")
    assert not (tmp_path / "tokens").exists()
