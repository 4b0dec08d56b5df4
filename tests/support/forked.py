"""Programs of penstock in processes of their own that have its modules loaded already.

Most of the CPU time of a short command goes into starting Python and importing. A fork server does that once per test
process; each command is a fork of it.
"""

from __future__ import annotations

import gc
import multiprocessing
import os
import pkgutil
import subprocess
import sys
import warnings
from collections.abc import Callable, Mapping, Sequence
from functools import cache
from multiprocessing.context import ForkServerContext
from pathlib import Path
from tempfile import TemporaryDirectory

import penstock.cli

_LOADED = ("penstock.store.sqlite.sqlite_store", "penstock.store.redis.redis_store", "rich.console", "rich.table")
_STREAMS = (("stdin", os.O_RDONLY), ("stdout", os.O_WRONLY), ("stderr", os.O_WRONLY))


def run_forked(
    main: Callable[[], object], words: Sequence[str], *,
    stdin: bytes, cwd: Path, env: Mapping[str, str], timeout: float,
) -> subprocess.CompletedProcess[str]:  # fmt: skip
    """Run `main` with these arguments as subprocess.run would, with warnings as errors."""
    with TemporaryDirectory(prefix="penstock-run-") as folder:
        for name, content in (("stdin", stdin), ("stdout", b""), ("stderr", b"")):
            Path(folder, name).write_bytes(content)
        process = _server().Process(target=_run, args=(main, [*words], folder, str(cwd), dict(env)))
        process.start()
        process.join(timeout)
        if process.exitcode is None:
            process.kill()
            process.join()
            raise subprocess.TimeoutExpired([*words], timeout)
        stdout, stderr = (Path(folder, name).read_bytes().decode() for name in ("stdout", "stderr"))
        return subprocess.CompletedProcess([*words], process.exitcode, stdout, stderr)


@cache
def _server() -> ForkServerContext:
    context = multiprocessing.get_context("forkserver")
    commands = [module.name for module in pkgutil.iter_modules(penstock.cli.__path__, "penstock.cli.")]
    context.set_forkserver_preload([*commands, *_LOADED])
    return context


def _run(main: Callable[[], object], words: list[str], folder: str, cwd: str, env: dict[str, str]) -> None:
    """In the new process: what a program finds that was started by its name."""
    for number, (name, mode) in enumerate(_STREAMS):
        os.dup2(os.open(f"{folder}/{name}", mode), number)
    sys.stdin = open(0, closefd=False)  # noqa: SIM115 - multiprocessing gave it another
    os.environ.clear()
    os.environ.update(env)
    os.chdir(cwd)
    sys.argv = ["penstock", *words]
    warnings.simplefilter("error")
    try:
        main()
    finally:
        gc.collect()  # what it left open is told of
