"""Watchers as load: many open streams on one core, and when each gets what was written.

Owns the streams of server-sent events and the clock readings at the end of any kind of stream; the requests
are those of `load`, and how a peer is watched is in `peer_wires`.
"""

from __future__ import annotations

import json
import select
import socket
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from benchmarks.server.load import (
    SILENCE_TIMEOUT_S,
    Address,
    Line,
    WrongAnswer,
    http_missing,
    http_request,
)

CAUGHT_UP_FRAME = b"event: caught-up"
FRAME_BYTES = 16 * 1024
SESSION_BYTES = 4 << 20


@dataclass(frozen=True)
class Watching:
    """Open streams, and what they are told when something is written.

    `again` is what a stream has to send after write number n to get the next one; None if nothing.
    """

    streams: list[socket.socket]
    marker: bytes
    again: Callable[[int], bytes] | None = None


@contextmanager
def event_streams(address: Address, topic: str, count: int) -> Iterator[Watching]:
    """So many streams of events of one topic, each at its head and past the frame that says so."""
    line = Line(address, http_missing)
    session = http_request("POST", "/v0/watch", json.dumps({"topics": {topic: {"tail": True}}}).encode())
    with opened_sockets(address, count) as streams:
        for stream in streams:
            answer = line.ask(session)
            # The buffer of a line is longer than the answer in it.
            text = answer[answer.index(b"\r\n\r\n") + 4 :].decode("latin-1")
            identity = json.JSONDecoder().raw_decode(text)[0]["wid"]
            stream.sendall(http_request("GET", f"/v0/watch/{identity}"))
        for stream in streams:
            seen = b""
            while CAUGHT_UP_FRAME not in seen or not seen.endswith(b"\n\n\r\n"):
                seen += piece_of(stream)
        line.close()
        yield Watching(streams, b"event: record")


@contextmanager
def stream_of(address: Address, topics: Mapping[str, object]) -> Iterator[socket.socket]:
    """One stream of events of these topics and patterns, at the heads of all of them."""
    line = Line(address, http_missing, SESSION_BYTES)
    body = json.dumps({"topics": topics}).encode()
    answer = line.ask(http_request("POST", "/v0/watch", body))
    session = json.JSONDecoder().raw_decode(answer[answer.index(b"\r\n\r\n") + 4 :].decode("latin-1"))[0]
    line.close()
    with opened_sockets(address, 1) as (stream,):
        stream.sendall(http_request("GET", session["stream_url"]))
        rest = b""
        for _ in session["topics"]:
            rest = await_text(stream, CAUGHT_UP_FRAME, rest)
        yield stream


def await_text(stream: socket.socket, text: bytes, rest: bytes = b"") -> bytes:
    """Read up to `text`, beginning with what was read before; returns what is behind it."""
    while (at := rest.find(text)) < 0:
        rest = rest[-len(text) :] + piece_of(stream)
    return rest[at + len(text) :]


@contextmanager
def opened_sockets(address: Address, count: int) -> Iterator[list[socket.socket]]:
    """So many connections, closed at the end."""
    streams: list[socket.socket] = []
    try:
        for _ in range(count):
            streams.append(socket.create_connection(address, timeout=SILENCE_TIMEOUT_S))
        yield streams
    finally:
        for stream in streams:
            stream.close()


def piece_of(stream: socket.socket) -> bytes:
    """What comes next on a stream."""
    piece = stream.recv(FRAME_BYTES)
    if not piece:
        raise WrongAnswer("the server closed a stream")
    return piece


def deliver(line: Line, requests: Iterator[bytes], watching: Watching, writes: int) -> NDArray[np.int64]:
    """Write `writes` times; return how long after each request every stream had what was written.

    The next write begins when all streams have the one before, so none waits behind another.
    """
    clock = time.perf_counter_ns
    buffer = bytearray(FRAME_BYTES)
    marker, again = watching.marker, watching.again
    by_number = {stream.fileno(): stream for stream in watching.streams}
    delays_ns = np.empty(writes * len(by_number), np.int64)
    place = 0
    with select.epoll() as poll:
        for number, stream in by_number.items():
            stream.settimeout(None)
            poll.register(number, select.EPOLLIN)
        for write in range(1, writes + 1):
            started_ns = clock()
            line.send(next(requests))
            waiting = set(by_number)
            while waiting:
                ready = poll.poll(SILENCE_TIMEOUT_S)
                if not ready:
                    raise WrongAnswer(f"{len(waiting)} of {len(by_number)} streams got nothing")
                for number, _ in ready:
                    size = by_number[number].recv_into(buffer)
                    if not size:
                        raise WrongAnswer("the server closed a stream")
                    if number in waiting and buffer.find(marker, 0, size) >= 0:
                        delays_ns[place] = clock() - started_ns
                        place += 1
                        waiting.remove(number)
                        if again is not None:
                            by_number[number].sendall(again(write))
            while not line.is_answered():
                pass
    return delays_ns
