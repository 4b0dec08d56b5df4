"""Failed attempts on this host, as kept in `task.errors` (`Move.failure`)."""

from __future__ import annotations

import contextlib
import socket
import traceback
from pathlib import Path
from types import TracebackType

from penstock.core import names
from penstock.core.attempts import MAX_TRACEBACK, Failure

# Files whose frames are left out at the beginning of a traceback; contextlib enters the hooks around a handler.
_OWN = (str(Path(__file__).parents[1]), contextlib.__file__)


def failure_of(error: BaseException, text: str | None = None) -> Failure:
    """The failure of an exception raised on this host, with its traceback from the caller's own code on.

    `text` replaces its type and message.

    An exception from another process has its traceback as the attribute `remote_traceback`, "" if there is none.
    """
    formatted = getattr(error, "remote_traceback", None)
    if formatted is None:
        try:
            formatted = "".join(traceback.format_exception(type(error), error, handler_frames(error)))
        except Exception:  # the error's own code may raise
            formatted = ""
    return local_failure(names.failure(error) if text is None else text, formatted)


def handler_frames(error: BaseException) -> TracebackType | None:
    """The traceback without penstock's own frames at its beginning; None if there is nothing else."""
    at = error.__traceback__
    while at is not None and at.tb_frame.f_code.co_filename.startswith(_OWN):
        at = at.tb_next
    return at


def local_failure(error: str | None, traceback: str = "") -> Failure:
    """A failed attempt on this host. Long texts are cut; a traceback keeps its end."""
    if len(traceback) > MAX_TRACEBACK:
        traceback = "…" + traceback[1 - MAX_TRACEBACK :]
    formatted = names.text("traceback", traceback) or ""
    return Failure(names.text("error", error) or "", formatted, socket.gethostname())
