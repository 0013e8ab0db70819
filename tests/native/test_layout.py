"""Spec 1.3 to 1.5: C and Python mean the same bytes by the same names."""

import struct
import threading
import zlib

from everlog.native.queue import ring as native
from everlog.queue import layout
from tests.native.mappings import attach_reader, attach_writer, bytes_of, map_bytes
from tests.support.processes import eventually

SEQ = 0x1122334455667788
STAMP = 0x99AABBCCDDEEFF01
TYPE = 0xBEEF


def test_the_constants_are_those_of_the_specification() -> None:
    assert (layout.HEADER_SIZE, layout.RECORD_ALIGN, layout.SEG_DATA_OFFSET) == (64, 64, 64)
    assert layout.MAX_PAYLOAD_LEN == 2**32 - 2
    assert (layout.PAD_TYPE_ID, layout.MSG_VERSION, layout.MSG_VERSION_PAYLOAD) == (0xFFFF, 2, 1)
    assert (layout.CTRL_MAGIC, layout.CTRL_VERSION, layout.CTRL_SIZE) == (0x4348524E, 3, 512)
    assert (layout.SEG_MAGIC, layout.SEG_VERSION, layout.SEG_FLAG_SEALED) == (0x53454730, 2, 1)
    assert layout.SEGMENT_SIZE_MIN == 128


def test_a_message_header_written_by_the_core_has_every_field_at_its_offset() -> None:
    segment, control = map_bytes(b"\xee" * 1024), map_bytes(bytes(512))
    writer = attach_writer(control, segment, next_seq=SEQ, wall_ns=lambda: STAMP)
    assert writer.append(TYPE, b"payload") == SEQ
    record = bytes_of(segment)[64:192]
    assert struct.unpack_from("<I", record, layout.MSG_COMMIT_LEN) == (len(b"payload") + 1,)
    assert record[layout.MSG_VERSION_OFFSET] == 2
    assert record[5:8] == bytes(3)
    assert struct.unpack_from("<Q", record, layout.MSG_SEQ) == (SEQ,)
    assert struct.unpack_from("<Q", record, layout.MSG_TIMESTAMP_NS) == (STAMP,)
    assert struct.unpack_from("<H", record, layout.MSG_TYPE_ID) == (TYPE,)
    assert struct.unpack_from("<H", record, layout.MSG_FLAGS) == (0,)
    checksum = zlib.crc32(bytes(4) + record[4:28] + bytes(4) + record[32:71])
    assert struct.unpack_from("<I", record, layout.MSG_CHECKSUM) == (checksum,)
    assert record[32:64] == bytes(32)
    assert record[64:71] == b"payload"
    assert layout.MESSAGE_HEADER.unpack_from(record) == (8, 2, SEQ, STAMP, TYPE, 0, checksum)
    assert bytes_of(segment)[192:196] == bytes(4), "the commit word that follows must read as not committed"
    assert bytes_of(segment)[196:] == b"\xee" * (1024 - 196), "nothing else may be touched"


def test_an_append_touches_these_words_of_the_control_block_and_no_others() -> None:
    segment, control = map_bytes(bytes(1024)), map_bytes(bytes(512))
    attach_writer(control, segment, wall_ns=lambda: STAMP).append(TYPE, b"payload")
    expected = bytearray(512)
    struct.pack_into("<QQ", expected, layout.CTRL_WRITE_OFFSET, 192, STAMP)
    struct.pack_into("<I", expected, layout.CTRL_NOTIFY_SEQ, 1)
    assert layout.CTRL_WRITER_HEARTBEAT_NS == layout.CTRL_WRITE_OFFSET + 8
    assert bytes_of(control) == expected


def test_publishing_the_head_touches_the_words_of_the_seqlock() -> None:
    control = map_bytes(bytes(512))
    native.publish_head(control, 0xA1B2C3D4, 0x0102030405060708)
    expected = bytearray(512)
    struct.pack_into("<I", expected, layout.CTRL_SEGMENT_GEN, 2)
    struct.pack_into("<I", expected, layout.CTRL_CURRENT_SEGMENT, 0xA1B2C3D4)
    struct.pack_into("<Q", expected, layout.CTRL_WRITE_OFFSET, 0x0102030405060708)
    assert bytes_of(control) == expected
    assert native.read_head(control) == (0xA1B2C3D4, 0x0102030405060708)


def test_notifying_touches_the_futex_word_only() -> None:
    control = map_bytes(bytes(512))
    native.notify(control)
    expected = bytearray(512)
    struct.pack_into("<I", expected, layout.CTRL_NOTIFY_SEQ, 1)
    assert bytes_of(control) == expected


def test_sealing_sets_bit_0_of_the_flags_and_nothing_else() -> None:
    header = layout.SEGMENT_HEADER.pack(layout.SEG_MAGIC, layout.SEG_VERSION, 7, 0x80000000)
    segment = map_bytes(header + bytes(64))
    native.seal_segment(segment)
    assert layout.SEGMENT_HEADER.unpack(bytes_of(segment)[:64])[3] == 0x80000001
    assert bytes_of(segment) == header[:12] + b"\x01\0\0\x80" + bytes(48) + bytes(64)
    native.seal_segment(segment)
    assert bytes_of(segment)[12:16] == b"\x01\0\0\x80", "sealing twice is sealing"


def test_a_waiting_reader_leaves_the_count_of_waiters_as_it_found_it() -> None:
    segment, control = map_bytes(bytes(1024)), map_bytes(bytes(512))
    control.store_u32(layout.CTRL_WAITERS_PENDING, 5)
    assert attach_reader(control, segment).wait(0.01) is False
    assert control.load_u32(layout.CTRL_WAITERS_PENDING) == 5
    control.store_u32(layout.CTRL_WAITERS_PENDING, 0)
    assert bytes_of(control) == bytes(512), "and touches nothing else"


def test_a_count_of_waiters_that_was_reset_meanwhile_does_not_go_below_0() -> None:
    segment, control = map_bytes(bytes(1024)), map_bytes(bytes(512))
    reader = attach_reader(control, segment)
    waiter = threading.Thread(target=reader.wait, args=(60,))
    waiter.start()
    eventually("the reader to sleep", lambda: control.load_u32(layout.CTRL_WAITERS_PENDING) == 1)
    control.store_u32(layout.CTRL_WAITERS_PENDING, 0)
    attach_writer(control, segment).append(1, b"x")
    waiter.join()
    assert control.load_u32(layout.CTRL_WAITERS_PENDING) == 0
