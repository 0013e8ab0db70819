"""The reference page of the HTTP API, in Markdown.

Owns the layout of the page; everything in it comes from the OpenAPI and AsyncAPI documents and their tables.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

from tools.reference_pages.asyncapi import COMMANDS, asyncapi
from tools.reference_pages.error_codes import ERROR_CODES, OF_EVERY_REQUEST, SOCKET_CODES, ErrorCode
from tools.reference_pages.messages import EVENTS, PUSHES, REPLIES, WORK_EVENTS
from tools.reference_pages.openapi import Routes, errors_of, openapi, operations_of, scope_words
from tools.reference_pages.operation import Operation
from tools.reference_pages.shapes import Schema

_OPENING = """# HTTP API

<!-- Made by `python -m tools.reference_pages`; do not edit. -->

All routes of the topics server, made from its code. The [guide](../guide/server.md) shows how to use them.
The same for programs: [openapi.json](openapi.json) and [asyncapi.json](asyncapi.json).

Requests and answers are JSON. Members of a body that the server does not know are listed in `ignored` of the
answer, or refused with `strict=true`; a member that comes twice is refused. Unknown parameters are ignored;
clients ignore unknown fields of answers. Integers are unsigned 64-bit numbers unless a range is given, times
are milliseconds. In a query, `true` and `1`, `false` and `0` are booleans; anything else counts as absent.
Each GET route also answers HEAD, and each path OPTIONS.

Under each route stand the [errors](#error-codes) of its own; those marked with * can be the answer to any
request.
"""


def reference_page(routes: Routes) -> str:
    """The page for a server that has these routes."""
    routes = set(routes)
    documents = {**asyncapi(routes)["components"]["schemas"], **openapi(routes)["components"]["schemas"]}
    page = _Page(documents)
    page.add(_OPENING)
    operations = operations_of(routes)
    page.table(
        ("Route", "Does", "Scope"),
        (
            (
                f"[`{each.method} {each.template}`](#{each.id.lower()})",
                each.summary,
                ", ".join(scope_words(each.scope)),
            )
            for each in operations
        ),
    )
    group = ""
    for operation in operations:
        if operation.group != group:
            group = operation.group
            page.add(f"\n## {group}\n")
        page.operation(operation)
    page.messages({each.id for each in operations})
    page.objects()
    page.errors()
    return page.text()


def type_words(schema: Schema) -> str:
    """A type in a few words."""
    if "$ref" in schema:
        name = schema["$ref"].rpartition("/")[2]
        return f"[{name}](#{name.lower()})"
    if "anyOf" in schema:
        return " or ".join(type_words(member) for member in schema["anyOf"])
    if "enum" in schema or "const" in schema:
        return ", ".join(f"`{json.dumps(value)}`" for value in schema.get("enum") or [schema["const"]])
    kind = schema.get("type", "any JSON")
    if isinstance(kind, list):
        return " or ".join(type_words({**schema, "type": member}) for member in kind)
    if kind == "array":
        members = [schema["items"]] if "items" in schema else schema["prefixItems"]
        return f"array of {', '.join(type_words(member) for member in members)}"
    if (
        kind == "object"
        and isinstance(schema.get("additionalProperties"), dict)
        and schema["additionalProperties"]
    ):
        return f"object of {type_words(schema['additionalProperties'])}"
    if kind == "integer" and schema.get("minimum", 0) < 0:
        return f"integer from {schema['minimum']} to {schema['maximum']}"
    return str(kind)


class _Page:
    """The page as it grows; shapes that are mentioned are described at the end."""

    def __init__(self, schemas: dict[str, Schema]) -> None:
        self._schemas = schemas
        self._parts: list[str] = []
        self._shown: set[str] = set()

    def text(self) -> str:
        return "\n".join(self._parts).rstrip("\n") + "\n"

    def add(self, text: str) -> None:
        self._parts.append(text)

    def table(self, columns: tuple[str, ...], rows: Any) -> None:
        self._parts.append("| " + " | ".join(columns) + " |")
        self._parts.append("|" + " --- |" * len(columns))
        for row in rows:
            cells = [str(cell).replace("|", "\\|") for cell in row]
            self._parts.append("| " + " | ".join(cells) + " |")
        self._parts.append("")

    def operation(self, operation: Operation) -> None:
        """One section."""
        self.add(f"### {operation.summary} {{ #{operation.id.lower()} }}\n")
        self.add(f"`{operation.method} {operation.template}`\n")
        if operation.text:
            self.add(f"{operation.text}\n")
        self.add(f"{_key_words(operation)}\n")
        if operation.parameters:
            self.table(
                ("Parameter", "In", "Type", "Default", "Meaning"),
                (
                    (
                        f"`{each.name}`",
                        "header" if each.is_header else "query",
                        each.kind,
                        "required" if each.is_required else _default_words({"default": each.default}),
                        each.text,
                    )
                    for each in operation.parameters
                ),
            )
        if operation.body is not None:
            optional = " (may be left out altogether)" if operation.body_is_optional else ""
            self.add(f"Body{optional}:\n")
            self.fields(operation.body.__name__, with_defaults=True)
        for status, answer in operation.answers.items():
            shape = (
                ""
                if answer.body is None or answer.body.__name__ not in self._schemas
                else f": [{answer.body.__name__}](#{answer.body.__name__.lower()})"
            )
            self.add(f"{status}{shape}, {answer.text}.\n")
        self.add(f"Errors: {_error_words(operation)}.\n")

    def fields(self, name: str, *, with_defaults: bool = False) -> None:
        """The fields of a shape as a table."""
        schema = self._schemas[name]
        self._shown.add(name)
        required = set(schema.get("required", ()))
        if with_defaults:
            columns: tuple[str, ...] = ("Field", "Type", "Default", "Meaning")
        else:
            columns = ("Field", "Type", "Meaning")

        def rows() -> Iterator[tuple[str, ...]]:
            for field, shape in schema["properties"].items():
                words = [f"`{field}`", type_words(shape)]
                if with_defaults:
                    words.append("required" if field in required else _default_words(shape))
                elif field not in required:
                    words[0] += " (optional)"
                yield (*words, shape.get("description", ""))

        self.table(columns, rows())

    def messages(self, ids: set[str]) -> None:
        """Events, commands, replies and pushes."""
        streams = [
            ("openStream", "Events of a watch stream", EVENTS),
            ("work", "Events of a work stream", WORK_EVENTS),
        ]
        for id_, title, events in streams:
            if id_ in ids:
                self.add(f"\n## {title}\n")
                self.table(
                    ("Event", "Data", "Says"),
                    (
                        (f"`{event}`", _link(kind.__name__), self._schemas[kind.__name__]["description"])
                        for event, kind in events.items()
                    ),
                )
        if "openSocket" in ids:
            self.add("\n## WebSocket messages\n")
            directions = (("command", COMMANDS), ("reply", REPLIES), ("push", PUSHES))
            self.table(
                ("`op`", "Kind", "Message", "Says"),
                (
                    (
                        f"`{kind.__struct_config__.tag}`",
                        direction,
                        _link(kind.__name__),
                        self._schemas[kind.__name__]["description"],
                    )
                    for direction, kinds in directions
                    for kind in kinds
                ),
            )

    def objects(self) -> None:
        """All shapes that were not shown where they are used."""
        self.add("\n## Objects\n")
        commands = {kind.__name__ for kind in COMMANDS}
        for name in sorted(self._schemas):
            self.add(f"### {name}\n")
            self.add(f"{self._schemas[name]['description']}\n")
            taken = name in commands or name in ("RecordBody", "WatchedBody", "RouterConfig", "TopicConfig")
            self.fields(name, with_defaults=taken or name.endswith("Body"))

    def errors(self) -> None:
        """All codes."""
        self.add("\n## Error codes\n")
        self.table(
            ("Status", "Code", "Means", "`detail`"),
            (
                (
                    f"{row.status}{_star(row)}",
                    f"`{row.code}`",
                    row.meaning,
                    ", ".join(f"`{word}`" for word in row.detail),
                )
                for row in ERROR_CODES
            ),
        )
        self.add("On a WebSocket there are also:\n")
        self.table(("Code", "Means"), ((f"`{code}`", text) for code, text in SOCKET_CODES.items()))


def _star(row: ErrorCode) -> str:
    return " *" if (row.status, row.code) in OF_EVERY_REQUEST else ""


def _link(name: str) -> str:
    return f"[{name}](#{name.lower()})"


def _default_words(schema: Schema) -> str:
    default = schema.get("default")
    return "" if default is None else f"`{json.dumps(default)}`"


def _key_words(operation: Operation) -> str:
    if operation.is_open:
        return "Needs no key, unless `probe_auth` is on."
    scopes = scope_words(operation.scope)
    words = (
        f"Needs a key with the scope {' and '.join(f'`{word}`' for word in scopes)}"
        if scopes
        else "Needs a key"
    )
    return words + (", in the header or as `?token=`." if operation.takes_token else ".")


def _error_words(operation: Operation) -> str:
    own = [
        row
        for rows in errors_of(operation).values()
        for row in rows
        if (row.status, row.code) not in OF_EVERY_REQUEST
    ]
    return ", ".join(f"{row.status} `{row.code}`" for row in own)
