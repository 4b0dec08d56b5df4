"""Tokens: their roles, what is stored of them, and the cost of wrong ones."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from penstock.errors import BadValue
from penstock.server.auth import (
    FORGET_SECONDS,
    FREE_FAILURES,
    MAX_DELAY,
    MAX_PEERS,
    MAX_TOKEN,
    Failures,
    Role,
    Tokens,
    make_token,
    token_line,
)


class Now:
    """A clock that the test sets."""

    seconds = 1000.0

    def __call__(self) -> float:
        return self.seconds


def write(file: Path, *lines: str) -> Path:
    file.write_text("".join(lines))
    return file


def test_a_token_of_the_file_has_its_role(tmp_path: Path) -> None:
    file = write(tmp_path / "tokens", "# ours\n\n", *(token_line(role, role.name, "a name") for role in Role))
    tokens = Tokens(file)
    assert [tokens.check(role.name) for role in Role] == list(Role)
    assert tokens.check("other") is None
    assert tokens.check("") is None


def test_the_single_token_is_an_admins() -> None:
    tokens = Tokens(single="secret")
    assert tokens.required
    assert tokens.check("secret") is Role.ADMIN
    assert tokens.check("secret ") is None
    assert tokens.check("s" * (MAX_TOKEN + 1)) is None
    assert tokens.check("\ud800") is None


@pytest.mark.parametrize("single", [None, ""])
def test_without_tokens_no_token_is_needed(single: str | None) -> None:
    assert not Tokens(single=single).required


def test_roles_are_ordered() -> None:
    assert Role.READ < Role.OPERATE < Role.ADMIN


def test_the_file_and_its_reader_keep_no_token(tmp_path: Path) -> None:
    token = make_token()
    file = write(tmp_path / "tokens", token_line(Role.READ, token))
    assert token not in file.read_text()
    assert token not in repr(vars(Tokens(file, single=token)))


def test_a_token_removed_from_the_file_is_refused_at_once(tmp_path: Path) -> None:
    file = write(tmp_path / "tokens", token_line(Role.READ, "old"), token_line(Role.ADMIN, "kept"))
    tokens = Tokens(file)
    assert tokens.check("old") is Role.READ
    write(file, token_line(Role.ADMIN, "kept"))
    assert tokens.check("old") is None
    assert tokens.check("kept") is Role.ADMIN
    os.remove(file)
    assert tokens.check("kept") is None
    write(file, "damaged\n")
    assert tokens.check("kept") is None


@pytest.mark.parametrize("text", ["plaintext\n", "root sha256:00 x\n", "read md5:00\n", "", "# nothing\n"])
def test_a_file_that_is_not_a_token_file_is_refused_without_showing_it(tmp_path: Path, text: str) -> None:
    file = write(tmp_path / "tokens", text)
    with pytest.raises(BadValue, match="penstock token") as raised:
        Tokens(file)
    assert "plaintext" not in str(raised.value)


def test_a_missing_file_is_refused(tmp_path: Path) -> None:
    with pytest.raises(
        BadValue, match=r"token file .*missing cannot be read \(No such file.*\): make one with `penstock"
    ):
        Tokens(tmp_path / "missing")


def test_many_failures_of_a_peer_make_it_wait_and_nobody_else() -> None:
    tokens = Tokens(single="secret")
    tokens.failures = Failures(Now())  # the first delay is a second, which is over before a slow machine checks
    for _ in range(FREE_FAILURES):
        assert tokens.check("wrong", "192.0.2.1") is None
    assert tokens.wait("192.0.2.1") == tokens.delay("192.0.2.1") == 1
    assert tokens.wait("192.0.2.2") == 0
    assert tokens.check("wrong", "192.0.2.1") is None
    assert tokens.wait("192.0.2.1") == 2


def test_a_right_token_is_never_locked_out_and_forgives_no_wrong_one() -> None:
    tokens = Tokens(single="secret")
    tokens.failures = Failures(Now())
    for _ in range(FREE_FAILURES + 20):
        tokens.check("wrong", "192.0.2.1")
    assert (tokens.wait("192.0.2.1"), tokens.delay("192.0.2.1")) == (60, MAX_DELAY)
    assert tokens.check("secret", "192.0.2.1") is Role.ADMIN
    assert tokens.wait("192.0.2.1") == 60


def test_the_wait_doubles_and_ends() -> None:
    now = Now()
    failures = Failures(now)
    for _ in range(FREE_FAILURES):
        failures.add("a")
    assert failures.wait("a") == 1
    failures.add("a")
    assert failures.wait("a") == 2
    for _ in range(20):
        failures.add("a")
    assert failures.wait("a") == 60
    now.seconds += 60
    assert failures.wait("a") == 0
    now.seconds += FORGET_SECONDS + 1
    failures.add("a")
    assert failures.wait("a") == 0


def test_thousands_of_failures_make_a_peer_wait_no_longer() -> None:
    failures = Failures(Now())
    for _ in range(5000):
        failures.add("a")
    assert failures.wait("a") == 60


def test_one_ipv6_network_is_one_peer() -> None:
    failures = Failures(Now())
    for last in range(FREE_FAILURES):
        failures.add(f"2001:db8::{last:x}")
    assert failures.wait("2001:db8::ffff") == 1
    assert failures.wait("2001:db8:0:1::1") == 0


def test_memory_is_bounded() -> None:
    failures = Failures(Now())
    for peer in range(MAX_PEERS + 5):
        failures.add(str(peer))
    assert len(failures._peers) == MAX_PEERS
