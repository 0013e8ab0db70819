"""Single payloads as Python objects over their bytes: nothing is copied, fields are read when asked.

Owns no layout: offsets and formats come from the dtypes of `everlog.market.protocol`. A view over a
writable buffer can be written to, for example in `QueueWriter.append_in_place`.
"""

from __future__ import annotations

import struct
from typing import Any, ClassVar, Final, Self

import numpy as np
from typing_extensions import Buffer

from everlog.errors import Corrupt, Unsupported, UnsupportedVersion
from everlog.market.protocol import (
    BOOK_EVENT_HEADER,
    BOOK_TICKER,
    HEADER_BYTES,
    L2_DIFF,
    L2_SNAPSHOT,
    L3_EVENT,
    LITTLE_ENDIAN,
    OLDEST_VERSION,
    RESERVED,
    SCHEMA_VERSION,
    TRADE,
    BookEventType,
    BookMode,
)

_FORMATS: Final = {"u1": "<B", "u2": "<H", "u4": "<I", "u8": "<Q", "i8": "<q", "f8": "<d"}


class _Field:
    """One field of a layout as an attribute."""

    __slots__ = ("_codec", "_offset")

    def __init__(self, layout: np.dtype[np.void], name: str) -> None:
        assert layout.fields is not None
        kind, offset = layout.fields[name][:2]
        self._codec = struct.Struct(_FORMATS[kind.str.lstrip("<|")])
        self._offset = offset

    def __get__(self, view: View | None, owner: type[View]) -> Any:
        if view is None:
            return self
        return self._codec.unpack_from(view.data, self._offset)[0]

    def __set__(self, view: View, value: float) -> None:
        self._codec.pack_into(view.data, self._offset, value)


class View:
    """Bytes of one layout, by attribute; subclasses name the layout."""

    LAYOUT: ClassVar[np.dtype[np.void]]
    FIELDS: ClassVar[tuple[str, ...]]
    __slots__ = ("data",)

    def __init_subclass__(cls) -> None:
        cls.FIELDS = tuple(name for name in cls.LAYOUT.names or () if not name.startswith(RESERVED))
        for name in cls.FIELDS:
            setattr(cls, name, _Field(cls.LAYOUT, name))

    def __init__(self, data: Buffer) -> None:
        self.data = memoryview(data).cast("B")
        if len(self.data) < self.LAYOUT.itemsize:
            raise Corrupt(
                f"{type(self).__name__} needs {self.LAYOUT.itemsize} bytes, the payload has {len(self.data)}"
            )

    @classmethod
    def new(cls) -> Self:
        """Return a view over bytes of its own, all zero."""
        return cls(bytearray(cls.LAYOUT.itemsize))

    def __getattr__(self, name: str) -> Any:
        # Only reached for unknown names; its presence lets type checkers accept the fields.
        raise AttributeError(f"{type(self).__name__} has no field {name!r}; it has {self.FIELDS}")

    def __bytes__(self) -> bytes:
        """Return the bytes of the layout."""
        return bytes(self.data[: self.LAYOUT.itemsize])

    def __repr__(self) -> str:
        fields = ", ".join(f"{name}={getattr(self, name)}" for name in self.FIELDS)
        return f"{type(self).__name__}({fields})"


class L2DiffView(View):
    """An L2 diff's body; its levels follow it."""

    LAYOUT = L2_DIFF
    __slots__ = ()


class L2SnapshotView(View):
    """An L2 snapshot's body; its levels follow it."""

    LAYOUT = L2_SNAPSHOT
    __slots__ = ()


class L3EventView(View):
    """An order-by-order event's body."""

    LAYOUT = L3_EVENT
    __slots__ = ()


class TradeView(View):
    """A trade."""

    LAYOUT = TRADE
    __slots__ = ()


class BookTickerView(View):
    """Best prices as the venue's ticker sends them."""

    LAYOUT = BOOK_TICKER
    __slots__ = ()


class BookEventView(View):
    """A book event's header, and its body as the right kind of view."""

    LAYOUT = BOOK_EVENT_HEADER
    __slots__ = ()

    def check(self) -> Self:
        """Return the view if version, byte order, mode and length are right, else raise."""
        if not OLDEST_VERSION <= self.schema_version <= SCHEMA_VERSION:
            raise UnsupportedVersion(
                f"the book event has schema version {self.schema_version}, this build reads {OLDEST_VERSION} "
                f"to {SCHEMA_VERSION}",
                self.schema_version,
            )
        if self.book_mode > BookMode.L3 or self.endianness != LITTLE_ENDIAN:
            raise Unsupported(f"book mode {self.book_mode} with byte order {self.endianness} is not known")
        if self.record_len != len(self.data):
            raise Corrupt(
                f"the book event says {self.record_len} bytes, its payload has {len(self.data)}; it was cut"
            )
        return self

    @property
    def body(self) -> L2DiffView | L2SnapshotView | L3EventView | None:
        """The body, None if this kind of event has none."""
        rest = self.data[HEADER_BYTES:]
        if self.book_mode == BookMode.L3:
            return L3EventView(rest) if len(rest) else None
        if self.event_type == BookEventType.DIFF:
            return L2DiffView(rest)
        if self.event_type == BookEventType.SNAPSHOT:
            return L2SnapshotView(rest)
        return None
