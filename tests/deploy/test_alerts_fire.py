"""A deployment whose workers are killed, found by deploy's rules in a Prometheus that scrapes worker and server."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import urllib.request
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from urllib.parse import urlencode

import penstock
from tests.deploy.test_deploy_files import DEPLOY
from tests.deploy.test_running import free_port, health
from tests.servers.base import find
from tests.support.shell import SOURCE, Shell
from tests.support.threads import until

SHOP = "import penstock\napp = penstock.App()\napp.task(tube='mail', name='send')(print)\n"
# What the rules wait for, in seconds instead of minutes.
FASTER = (("300", "3"), (r"\[\d+m\]", "[4s]"), (r"for: \d+m", "for: 1s"))


def test_killed_workers_are_found(tmp_path: Path) -> None:
    shell = Shell(tmp_path, f"sqlite:///{tmp_path}/jobs.db")
    shell.environment["PENSTOCK_LOCKS"] = str(tmp_path / "locks")
    (tmp_path / "token").write_text(shell("token", "tokens", "--role", "read", "--name", "prometheus").splitlines()[-1])
    (tmp_path / "shop.py").write_text(SHOP)
    worker_port, server_port, port = free_port(), free_port(), free_port()
    penstock_program = [sys.executable, "-m", "penstock"]
    listen = ["--listen", f"127.0.0.1:{worker_port}", "--token-file", "tokens"]
    http = ["--http", f"127.0.0.1:{server_port}", "--token-file", "tokens"]
    write_configuration(tmp_path, worker_port, server_port)
    prometheus = [
        find("prometheus", "prometheus", ()), "--config.file=prometheus.yaml", "--storage.tsdb.path=data",
        f"--web.listen-address=127.0.0.1:{port}",
    ]  # fmt: skip
    with ExitStack() as running:
        worker = running.enter_context(started(shell, [*penstock_program, "worker", "shop:app", *listen]))
        running.enter_context(started(shell, [*penstock_program, "serve", *http]))
        until(lambda: health(worker_port) == health(server_port) == 200)
        running.enter_context(started(shell, prometheus))
        with penstock.connect(shell.url) as broker:
            mail = broker.tube("mail")
            mail.put({"task": "send", "args": {}})
            until(lambda: value(port, 'penstock_handler_results_total{result="done"}') == 1)
            until(lambda: value(port, "count(up == 1)") == 2)
            until(lambda: firing(port) == set())
            worker.send_signal(signal.SIGKILL)
            mail.put({"task": "send", "args": {}})
            expected = {"PenstockWorkerDown", "PenstockNoWorkers", "PenstockTasksWait", "PenstockNobodyTakes"}
            until(lambda: firing(port) == expected)
            running.enter_context(started(shell, [*penstock_program, "worker", "shop:app", *listen]))
            until(lambda: firing(port) == set())


def write_configuration(folder: Path, worker_port: int, server_port: int) -> None:
    """The files of deploy/, for this host and with shorter times."""
    rules = (DEPLOY / "prometheus/alerts.yaml").read_text()
    for pattern, shorter in FASTER:
        rules = re.sub(pattern, shorter, rules)
    (folder / "alerts.yaml").write_text(rules)
    scraping = (DEPLOY / "prometheus/prometheus.yaml").read_text()
    scraping = scraping.replace("/etc/prometheus/penstock-token", str(folder / "token"))
    scraping = re.sub(r'"worker-1.*"', f'"127.0.0.1:{worker_port}"', scraping)
    scraping = re.sub(r'"queue.*"', f'"127.0.0.1:{server_port}"', scraping)
    scraping = scraping.replace("scrape_interval: 15s", "scrape_interval: 1s\n  evaluation_interval: 1s")
    (folder / "prometheus.yaml").write_text(scraping)


@contextmanager
def started(shell: Shell, command: list[str]) -> Iterator[subprocess.Popen[bytes]]:
    """A program that is ended, in the folder of the shell."""
    log = (shell.folder / f"log-{os.path.basename(command[-1])}").open("wb")
    environment = {**shell.environment, "PYTHONPATH": SOURCE}
    with log, subprocess.Popen(command, cwd=shell.folder, env=environment, stdout=log, stderr=log) as process:
        try:
            yield process
        finally:
            process.kill()


def ask(port: int, path: str, **query: str) -> object:
    """What Prometheus answers; nothing while it starts."""
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/api/v1/{path}?{urlencode(query)}", timeout=10) as answer:
            return json.load(answer)["data"]
    except OSError:
        return {}


def value(port: int, query: str) -> float | None:
    """The value of a query with one series."""
    found = ask(port, "query", query=query)
    series = found.get("result", []) if isinstance(found, dict) else []
    return float(series[0]["value"][1]) if series else None


def firing(port: int) -> set[str]:
    """The names of the alerts that fire."""
    found = ask(port, "alerts")
    alerts = found.get("alerts", []) if isinstance(found, dict) else []
    return {alert["labels"]["alertname"] for alert in alerts if alert["state"] == "firing"}
