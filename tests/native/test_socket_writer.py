"""The way out of a connection: whatever the kernel takes or leaves, the client gets all bytes in order."""

from __future__ import annotations

import random
import socket
import struct
from collections.abc import Iterator
from contextlib import contextmanager

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from everlog.native.topics.socket_writer import SocketWriter
from tests.native.socket_writers import WriterPair
from tests.support.effort import effort

SIZES = st.one_of(st.integers(1, 200), st.integers(1, 40_000))
STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("write"), SIZES),
        st.tuples(st.just("mutable"), SIZES),
        st.tuples(st.just("two"), SIZES),
        st.tuples(st.just("read"), SIZES),
        st.tuples(st.just("flush"), st.just(0)),
    ),
    max_size=40,
)


@contextmanager
def tcp_pair() -> Iterator[WriterPair]:
    """A pair over TCP with small buffers."""
    pair = WriterPair.over_tcp()
    try:
        yield pair
    finally:
        pair.close()


def write(pair: WriterPair, kind: str, data: bytes) -> None:
    """Write in one of three ways."""
    writer = pair.writer
    if kind == "write":
        writer.write(data)
    elif kind == "mutable":
        writer.write(bytearray(data))
    else:
        writer.write_two(data[:10], data[10:])


@settings(max_examples=effort(80), deadline=None)
@given(steps=STEPS, seed=st.integers(0, 1000))
def test_the_client_gets_exactly_what_was_written_in_order(steps: list[tuple[str, int]], seed: int) -> None:
    source = random.Random(seed)
    expected = b""
    with tcp_pair() as pair:
        for kind, size in steps:
            if kind == "read":
                pair.read(size)
            elif kind == "flush":
                pair.transport.flush()
            else:
                data = source.randbytes(size)
                write(pair, kind, data)
                expected += data
            assert pair.writer.buffered == len(pair.transport.held)
            assert pair.writer.is_direct
        pair.drain(len(expected))
        assert pair.received == expected
        assert pair.writer.buffered == 0


def test_what_the_kernel_takes_does_not_reach_the_transport() -> None:
    with tcp_pair() as pair:
        pair.writer.write(b"first ")
        pair.writer.write(b"second")
        pair.drain(12)
        assert pair.received == b"first second"
        assert pair.transport.written == []
        assert pair.writer.written_bytes == 12


def test_as_long_as_the_transport_holds_anything_all_goes_through_it() -> None:
    with tcp_pair() as pair:
        big = b"x" * 3_000_000
        pair.writer.write(big)
        assert 0 < len(pair.transport.written[0]) < len(big), "a part was taken at once"
        held = len(pair.transport.held)
        pair.writer.write(b"behind")
        assert pair.transport.written[1:] == [b"behind"]
        assert pair.writer.buffered == held + 6
        assert pair.writer.written_bytes == len(big) + 6
        pair.drain(len(big) + 6)
        pair.writer.write(b"past")
        assert len(pair.transport.written) == 2, "with nothing held the way past it is open again"
        pair.drain(len(big) + 10)
        assert pair.received == big + b"behindpast"


def test_an_error_is_left_to_the_transport() -> None:
    with tcp_pair() as pair:
        pair.client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        pair.client.close()
        pair.writer.write(b"to a closed peer")
        assert not pair.writer.is_direct
        assert pair.transport.written == [b"to a closed peer"]
        pair.writer.write(b"and more")
        assert pair.transport.error is not None, "it met the same error"
        assert pair.transport.written[1:] == [], "what comes behind it is dropped"


def test_after_stop_direct_the_socket_is_not_written_to() -> None:
    with tcp_pair() as pair:
        number = pair.transport.sock.fileno()
        pair.writer.stop_direct()
        pair.transport.sock.close()
        pair.transport.is_over = True
        # The next connection gets the number.
        stranger, other_end = socket.socketpair()
        with stranger, other_end:
            assert number in (stranger.fileno(), other_end.fileno())
            for end in (stranger, other_end):
                end.setblocking(False)
            pair.writer.write(b"late")
            for end in (stranger, other_end):
                with pytest.raises(BlockingIOError):
                    end.recv(100)


def test_without_a_socket_everything_goes_through_the_transport() -> None:
    with tcp_pair() as pair:
        writer = SocketWriter()
        assert not writer.is_direct
        writer.open_writer(pair.transport, -1)
        writer.write(b"all ")
        writer.write_two(b"of ", b"it")
        assert pair.transport.written == [b"all ", b"of it"]
        assert (writer.buffered, writer.written_bytes) == (0, 9)
