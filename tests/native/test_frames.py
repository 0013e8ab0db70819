"""Frames of the topics plane: the C kernels against a plain-Python twin, hostile bytes and golden ones."""

import ctypes
import json
import re
import struct
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import xxhash
from hypothesis import example, given
from hypothesis import strategies as st

from everlog import xxh3
from everlog.errors import Corrupt, InvalidRecord
from everlog.native.topics import log as frames
from everlog.native.topics.log import FrameBuffer
from everlog.topics.storage import layout
from tests.native import frame_twin
from tests.native.frame_twin import Parts
from tests.native.topic_log_twin import NewRecord

MAX_U64 = 2**64 - 1


class Kind(NamedTuple):
    """The functions for one kind of frame, ours and the twin's."""

    segment: bool
    write: Callable[[FrameBuffer, Parts], int]
    twin_write: Callable[[Parts], bytes]
    read: Callable[..., Any]
    scan: Callable[..., frames.FrameScan]


def write_log(buffer: FrameBuffer, parts: Parts) -> int:
    return buffer.append_log(*parts[:8])


def write_segment(buffer: FrameBuffer, parts: Parts) -> int:
    """Segments are written by `copy_to_segment` only, which test_render.py compares with the twin."""
    frame = frame_twin.segment_frame(parts)
    buffer.append_bytes(frame)
    return len(frame)


LOG = Kind(False, write_log, frame_twin.log_frame, frames.read_log_frame, frames.scan_log_frames)
SEGMENT = Kind(
    True, write_segment, frame_twin.segment_frame, frames.read_segment_frame, frames.scan_segment_frames
)
both_kinds = pytest.mark.parametrize("kind", [LOG, SEGMENT], ids=["log", "segment"])


@st.composite
def parts(draw: st.DrawFn, segment: bool = False) -> Parts:
    flags = draw(st.integers(0, 255))
    data = draw(st.binary(max_size=300))
    if flags & layout.FLAG_HAS_META:
        meta = draw(st.binary(max_size=40))
        data = layout.META_LEN.pack(len(meta)) + meta + data
    numbers = st.integers(0, MAX_U64)
    return Parts(
        type=layout.TYPE_APPEND if segment else draw(st.integers(0, 255)),
        flags=flags,
        topic_id=0 if segment else draw(numbers),
        seq=draw(numbers),
        ts=draw(numbers),
        node=draw(st.binary(max_size=40)),
        tag=draw(st.binary(max_size=40)),
        data=data,
        deleted=segment and draw(st.booleans()),
    )


def as_parts(frame: frames.LogFrame | frames.SegmentFrame) -> Parts:
    if isinstance(frame, frames.LogFrame):
        return Parts(*frame[1:], deleted=False)
    return Parts(layout.TYPE_APPEND, frame.flags, 0, *frame[2:])


def read_like_the_twin(kind: Kind, data: bytes, offset: int, verify: bool) -> tuple[bool, int, Parts | None]:
    try:
        frame = kind.read(data, offset, verify=verify)
    except Corrupt:
        return False, 0, None
    return True, frame.size, as_parts(frame)


def agree_on(kind: Kind, data: bytes) -> None:
    """Compare reader and scanner with the twin at every offset of these bytes."""
    for verify in (True, False):
        for offset in range(len(data) + 1):
            outcome, size, expected = frame_twin.read_frame(data, offset, segment=kind.segment, verify=verify)
            assert read_like_the_twin(kind, data, offset, verify) == (outcome == "ok", size, expected)
            twin_scan = frame_twin.scan_frames(data, offset, segment=kind.segment, verify=verify)
            assert kind.scan(data, offset, verify=verify) == twin_scan


SMALL = Parts(layout.TYPE_APPEND, 3, 7, 11, 13, b"n1", b"tag", b'{"a":1}', False)

# --- The bytes ------------------------------------------------------------------------------------------


HEADER = Path(frames.__file__).with_name("frames.h").read_text()
CORE = {name: int(number, 0) for name, number in re.findall(r"^#define (\w+) (\w+)u$", HEADER, re.MULTILINE)}
CORE |= {name: int(number) for name, number in re.findall(r"\b([A-Z]+_[A-Z_]+) = (\d+)", HEADER)}


def core_name(name: str) -> str:
    """The name in frames.h of a number of the layout."""
    if name in CORE:
        return name
    kind, field = name.split("_", 1)
    return {"LOG": "LOG_AT_", "SEGMENT": "SEGMENT_AT_", "FLAG": "FRAME_"}[kind] + field


def test_the_numbers_of_a_frame_are_the_same_in_the_core_and_in_the_layout() -> None:
    names = {name for name in vars(layout) if name.startswith(("LOG_", "SEGMENT_", "FLAG_"))}
    elsewhere = {"LOG_HEADER", "SEGMENT_HEADER", "LOG_FRAME_LEN", "SEGMENT_FRAME_LEN"}
    elsewhere |= {"SEGMENT_DATA", "SEGMENT_INDEX"}  # names of files
    for name in names - elsewhere:
        assert CORE[core_name(name)] == getattr(layout, name), name
    assert CORE["FRAME_META_LEN_SIZE"] == layout.META_LEN_SIZE
    assert CORE["FRAME_TYPE_APPEND"] == layout.FrameType.APPEND == layout.TYPE_APPEND
    numbers = [int(kind) for kind in layout.FrameType]
    assert numbers == [*range(1, 15), *range(16, 25)], "numbers on disk never change"


def test_a_log_frame_is_these_bytes() -> None:
    golden = bytes.fromhex(
        "36000000"  # frame_len 54 = 34 + 12 + 8
        "01"  # type Append
        "17"  # has_tag, has_node, durable, batch continues
        "0807060504030201"  # topic_id
        "1817161514131211"  # seq
        "2827262524232221"  # ts
        "0200"  # node_len
        "0300"  # tag_len
        "07000000"  # data_len
        "6e31"  # n1
        "746167"  # tag
        "7b2261223a317d"  # {"a":1}
        "2307ea541d0966d2"  # xxh3 of everything between
    )
    buffer = FrameBuffer()
    numbers = (0x0102030405060708, 0x1112131415161718, 0x2122232425262728)
    assert buffer.append_log(1, 0x17, *numbers, b"n1", b"tag", b'{"a":1}') == len(golden) == 58
    assert buffer.tobytes() == golden
    assert frames.read_log_frame(golden, 0) == (58, 1, 0x17, *numbers, b"n1", b"tag", b'{"a":1}')


def test_a_segment_frame_is_these_bytes() -> None:
    golden = bytes.fromhex(
        "33000000"  # frame_len 51 = 25 + 17 + 9
        "09"  # has_tag, has_meta
        "1817161514131211"  # seq
        "2827262524232221"  # ts
        "0000"  # node_len
        "0300"  # tag_len
        "0e000000"  # data_len
        "746167"  # tag
        "07000000"  # meta_len
        "7b226d223a327d"  # {"m":2}
        "5b315d"  # [1]
        "87db564122e4485e"  # xxh3 of everything between
        "d5"  # deleted
    )
    data = b'\x07\0\0\0{"m":2}[1]'
    numbers = (0x1112131415161718, 0x2122232425262728)
    assert frame_twin.segment_frame(Parts(1, 9, 0, *numbers, b"", b"tag", data, True)) == golden
    assert len(golden) == 55
    assert frames.read_segment_frame(golden, 0) == (55, 9, *numbers, b"", b"tag", data, True)


@given(many=st.lists(parts(), max_size=5))
def test_log_frames_are_those_of_the_twin_and_read_back(many: list[Parts]) -> None:
    frames_agree(LOG, many)


@given(many=st.lists(parts(segment=True), max_size=5))
def test_segment_frames_are_those_of_the_twin_and_read_back(many: list[Parts]) -> None:
    frames_agree(SEGMENT, many)


def frames_agree(kind: Kind, many: list[Parts]) -> None:
    buffer = FrameBuffer()
    sizes = [kind.write(buffer, one) for one in many]
    assert buffer.tobytes() == b"".join(map(kind.twin_write, many))
    offset = 0
    for one, size in zip(many, sizes, strict=True):
        frame = kind.read(buffer, offset)
        assert (frame.size, as_parts(frame)) == (size, one)
        offset += size
    assert kind.scan(buffer) == (len(many), offset, "end")


@given(type=st.integers(0, 255), data=st.binary(max_size=50), seq=st.integers(0, MAX_U64))
def test_a_control_frame_is_a_log_frame_without_node_and_tag(type: int, data: bytes, seq: int) -> None:
    buffer = FrameBuffer()
    size = buffer.append_control(type, layout.FLAG_DURABLE, 5, seq, 6, data)
    assert size == len(buffer)
    expected = Parts(type, layout.FLAG_DURABLE, 5, seq, 6, b"", b"", data, False)
    assert as_parts(frames.read_log_frame(buffer, 0)) == expected


def test_what_no_frame_can_hold_is_refused_and_nothing_is_appended() -> None:
    buffer = FrameBuffer()
    for node, tag in [(bytes(65536), b""), (b"", bytes(65536))]:
        with pytest.raises(ValueError, match="65536 bytes"):
            buffer.append_log(1, 0, 1, 1, 1, node, tag, b"")
    for data in [b"", b"\x01\0\0", b"\x02\0\0\0x"]:
        with pytest.raises(ValueError, match="promise a meta part"):
            buffer.append_control(1, layout.FLAG_HAS_META, 1, 1, 1, data)
    with pytest.raises(OverflowError):
        buffer.append_control(256, 0, 1, 1, 1, b"")
    assert len(buffer) == 0


# --- Hostile bytes --------------------------------------------------------------------------------------


@both_kinds
def test_every_truncation_of_a_frame_is_torn_or_nothing(kind: Kind) -> None:
    frame = kind.twin_write(SMALL)
    for length in range(len(frame)):
        assert kind.scan(frame[:length]) == (0, 0, "end" if length < 4 else "torn")
        with pytest.raises(Corrupt, match=f"offset 0 of {length} bytes"):
            kind.read(frame[:length], 0)
        agree_on(kind, frame[:length])


@both_kinds
def test_every_flipped_bit_is_noticed(kind: Kind) -> None:
    for deleted in {False, kind.segment}:
        frame = kind.twin_write(SMALL._replace(deleted=deleted))
        # The mark of a segment frame is outside the checksum: see the test below.
        for bit in range(8 * (len(frame) - kind.segment)):
            damaged = bytearray(frame)
            damaged[bit // 8] ^= 1 << bit % 8
            scan = kind.scan(damaged)
            assert (scan.frames, scan.end) == (0, 0), bit
            assert scan.outcome in ({"torn", "corrupt"} if bit < 32 else {"corrupt"})
            with pytest.raises(Corrupt):
                kind.read(damaged, 0)


def test_a_record_is_deleted_only_by_the_exact_mark() -> None:
    frame = bytearray(frame_twin.segment_frame(SMALL))
    for mark in range(256):
        frame[-1] = mark
        assert frames.read_segment_frame(frame, 0).deleted is (mark == 0xD5)


@both_kinds
@given(data=st.data())
def test_any_bytes_are_judged_as_the_twin_judges_them(kind: Kind, data: st.DataObject) -> None:
    pieces = st.one_of(
        st.binary(max_size=60),
        parts(segment=kind.segment).map(kind.twin_write),
        st.integers(0, 90).map(lambda length: struct.pack("<I", length) + bytes(length)),
    )
    soup = bytearray(b"".join(data.draw(st.lists(pieces, max_size=4))))[:250]
    for _ in range(data.draw(st.integers(0, 3)) if soup else 0):
        soup[data.draw(st.integers(0, len(soup) - 1))] = data.draw(st.integers(0, 255))
    agree_on(kind, bytes(soup))


@both_kinds
@given(data=st.data())
def test_lengths_that_lie_are_judged_as_the_twin_judges_them(kind: Kind, data: st.DataObject) -> None:
    """Checksums are made right again, so only the lengths can tell."""
    tail, lengths_at = (9, 21) if kind.segment else (8, 30)
    frame = bytearray(kind.twin_write(SMALL))
    near = st.integers(0, 12) | st.integers(2**16 - 13, 2**16 - 1)
    words = (data.draw(near), data.draw(near), data.draw(near | st.integers(2**32 - 20, 2**32 - 1)))
    struct.pack_into("<HHI", frame, lengths_at, *words)
    frame[4 if kind.segment else 5] = data.draw(st.integers(0, 255))
    struct.pack_into("<Q", frame, len(frame) - tail, xxhash.xxh3_64_intdigest(bytes(frame[4:-tail])))
    agree_on(kind, bytes(frame))


@both_kinds
@pytest.mark.parametrize("frame_len", [1, 2**31, 2**32 - 5, 2**32 - 4, 2**32 - 1])
def test_an_extreme_frame_length_is_never_followed(kind: Kind, frame_len: int) -> None:
    data = struct.pack("<I", frame_len) + bytes(200)
    assert kind.scan(data) == (0, 0, "corrupt" if frame_len == 1 else "torn")
    agree_on(kind, data[:60])


@both_kinds
@pytest.mark.parametrize(
    ("body_size", "flags", "lengths"),
    [
        (-1, 0, (0, 0, 2**32 - 1)),
        (-2, 0, (0, 0, 2**32 - 2)),
        (5, 0, (9, 0, 2**32 - 4)),
        (5, 0, (0, 9, 2**32 - 4)),
        (3, layout.FLAG_HAS_META, (0, 0, 3)),
        (5, layout.FLAG_HAS_META, (1, 1, 3)),
    ],
)
def test_lengths_that_add_up_only_by_wrapping_around_or_have_no_room_for_meta_are_corrupt(
    kind: Kind, body_size: int, flags: int, lengths: tuple[int, int, int]
) -> None:
    tail, lengths_at = (9, 21) if kind.segment else (8, 30)
    frame_len = lengths_at + 4 + body_size + tail
    data = bytearray(struct.pack("<I", frame_len) + bytes(100))
    data[4 if kind.segment else 5] = flags
    struct.pack_into("<HHI", data, lengths_at, *lengths)
    for available in (4 + frame_len, len(data)):
        assert kind.scan(data[:available], verify=False) == (0, 0, "corrupt")
        agree_on(kind, bytes(data[:available]))


@both_kinds
def test_a_wrong_checksum_counts_only_if_asked_for(kind: Kind) -> None:
    frame = bytearray(kind.twin_write(SMALL) * 3)
    size = len(frame) // 3
    frame[2 * size - 12] ^= 1
    assert kind.scan(frame) == (1, size, "corrupt")
    assert kind.scan(frame, verify=False) == (3, 3 * size, "end")
    assert kind.scan(frame, 2 * size) == (1, 3 * size, "end")
    assert kind.read(frame, size, verify=False).size == size


@both_kinds
def test_zeros_after_the_last_frame_are_the_clean_end(kind: Kind) -> None:
    frame = kind.twin_write(SMALL)
    assert kind.scan(frame + bytes(1000)) == (1, len(frame), "end")
    assert kind.scan(frame + bytes(3)) == (1, len(frame), "end")
    with pytest.raises(Corrupt, match="nothing was written there"):
        kind.read(frame + bytes(1000), len(frame))


@both_kinds
def test_offsets_outside_are_refused(kind: Kind) -> None:
    with pytest.raises(IndexError, match="offset 4 of 3 bytes"):
        kind.scan(b"abc", 4)
    with pytest.raises(Corrupt, match="offset 4 of 3 bytes"):
        kind.read(b"abc", 4)
    with pytest.raises(OverflowError):
        kind.scan(b"abc", -1)


def test_a_scan_lets_other_threads_run() -> None:
    buffer = FrameBuffer()
    for seq in range(100_000):
        buffer.append_control(layout.TYPE_APPEND, 0, 1, seq, 1, bytes(64))
    scanning, passed = threading.Event(), []

    def watch() -> None:
        scanning.wait()
        passed.append(True)

    thread = threading.Thread(target=watch)
    thread.start()
    before = sys.getswitchinterval()
    sys.setswitchinterval(60)
    try:
        scanning.set()
        scans = 0
        while not passed and scans < 3000:
            assert frames.scan_log_frames(buffer).frames == 100_000
            scans += 1
    finally:
        sys.setswitchinterval(before)
    assert passed, "a thread that asked for the GIL did not get it in 3000 scans"
    thread.join()


# --- Text -----------------------------------------------------------------------------------------------


JSON_VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=30),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=12), inner, max_size=4),
    max_leaves=12,
)


def compact_json(text: bytes) -> bytes:
    """Return the data of a record as it is stored."""
    buffer = FrameBuffer()
    frames.TopicLog(1).append(buffer, 1, 0, [NewRecord(text)], 1, 0, None, False)
    return frames.read_log_frame(buffer, 0).data


def is_utf8(text: bytes | bytearray) -> bool:
    return frames.json_fault(text, len(text)) != "it is not UTF-8"


@given(value=JSON_VALUES, indent=st.sampled_from([None, 0, 3, "\t", "\r"]), ascii_only=st.booleans())
def test_compact_json_is_what_a_compact_encoder_writes(
    value: object, indent: int | str | None, ascii_only: bool
) -> None:
    text = json.dumps(value, indent=indent, ensure_ascii=ascii_only).encode()
    compact = json.dumps(value, separators=(",", ":"), ensure_ascii=ascii_only).encode()
    assert compact_json(b" \n" + text + b"\t\r") == compact
    assert compact_json(compact) == compact


PIECES = st.one_of(
    st.sampled_from([bytes([byte]) for byte in b' \t\r\n"\\a1{}']),
    st.characters(exclude_categories=["Cs"]).map(str.encode),
    st.integers(0, 255).map(lambda byte: bytes([byte])),
)


@given(text=st.lists(PIECES, max_size=80).map(b"".join))
@example(text=b"")
@example(text=b" \r\n\t")
@example(text=b' "\\')
@example(text=b'"never closed \\" ')
@example(text=b' "12345678 \\\\" " \\" 9" ')
def test_any_bytes_are_refused_or_compacted_as_by_the_twin(text: bytes) -> None:
    if frame_twin.is_utf8(text) and text.strip(frame_twin.WHITE):
        assert compact_json(text) == frame_twin.compact_json(text)
    else:
        with pytest.raises(InvalidRecord, match=r"data is (empty|not valid UTF-8)"):
            compact_json(text)


@pytest.mark.parametrize("white", [" ", "\t", "\r", "\n"])
def test_one_white_byte_is_found_wherever_it_is(white: str) -> None:
    for length in range(2, 100):
        for place in range(length):
            text = b"1" * place + white.encode() + b"1" * (length - place - 1)
            assert compact_json(text) == b"1" * (length - 1), (length, place)


@given(text=st.binary(max_size=60))
def test_any_bytes_are_utf8_if_python_decodes_them(text: bytes) -> None:
    assert is_utf8(text) == frame_twin.is_utf8(text)


@given(text=st.text(max_size=60), place=st.integers(0), byte=st.integers(0, 255))
def test_damaged_text_is_utf8_if_python_decodes_it(text: str, place: int, byte: int) -> None:
    encoded = bytearray(text.encode())
    assert is_utf8(encoded)
    if encoded:
        encoded[place % len(encoded)] = byte
    assert is_utf8(encoded) == frame_twin.is_utf8(bytes(encoded))


def test_every_sequence_at_the_borders_of_utf8_is_judged_right() -> None:
    borders = [0x00, 0x7F, 0x80, 0x8F, 0x90, 0x9F, 0xA0, 0xBF, 0xC0, 0xFF]
    for lead in range(0x80, 0x100):
        for second in borders:
            for rest in (
                b"",
                b"\x80",
                b"\xbf",
                b"\x80\x80",
                b"\xbf\xbf",
                b"\x80\x7f",
                b"\xc0\x80",
                b"\x80\xc0",
            ):
                for before in (b"", b"1234567"):
                    text = before + bytes([lead, second]) + rest
                    assert is_utf8(text) == frame_twin.is_utf8(text), text


# --- The hash -------------------------------------------------------------------------------------------


def test_the_function_of_the_wheel_is_found() -> None:
    assert xxh3.address != 0


def test_a_function_that_is_no_xxh3_is_not_trusted() -> None:
    prototype = ctypes.CFUNCTYPE(ctypes.c_uint64, ctypes.c_void_p, ctypes.c_size_t)

    def digest(text: int, length: int) -> int:
        return xxhash.xxh3_64_intdigest(ctypes.string_at(text, length))

    def digest_wrong_at_last(text: int, length: int) -> int:
        return digest(text, length) ^ (length == xxh3.SELF_TEST_LENGTH)

    right, wrong = prototype(digest), prototype(digest_wrong_at_last)
    assert xxh3.find_address(None) == 0
    assert xxh3.find_address(wrong) == 0
    assert xxh3.find_address(right) == ctypes.cast(right, ctypes.c_void_p).value


FALLBACK_PROGRAM = """
import xxhash
from everlog import xxh3
xxh3.address = 0
from everlog.native.topics import log as frames
buffer = frames.FrameBuffer()
for seq in range(2000):
    buffer.append_control(1, 0, 3, seq, 2, b"[%d]" % seq)
assert frames.scan_log_frames(buffer) == (2000, len(buffer), "end")
damaged = bytearray(buffer)
damaged[-1] ^= 1
assert frames.scan_log_frames(damaged).outcome == "corrupt"
print(xxhash.xxh3_64_hexdigest(buffer))
"""


def test_without_the_wheels_function_frames_are_the_same() -> None:
    printed = subprocess.run([sys.executable, "-c", FALLBACK_PROGRAM], capture_output=True, check=True).stdout
    buffer = FrameBuffer()
    for seq in range(2000):
        buffer.append_control(layout.TYPE_APPEND, 0, 3, seq, 2, b"[%d]" % seq)
    assert printed.strip().decode() == xxhash.xxh3_64_hexdigest(buffer)


# --- The buffer -----------------------------------------------------------------------------------------


@given(
    steps=st.lists(
        st.one_of(
            st.binary(max_size=9000).map(lambda data: ("append", data)),
            st.integers(0, 20_000).map(lambda length: ("truncate", length)),
            st.just(("clear", None)),
        ),
        max_size=12,
    ),
    capacity=st.sampled_from([0, 1, 5000]),
)
def test_the_buffer_holds_what_was_appended(steps: list[tuple[str, Any]], capacity: int) -> None:
    buffer, model = FrameBuffer(capacity), bytearray()
    for step, value in steps:
        if step == "append":
            buffer.append_bytes(value)
            model += value
        elif step == "clear":
            buffer.clear()
            model.clear()
        elif value <= len(model):
            buffer.truncate(value)
            del model[value:]
        else:
            with pytest.raises(ValueError, match=f"cannot truncate to {value} bytes"):
                buffer.truncate(value)
        assert (len(buffer), buffer.tobytes(), bytes(buffer)) == (len(model), bytes(model), bytes(model))


def test_while_a_view_is_out_the_memory_stays_where_it_is() -> None:
    buffer = FrameBuffer(8192)
    buffer.append_bytes(b"x" * 8000)
    with memoryview(buffer) as view, memoryview(buffer):
        buffer.append_bytes(b"y" * 192)
        with pytest.raises(BufferError, match="release it first"):
            buffer.append_bytes(b"z")
        with pytest.raises(BufferError, match="release it first"):
            buffer.append_control(1, 0, 1, 1, 1, b"")
        assert view == b"x" * 8000
        assert len(buffer) == 8192
    buffer.append_bytes(b"z")
    assert buffer.tobytes() == b"x" * 8000 + b"y" * 192 + b"z"


def test_a_view_cannot_be_written_and_keeps_the_memory_alive() -> None:
    buffer = FrameBuffer()
    buffer.append_bytes(b"abc")
    view = memoryview(buffer)
    with pytest.raises(TypeError, match="read-only"):
        view[0] = 1
    with pytest.raises(TypeError, match="not writable"):
        (ctypes.c_char * 3).from_buffer(buffer)
    del buffer
    assert bytes(view) == b"abc"
    assert bytes(memoryview(FrameBuffer())) == b"", "an empty buffer has a view too"


def test_clearing_a_large_buffer_leaves_views_valid() -> None:
    buffer = FrameBuffer()
    buffer.append_bytes(b"x" * (8 << 20))
    with memoryview(buffer) as view:
        buffer.clear()
        assert len(buffer) == 0
        assert view == b"x" * (8 << 20)
    buffer.clear()
    with memoryview(buffer):
        buffer.append_bytes(bytes(1 << 20))
        with pytest.raises(BufferError, match="release it first"):
            buffer.append_bytes(b"one byte more than the MiB that was kept")


def test_a_size_beyond_all_memory_is_refused() -> None:
    with pytest.raises(MemoryError, match="too many"):
        FrameBuffer(2**64 - 1)
    with pytest.raises(MemoryError, match="no memory"):
        FrameBuffer(2**62)


# --- What no record may hold -----------------------------------------------------------------------------


def has_lone_surrogate(text: str) -> bool:
    """Whether a parsed string, or one anywhere in a value, has half a surrogate pair."""
    return any("\ud800" <= character <= "\udfff" for character in text)


@given(
    st.lists(
        st.sampled_from(["\\ud800", "\\udbff", "\\udc00", "\\udfff", "\\u0041", "\\\\", '\\"', "x", "ü"])
    )
)
def test_half_a_surrogate_pair_is_found_wherever_a_parser_sees_one(pieces: list[str]) -> None:
    text = json.dumps([1])[:-1] + ',"' + "".join(pieces) + '"]'
    parsed = json.loads(text)[1]
    fault = frames.json_fault(text.encode(), 128)
    assert (fault == "it has an escape of half a surrogate pair") is has_lone_surrogate(parsed)


@pytest.mark.parametrize(("opening", "closing"), ["[]", "{}"])
def test_nesting_is_allowed_up_to_the_limit_and_not_one_level_more(opening: str, closing: str) -> None:
    for depth in (1, 7, 8, 9, 500):
        text = (opening * depth + '"[[[[[[[[[[{{{{{{"' + closing * depth).encode()
        assert (frames.json_fault(text, 8) is None) is (depth <= 8)
    assert frames.json_fault((opening + closing).encode() * 100, 1) is None


def test_text_that_is_not_utf8_is_named_as_such() -> None:
    assert frames.json_fault(b'{"a":"\xff"}', 8) == "it is not UTF-8"


@pytest.mark.parametrize("capacity", [0, 10, 5000, 1 << 20])
def test_memory_that_is_mapped_ahead_holds_what_it_held(capacity: int) -> None:
    buffer = FrameBuffer(capacity)
    buffer.append_bytes(b"abc")
    buffer.populate()
    assert buffer.tobytes() == b"abc"
    buffer.append_bytes(b"d" * 6000)
    buffer.populate()
    assert buffer.tobytes() == b"abc" + b"d" * 6000


def test_a_buffer_knows_whether_it_is_being_read() -> None:
    buffer = FrameBuffer(100)
    assert not buffer.is_viewed
    with memoryview(buffer), memoryview(buffer):
        assert buffer.is_viewed
        buffer.append_bytes(b"x" * 100)  # as much as was asked for never moves
    assert not buffer.is_viewed
