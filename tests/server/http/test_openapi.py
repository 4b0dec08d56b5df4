"""The OpenAPI document matches the server: same routes, and responses as described."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from typing import Any

import hypothesis
import pytest
import schemathesis
from schemathesis.checks import not_a_server_error
from schemathesis.specs.openapi.checks import (
    content_type_conformance,
    response_schema_conformance,
    status_code_conformance,
)

from penstock.server.auth import Tokens
from penstock.server.http.routes import OPERATIONS
from tests.server.http.server_thread import PATIENCE, Serving, serving

CHECKS = [not_a_server_error, status_code_conformance, content_type_conformance, response_schema_conformance]
# An endless response, and one with the whole store.
LEFT_OUT = {"events", "check"}


@pytest.fixture(scope="module")
def server() -> Iterator[Serving]:
    with serving("memory://openapi") as running:
        running.post("/api/tubes", {"name": "mail"})
        yield running


@pytest.fixture(scope="module")
def document(server: Serving) -> Any:
    return server.get("/api/openapi.json").json()


def test_every_route_is_described_and_every_description_has_a_route(server: Serving, document: Any) -> None:
    starlette: Any = server.app.asgi
    routes = {
        (method, route.path.replace(":path}", "}"))
        for route in starlette._app.routes
        for method in route.methods - {"HEAD"}
        if route.path.startswith(("/api/", "/metrics", "/health", "/ready"))
    }
    described = {(method.upper(), path) for path, methods in document["paths"].items() for method in methods}
    assert routes == described


def test_references_resolve_and_ids_are_unique(document: Any) -> None:
    for reference in re.findall(r'"\$ref": "#/components/schemas/(\w+)"', json.dumps(document)):
        assert reference in document["components"]["schemas"]
    ids = [operation["operationId"] for path in document["paths"].values() for operation in path.values()]
    assert len(ids) == len(set(ids)) == len(server_operations())
    assert all(operation["summary"] for path in document["paths"].values() for operation in path.values())


def server_operations() -> list[str]:
    return [operation.name for operation in OPERATIONS] + ["events", "prometheus", "describe"]


@pytest.mark.parametrize("name", [name for name in server_operations() if name not in LEFT_OUT])
def test_responses_are_as_described(server: Serving, document: Any, name: str) -> None:
    seen: list[int] = []
    operation = schemathesis.openapi.from_dict(document).find_operation_by_id(name)

    @hypothesis.settings(
        max_examples=8, deadline=None, derandomize=True, database=None,
        suppress_health_check=list(hypothesis.HealthCheck),
    )  # fmt: skip
    @hypothesis.given(case=operation.as_strategy())
    def call(case: Any) -> None:
        if isinstance(case.path_parameters, dict) and "name" in case.path_parameters:
            case.path_parameters["name"] = "mail"
        if isinstance(case.body, dict) and case.body.get("timeout"):
            case.body["timeout"] = 0  # the form matters here, not the wait
        case.headers.pop("penstock-session", None)
        response = case.call(base_url=server.url, timeout=PATIENCE)
        seen.append(response.status_code)
        case.validate_response(response, checks=CHECKS)

    call()
    assert seen


def test_the_openapi_document_needs_a_token_if_the_server_does() -> None:
    with serving("memory://openapi-token", Tokens(single="secret")) as guarded:
        assert guarded.get("/api/openapi.json").status_code == 401
        assert guarded.get("/api/openapi.json", authorization="Bearer secret").status_code == 200
