"""Errors as HTTP responses: `{"error": name, "message": text}` with a status."""

from __future__ import annotations

import logging

import msgspec
from starlette.responses import Response

from penstock import errors

log = logging.getLogger("penstock")

# The first class that matches gives the status; subclasses come before their parents.
STATUS: dict[type[Exception], int] = {
    errors.PayloadTooLarge: 413,
    errors.BadValue: 400,
    errors.UnsupportedOption: 400,
    errors.NoSuchTube: 404,
    errors.NotFound: 404,
    errors.StoreBusy: 503,
    errors.StoreUnavailable: 503,
    errors.StoreFull: 507,
    errors.StoreError: 500,
    errors.PenstockError: 409,  # the state is not what the caller expected
}


# Error names for statuses of HTTP itself; the standard library's phrases differ between Python versions.
_NAMES = {
    400: "BadRequest",
    401: "Unauthorized",
    403: "Forbidden",
    404: "NotFound",
    405: "MethodNotAllowed",
    408: "RequestTimeout",
    413: "PayloadTooLarge",
    415: "UnsupportedMediaType",
    421: "MisdirectedRequest",
    429: "TooManyRequests",
    503: "ServiceUnavailable",
}


class Fault(msgspec.Struct, frozen=True):
    """The body of an error response."""

    error: str
    message: str


class Refused(Exception):
    """A request that the HTTP layer refuses before it calls a verb."""

    def __init__(self, status: int, message: str, **headers: str) -> None:
        super().__init__(message)
        self.status = status
        self.name = _NAMES.get(status, "Refused")
        self.headers = {name.replace("_", "-"): value for name, value in headers.items()}


def describe(error: Exception) -> tuple[int, Fault, dict[str, str]]:
    """Status, body and headers of an error. Unexpected errors are logged, and the response hides their message."""
    if isinstance(error, Refused):
        return error.status, Fault(error.name, str(error)), error.headers
    if isinstance(error, errors.PenstockError):
        status = next(status for kind, status in STATUS.items() if isinstance(error, kind))
        return status, Fault(type(error).__name__, str(error)), {}
    log.error("unexpected error in an HTTP request; responding with 500", exc_info=error)
    return 500, Fault("ServerError", "the server failed: its log has the details"), {}


def answer(error: Exception) -> Response:
    """The response for an error."""
    status, fault, headers = describe(error)
    return Response(msgspec.json.encode(fault), status, headers, "application/json")
