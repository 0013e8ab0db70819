"""The records that come in: one small class for what a writer sends.

Owns the shape; sizes and text are checked by the native kernel while it frames a batch.
"""

from __future__ import annotations

from typing import Any, Protocol, TypeVar

import msgspec

from everlog.errors import InvalidRecord


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
