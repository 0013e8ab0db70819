"""Filters: which records a reader wants, as a small typed expression that is compiled once. Pure.

Owns the language and its bounds. A record is looked at as `render` gives it, decoded with exact decimals.

    ["tag","Eq","eu"]  ["tag","Glob","eu*"]  ["tag","In",["eu","us"]]       the same for node
    ["meta.k",OP,v]  ["data.a.b.0",OP,v]                OP: Eq Ne Lt Le Gt Ge In Glob Exists
    ["and",f,...]  ["or",f,...]  ["not",f]
"""

from __future__ import annotations

import json
import operator
from collections.abc import Callable
from decimal import Decimal, InvalidOperation
from typing import Any, Final

import msgspec

from everlog.errors import InvalidRequest
from everlog.topics.records import TagMatch

TERMS_MAX: Final = 64
LEVELS_MAX: Final = 8
TEXT_BYTES_MAX: Final = 4096

Row = dict[str, Any]
Test = Callable[[Row], bool]

_MISSING: Final = object()
_ORDERS: Final[dict[str, Callable[[Any, Any], bool]]] = {
    "Lt": operator.lt,
    "Le": operator.le,
    "Gt": operator.gt,
    "Ge": operator.ge,
}
# What is compared with a number or a text; a bool has another type than numbers.
_TYPES: Final[dict[str, frozenset[type]]] = {"number": frozenset((int, Decimal)), "text": frozenset((str,))}
_OPERATORS: Final = ("Eq", "Ne", *_ORDERS, "In", "Glob", "Exists")


def _decimal(text: str) -> Decimal:
    """A number as it is written; beyond 18 digits of exponent it is infinite, or 0."""
    try:
        return Decimal(text)
    except InvalidOperation:
        mantissa, _, exponent = text.lower().partition("e")
        number = Decimal(mantissa)
        return number * 0 if exponent.startswith("-") or not number else Decimal("Infinity").copy_sign(number)


_expressions: Final = msgspec.json.Decoder(float_hook=_decimal)
_rows: Final = msgspec.json.Decoder(list[dict[str, Any]], float_hook=_decimal)


class Filter:
    """A compiled expression: `matches` tells whether a row passes.

    Every record that passes has the tag `tag`, if that is not None; with `is_tag_only` every such record
    passes. `text` is the expression as JSON.
    """

    __slots__ = ("is_tag_only", "matches", "tag", "text")

    def __init__(self, text: str, matches: Test, tag: TagMatch | None, is_tag_only: bool) -> None:
        self.text = text
        self.matches = matches
        self.tag = tag
        self.is_tag_only = is_tag_only

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Filter) and other.text == self.text

    def __hash__(self) -> int:
        return hash(self.text)


def rows_of(rendered: bytes) -> list[Row]:
    """Records as `render` gives them, as rows that a filter can look at."""
    try:
        return _rows.decode(rendered)
    except msgspec.MsgspecError:  # a whole number of thousands of digits
        rows: list[Row] = json.loads(rendered, parse_float=_decimal, parse_int=_decimal)
        return rows


def compile_filter(text: bytes | str | msgspec.Raw) -> Filter | None:
    """Compile an expression from its JSON text; None for `null`, `InvalidRequest` if it is not one."""
    raw = text.encode() if isinstance(text, str) else bytes(text)
    if len(raw) > TEXT_BYTES_MAX:
        raise InvalidRequest(f"the filter has {len(raw)} bytes; it may have {TEXT_BYTES_MAX}")
    try:
        expression = _expressions.decode(raw)
    except (msgspec.MsgspecError, RecursionError) as error:
        raise InvalidRequest(f"the filter is not JSON: {error}") from None
    if expression is None:
        return None
    matches = _Compiler().compile(expression, 1)
    is_tag_only = expression[0] == "tag" and expression[1] != "In"
    return Filter(raw.decode(), matches, _tag_of(expression), is_tag_only)


def _tag_of(expression: list[Any]) -> TagMatch | None:
    """A condition on the tag that holds for every record that passes."""
    if expression[0] == "and":
        return next((found for part in expression[1:] if (found := _tag_of(part)) is not None), None)
    if expression[0] != "tag" or expression[1] == "In":
        return None
    is_prefix = expression[1] == "Glob"
    return TagMatch((expression[2][:-1] if is_prefix else expression[2]).encode(), is_prefix)


class _Compiler:
    """Counts the terms of one expression."""

    def __init__(self) -> None:
        self._terms = 0

    def compile(self, expression: object, level: int) -> Test:
        """The test that an expression stands for."""
        if not isinstance(expression, list) or not expression or not isinstance(expression[0], str):
            raise InvalidRequest(f"the filter has {_shown(expression)}; it must be an array like {_EXAMPLE}")
        if level > LEVELS_MAX:
            raise InvalidRequest(f"the filter has more than {LEVELS_MAX} levels; make it flatter")
        word, *rest = expression
        if word in ("and", "or", "not"):
            if not rest or (word == "not" and len(rest) != 1):
                wanted = "one filter" if word == "not" else "at least one filter"
                raise InvalidRequest(f"the filter has {_shown(expression)}; {word} takes {wanted}")
            return _combined(word, [self.compile(part, level + 1) for part in rest])
        self._terms += 1
        if self._terms > TERMS_MAX:
            raise InvalidRequest(f"the filter has more than {TERMS_MAX} terms; use In, or several reads")
        return _term(expression)


_EXAMPLE: Final = '["data.price","Gt",100]'


def _shown(value: object) -> str:
    text = repr(value)
    return text if len(text) <= 100 else text[:100] + "..."


def _combined(word: str, tests: list[Test]) -> Test:
    if word == "not":
        (test,) = tests
        return lambda row: not test(row)
    if word == "and":
        return lambda row: all(test(row) for test in tests)
    return lambda row: any(test(row) for test in tests)


def _term(expression: list[Any]) -> Test:
    path = expression[0]
    if len(expression) == 2 and expression[1] == "Exists":
        expression = [*expression, True]
    if len(expression) != 3 or not isinstance(expression[1], str):
        raise InvalidRequest(f"the filter has {_shown(expression)}; a term is {_EXAMPLE}")
    _, word, value = expression
    value_of = _getter(path)
    if path in ("tag", "node") and word not in ("Eq", "Glob", "In"):
        raise InvalidRequest(f"the filter compares {path} with {word!r}; there are Eq, Glob and In")
    if word not in _OPERATORS:
        raise InvalidRequest(f"the filter has the operator {word!r}; there are {', '.join(_OPERATORS)}")
    if path in ("tag", "node") and not all(isinstance(each, str) for each in _listed(word, value)):
        raise InvalidRequest(f"the filter compares {path} with {_shown(value)}; it must be text")
    return _comparison(value_of, word, value)


def _listed(word: str, value: Any) -> list[Any]:
    if word != "In":
        return [value]
    if not isinstance(value, list):
        raise InvalidRequest(f"the filter has In {_shown(value)}; it must be a list of values")
    return value


def _comparison(value_of: Callable[[Row], Any], word: str, value: Any) -> Test:
    if word == "Exists":
        if not isinstance(value, bool):
            raise InvalidRequest(f"the filter has Exists {_shown(value)}; it must be true or false")
        return lambda row: (value_of(row) is not _MISSING) is value
    if word == "Glob":
        if not isinstance(value, str) or not value.endswith("*"):
            raise InvalidRequest(f"the Glob pattern {_shown(value)} must end in *; only that is a wildcard")
        prefix = value[:-1]
        return lambda row: isinstance(found := value_of(row), str) and found.startswith(prefix)
    wanted = _listed(word, value)
    if any(isinstance(each, list | dict) for each in wanted):
        raise InvalidRequest(f"the filter has {_shown(value)}; compare with text, numbers, true, false, null")
    types = _TYPES.get(_kind(value))
    if word in _ORDERS and types is None:
        raise InvalidRequest(f"the filter has {word} {_shown(value)}; it must be a number or text")
    if types is not None and (word == "Eq" or word in _ORDERS):
        compare: Callable[[Any, Any], bool] = _ORDERS.get(word, operator.eq)
        allowed = types
        return lambda row: type(found := value_of(row)) in allowed and compare(found, value)
    # Python holds that 1 == True, and that equal numbers hash alike: the kind keeps the first apart.
    keys = {(_kind(each), each) for each in wanted}
    if word == "Ne":
        return lambda row: _key(value_of(row)) not in keys
    return lambda row: _key(value_of(row)) in keys


def _key(value: Any) -> tuple[str, Any]:
    kind = _kind(value)
    return (kind, value) if kind != "other" else (kind, None)


def _kind(value: Any) -> str:
    if isinstance(value, str):
        return "text"
    if isinstance(value, bool):
        return "flag"
    if isinstance(value, int | Decimal):
        return "number"
    return "null" if value is None else "other"


def _getter(path: str) -> Callable[[Row], Any]:
    """What finds the value of a path in a row, `_MISSING` if there is none."""
    if path in ("tag", "node"):
        name = f"${path}"
        return lambda row: row.get(name, _MISSING)
    root, dot, rest = path.partition(".")
    if root not in ("data", "meta") or (dot and "" in rest.split(".")):
        raise InvalidRequest(
            f"the filter has the path {_shown(path)}; it must be tag, node, meta.KEY or data.PATH"
        )
    steps = rest.split(".") if rest else []
    if len(steps) == 1:
        (name,) = steps
        return lambda row: _step(row.get(root, _MISSING), name)

    def find(row: Row) -> Any:
        value = row.get(root, _MISSING)
        if root == "meta" and isinstance(value, dict) and rest in value:
            return value[rest]  # keys of meta may have dots
        for step in steps:
            value = _step(value, step)
        return value

    return find


def _step(value: Any, name: str) -> Any:
    if isinstance(value, dict):
        return value.get(name, _MISSING)
    if isinstance(value, list) and name.isascii() and name.isdigit() and int(name) < len(value):
        return value[int(name)]
    return _MISSING
