"""How the peers are talked to without a client library: what Redis and NATS want to read, byte by byte.

Owns requests and the end of answers for both. With a library of Python in between, the library would be
what is measured; that is done too, in `python_jobs`.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import count as count_from

from benchmarks.server.load import Address, Line, lines_missing
from benchmarks.server.watching import Watching, opened_sockets, piece_of

STREAM = b"bench"
SUBJECT = b"bench.records"
ANSWERS_BYTES = 64 * 1024
# What every record of the benchmark has in it.
MARKER = b'"number"'


# --- Redis -----------------------------------------------------------------------------------------------


def redis_command(*words: bytes) -> bytes:
    """A command as redis-server reads it."""
    parts = [b"*%d\r\n" % len(words)]
    parts += [b"$%d\r\n%b\r\n" % (len(word), word) for word in words]
    return b"".join(parts)


def redis_adds(payload: bytes) -> Iterator[bytes]:
    """XADD of one record, with ids that tell the watchers where they are."""
    for number in count_from(1):
        yield redis_command(b"XADD", STREAM, b"%d-0" % number, b"p", payload)


def redis_line(address: Address) -> Line:
    """A connection for one XADD at a time; its answer has two lines."""
    return Line(address, lines_missing(2, b"-ERR"))


@contextmanager
def redis_watchers(address: Address, count: int) -> Iterator[Watching]:
    """So many blocking reads of one stream; each has to be asked for again."""

    def read(seen: int) -> bytes:
        return redis_command(b"XREAD", b"BLOCK", b"0", b"STREAMS", STREAM, b"%d-0" % seen)

    with opened_sockets(address, count) as streams:
        for stream in streams:
            stream.sendall(redis_command(b"PING"))
            while b"PONG" not in piece_of(stream):
                pass
            stream.sendall(read(0))
        yield Watching(streams, MARKER, read)


# --- NATS ------------------------------------------------------------------------------------------------


def nats_publish(payload: bytes, inbox: bytes, count: int) -> bytes:
    """A number of records, each of which is acknowledged."""
    return (b"PUB %b %b %d\r\n%b\r\n" % (SUBJECT, inbox, len(payload), payload)) * count


def nats_line(address: Address, inbox: bytes, count: int) -> Line:
    """A connection on which `count` records are acknowledged at a time, with two lines each."""
    line = Line(address, lines_missing(2 * count, b'"error"'), ANSWERS_BYTES)
    _nats_greet(line.socket.recv, line.send, inbox)
    return line


def nats_create_stream(address: Address) -> None:
    """The stream of the benchmark, in files."""
    config = {
        "name": STREAM.decode(),
        "subjects": [SUBJECT.decode()],
        "storage": "file",
        "retention": "limits",
    }
    _nats_call(address, b"$JS.API.STREAM.CREATE.%b" % STREAM, config)


@contextmanager
def nats_watchers(address: Address, count: int) -> Iterator[Watching]:
    """So many consumers that the server pushes to, without acknowledgement."""
    with opened_sockets(address, count) as streams:
        for number, stream in enumerate(streams):
            inbox = b"deliver.%d" % number
            _nats_greet(stream.recv, stream.sendall, inbox)
            config = {"deliver_subject": inbox.decode(), "ack_policy": "none", "deliver_policy": "new"}
            wish = {"stream_name": STREAM.decode(), "config": config}
            _nats_call(address, b"$JS.API.CONSUMER.CREATE.%b" % STREAM, wish)
        yield Watching(streams, MARKER)


def _nats_greet(receive: object, send: object, inbox: bytes) -> None:
    """Introduce ourselves, subscribe to the inbox, and wait until that is done."""
    assert callable(receive) and callable(send)
    send(b'CONNECT {"verbose":false,"pedantic":false}\r\nSUB %b 1\r\nPING\r\n' % inbox)
    seen = b""
    while b"PONG\r\n" not in seen:
        seen += receive(ANSWERS_BYTES)


def _nats_call(address: Address, subject: bytes, wish: object) -> None:
    body = json.dumps(wish).encode()
    line = nats_line(address, b"calls", 1)
    line.ask(b"PUB %b calls %d\r\n%b\r\n" % (subject, len(body), body))
    line.close()
