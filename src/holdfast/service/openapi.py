"""The OpenAPI document, made from the table of routes and the types that requests are checked with."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from typing import Any

import msgspec

from holdfast.protocol import operating, problems, requests
from holdfast.service.call import Route
from holdfast.service.errors import STATUS
from holdfast.service.tokens import ADMIN, OPERATOR_SCOPE, PRODUCE, READ, WORK

_REF = "#/components/schemas/{name}"
_EVERY = ("invalid_request", "internal_error", "too_many_connections", "headers_too_large")
_WITH_TOKEN = (
    "token_missing", "token_invalid", "token_expired", "scope_missing", "rate_limited", "store_unavailable",
    "store_busy",
)  # fmt: skip
_WITH_BODY = ("body_too_large", "unsupported_media_type", "request_timeout")
_SCOPES = {
    PRODUCE: "Enqueue and cancel jobs",
    WORK: "Claim and finish jobs",
    READ: "Read jobs, queues and events",
    ADMIN: "Pause queues, cancel by filter, replay and purge dead letters, manage schedules",
    OPERATOR_SCOPE: "List tenants and workers, change settings; only in a token without a tenant",
}
_TEXT = {"type": "string"}
_EVENT = {"type": "object", "properties": {"id": _TEXT, "event": _TEXT, "data": _TEXT}}
_KINDS: dict[str, tuple[str, dict[str, Any]]] = {
    "/v1/events": ("text/event-stream", _EVENT),
    "/metrics": ("text/plain", _TEXT),
}


def _given(*names: str) -> dict[str, Any]:
    return {"required": list(names), "properties": {name: {"not": {"type": "null"}} for name in names}}


_RULES: dict[str, dict[str, Any]] = {
    "Replay": {
        "oneOf": [
            {"required": ["ids"], "not": {"anyOf": [_given("dry_run"), _given("cursor"), {"required": ["where"]}]}},
            {"required": ["where"], "not": {"required": ["ids"]}},
        ]
    },
    "PutSchedule": {
        "oneOf": [_given("cron"), _given("every_s")],
        "anyOf": [_given("cron"), {"properties": {"timezone": {"const": "UTC"}}}],
    },
    "NewStep": {"not": _given("delay_s", "run_at")},
    "Enqueue": {
        "allOf": [
            {"not": _given("delay_s", "run_at")},
            {"not": _given("idempotency", "idempotency_ttl_s")},
            {"anyOf": [_given("idempotency_key"), {"not": _given("idempotency")}]},
            {"anyOf": [_given("idempotency_key"), {"not": _given("idempotency_ttl_s")}]},
        ]
    },
}
"""Rules that the types do not express."""


def document(routes: Sequence[Route]) -> dict[str, Any]:
    """Make the document of these routes."""
    from importlib.metadata import version

    types = list(_types(routes))
    schemas, components = msgspec.json.schema_components(types, ref_template=_REF)
    for name, rule in _RULES.items():
        components[name] |= rule
    by_type = dict(zip(map(_name, types), schemas, strict=True))
    paths: dict[str, dict[str, Any]] = {}
    for route in routes:
        paths.setdefault(route.path, {})[route.method.lower()] = _operation(route, by_type)
    return {
        "openapi": "3.1.0",
        "info": {
            "title": "Holdfast",
            "version": version("holdfast"),
            "description": "A multi-tenant job queue. The token decides the tenant.",
        },
        "paths": paths,
        "components": {
            "schemas": components,
            "securitySchemes": {
                "token": {
                    "type": "http",
                    "scheme": "bearer",
                    "bearerFormat": "JWT",
                    "description": "Scopes: " + "; ".join(f"`{name}`: {text}" for name, text in _SCOPES.items()),
                }
            },
        },
    }


def _operation(route: Route, schemas: dict[str, Any]) -> dict[str, Any]:
    operation: dict[str, Any] = {
        "operationId": f"{route.handler.__name__}",
        "summary": route.summary,
        "parameters": [*_path_parameters(route.path), *_query_parameters(route.query), *_headers(route)],
        "responses": {**_answers(route, schemas), **_problems(route)},
    }
    if route.handler.__doc__:
        operation["description"] = route.handler.__doc__
    if route.scope is not None:
        operation["security"] = [{"token": []}]
        operation["x-scope"] = route.scope or "any"
    if route.body is not None:
        schema = _batch(route) if route.batch else schemas[_name(route.body)]
        content = {"application/json": {"schema": schema}}
        operation["requestBody"] = {"required": True, "content": content}
    return operation


def _batch(route: Route) -> dict[str, Any]:
    """A batch accepts any items: an invalid one is answered with its own error. [ENQ-4]"""
    item = {"anyOf": [{"$ref": _REF.format(name=route.item.__name__ if route.item else "")}, {}]}
    return {
        "type": "object",
        "required": [route.batch],
        "additionalProperties": False,
        "properties": {route.batch: {"type": "array", "maxItems": requests.BATCH_LIMIT, "items": item}},
        "description": "An invalid item is answered with its own error.",
    }


def _types(routes: Iterable[Route]) -> Iterable[Any]:
    found: dict[str, Any] = {_name(type): type for type in (problems.Problem, problems.Refused)}
    for route in routes:
        for type in (route.body, *route.answers.values()):
            if type is not None:
                found[_name(type)] = type
    return found.values()


def _name(type: Any) -> str:
    return str(type)


def _path_parameters(path: str) -> list[dict[str, Any]]:
    of = {
        "queue": requests.QueueName,
        "id": requests.JobId,
        "name": requests.ScheduleName,
        "tenant": operating.TenantName,
    }
    return [
        {"name": name, "in": "path", "required": True, "schema": _schema(of[name])}
        for name in re.findall(r"{(\w+)}", path)
    ]


def _query_parameters(query: type[Any]) -> list[dict[str, Any]]:
    return [
        {"name": field.name, "in": "query", "required": False, "schema": _schema(_without_none(field.type))}
        for field in msgspec.structs.fields(query)
    ]


def _headers(route: Route) -> list[dict[str, Any]]:
    if route.path != "/v1/events":
        return []
    text = "The offset to resume after. It takes precedence over `after`."
    return [
        {"name": "Last-Event-ID", "in": "header", "required": False, "schema": {"type": "string"}, "description": text}
    ]


def _without_none(type: Any) -> Any:
    from typing import get_args

    inner = [arg for arg in get_args(type) if arg is not None.__class__]
    return inner[0] if None.__class__ in get_args(type) and len(inner) == 1 else type


def _schema(type: Any) -> dict[str, Any]:
    (schema,), components = msgspec.json.schema_components([type], ref_template=_REF)
    while "$ref" in schema:
        schema = components[schema["$ref"].rpartition("/")[2]]
    return schema


def _answers(route: Route, schemas: dict[str, Any]) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for status, type in route.answers.items():
        kind = _KINDS[route.path][0] if type is None else "application/json"
        schema: dict[str, Any] = _KINDS[route.path][1] if type is None else schemas[_name(type)]
        if route.batch:
            item = {"anyOf": [schema, schemas[_name(problems.Refused)]]}
            schema = {
                "type": "object",
                "required": ["items"],
                "properties": {"items": {"type": "array", "items": item}},
            }
            if route.scope == ADMIN:
                schema["required"].append("tenant")
                schema["properties"]["tenant"] = _TEXT
        found[str(status)] = {"description": route.summary, "content": {kind: {"schema": schema}}}
    return found


def _problems(route: Route) -> dict[str, Any]:
    codes = [*route.refuses, *_EVERY]
    if route.scope is not None:
        codes += _WITH_TOKEN
        if "{queue}" in route.path or route.path in ("/v1/jobs", "/v1/claims", "/v1/flows"):
            codes.append("queue_forbidden")
    if route.body is not None:
        codes += _WITH_BODY
    by_status: dict[int, list[str]] = {}
    for code in dict.fromkeys(codes):
        by_status.setdefault(STATUS[code], []).append(code)
    content = {"application/problem+json": {"schema": {"$ref": _REF.format(name="Problem")}}}
    return {
        str(status): {"description": ", ".join(f"`{code}`" for code in names), "content": content}
        for status, names in sorted(by_status.items())
    }
