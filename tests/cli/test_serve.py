"""`penstock serve` started by a program, which reads the addresses it listens on."""

from __future__ import annotations

import json
import re
import signal
import subprocess
import sys

from tests.support.shell import Shell


def test_serve_prints_its_addresses_as_one_line_of_json(shell: Shell) -> None:
    words = ["serve", "--json", "--http", "127.0.0.1:0", "--resp", "127.0.0.1:0"]
    command = [sys.executable, "-m", "penstock", *words]
    with subprocess.Popen(command, env=shell.environment, stdout=subprocess.PIPE, text=True) as server:
        assert server.stdout is not None
        http, resp = json.loads(server.stdout.readline())["serves"]
        server.send_signal(signal.SIGTERM)
        assert server.stdout.read() == ""
    assert server.returncode == 0
    assert re.fullmatch(r"http://127\.0\.0\.1:\d+/", http)
    assert re.fullmatch(r"redis://127\.0\.0\.1:\d+", resp)
