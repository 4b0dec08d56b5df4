"""An older penstock at work: `PYTHONPATH=its/src python older_version.py URL` puts and acks one task per input line.

It prints one line for each: `done`, or the name and message of the error. It imports nothing but penstock.
"""

from __future__ import annotations

import sys

import penstock


def main(url: str) -> None:
    tube = None
    for line in sys.stdin:
        try:
            if tube is None:
                tube = penstock.connect(url).tube("jobs", kind="fifottl")
            tube.put(line.strip(), address=line.strip())
            task = tube.take(5)
            assert task is not None
            task.ack("result")
            answer = "done" if tube.wait(line.strip(), 5).status == "done" else "lost"
        except Exception as error:
            answer = f"{type(error).__name__}: {error}"
        sys.stdout.write(answer.replace("\n", "\\n") + "\n")
        sys.stdout.flush()


if __name__ == "__main__":
    main(sys.argv[1])
