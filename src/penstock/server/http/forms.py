"""Forms of the dashboard's pages, read within bounds."""

from __future__ import annotations

from dataclasses import replace
from urllib.parse import parse_qsl

from starlette.requests import Request

from penstock.server.http.http_errors import Refused
from penstock.server.http.operations import read_body
from penstock.server.http.options import Options

_MAX_FORM = 16 * 1024


async def read_form(request: Request, options: Options) -> dict[str, str]:
    """The fields of a form."""
    sent = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    if sent != "application/x-www-form-urlencoded":
        raise Refused(415, "this address takes the forms of the dashboard alone: programs use /api/")
    body = await read_body(request, replace(options, max_body=_MAX_FORM))
    try:
        return dict(parse_qsl(body.decode(), keep_blank_values=True, max_num_fields=20))
    except ValueError:
        raise Refused(400, "the form cannot be read: go back to the page and try again") from None
