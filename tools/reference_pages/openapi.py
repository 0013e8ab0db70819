"""The OpenAPI document of the HTTP API.

Owns how the table of operations becomes OpenAPI 3.1; says nothing that is not in the tables or in the code.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, Final

import everlog
from everlog import api_types
from everlog.api_types import Durability
from everlog.server.auth import Scope
from everlog.topics import TopicConfig
from everlog.topics.config import TOPIC_NAME
from tools.reference_pages.error_codes import ERROR_CODES, ErrorCode, rows_of
from tools.reference_pages.field_texts import BOUNDS, COMMON, SPECIAL
from tools.reference_pages.operation import EVENT_STREAM, Answer, Operation, Parameter
from tools.reference_pages.operations import OPERATIONS
from tools.reference_pages.shapes import STORED_CONFIG, U64, Schema, Shapes, completed, reference

Routes = Iterable[tuple[str, str]]
_DURABILITY: Final[Schema] = {"type": "string", "enum": [member.value for member in Durability]}
_NAMES: Final[dict[str, Schema]] = {
    "topic": {"type": "string", "pattern": f"^{TOPIC_NAME.pattern}$"},
    "router": {"type": "string", "pattern": "^[A-Za-z0-9][A-Za-z0-9._:>-]{0,254}$"},
    "consumer": {"type": "string", "pattern": f"^{TOPIC_NAME.pattern}$"},
    "wid": {"type": "string", "pattern": "^wid_[A-Za-z0-9_-]{22}$"},
}
_NAME_TEXTS: Final = {
    "topic": "name of the topic",
    "router": "name of the router",
    "consumer": "name of the consumer",
    "wid": "`wid` of the session",
}
_KINDS: Final[dict[str, Schema]] = {
    "string": {"type": "string"},
    "boolean": {"type": "boolean"},
    "integer": U64,
    "strings": {"type": "array", "items": {"type": "string"}},
}
_ERROR_HEADERS: Final[dict[int, dict[str, tuple[str, bool]]]] = {
    401: {"WWW-Authenticate": ("`Bearer`", False)},
    405: {"Allow": ("the methods of this path", True)},
    429: {"Retry-After": ("seconds", True)},
    503: {"Retry-After": ("seconds", True)},
}
_STREAM_HEADERS: Final = {"Cache-Control": ("`no-store`", True), "X-Accel-Buffering": ("`no`", True)}


def operations_of(routes: Routes) -> list[Operation]:
    """What is described of these routes, in the order of the table."""
    known = set(routes)
    return [operation for operation in OPERATIONS if (operation.method, operation.path) in known]


def undescribed(routes: Routes) -> list[tuple[str, str]]:
    """Routes that no operation describes."""
    return sorted(set(routes) - {(operation.method, operation.path) for operation in OPERATIONS})


def new_shapes(*always_sent: tuple[str, str]) -> Shapes:
    """Shapes with the words for their fields; `always_sent` have a default but are never absent."""
    always = [("Answer", "performance"), ("ErrorFields", "message"), *always_sent]
    return Shapes(COMMON, SPECIAL, BOUNDS, always)


def _add_stored_config(shapes: Shapes) -> None:
    """Settings come in with defaults and go out complete."""
    shapes.of(TopicConfig)
    if STORED_CONFIG in shapes.schemas:
        shapes.schemas[STORED_CONFIG] = completed(
            shapes.schemas[TopicConfig.__name__],
            {
                "durability": {**_DURABILITY, "description": "what an answer to an append promises"},
                "durable": {"description": 'whether `durability` is `"fsync"`'},
            },
            "The settings of a topic, complete.",
        )


def openapi(routes: Routes) -> dict[str, Any]:
    """The document for a server that has these routes."""
    shapes = new_shapes(("Record", "data"), ("Tombstone", "missed_estimate"))
    shapes.of(api_types.ErrorAnswer)
    paths: dict[str, dict[str, Any]] = {}
    operations = operations_of(routes)
    for operation in operations:
        item = paths.setdefault(operation.template, {})
        if operation.name is not None and "parameters" not in item:
            names = (operation.name, *([] if operation.item is None else [operation.item]))
            item["parameters"] = [_path_parameter(name) for name in names]
        item[operation.method.lower()] = _operation(operation, shapes)
    _add_stored_config(shapes)
    shapes.schemas["ErrorFields"]["properties"]["code"]["enum"] = sorted({row.code for row in ERROR_CODES})
    shapes.schemas["ErrorFields"]["additionalProperties"] = False
    return {
        "openapi": "3.1.0",
        "info": {
            "title": "everlog topics server",
            "version": everlog.__version__,
            "summary": "Durable topics over HTTP, server-sent events and WebSockets.",
            "description": (
                "Members of a body that the server does not know are listed in `ignored` of the answer, or "
                "refused with `strict=true`. Unknown parameters are ignored, and clients ignore unknown "
                "fields of answers. Every path also answers HEAD where it answers GET, and OPTIONS."
            ),
            "license": {"name": "Apache-2.0", "identifier": "Apache-2.0"},
        },
        "servers": [{"url": "http://127.0.0.1:4000", "description": "the default address"}],
        "security": [{"bearer": []}, {}],
        "tags": [{"name": name} for name in dict.fromkeys(each.group for each in operations)],
        "paths": paths,
        "components": {
            "schemas": dict(sorted(shapes.schemas.items())),
            "responses": dict(sorted(_error_responses(operations).items())),
            "securitySchemes": _SECURITY,
        },
    }


_SECURITY: Final = {
    "bearer": {
        "type": "http",
        "scheme": "bearer",
        "description": "A key of `TOPICS_API_KEYS`. If none is set, no key is needed.",
    },
    "token": {
        "type": "apiKey",
        "in": "query",
        "name": "token",
        "description": "The same key, for browsers, which cannot add a header to a stream.",
    },
}


def scope_words(scope: Scope) -> list[str]:
    """The scopes in words."""
    return [word.name.lower() for word in Scope if word in scope and word.name]


def _operation(operation: Operation, shapes: Shapes) -> dict[str, Any]:
    described: dict[str, Any] = {
        "operationId": operation.id,
        "tags": [operation.group],
        "summary": operation.summary,
    }
    if operation.text:
        described["description"] = operation.text
    described["security"] = _security(operation)
    if operation.parameters:
        described["parameters"] = [_parameter(each) for each in operation.parameters]
    if operation.body is not None:
        content = {"application/json": {"schema": shapes.of(operation.body)}}
        described["requestBody"] = {"required": not operation.body_is_optional, "content": content}
    described["responses"] = {
        **{str(status): _answer(answer, shapes) for status, answer in operation.answers.items()},
        **_errors(operation),
    }
    return described


def _security(operation: Operation) -> list[dict[str, list[str]]]:
    if operation.is_open:
        return [{}, {"bearer": []}]
    scopes = scope_words(operation.scope)
    keys = [{"bearer": scopes}]
    if operation.takes_token:
        keys.append({"token": scopes})
    return [*keys, {}]


def _path_parameter(name: str) -> dict[str, Any]:
    return {
        "name": name,
        "in": "path",
        "required": True,
        "description": _NAME_TEXTS[name],
        "schema": _NAMES[name],
    }


def _parameter(parameter: Parameter) -> dict[str, Any]:
    schema = dict(_KINDS[parameter.kind])
    if parameter.default is not None:
        schema["default"] = parameter.default
    return {
        "name": parameter.name,
        "in": "header" if parameter.is_header else "query",
        "required": parameter.is_required,
        "description": parameter.text,
        "schema": schema,
    }


def _answer(answer: Answer, shapes: Shapes) -> dict[str, Any]:
    content: dict[str, Any] = {}
    if answer.body is not None:
        content["application/json"] = {"schema": shapes.of(answer.body)}
    if answer.content is not None:
        content[answer.content] = {"schema": {"type": "string"}}
    described: dict[str, Any] = {"description": answer.text}
    if content:
        described["content"] = content
    if answer.content == EVENT_STREAM:
        described["headers"] = _headers(_STREAM_HEADERS)
    return described


def _headers(headers: Mapping[str, tuple[str, bool]]) -> dict[str, Any]:
    return {
        name: {"description": text, "required": required, "schema": {"type": "string"}}
        for name, (text, required) in headers.items()
    }


def errors_of(operation: Operation) -> dict[int, list[ErrorCode]]:
    """How an operation can fail, by status."""
    by_status: dict[int, list[ErrorCode]] = {}
    for row in rows_of(operation.codes):
        by_status.setdefault(row.status, []).append(row)
    return by_status


def _errors(operation: Operation) -> dict[str, Any]:
    return {
        str(status): {"$ref": f"#/components/responses/{_error_name(rows)}"}
        for status, rows in sorted(errors_of(operation).items())
    }


def _error_name(rows: list[ErrorCode]) -> str:
    """Operations that fail alike share a response, which is named by its status and codes."""
    return "-".join([str(rows[0].status), *(row.code for row in rows)])


def _error_responses(operations: Iterable[Operation]) -> dict[str, Any]:
    return {
        _error_name(rows): _error(status, rows)
        for operation in operations
        for status, rows in errors_of(operation).items()
    }


def _error(status: int, rows: list[ErrorCode]) -> dict[str, Any]:
    # The body is the same for all; which codes come with a status is narrowed down here.
    narrowed = {"properties": {"error": {"properties": {"code": {"enum": [row.code for row in rows]}}}}}
    schema = {"allOf": [reference(api_types.ErrorAnswer.__name__), narrowed]}
    described: dict[str, Any] = {
        "description": "; ".join(f"`{row.code}`: {row.meaning}" for row in rows),
        "content": {"application/json": {"schema": schema}},
    }
    if status in _ERROR_HEADERS:
        described["headers"] = _headers(_ERROR_HEADERS[status])
    return described
