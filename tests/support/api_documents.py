"""The documents of the API as judges: real answers and messages are held against them.

Every object is closed here: a field that the document does not have is as wrong as one that is missing.
"""

from __future__ import annotations

import ast
import copy
from collections.abc import Iterator
from typing import Any

import jsonschema_rs


def closed(schemas: dict[str, Any]) -> dict[str, Any]:
    """The schemas of a document, without room for fields that they do not have.

    Requests stay open: the server ignores what it does not know.
    """
    result = copy.deepcopy(schemas)
    for name, schema in result.items():
        if not name.endswith("Body") and name != "TopicConfig" and "properties" in schema:
            schema["additionalProperties"] = False
    return result


class Judge:
    """Holds values against the schemas of one document."""

    def __init__(self, document: dict[str, Any]) -> None:
        self._components = {"schemas": closed(document["components"]["schemas"])}
        self._validators: dict[str, Any] = {}
        self.seen: set[str] = set()

    def check(self, name: str, value: object) -> None:
        """Fail unless the value has this shape."""
        if name not in self._validators:
            schema = {"$ref": f"#/components/schemas/{name}", "components": self._components}
            self._validators[name] = jsonschema_rs.Draft202012Validator(schema)
        problems = [error.message for error in self._validators[name].iter_errors(value)]
        assert problems == [], f"{name}: {problems} in {value}"
        self.seen.add(name)


def references_in(node: object) -> Iterator[str]:
    """Every `$ref` of a document."""
    if isinstance(node, dict):
        if isinstance(node.get("$ref"), str):
            yield node["$ref"]
        for value in node.values():
            yield from references_in(value)
    elif isinstance(node, list):
        for value in node:
            yield from references_in(value)


def resolved(document: dict[str, Any], reference: str) -> object:
    """What a reference points to; KeyError if it points nowhere."""
    node: Any = document
    for part in reference.removeprefix("#/").split("/"):
        node = node[part]
    return node


def codes_in(source: str) -> Iterator[tuple[int, str]]:
    """Every status and code that stands in a call of `ApiError`."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "ApiError":
            words = [argument.value for argument in node.args[:2] if isinstance(argument, ast.Constant)]
            if len(words) == 2 and isinstance(words[0], int) and isinstance(words[1], str):
                yield words[0], words[1]


def refusals_in(source: str) -> Iterator[tuple[int, str]]:
    """Every status and code that stands in a call of `Refusal.because`."""
    for node in ast.walk(ast.parse(source)):
        if (
            isinstance(node, ast.Call)
            and isinstance(node.func, ast.Attribute)
            and node.func.attr == "because"
        ):
            words = [argument.value for argument in node.args if isinstance(argument, ast.Constant)]
            is_named = len(node.args) == 3 and isinstance(words[-1], str)
            if isinstance(words[0], int):
                yield words[0], str(words[-1]) if is_named else "invalid_request"
