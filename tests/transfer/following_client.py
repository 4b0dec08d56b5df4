"""A producer or worker that follows its tube to another store until its standard input ends, then prints what it did.

`python -m tests.transfer.following_client put|run OLD NEW` prints a JSON list: the numbers it put or ran.
"""

from __future__ import annotations

import json
import sys
import threading
from collections.abc import Callable, Iterator

import penstock

TUBE = "jobs"
# The producer's numbers are above those of existing tasks.
FIRST = 1_000_000


class Following:
    """The tube, in the store that has it now."""

    def __init__(self, *urls: str) -> None:
        self._urls = urls
        self._broker = penstock.connect(urls[0])
        self._tube = self._broker.tube(TUBE)

    def use(self, call: Callable[[penstock.Tube], object], over: threading.Event) -> object:
        """Make the call; if the tube has moved, make it again in the other store."""
        while True:
            try:
                return call(self._tube)
            except penstock.NoSuchTube as error:
                if f"tube {TUBE} has moved to" not in str(error):
                    raise
                self._follow(over)

    def _follow(self, over: threading.Event) -> None:
        self._broker.close()
        self._broker = penstock.connect(self._urls[1])
        while True:
            try:
                self._tube = self._broker.tube(TUBE)
            except penstock.NoSuchTube as error:
                if "being imported into this store" not in str(error):
                    raise
                over.wait(0.02)
            else:
                return


def put(following: Following, over: threading.Event) -> Iterator[int]:
    """Put one number after the other."""
    number = FIRST
    while not over.wait(0.005):
        following.use(lambda tube, n=number: tube.put(n), over)  # type: ignore[misc]
        yield number
        number += 1


def run(following: Following, over: threading.Event) -> Iterator[int]:
    """Take and ack until no more tasks come."""
    while True:
        task = following.use(lambda tube: tube.take(0.2), over)
        if isinstance(task, penstock.Task):
            yield int(str(task.data))
            task.ack()
        elif over.is_set():
            return


def main() -> None:
    role, old, new = sys.argv[1:]
    over = threading.Event()
    threading.Thread(target=_end_with_input, args=(over,), daemon=True).start()
    following = Following(old, new)
    _print("ready")
    _print(json.dumps(list((put if role == "put" else run)(following, over))))


def _end_with_input(over: threading.Event) -> None:
    sys.stdin.read()
    over.set()


def _print(line: str) -> None:
    sys.stdout.write(f"{line}\n")
    sys.stdout.flush()


if __name__ == "__main__":
    main()
