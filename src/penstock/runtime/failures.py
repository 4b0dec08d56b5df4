"""How an attempt ended on this host, for the errors that a task keeps (`Move.failure`)."""

from __future__ import annotations

import socket
import traceback

from penstock.core import names
from penstock.core.attempts import MAX_TRACEBACK, Failure


def failure_of(error: BaseException, text: str | None = None) -> Failure:
    """An exception on this host, with its traceback; `text` tells it, or else its own type and text do.

    An exception that was raised in another process, or that stands for what raised none, has that traceback (or "") as
    its attribute `remote_traceback`.
    """
    told = getattr(error, "remote_traceback", None)
    if told is None:
        try:
            told = "".join(traceback.format_exception(error))
        except Exception:  # the error's own code may raise
            told = ""
    return local_failure(names.failure(error) if text is None else text, told)


def local_failure(error: str | None, traceback: str = "") -> Failure:
    """An attempt that ended on this host. Long texts are cut: of a traceback, the end tells most."""
    if len(traceback) > MAX_TRACEBACK:
        traceback = "…" + traceback[1 - MAX_TRACEBACK :]
    told = names.text("traceback", traceback) or ""
    return Failure(names.text("error", error) or "", told, socket.gethostname())
