"""What a JSON body has that it should not have: unknown or repeated members, and values of a wrong type.

Owns how these are found and put into words. The types are the structs that bodies are decoded as; `data`,
`meta` and other fields of type `Raw` belong to the user and are never looked into. Knows no route.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Mapping
from difflib import get_close_matches
from enum import Enum
from functools import cache
from types import NoneType, UnionType
from typing import Any, Final, Literal, NamedTuple, Union, get_args, get_origin, get_type_hints

import msgspec

from everlog.native.topics.log import json_names
from everlog.server.errors import ApiError, invalid

IGNORED_MAX: Final = 10
"""Unknown members that an answer lists."""
NAME_CHARS_MAX: Final = 100
"""Of names in answers; a body may be all name."""
SHOWN_CHARS: Final = 60
VALUES_MAX: Final = 100_000
"""Of a body whose values are looked at one by one: each takes some 50 bytes and a microsecond."""
_WORDS: Final[dict[object, str]] = {
    int: "a whole number",
    float: "a number",
    bool: "true or false",
    str: "text",
    NoneType: "null",
    dict: "an object",
    msgspec.Raw: "any JSON value",
}
Json = bytes | bytearray | msgspec.Raw


class UnknownMember(NamedTuple):
    """A member that no field stands for; `known` are the names that could be in its place."""

    path: str
    name: str
    known: tuple[str, ...]

    def refusal(self) -> ApiError:
        """The error for a request that is to be understood as a whole."""
        near = get_close_matches(self.name, self.known, 1)
        others = f"there are {', '.join(self.known)}" if self.known else "there are none here"
        hint = f"did you mean {near[0]!r}?" if near else others
        nearest = near[0] if near else None
        return invalid(
            f"{self.path}: unknown member; {hint}", path=self.path, name=self.name, nearest=nearest
        )


class _Shape(NamedTuple):
    """The members that a struct takes, and the structs inside of them."""

    names: tuple[str, ...]
    encoded: frozenset[bytes]
    """The names as JSON strings without escapes."""
    nested: tuple[tuple[str, type[msgspec.Struct], bool], ...]
    """Field, struct, and whether the field maps names to such structs."""


@cache
def _shape(kind: type[msgspec.Struct]) -> _Shape:
    names = list(kind.__struct_encode_fields__)
    if kind.__struct_config__.tag_field is not None:
        names.append(kind.__struct_config__.tag_field)
    nested = []
    for field, hint in zip(kind.__struct_encode_fields__, _types(kind), strict=True):
        for part in _parts(hint):
            inner = [each for each in (part, *get_args(part)) if _is_struct(each)]
            nested += [(field, each, get_origin(part) is dict) for each in inner]
    return _Shape(tuple(names), frozenset(msgspec.json.encode(name) for name in names), tuple(nested))


def _types(kind: type[msgspec.Struct]) -> list[Any]:
    hints = get_type_hints(kind)
    return [hints[name] for name in kind.__struct_fields__]


def _parts(hint: object) -> tuple[object, ...]:
    """The types of a union; a type that is none by itself."""
    return get_args(hint) if get_origin(hint) in (Union, UnionType) else (hint,)


def _is_struct(hint: object) -> bool:
    return isinstance(hint, type) and issubclass(hint, msgspec.Struct)


# --- Members ---------------------------------------------------------------------------------------------


def unknown_members(text: Json, kind: type[msgspec.Struct]) -> list[UnknownMember]:
    """The members of valid JSON that `kind` has no field for, at most `IGNORED_MAX`.

    Raises the error for the client if a member that has a field comes twice.
    """
    shape = _shape(kind)
    if not shape.nested and _is_plain(json_names(text), shape):
        return []
    found: list[UnknownMember] = []
    for member in _unknown(text, kind, ""):
        if len(found) < IGNORED_MAX:
            found.append(member)
    return found


def ignored_field(fields: bytes, members: list[UnknownMember]) -> bytes:
    """The fields of an answer, without a closing brace, and one more that lists what was ignored."""
    listed = [{"path": member.path, "name": member.name} for member in members]
    return b'%b,"ignored":%b' % (fields, msgspec.json.encode(listed))


def _unknown(text: Json, kind: type[msgspec.Struct], path: str) -> Iterator[UnknownMember]:
    shape = _shape(kind)
    names = json_names(text)
    if not _is_plain(names, shape):
        yield from _odd(names, shape, path)
    if shape.nested:
        members = msgspec.json.decode(text, type=dict[str, msgspec.Raw])
        for field, inner, is_map in shape.nested:
            inner_shape = _shape(inner)
            values = _values(members.get(field), is_map)
            if is_map and len(values) < len(mapped := json_names(members.get(field, b"{}"))):
                raise _twice(f"{path}{field}.", _repeated(mapped))
            known = inner_shape.encoded
            for key, value in values.items():
                # Thousands of small objects, as in a watch of many topics, are looked at quickly.
                found = json_names(value)
                is_plain = known.issuperset(found) and (len(found) < 2 or len(set(found)) == len(found))
                if inner_shape.nested or not is_plain:
                    yield from _unknown(value, inner, f"{path}{field}{_place(key)}.")


def _repeated(names: list[bytes]) -> str:
    """The first of some names, as JSON strings, that comes twice; escapes may hide that."""
    decoded: Counter[str] = Counter(map(msgspec.json.decode, names))
    return next(name for name, count in decoded.items() if count > 1)


def _twice(path: str, name: str) -> ApiError:
    shown = name[:NAME_CHARS_MAX]
    return invalid(f"{path}{shown} comes twice; send it once", path=f"{path}{shown}", name=shown)


def _is_plain(names: list[bytes], shape: _Shape) -> bool:
    """Whether all names are fields, none of them twice."""
    return shape.encoded.issuperset(names) and (len(names) < 2 or len(set(names)) == len(names))


def _odd(names: list[bytes], shape: _Shape, path: str) -> Iterator[UnknownMember]:
    if len(names) > VALUES_MAX:
        shown = path.rstrip(".") or "the body"
        raise invalid(f"{shown} has {len(names)} members; at most {VALUES_MAX} are looked at", max=VALUES_MAX)
    seen = set()
    for encoded in names:
        name: str = msgspec.json.decode(encoded)
        if name in seen and name in shape.names:
            raise _twice(path, name)
        if name not in seen and name not in shape.names:
            yield UnknownMember(path + name[:NAME_CHARS_MAX], name[:NAME_CHARS_MAX], shape.names)
        seen.add(name)


def _values(value: msgspec.Raw | None, is_map: bool) -> Mapping[str | int | None, msgspec.Raw]:
    """The objects that a member holds by their index or name: of a list, of a map, or itself."""
    if value is None:
        return {}
    start = bytes(memoryview(value)[:1])
    if start == b"[":
        return dict(enumerate(msgspec.json.decode(value, type=list[msgspec.Raw])))
    if start == b"{" and is_map:
        values: dict[str | int | None, msgspec.Raw] = msgspec.json.decode(value, type=dict[str, msgspec.Raw])
        return values
    return {None: value} if start == b"{" else {}


def _place(key: str | int | None) -> str:
    """How the path of a value goes on behind the name of its member."""
    if isinstance(key, int):
        return f"[{key}]"
    return "" if key is None else f".{key[:NAME_CHARS_MAX]}"


# --- Values ----------------------------------------------------------------------------------------------


def fault(text: Json, kind: type[msgspec.Struct], error: msgspec.MsgspecError) -> str:
    """Why a text does not decode as `kind`: where, the value that is there, and what it must be."""
    if isinstance(error, msgspec.ValidationError):
        if bytes(text).count(b",") > VALUES_MAX:
            place = re.search(r"`\$\.?(.+)`", str(error))
            return f"{'it' if place is None else place[1]} is not what is taken there"
        try:
            return _fault(text, kind, "") or "it is not what is taken here"
        except msgspec.DecodeError as later:
            # The decoder stopped before it came to the place where this is no JSON.
            error = later
    shown = bytes(text)
    if not shown.strip():
        return "it is empty; send a JSON object"
    at = re.search(r"\(byte (\d+)\)", str(error))
    if at is None:
        return f"its JSON is cut off after {len(shown)} bytes"
    return f"it is not JSON from byte {at[1]} on: {_shown(shown[int(at[1]) :])}"


def _fault(text: Json, kind: type[msgspec.Struct], path: str) -> str | None:
    if bytes(memoryview(text)[:SHOWN_CHARS]).lstrip()[:1] != b"{":
        return f"{path.rstrip('.') or 'it'} is {_shown(text)}; it must be an object"
    shape = _shape(kind)
    members = msgspec.json.decode(text, type=dict[str, msgspec.Raw])
    inner = {field: (struct, is_map) for field, struct, is_map in shape.nested}
    fields = zip(msgspec.structs.fields(kind), _types(kind), strict=True)
    for field, hint in fields:
        value = members.get(field.encode_name)
        where = path + field.encode_name
        if value is None:
            if field.required:
                return f"{where} is missing; it must be {_described(hint)}"
            continue
        if _fits(value, hint):
            continue
        if field.encode_name in inner:
            struct, is_map = inner[field.encode_name]
            for key, element in _values(value, is_map).items():
                if not _fits(element, struct):
                    return _fault(element, struct, f"{where}{_place(key)}.")
        return f"{where} is {_shown(value)}; it must be {_described(hint)}"
    return None


def _fits(value: msgspec.Raw, hint: Any) -> bool:
    try:
        msgspec.json.decode(value, type=hint)
    except msgspec.MsgspecError:
        return False
    return True


def _shown(value: Json) -> str:
    """A value as it was sent, cut if it is long."""
    text = bytes(memoryview(value)[: 4 * SHOWN_CHARS]).decode("utf-8", "replace")
    return text if len(text) <= SHOWN_CHARS else text[:SHOWN_CHARS] + "..."


def _described(hint: object) -> str:
    """What a field takes, in words."""
    parts = [part for part in _parts(hint) if part is not msgspec.UnsetType]
    words = [_part_described(part) for part in parts if part is not NoneType]
    if NoneType in parts:
        words.append("null")
    return " or ".join(words)


def _part_described(part: object) -> str:
    origin = get_origin(part)
    if origin is Literal:
        return f"one of {', '.join(get_args(part))}"
    if isinstance(part, type) and issubclass(part, Enum):
        return f"one of {', '.join(str(word.value) for word in part)}"
    if origin is list:
        (element,) = get_args(part)
        return "a list" if element is Any else f"a list whose elements are each {_described(element)}"
    if _is_struct(part):
        return "an object"
    return _WORDS.get(origin or part, "a JSON value")
