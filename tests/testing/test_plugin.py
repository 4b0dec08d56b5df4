"""The pytest plugin, as programs that use penstock load it."""

from __future__ import annotations

import os
import subprocess
import sys
import tomllib
from importlib import import_module
from pathlib import Path

import penstock

PROGRAM = """
import asyncio
import penstock


def test_a_store_of_its_own(penstock_broker, penstock_clock):
    tube = penstock_broker.tube("mail", ttl=60)
    tube.put("stale")
    penstock_clock.advance(60)
    assert tube.take(0) is None
    assert [found.name for found in penstock_broker.tubes()] == ["mail"]


def test_another_store(penstock_broker, penstock_url):
    assert penstock_broker.tubes() == []
    with penstock.connect(penstock_url) as program:
        program.tube("mail").put("hello")
    assert penstock_broker.tube("mail").take(0).data == "hello"


def test_awaited(penstock_broker, penstock_url, penstock_clock):
    async def main():
        async with penstock.aio.connect(penstock_url) as broker:
            return await (await broker.tube("mail")).put("hello")

    task = asyncio.run(main())
    assert task.created == penstock_clock.seconds
    assert penstock_broker.tube("mail").take(0).data == "hello"
"""


def test_its_fixtures_are_there_for_every_test(tmp_path: Path) -> None:
    (tmp_path / "test_program.py").write_text(PROGRAM)
    environment = {**os.environ, "PYTHONPATH": str(Path(penstock.__file__).parents[1])}
    ran = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-W", "error", "-p", "penstock.testing.plugin", str(tmp_path)],
        cwd=tmp_path,
        env={**environment, "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"},
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
    )
    assert "3 passed" in ran.stdout, ran.stdout + ran.stderr


def test_an_installed_penstock_registers_its_pytest_plugin() -> None:
    project = tomllib.loads((Path(__file__).parents[2] / "pyproject.toml").read_text())["project"]
    plugin = import_module(project["entry-points"]["pytest11"]["penstock"])
    assert {"penstock_broker", "penstock_clock", "penstock_url"} <= set(vars(plugin))
