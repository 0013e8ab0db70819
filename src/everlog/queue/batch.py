"""A run of messages as NumPy arrays over the mapping, without a copy where sizes allow.

Owns nothing but a reference to the mapping: arrays taken from a batch keep it alive.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final, Self

import numpy as np
from numpy.typing import DTypeLike, NDArray

from everlog.errors import Closed, Unsupported
from everlog.native.queue.ring import Mapping, MessageView, join_payloads, run_offsets, view_at
from everlog.notebook import html_table
from everlog.queue.layout import (
    HEADER_SIZE,
    MSG_COMMIT_LEN,
    MSG_FLAGS,
    MSG_SEQ,
    MSG_TIMESTAMP_NS,
    MSG_TYPE_ID,
    RECORD_ALIGN,
)

SHOWN_BYTES: Final = 64
"""Of a payload, in a notebook."""


class Batch:
    """Messages that lie one after the other in one segment.

    If all records have the same size, every array is a strided view of the mapping; otherwise
    the header fields are gathered into small arrays and payloads are reached one by one.
    Arrays are read-only and stay valid as long as they are referenced; `release` only drops the
    batch's own reference to the mapping.
    """

    __slots__ = ("_count", "_length", "_mapping", "_offsets", "_segment_id", "_start", "_stride", "_type_id")

    def __init__(
        self,
        mapping: Mapping,
        segment_id: int,
        start: int,
        count: int,
        stride: int,
        length: int | None,
        type_id: int | None,
    ) -> None:
        """Made by `QueueReader.read_batch`."""
        self._mapping: Mapping | None = mapping
        self._segment_id = segment_id
        self._start = start
        self._count = count
        self._stride = stride
        self._length = length
        self._type_id = type_id
        self._offsets: NDArray[np.uint64] | None = None

    def __repr__(self) -> str:
        return f"<Batch of {self._count} messages from offset {self._start} of segment {self._segment_id}>"

    def _repr_html_(self) -> str:
        """What a notebook shows: a table of the messages."""
        mapping = self._held()
        columns = ["seq", "time", "type", "bytes", "payload"]
        return html_table(
            f"{self._count:,} messages",
            columns,
            self.offset.tolist(),
            lambda offset: _shown(view_at(mapping, self._segment_id, offset)),
        )

    def __len__(self) -> int:
        """Return the number of messages."""
        return self._count

    def __iter__(self) -> Iterator[MessageView]:
        """Yield the messages one by one."""
        mapping = self._held()
        for offset in self.offset.tolist():
            yield view_at(mapping, self._segment_id, offset)

    @property
    def segment_id(self) -> int:
        """The segment the messages lie in."""
        return self._segment_id

    @property
    def stride(self) -> int:
        """How many bytes lie from one record to the next; 0 if that differs."""
        return self._stride

    @property
    def common_length(self) -> int | None:
        """The payload length of all messages; None if lengths differ."""
        return self._length

    @property
    def common_type_id(self) -> int | None:
        """The type of all messages; None if types differ."""
        return self._type_id

    @property
    def offset(self) -> NDArray[np.uint64]:
        """Where each record starts in its segment."""
        if self._stride or self._count == 0:
            stop = self._start + self._count * self._stride
            return np.arange(self._start, stop, self._stride or 1, dtype=np.uint64)
        return self._found_offsets().copy()

    @property
    def seq(self) -> NDArray[np.uint64]:
        """Each message's seq."""
        return self._field(MSG_SEQ, "<u8")

    @property
    def timestamp_ns(self) -> NDArray[np.uint64]:
        """Each message's ingest time."""
        return self._field(MSG_TIMESTAMP_NS, "<u8")

    @property
    def type_id(self) -> NDArray[np.uint16]:
        """Each message's type."""
        return self._field(MSG_TYPE_ID, "<u2")

    @property
    def flags(self) -> NDArray[np.uint16]:
        """Each message's flags."""
        return self._field(MSG_FLAGS, "<u2")

    @property
    def length(self) -> NDArray[np.uint32]:
        """Each message's payload length."""
        self._held()
        if self._length is not None:
            return np.full(self._count, self._length, dtype=np.uint32)
        lengths: NDArray[np.uint32] = self._field(MSG_COMMIT_LEN, "<u4") - np.uint32(1)
        return lengths

    @property
    def payloads(self) -> NDArray[np.uint8]:
        """All payloads as rows of bytes, without a copy; they must have one length."""
        length = self._common_length()
        return np.ndarray(
            (self._count, length),
            dtype=np.uint8,
            buffer=memoryview(self._held()),
            offset=self._start + HEADER_SIZE if self._count else 0,
            strides=(self._stride, 1),
        )

    @property
    def mapping(self) -> Mapping:
        """The segment itself, for native functions; it stays as long as it is referenced."""
        return self._held()

    @property
    def segment(self) -> NDArray[np.uint8]:
        """All bytes of the segment, without a copy; `offset` counts in it, payloads begin 64 bytes later."""
        return np.frombuffer(memoryview(self._held()), dtype=np.uint8)

    def view(self, dtype: DTypeLike) -> NDArray[Any]:
        """All payloads as elements of `dtype`, without a copy; they must have its size."""
        wanted = np.dtype(dtype)
        length = self._common_length() if self._count else wanted.itemsize
        if length != wanted.itemsize:
            raise Unsupported(f"payloads have {length} bytes, the dtype has {wanted.itemsize}")
        return np.ndarray(
            (self._count,),
            dtype=wanted,
            buffer=memoryview(self._held()),
            offset=self._start + HEADER_SIZE if self._count else 0,
            strides=(self._stride,),
        )

    def joined(self, chosen: NDArray[np.intp] | None = None) -> tuple[NDArray[np.uint8], NDArray[np.int32]]:
        """Copy payloads one behind the other, whatever their lengths: the bytes, and where each begins.

        There is one more beginning than there are payloads, the end of the last: the layout of a column of
        binary values. `chosen` are the messages that are wanted, all of them if it is None.
        """
        if (
            chosen is None
            and self._length is not None
            and self._length * self._count < np.iinfo(np.int32).max
        ):
            ends = np.arange(self._count + 1, dtype=np.int32) * np.int32(self._length)
            return self.payloads.copy().reshape(-1), ends
        offsets, lengths = self.offset, np.ascontiguousarray(self.length)
        if chosen is not None:
            offsets, lengths = offsets[chosen], lengths[chosen]
        begins = np.zeros(len(lengths) + 1, dtype=np.int64)
        np.cumsum(lengths, out=begins[1:])
        if begins[-1] > np.iinfo(np.int32).max:
            raise Unsupported(f"{begins[-1]} bytes of payloads are more than one column holds; take fewer")
        data: NDArray[np.uint8] = np.empty(int(begins[-1]), dtype=np.uint8)
        join_payloads(self._held(), offsets, lengths, data)
        return data, begins.astype(np.int32)

    def release(self) -> None:
        """Drop the reference to the mapping. Existing arrays stay valid; new ones cannot be made."""
        self._mapping = None

    def __enter__(self) -> Self:
        """Return the batch."""
        return self

    def __exit__(self, *_: object) -> None:
        """Release the batch."""
        self.release()

    def _held(self) -> Mapping:
        if self._mapping is None:
            raise Closed("this batch was released; take what you need before release()")
        return self._mapping

    def _found_offsets(self) -> NDArray[np.uint64]:
        """Return where each of records of different lengths starts; the records are walked through once."""
        if self._offsets is None:
            offsets: NDArray[np.uint64] = np.empty(self._count, dtype=np.uint64)
            run_offsets(self._held(), self._start, self._count, offsets)
            self._offsets = offsets
        return self._offsets

    def _field(self, position: int, dtype: str) -> NDArray[Any]:
        if self._stride or self._count == 0:
            return np.ndarray(
                (self._count,),
                dtype=dtype,
                buffer=memoryview(self._held()),
                offset=self._start + position if self._count else 0,
                strides=(self._stride,),
            )
        # Records start at multiples of 64, so the segment is an array of header-sized cells.
        cells = len(self._held()) // RECORD_ALIGN
        column: NDArray[Any] = np.ndarray(
            (cells,), dtype=dtype, buffer=memoryview(self._held()), offset=position, strides=(RECORD_ALIGN,)
        )
        gathered: NDArray[Any] = column[self._found_offsets() // np.uint64(RECORD_ALIGN)]
        return gathered

    def _common_length(self) -> int:
        if self._length is None:
            lengths = self.length
            raise Unsupported(
                f"payloads are {int(lengths.min())} to {int(lengths.max())} bytes long; iterate, or split "
                "the batch by length"
            )
        return self._length


def _shown(view: MessageView) -> list[object]:
    beginning = bytes(view.payload[:SHOWN_BYTES])
    try:
        text = beginning.decode()
    except UnicodeDecodeError:
        text = beginning.hex(" ")
    time = np.datetime64(view.timestamp_ns, "ns")
    return [view.seq, time, view.type_id, len(view), text if text.isprintable() else beginning.hex(" ")]
