"""Damaged requests, append bodies, WebSocket messages and pages: refused as the protocol says, or read.

The same requests meet a real server in `tests/server/test_fuzzed_requests.py`.
"""

from __future__ import annotations

import random
from contextlib import suppress
from types import SimpleNamespace

import msgspec
import pytest

from everlog.errors import EverlogError
from everlog.native.columns.frame_columns import FrameColumns
from everlog.native.topics.log import FrameBuffer, RecordBatch, TopicLog, json_fault, scan_append
from everlog.server.app import Call
from everlog.server.bodies import MAX_NESTING, Append, AppendBody, decode_append
from everlog.server.errors import ApiError
from everlog.server.http_exchange import HttpLimits, Refusal, Request, Targets
from everlog.server.http_reading import RequestReader
from everlog.server.socket_commands import BadCommand, decode_command
from everlog.topics.config import MAX_RECORDS_PER_APPEND
from tests.support.fuzzing import fuzz, mutated
from tests.support.request_samples import INTERESTING, REQUESTS, SOCKET_MESSAGES

BODIES = [request.partition(b"\r\n\r\n")[2] for request in REQUESTS]
PAGE = (
    b'{"topic":"t","records":[{"$seq":1,"$ts":5,"$node":"n","$tag":"t","meta":{"k":1},"data":{"a":[1,2]}},'
    b'{"$seq":2,"$ts":6,"data":null},{"$seq":9,"$ts":7,"data":"\xc3\xa4"}],"head_seq":9,"tombstone":null}'
)


class Listener:
    """Keeps the requests that a reader found."""

    def __init__(self) -> None:
        self.requests: list[Request] = []

    def head_received(self, request: Request, body_bytes: int | None) -> None:
        """Any length is accepted."""

    def head_held(self, size: int) -> None:
        """Any length is accepted."""

    def body_received(self, size: int) -> None:
        """Any length is accepted."""

    def request_received(self, request: Request) -> None:
        """Keep it."""
        self.requests.append(request)


def test_damaged_requests_are_refused_or_read() -> None:
    limits = HttpLimits(max_body_bytes=100_000)

    def check(rng: random.Random) -> None:
        data = mutated(rng, REQUESTS, INTERESTING)
        listener = Listener()
        reader = RequestReader(limits, listener, "peer", Targets())
        cut = rng.randrange(len(data) + 1)
        with suppress(Refusal):
            for piece in (data[:cut], data[cut:]):
                position = 0
                while position < len(piece):
                    position = reader.feed(piece, position)
        reader.close()
        for request in listener.requests:
            call = Call(SimpleNamespace(request=request), 0)  # type: ignore[arg-type]
            with suppress(ApiError):
                decode_append(call)

    fuzz(check)


def test_a_scanned_body_has_the_records_that_the_full_decoder_finds() -> None:
    def check(rng: random.Random) -> None:
        body = mutated(rng, BODIES, INTERESTING)
        json_fault(body, MAX_NESTING)
        scanned = scan_append(body, MAX_NESTING, MAX_RECORDS_PER_APPEND)
        if scanned is None:
            return
        records, key, create = scanned
        decoded = msgspec.json.decode(body, type=AppendBody)
        assert (len(records), key, create) == (len(decoded.records), decoded.idempotency_key, decoded.create)
        buffers = FrameBuffer(), FrameBuffer()
        TopicLog(1).append(buffers[0], 1, 0, records, 5, 0, None, False)
        append = Append.of(decoded)
        with suppress(EverlogError):
            batch = RecordBatch(append.records, append.node)
            TopicLog(1).append(buffers[1], 1, 0, batch, 5, 0, None, False)
            assert bytes(buffers[0]) == bytes(buffers[1])

    fuzz(check)


def test_damaged_messages_of_a_socket_are_no_command_or_one() -> None:
    def check(rng: random.Random) -> None:
        message = mutated(rng, SOCKET_MESSAGES, INTERESTING)
        with suppress(BadCommand):
            text = bytearray(message) if rng.random() < 0.5 else message
            decode_command(text, is_strict=rng.random() < 0.5)

    fuzz(check)


@pytest.mark.parametrize("max_records", [2, 100])
def test_damaged_pages_are_left_to_the_full_decoder_or_read(max_records: int) -> None:
    def check(rng: random.Random) -> None:
        page = mutated(rng, [PAGE], INTERESTING)
        columns = FrameColumns(0, 2**63, b"t" if rng.random() < 0.3 else None, True)
        rest = columns.pick_page(page, 1, 9, max_records)
        if rest is None:
            assert len(columns) == 0
            return
        for name in ("node", "tag", "meta", "data"):
            columns.text(name)
        columns.numbers()
        assert b'"records"' in rest

    fuzz(check)
