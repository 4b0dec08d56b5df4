"""Failed attempts on this host, as kept in `task.errors` (`Move.failure`)."""

from __future__ import annotations

import socket
import traceback

from penstock.core import names
from penstock.core.attempts import MAX_TRACEBACK, Failure


def failure_of(error: BaseException, text: str | None = None) -> Failure:
    """The failure of an exception raised on this host, with its traceback; `text` replaces its type and message.

    An exception from another process has its traceback as the attribute `remote_traceback`, "" if there is none.
    """
    formatted = getattr(error, "remote_traceback", None)
    if formatted is None:
        try:
            formatted = "".join(traceback.format_exception(error))
        except Exception:  # the error's own code may raise
            formatted = ""
    return local_failure(names.failure(error) if text is None else text, formatted)


def local_failure(error: str | None, traceback: str = "") -> Failure:
    """A failed attempt on this host. Long texts are cut; a traceback keeps its end."""
    if len(traceback) > MAX_TRACEBACK:
        traceback = "…" + traceback[1 - MAX_TRACEBACK :]
    formatted = names.text("traceback", traceback) or ""
    return Failure(names.text("error", error) or "", formatted, socket.gethostname())
