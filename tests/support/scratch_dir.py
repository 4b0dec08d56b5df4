"""Where the files of a run stand: in memory where there is room, because each test of a store waits for a disk else."""

from __future__ import annotations

import os
import shutil
import tempfile

_MEMORY = "/dev/shm"
# The servers of three workers and what the tests leave to them came to less than two.
_GIGABYTES = 6


def settle_in_memory() -> None:
    """For this process and those that it starts, unless TMPDIR says where. No test cuts the power."""
    if "TMPDIR" in os.environ or not os.access(_MEMORY, os.W_OK):
        return
    if shutil.disk_usage(_MEMORY).free > _GIGABYTES * 2**30:
        os.environ["TMPDIR"] = tempfile.tempdir = _MEMORY
