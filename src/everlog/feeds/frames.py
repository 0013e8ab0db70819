"""The queues of a connection: what was received, byte for byte, and what it was decoded to.

Owns the layout of raw frames and the order of writing: a frame is stored before its events, so a process that
is killed in between leaves a frame that can be decoded again, never an event without its frame.

Payload of RAW_FRAME, then the symbol (of answers of REST), then the bytes:

    0 u64 connection id    8 u8 kind    9 u8 reserved    10 u16 length of the symbol    12 u32 reserved
"""

from __future__ import annotations

import os
import struct
from collections.abc import Iterable, Iterator, Sequence
from enum import IntEnum
from pathlib import Path
from typing import Final, NamedTuple, Self

import numpy as np

from everlog.bus.layout import IpcLayout
from everlog.bus.markers import clear_ready, mark_ready
from everlog.clock import Clock
from everlog.errors import Corrupt
from everlog.feeds.session import FeedSession, Flagged
from everlog.feeds.venue import Venue
from everlog.fs import Fs
from everlog.market.protocol import TypeId
from everlog.market.symbols import SymbolDefinition, record_symbols
from everlog.queue import Queue
from everlog.queue.config import WriterConfig

_HEAD: Final = struct.Struct("<QBBHI")

PROCESS_START: Final = b"start"
"""Body of CONNECTED where a process connects for the first time."""


class FrameKind(IntEnum):
    """What a raw frame is."""

    FRAME = 0
    REST = 1
    CONNECTED = 2
    DISCONNECTED = 3


class RawFrame(NamedTuple):
    """One thing that happened on a connection."""

    kind: FrameKind
    connection_id: int
    received_ns: int
    body: bytes
    symbol: str = ""


class FeedQueues:
    """Both queues of one connection."""

    def __init__(self, root: str, name: str, segment_size: int, clock: Clock, fs: Fs) -> None:
        """Open or create them; two processes cannot have them at a time."""
        streams = IpcLayout(root).streams()
        self.events_dir, frames_dir = streams.raw_queue_dir(name), streams.frames_queue_dir(name)
        config = WriterConfig.archive().replace(segment_size=segment_size)
        os.makedirs(self.events_dir.parent, exist_ok=True)
        os.makedirs(frames_dir.parent, exist_ok=True)
        self._frames = Queue.open_publisher(frames_dir, config, clock=clock, fs=fs)
        try:
            self._events = Queue.open_publisher(self.events_dir, config, clock=clock, fs=fs)
        except BaseException:
            self._frames.close()
            raise
        self.is_new = self._events.next_seq == 0
        for directory in (self.events_dir, frames_dir):
            mark_ready(directory)

    def store(self, frame: RawFrame) -> None:
        """Keep a frame."""
        symbol = frame.symbol.encode()
        head = _HEAD.pack(frame.connection_id, frame.kind, 0, len(symbol), 0)
        self._frames.append(TypeId.RAW_FRAME, head + symbol + frame.body, frame.received_ns)

    def publish(self, messages: Sequence[Flagged], received_ns: int) -> None:
        """Append the messages of one frame."""
        if not messages:
            return
        kinds, payloads, flags = zip(*messages, strict=True)
        ends = np.cumsum([len(payload) for payload in payloads]).astype(np.uint64)
        self._events.append_packed(
            np.array(kinds, dtype=np.uint16),
            np.frombuffer(b"".join(payloads), dtype=np.uint8),
            ends,
            np.full(len(ends), received_ns, dtype=np.uint64),
            np.array(flags, dtype=np.uint16),
        )

    def learn(self, definitions: Iterable[SymbolDefinition]) -> None:
        """Add what is known of symbols to the catalogue beside the events."""
        record_symbols(self.events_dir, definitions)

    def close(self) -> None:
        """Close both."""
        clear_ready(self.events_dir)
        self._events.close()
        self._frames.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def read_raw(path: Path) -> Iterator[RawFrame]:
    """Yield the frames of a queue of raw frames."""
    with Queue.open_subscriber(path, None, "earliest") as reader:
        for view in reader:
            if view.type_id == TypeId.RAW_FRAME:
                yield _parsed(bytes(view.payload), view.timestamp_ns)


def _parsed(payload: bytes, received_ns: int) -> RawFrame:
    if len(payload) < _HEAD.size:
        raise Corrupt(f"a raw frame has {len(payload)} bytes, its head alone has {_HEAD.size}")
    connection_id, kind, _, symbol_bytes, _ = _HEAD.unpack_from(payload)
    symbol = payload[_HEAD.size : _HEAD.size + symbol_bytes].decode()
    return RawFrame(FrameKind(kind), connection_id, received_ns, payload[_HEAD.size + symbol_bytes :], symbol)


def decoded_again(
    frames: Iterator[RawFrame], venue: Venue, symbols: Sequence[str]
) -> Iterator[list[Flagged]]:
    """Yield what a session makes of raw frames: the same messages as when they came."""
    session = FeedSession(venue, symbols)
    is_new = True
    for frame in frames:
        if frame.kind is FrameKind.CONNECTED:
            begins = frame.body == PROCESS_START
            if begins:
                session = FeedSession(venue, symbols)
            yield session.connected(frame.received_ns, is_continued=begins and not is_new)
            is_new = False
        elif frame.kind is FrameKind.DISCONNECTED:
            reason, _, detail = frame.body.decode().partition(": ")
            yield session.disconnected(reason, detail, frame.received_ns)
        elif frame.kind is FrameKind.REST:
            yield session.snapshot(frame.symbol, frame.body, frame.received_ns)
        else:
            yield session.frame(frame.body, frame.received_ns)
