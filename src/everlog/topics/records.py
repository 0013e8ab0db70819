"""Records as writers send them, and the predicates that select them by tag. Pure.

Sizes and text of records are checked by the native kernel while it frames a batch.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple, Protocol, TypeVar

import msgspec

from everlog.errors import InvalidRecord, InvalidRequest


class RecordLike(Protocol):
    """What the kernel reads of a record; texts are bytes or anything that exposes bytes."""

    data: Any
    tag: str | None
    node: str | None
    meta: Any


AnyRecord = TypeVar("AnyRecord", bound=RecordLike)


class NewRecord(msgspec.Struct):
    """A record to append. `data` and `meta` are JSON text; blanks between tokens are not stored."""

    data: bytes | msgspec.Raw
    tag: str | None = None
    node: str | None = None
    meta: bytes | msgspec.Raw | None = None


def record_of(
    value: Any, *, tag: str | None = None, node: str | None = None, meta: dict[str, Any] | None = None
) -> NewRecord:
    """Make a record from plain Python values, which must be expressible as JSON."""
    try:
        data = msgspec.json.encode(value)
        meta_text = None if meta is None else msgspec.json.encode(meta)
    except (TypeError, ValueError) as error:
        raise InvalidRecord(f"the value cannot be written as JSON: {error}") from error
    return NewRecord(data, tag, node, meta_text)


class TagMatch(NamedTuple):
    """Records whose tag is `tag`, or begins with it."""

    tag: bytes
    prefix: bool

    def canonical(self) -> list[str]:
        """Return the tuple form, as it is reported."""
        text = self.tag.decode("utf-8", "surrogatepass")
        return ["tag", "Glob", text + "*"] if self.prefix else ["tag", "Eq", text]


def parse_match(match: str | Sequence[Any]) -> TagMatch:
    """Read a predicate: `["tag","Eq",v]`, `["tag","Glob","p*"]`, or a string, a final `*` meaning prefix."""
    if isinstance(match, str):
        field, operator, value = "tag", "Glob" if match.endswith("*") else "Eq", match
    elif isinstance(match, list | tuple) and len(match) == 3 and all(isinstance(part, str) for part in match):
        field, operator, value = match
    else:
        raise InvalidRequest(f'match is {match!r}; it must be a string or ["tag", "Eq" or "Glob", text]')
    if field != "tag" or operator not in ("Eq", "Glob"):
        raise InvalidRequest(f'match {match!r} must be about "tag" with "Eq" or "Glob"')
    if operator == "Eq":
        return TagMatch(value.encode("utf-8", "surrogatepass"), False)
    if not value.endswith("*"):
        raise InvalidRequest(f"the Glob pattern {value!r} must end in *; only that one is a wildcard")
    return TagMatch(value[:-1].encode("utf-8", "surrogatepass"), True)
