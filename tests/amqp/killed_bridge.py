"""A `penstock bridge` that kills itself: `python -m tests.amqp.killed_bridge POINT AMQP_URL …`.

Points are before and after every call that stores, publishes or acks. The process dies at the given point.
"""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Callable
from functools import wraps
from itertools import count
from typing import Any

from penstock.amqp.connection import QueueConnection
from penstock.broker.tube import Tube
from penstock.cli.main import main


def killable(call: Callable[..., Any], pass_point: Callable[[], None]) -> Callable[..., Any]:
    """Wrap a call with a point before it and one after it."""

    @wraps(call)
    def between(*given: object, **more: object) -> object:
        pass_point()
        result = call(*given, **more)
        pass_point()
        return result

    return between


if __name__ == "__main__":
    points, last = count(1), int(sys.argv.pop(1))

    def pass_point() -> None:
        if next(points) == last:
            os.kill(os.getpid(), signal.SIGKILL)

    for owner, names in ((QueueConnection, "ack publish"), (Tube, "put_many take_many ack_many")):
        for name in names.split():
            setattr(owner, name, killable(getattr(owner, name), pass_point))
    sys.argv.insert(1, "bridge")
    main()
