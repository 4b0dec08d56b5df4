"""`penstock bridge` as users start it, without a RabbitMQ server."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.shell import Shell


@pytest.fixture
def shell(tmp_path: Path) -> Shell:
    return Shell(tmp_path, f"sqlite:///{tmp_path}/queue.db?durability=relaxed")


NOWHERE = "amqp://ada:secret@127.0.0.1:1/shop"


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ([NOWHERE], "amqp://ada@127.0.0.1:1/shop cannot be reached (Connection refused): start RabbitMQ, or check"),
        (["redis://ada:secret@h"], "redis://ada@h is not an AMQP URL: give amqp:// or amqps://user:password@host/vhost"),
        (["amqp://ada:secret@h:port"], "the AMQP URL cannot be read"),
        (["amqp://ada:secret@h?heartbeat=5"], "parameter heartbeat of amqp://ada@h?heartbeat=5 is unknown"),
        (["amqp://ada:secret@h?cacertfile=x"], "amqp://ada@h?cacertfile=x names files for TLS"),
        (["amqps://ada:secret@h?cacertfile=/none"], "the TLS files of amqps://ada@h?cacertfile=%2Fnone cannot be read"),
        ([NOWHERE, "--batch", "0"], "batch 0 is out of range"),
        ([NOWHERE, "--publish", "--reject"], "--reject applies to messages that are consumed"),
        ([NOWHERE, "--publish"], "there is no store at"),
    ],
)  # fmt: skip
def test_an_impossible_request_is_one_clear_line_without_the_password(
    shell: Shell, words: list[str], message: str
) -> None:
    printed = shell.refused("bridge", *words, "--queue", "q", "--tube", "t")
    assert message in printed
    assert "secret" not in printed
    assert not (shell.folder / "queue.db").exists()  # no file was created


def test_a_missing_option_is_a_usage_error(shell: Shell) -> None:
    assert "--queue" in shell.refused("bridge", NOWHERE, "--tube", "t", code=2)


def test_the_url_may_come_from_the_environment(shell: Shell) -> None:
    shell.environment["PENSTOCK_AMQP_URL"] = NOWHERE
    assert "amqp://ada@127.0.0.1:1/shop cannot be reached" in shell.refused("bridge", "--queue", "q", "--tube", "t")


def test_a_tube_whose_kind_has_no_addresses_is_refused(shell: Shell) -> None:
    shell("create", "feeds", "round", "--period", "5")
    assert "kind round" in shell.refused("bridge", NOWHERE, "--queue", "q", "--tube", "feeds", "--publish")


def test_without_its_package_it_says_what_to_install(shell: Shell) -> None:
    (shell.folder / "pika.py").write_text("raise ImportError('No module named pika')\n")
    environment = {**shell.environment, "PYTHONPATH": f"{shell.folder}:{shell.environment['PYTHONPATH']}"}
    command = [sys.executable, "-m", "penstock", "bridge", NOWHERE, "--queue", "q", "--tube", "t"]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False, timeout=120)
    assert (done.returncode, done.stderr.count("\n")) == (1, 1)
    assert "pip install 'penstock[amqp]'" in done.stderr
