"""Keeps the files of a test run in memory if there is space, because tests of stores would wait for the disk."""

from __future__ import annotations

import os
import shutil
import tempfile

_MEMORY = "/dev/shm"
# The servers of four test processes and the data of the tests use less than three.
_GIGABYTES = 6


def keep_files_in_memory() -> None:
    """For this process and those that it starts, unless TMPDIR is set. No test cuts the power."""
    if "TMPDIR" in os.environ or not os.access(_MEMORY, os.W_OK):
        return
    if shutil.disk_usage(_MEMORY).free > _GIGABYTES * 2**30:
        os.environ["TMPDIR"] = tempfile.tempdir = _MEMORY
