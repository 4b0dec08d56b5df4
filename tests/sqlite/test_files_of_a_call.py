"""How many source files a reader follows through a put, a take and an ack."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from types import FrameType

import penstock

_SOURCE = str(Path(penstock.__file__).parent)


def files_of(call: Callable[[], object]) -> set[str]:
    """The files of penstock in which the call runs a function."""
    files: set[str] = set()

    def note(frame: FrameType, event: str, argument: object) -> None:
        if event == "call" and frame.f_code.co_filename.startswith(_SOURCE):
            files.add(frame.f_code.co_filename.removeprefix(_SOURCE))

    before = sys.getprofile()
    sys.setprofile(note)
    try:
        call()
    finally:
        sys.setprofile(before)
    return files


def test_put_take_and_ack_cross_at_most_eight_files_each(tmp_path: Path) -> None:
    with penstock.connect(f"sqlite:///{tmp_path}/queue.db") as broker:
        tube = broker.tube("mail")
        tube.put({"n": 0})
        first = tube.take(0)  # joins the session
        assert first is not None
        first.ack()
        taken: list[penstock.Task | None] = []
        assert len(files_of(lambda: tube.put({"n": 1}))) <= 8
        assert len(files_of(lambda: taken.append(tube.take(0)))) <= 8
        task = taken[0]
        assert task is not None
        assert len(files_of(task.ack)) <= 8
