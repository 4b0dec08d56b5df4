"""What differs for SQLite without a file."""

from __future__ import annotations

import subprocess
import sys

PROGRAM = """
import os
import penstock
broker = penstock.connect("memory://forked")
tube = broker.tube("t")
tube.put("parent")
child = os.fork()
if not child:
    try:
        tube.put("child")
    except penstock.StoreUnavailable:
        broker.close()
        with penstock.connect("memory://forked") as own:
            os._exit(len(own.tubes()))
    os._exit(9)
assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
assert tube.take(0).data == "parent"
broker.close()
print("works")
"""


def test_a_forked_child_connects_again_and_finds_an_empty_store() -> None:
    done = subprocess.run([sys.executable, "-c", PROGRAM], capture_output=True, text=True, timeout=60, check=False)
    assert (done.stdout, done.returncode) == ("works\n", 0), done.stderr
