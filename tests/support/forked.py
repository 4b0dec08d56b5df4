"""Runs programs of penstock in separate processes that have its modules loaded already.

Most of the CPU time of a short program goes into starting Python and importing. A fork server does that once per test
process; each program is a fork of it.
"""

from __future__ import annotations

import gc
import multiprocessing
import os
import pkgutil
import subprocess
import sys
import warnings
from collections.abc import Callable, Mapping
from functools import cache
from multiprocessing.context import ForkServerContext, ForkServerProcess
from pathlib import Path
from tempfile import TemporaryDirectory

import penstock.cli
from penstock.cli.main import main

_LOADED = (
    *(module.name for module in pkgutil.iter_modules(penstock.cli.__path__, "penstock.cli.")), "rich.table",
    "penstock.store.mysql.mysql_store", "penstock.store.postgres.postgres_store", "penstock.store.redis.redis_store",
    "penstock.store.sqlite.sqlite_store", "tests.fault.actors",
)  # fmt: skip
_STREAMS = (("stdin", os.O_RDONLY), ("stdout", os.O_WRONLY), ("stderr", os.O_WRONLY))


def fork(
    program: Callable[..., object], *words: str, cwd: Path, env: Mapping[str, str], streams: str = ""
) -> ForkServerProcess:
    """Start a function in a new process. `streams`: a folder with the files stdin, stdout and stderr."""
    process = _server().Process(target=_run, args=(program, words, str(cwd), dict(env), streams))
    process.start()
    return process


def run_penstock(
    *words: str, stdin: bytes, cwd: Path, env: Mapping[str, str], timeout: float
) -> subprocess.CompletedProcess[str]:
    """Run a command of penstock as subprocess.run would, with warnings as errors."""
    with TemporaryDirectory(prefix="penstock-run-") as folder:
        for name, content in (("stdin", stdin), ("stdout", b""), ("stderr", b"")):
            Path(folder, name).write_bytes(content)
        process = fork(_penstock, *words, cwd=cwd, env=env, streams=folder)
        process.join(timeout)
        if process.exitcode is None:
            process.kill()
            process.join()
            raise subprocess.TimeoutExpired(words, timeout)
        stdout, stderr = (Path(folder, name).read_bytes().decode() for name in ("stdout", "stderr"))
        return subprocess.CompletedProcess(words, process.exitcode, stdout, stderr)


@cache
def _server() -> ForkServerContext:
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload([*_LOADED])
    return context


def _run(program: Callable[..., object], words: tuple[str, ...], cwd: str, env: dict[str, str], streams: str) -> None:
    """Set up, in the new process, what a program started by its name would find."""
    gc.freeze()  # otherwise each collection copies the pages of all that the server has loaded
    for number, (name, mode) in enumerate(_STREAMS if streams else ()):
        os.dup2(os.open(f"{streams}/{name}", mode), number)
    sys.stdin = open(0, closefd=False)  # noqa: SIM115 - multiprocessing gave it another
    os.environ.clear()
    os.environ.update(env)
    os.chdir(cwd)
    program(*words)


def _penstock(*words: str) -> None:
    sys.argv = ["penstock", *words]
    warnings.simplefilter("error")
    try:
        main()
    finally:
        gc.collect()  # reports what it left open
