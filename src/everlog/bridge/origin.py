"""Which message of a queue a record was: in its meta, written by the bridge to a topic.

    source    the identity of the queue
    seq       the message's seq there
    ts_ns     its timestamp
    type      its type id
    flags     its flags, unless they are 0
    encoding  `base64` if the data is that; else the payload was JSON, or was rendered as JSON

A bridge to a queue restores time, type and flags of it; Spark has it as columns. A meta of another program
that lacks one of the first four, or has another type there, says nothing of a message.
"""

from __future__ import annotations

from typing import Annotated, Final

import msgspec
from msgspec import Meta

from everlog.bridge.layouts import timestamp_ns

TYPE_ID_MAX: Final = 0xFFFE
_I64_MAX: Final = (1 << 63) - 1
Count = Annotated[int, Meta(ge=0, le=_I64_MAX)]


class Origin(msgspec.Struct, frozen=True):
    """What a meta says; `is_complete` if it names a message."""

    source: str | None = None
    seq: Count | None = None
    ts_ns: Count | None = None
    type: Annotated[int, Meta(ge=0, le=TYPE_ID_MAX)] | None = None
    flags: Annotated[int, Meta(ge=0, le=0xFFFF)] = 0
    encoding: str | None = None

    @property
    def is_complete(self) -> bool:
        """Whether this is the meta of a record that was a message."""
        return None not in (self.source, self.seq, self.ts_ns, self.type)

    def own_type(self, default: int) -> int:
        """Return the type of the message; records of earlier bridges have it beside the encoding only."""
        return default if self.type is None else self.type

    @property
    def own_flags(self) -> int:
        """The flags of the message."""
        return self.flags if self.is_complete else 0


class _Encoding(msgspec.Struct, frozen=True):
    encoding: str | None = None


NOTHING: Final = Origin()
_decode: Final = msgspec.json.Decoder(Origin).decode
_decode_encoding: Final = msgspec.json.Decoder(_Encoding).decode


def template(source: str) -> bytes:
    """Return the members of a meta, to be filled with seq, time and type."""
    return b'"source":%b,"seq":%%d,"ts_ns":%%d,"type":%%d' % msgspec.json.encode(source).replace(b"%", b"%%")


def meta_of(meta: msgspec.Raw | bytes | str) -> Origin:
    """Return what the JSON text of a meta says of a message; nothing if it is not of a bridge."""
    if not meta:
        return NOTHING
    try:
        return _decode(meta)
    except msgspec.MsgspecError:
        pass
    try:
        return Origin(encoding=_decode_encoding(meta).encoding)
    except msgspec.MsgspecError:
        return NOTHING


def timestamp_of(meta: Origin, ts_ms: int, seq: int) -> int:
    """Return the timestamp of the message that a record becomes: its own, or one made of `$ts` and `$seq`."""
    return meta.ts_ns if meta.is_complete and meta.ts_ns is not None else timestamp_ns(ts_ms, seq)
