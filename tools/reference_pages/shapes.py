"""JSON Schema from types: the structs that requests are decoded into, and those that describe answers.

Owns the translation. `msgspec.json.schema_components` does the same, but cannot show a field of raw JSON that
has a default, and requests have such fields.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any, Final

from msgspec import inspect

from everlog import api_types
from everlog.topics.config import U64_MAX

Schema = dict[str, Any]

U64: Final[Schema] = {"type": "integer", "minimum": 0, "maximum": U64_MAX}
I32: Final[Schema] = {"type": "integer", "minimum": -(2**31), "maximum": 2**31 - 1}
STORED_CONFIG: Final = "StoredConfig"
"""Name of the settings of a topic in answers, where all of them are present."""
_SENT: Final = ("everlog.api_types", "tools.reference_pages.messages")
"""Modules of what the server sends: there, a field with a default may be absent, and is never null for it."""
SIGNED_FIELDS: Final = frozenset({"priority", "effective_priority"})
_SCALARS: Final[dict[type, Schema]] = {
    inspect.AnyType: {},
    inspect.RawType: {},
    inspect.NoneType: {"type": "null"},
    inspect.BoolType: {"type": "boolean"},
    inspect.IntType: {"type": "integer"},
    inspect.FloatType: {"type": "number"},
    inspect.StrType: {"type": "string"},
}
# Keywords that say nothing about null and other types, so that types that use them can share one schema.
_MERGEABLE: Final = frozenset({"type", "items", "additionalProperties", "minimum", "maximum"})


def reference(name: str) -> Schema:
    """A schema that stands elsewhere in the document."""
    return {"$ref": f"#/components/schemas/{name}"}


class Shapes:
    """The schemas of a document by name; asking for one adds it and all that it refers to."""

    def __init__(
        self,
        common: Mapping[str, str],
        special: Mapping[str, Mapping[str, str]],
        bounds: Mapping[str, Mapping[str, Schema]],
        always_sent: Collection[tuple[str, str]],
    ) -> None:
        self._common = common
        self._special = special
        self._bounds = bounds
        self._always_sent = always_sent
        self.schemas: dict[str, Schema] = {}

    def of(self, kind: Any) -> Schema:
        """The schema of a type; structs are referred to."""
        return self._schema(inspect.type_info(kind))

    def _schema(self, kind: inspect.Type) -> Schema:
        if isinstance(kind, inspect.StructType):
            return self._struct(kind)
        if isinstance(kind, inspect.UnionType):
            return self._union(kind)
        if isinstance(kind, inspect.TupleType):
            return {"type": "array", "items": self._schema(kind.item_types[0])}
        if isinstance(kind, inspect.ListType):
            return {"type": "array", "items": self._schema(kind.item_type)}
        if isinstance(kind, inspect.DictType):
            return {"type": "object", "additionalProperties": self._schema(kind.value_type)}
        if isinstance(kind, inspect.LiteralType):
            return {"enum": list(kind.values)}
        if isinstance(kind, inspect.EnumType):
            return {"type": "string", "enum": [member.value for member in kind.cls]}
        return dict(_SCALARS[type(kind)])

    def _union(self, kind: inspect.UnionType) -> Schema:
        schemas = [self._schema(member) for member in kind.types]
        if len(schemas) == 1:
            return schemas[0]
        if all(isinstance(member.get("type"), str) and not member.keys() - _MERGEABLE for member in schemas):
            merged = {key: value for member in schemas for key, value in member.items()}
            return {**merged, "type": [member["type"] for member in schemas]}
        return {"anyOf": schemas}

    def _struct(self, kind: inspect.StructType) -> Schema:
        name = STORED_CONFIG if kind.cls is api_types.TopicConfig else kind.cls.__name__
        if name not in self.schemas:
            self.schemas[name] = {}  # it may refer to itself
            self.schemas[name] = self._object(kind)
        return reference(name)

    def _object(self, kind: inspect.StructType) -> Schema:
        properties: dict[str, Schema] = {}
        required = []
        if kind.tag_field is not None:
            properties[kind.tag_field] = {"const": kind.tag, "description": self._common[kind.tag_field]}
            required.append(kind.tag_field)
        texts, bounds = self._texts_of(kind.cls), self._bounds_of(kind.cls)
        is_sent = kind.cls.__module__ in _SENT
        for field in kind.fields:
            name = field.encode_name
            properties[name] = _narrowed(self._field(field, texts.get(name), is_sent), bounds.get(name, {}))
            if field.required or (is_sent and self._is_always_sent(kind.cls, name)):
                required.append(name)
        schema: Schema = {"type": "object", "description": first_line(kind.cls)}
        schema["properties"] = properties
        if required:
            schema["required"] = required
        return schema

    def _is_always_sent(self, cls: type, field: str) -> bool:
        return any((known.__name__, field) in self._always_sent for known in cls.__mro__)

    def _texts_of(self, cls: type) -> dict[str, str]:
        """What is said about the fields of a struct, by itself or by those it inherits from."""
        texts = dict(self._common)
        for known in reversed(cls.__mro__):
            texts |= self._special.get(known.__name__, {})
        return texts

    def _bounds_of(self, cls: type) -> dict[str, Schema]:
        bounds: dict[str, Schema] = {}
        for known in reversed(cls.__mro__):
            bounds |= self._bounds.get(known.__name__, {})
        return bounds

    def _field(self, field: inspect.Field, text: str | None, is_sent: bool) -> Schema:
        kind = field.type
        if is_sent and not field.required and isinstance(kind, inspect.UnionType):
            kind = inspect.UnionType(tuple(each for each in kind.types if type(each) is not inspect.NoneType))
        schema = self._schema(kind)
        signed = field.name in SIGNED_FIELDS
        schema = _with_range(schema, I32 if signed else U64)
        if not is_sent and _is_shown(field.default):
            schema["default"] = field.default
        if text is not None:
            schema["description"] = text
        return schema


def _with_range(schema: Schema, numbers: Schema) -> Schema:
    """Every integer of the contract has 64 bits and no sign, but for a few."""
    kind = schema.get("type")
    if kind == "integer" or (isinstance(kind, list) and "integer" in kind):
        return {**numbers, **schema}
    if "anyOf" in schema:
        return {**schema, "anyOf": [_with_range(member, numbers) for member in schema["anyOf"]]}
    if schema.get("items") == {"type": "integer"}:
        return {**schema, "items": dict(numbers)}
    return schema


def _narrowed(schema: Schema, bounds: Schema) -> Schema:
    """A schema with bounds; those that name types replace the types."""
    if "anyOf" in bounds:
        schema = {key: value for key, value in schema.items() if key not in ("type", "items")}
    return {**schema, **bounds}


def _is_shown(default: object) -> bool:
    return default is None or isinstance(default, str | int | float | bool)


def first_line(kind: type) -> str:
    """The first line of a docstring."""
    return (kind.__doc__ or "").strip().partition("\n")[0]


def completed(schema: Schema, changes: Mapping[str, Schema], description: str) -> Schema:
    """A schema whose fields are all there: what is left out on the way in is filled in on the way out."""
    properties = {
        name: {key: value for key, value in {**field, **changes.get(name, {})}.items() if key != "default"}
        for name, field in schema["properties"].items()
    }
    for name in changes:
        properties[name].pop("anyOf", None)
    return {**schema, "description": description, "properties": properties, "required": sorted(properties)}
