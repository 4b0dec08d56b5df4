"""The OpenAPI document, generated from the table of operations and the types in their signatures."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

import msgspec

import penstock
from penstock.server.http.http_errors import Fault
from penstock.server.http.operations import SESSION, Operation

_REF = "#/components/schemas/{name}"
_JSON = "application/json"
_PARTS = {
    "name": "The tube's name.",
    "id": "The id of the task or session.",
    "address": "The task's address.",
    "group": "The group's name.",
    "key": "The schedule's key, as in the list of schedules.",
}


def document(operations: Sequence[Operation]) -> dict[str, Any]:
    """The document that describes all operations."""
    types = _types(operations)
    schemas, components = msgspec.json.schema_components(types, ref_template=_REF)
    schema_of = dict(zip(map(repr, types), schemas, strict=True))
    paths: dict[str, dict[str, Any]] = {}
    for operation in operations:
        paths.setdefault(operation.template, {})[operation.method.lower()] = _describe(operation, schema_of)
    return {
        "openapi": "3.1.0",
        "info": {
            "title": "penstock",
            "version": penstock.__version__,
            "description": "Errors are `{error, message}`; `error` is the name of the error in Python.",
        },
        "paths": paths,
        "components": {
            "schemas": components,
            "securitySchemes": {"token": {"type": "http", "scheme": "bearer"}},
        },
    }


def _types(operations: Sequence[Operation]) -> list[Any]:
    types: dict[str, Any] = {repr(Fault): Fault}
    for operation in operations:
        for kind in (operation.body, *operation.answers):
            if kind is not None:
                types[repr(kind)] = kind
    return list(types.values())


def _describe(operation: Operation, schema_of: dict[str, Any]) -> dict[str, Any]:
    described: dict[str, Any] = {
        "operationId": operation.name,
        "summary": operation.summary,
        "parameters": _parameters(operation),
        "responses": _responses(operation, schema_of),
        "security": [] if operation.role is None else [{"token": []}],
    }
    if operation.role is not None:
        described["description"] = f"Needs the role {operation.role.name.lower()}."
    if operation.body is not None:
        described["requestBody"] = {"content": {_JSON: {"schema": schema_of[repr(operation.body)]}}}
    return described


def _parameters(operation: Operation) -> list[dict[str, Any]]:
    found = [
        {"name": name, "in": "path", "required": True, "schema": {"type": "string"}, "description": _PARTS[name]}
        for name in re.findall(r"{(\w+)}", operation.template)
    ]
    if operation.query is not None:
        schema = msgspec.json.schema(operation.query)
        (fields,) = [part["properties"] for part in schema["$defs"].values()]
        found += [{"name": name, "in": "query", "schema": field} for name, field in fields.items()]
    if operation.role is not None:
        meant = "The session that takes and settles; if absent, the server's own."
        found.append({"name": SESSION, "in": "header", "schema": {"type": "string"}, "description": meant})
    return found


def _responses(operation: Operation, schema_of: dict[str, Any]) -> dict[str, Any]:
    responses: dict[str, Any] = {"default": _content("Refused, or failed.", schema_of[repr(Fault)])}
    schemas = [schema_of[repr(kind)] for kind in operation.answers]
    if schemas:
        schema = schemas[0] if len(schemas) == 1 else {"anyOf": schemas}
        responses[str(operation.status)] = _content("Done.", schema)
    if operation.media is not None:
        responses["200"] = {"description": "A text.", "content": {operation.media: {"schema": {}}}}
    if operation.may_be_empty:
        responses["204"] = {"description": "Timed out without a result." if schemas else "Done."}
    return responses


def _content(description: str, schema: Any) -> dict[str, Any]:
    return {"description": description, "content": {_JSON: {"schema": schema}}}
