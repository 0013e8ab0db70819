"""Renders messages of a queue as the records of an append request.

A payload that is JSON is passed on unchanged; market protocol messages become JSON; anything else becomes
base64. The meta of each record says which message it was (`origin`), so that it can be restored.
"""

from __future__ import annotations

import binascii
import json
from collections.abc import Sequence
from enum import StrEnum
from itertools import pairwise
from typing import Any, Final, NamedTuple

import msgspec
import numpy as np
from numpy.typing import NDArray

from everlog import tracing
from everlog.bridge import market_json, origin
from everlog.errors import InvalidRecord, RecordTooLarge
from everlog.queue import Batch

MAX_RECORD_BYTES: Final = 1 << 20
MAX_META_BYTES: Final = 512
"""More than the bridge itself puts into the meta of a record."""

MAX_NESTING: Final = 120
"""Of a payload; the server allows 128 levels of a whole request."""

_BETWEEN: Final = b'},{"data":'
_META: Final = b'%b,"meta":{%b}'
_FLAGS_OFFSET: Final = 26
_is_json: Final = msgspec.json.Decoder(msgspec.Raw).decode


class Format(StrEnum):
    """How payloads are rendered."""

    AUTO = "auto"
    JSON = "json"
    BASE64 = "base64"


class Messages(NamedTuple):
    """Copies of the messages of one request."""

    seqs: NDArray[np.uint64]
    timestamps_ns: NDArray[np.uint64]
    type_ids: list[int]
    flags: list[int]
    payloads: list[bytes]

    @property
    def first_seq(self) -> int:
        """The seq of the first message."""
        return int(self.seqs[0])

    @property
    def last_seq(self) -> int:
        """The seq of the last message."""
        return int(self.seqs[-1])


def copy_messages(batch: Batch, start: int, stop: int) -> Messages:
    """Copy some messages of a batch out of the mapping."""
    data, begins = batch.joined(np.arange(start, stop))
    raw = data.tobytes()
    payloads = [raw[begin:end] for begin, end in pairwise(begins.tolist())]
    segment = batch.segment
    places = batch.offset[start:stop].astype(np.int64) + _FLAGS_OFFSET
    flags = segment[places].astype(np.uint16) | segment[places + 1].astype(np.uint16) << 8
    seqs, times = batch.seq[start:stop].copy(), batch.timestamp_ns[start:stop].copy()
    return Messages(seqs, times, batch.type_id[start:stop].tolist(), flags.tolist(), payloads)


def fitting(batch: Batch, max_bytes: int, start: int) -> int:
    """Return how many messages from `start` on fit into `max_bytes` of payload, at least one."""
    sizes = np.cumsum(batch.length[start:], dtype=np.int64)
    return max(1, int(np.searchsorted(sizes, max_bytes, side="right")))


class Rendered(NamedTuple):
    """Records as text: the data of each, and the members of its meta, empty for no meta."""

    data: list[bytes]
    metas: list[bytes]


class Renderer:
    """Renders messages in one format; with a `source`, each record says which message of that it was.

    With `careful`, payloads are checked as strictly as the server does.
    """

    def __init__(self, form: Format, source: str | None = None) -> None:
        self._form = form
        self._source = source

    def records(self, messages: Messages, *, careful: bool = False) -> Rendered:
        """Return the records that messages become."""
        payloads, form = messages.payloads, self._form
        places = range(len(payloads))
        if form is Format.BASE64:
            data, encoded = [_base64(payload) for payload in payloads], set(places)
        elif not careful and _are_all_json(messages.type_ids, payloads):
            data, encoded = payloads, set[int]()
        else:
            texts = [self._text(messages, place) for place in places]
            encoded = {place for place in places if texts[place] is None}
            data = [_base64(payloads[place]) if text is None else text for place, text in enumerate(texts)]
        if max(map(len, data), default=0) > MAX_RECORD_BYTES - MAX_META_BYTES:
            self._refuse_too_large(messages)
        metas = self._metas(messages, encoded)
        for place, text in enumerate(data):
            if b'"traceparent"' in text:
                metas[place] = b",".join(filter(None, (metas[place], _trace_word(text))))
        return Rendered(data, metas)

    def _metas(self, messages: Messages, encoded: set[int]) -> list[bytes]:
        """Return the meta of each record; `encoded` are the places of those that are base64."""
        types = messages.type_ids
        if self._source is None:
            metas = [b""] * len(types)
            for place in encoded:
                metas[place] = b'"type":%d' % types[place]
        else:
            one = origin.template(self._source)
            stamps = zip(messages.seqs.tolist(), messages.timestamps_ns.tolist(), types, strict=True)
            metas = [one % stamp for stamp in stamps]
            for place, flags in enumerate(messages.flags):
                if flags:
                    metas[place] += b',"flags":%d' % flags
        for place in encoded:
            metas[place] += b',"encoding":"base64"'
        return metas

    def _text(self, messages: Messages, place: int) -> bytes | None:
        """Return the data of a record as JSON; None if only base64 can hold it."""
        type_id, payload = messages.type_ids[place], messages.payloads[place]
        if type_id in market_json.KNOWN_TYPE_IDS:
            rendered = market_json.render(type_id, messages.flags[place], payload)
            if rendered is not None:
                return rendered
        elif is_acceptable_json(payload):
            return payload
        if self._form is Format.JSON:
            raise InvalidRecord(
                f"message {int(messages.seqs[place])} of type {type_id:#06x} is neither JSON nor a valid "
                "message of the market protocol; use --format auto to pass such messages as base64"
            )
        return None

    def _refuse_too_large(self, messages: Messages) -> None:
        lengths = [len(payload) for payload in messages.payloads]
        place = lengths.index(max(lengths))
        raise RecordTooLarge(
            f"message {int(messages.seqs[place])} of the queue has {lengths[place]} bytes; as a record it is "
            f"larger than the {MAX_RECORD_BYTES} bytes that a topic takes. Keep large payloads elsewhere and "
            "put a reference into the queue"
        )


def _are_all_json(type_ids: Sequence[int], payloads: list[bytes]) -> bool:
    if not market_json.KNOWN_TYPE_IDS.isdisjoint(type_ids):
        return False
    try:
        for payload in payloads:
            _is_json(payload)
        # The decoder does not check strings for UTF-8. Joined by ASCII, all of them are valid or none is.
        b"\n".join(payloads).decode()
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        return False
    return True


def is_acceptable_json(payload: bytes) -> bool:
    """Whether a topic accepts this payload as the data of a record."""
    try:
        _is_json(payload)
        text = payload.decode()
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        return False
    if text.count("[") + text.count("{") < MAX_NESTING:
        return True
    try:
        return _depth(json.loads(text)) < MAX_NESTING
    except (ValueError, RecursionError):
        return False


def _depth(value: Any) -> int:
    """Return the nesting depth of a value, without recursion."""
    depth, level = 0, [value]
    while level:
        depth += 1
        below: list[Any] = []
        for item in level:
            if isinstance(item, dict):
                below += item.values()
            elif isinstance(item, list):
                below += item
        level = below
    return depth


def _base64(payload: bytes) -> bytes:
    return b'"%b"' % binascii.b2a_base64(payload, newline=False)


class Marker(msgspec.Struct):
    """The messages of the queue that a batch holds, in the meta of its first record."""

    first_seq: int
    last_seq: int
    count: int


def request_body(records: Rendered, marker: Marker, node: str, key: str, more: bytes = b"") -> bytes:
    """Return the body of an append, with the marker in its first record."""
    marked = b",".join(filter(None, (b'"bridge":' + msgspec.json.encode(marker), records.metas[0])))
    pairs = zip(records.data, [marked, *records.metas[1:]], strict=True)
    texts = _BETWEEN.join([_META % pair if pair[1] else pair[0] for pair in pairs])
    names = (msgspec.json.encode(node), msgspec.json.encode(key))
    tail = b'}],"node":%b,"idempotency_key":%b%b}' % (*names, more)
    return b'{"records":[{"data":' + texts + tail


class _Traced(msgspec.Struct):
    traceparent: Any = None


_traced: Final = msgspec.json.Decoder(_Traced).decode


def _trace_word(text: bytes) -> bytes:
    """The member of meta for data that is an object and names its trace; a queue has no meta for it."""
    if not text.startswith(b"{"):
        return b""
    found = tracing.parse(_traced(text).traceparent)
    return b"" if found is None else b'"traceparent":"%b"' % found.text.encode()
