"""A mapping refuses what is not inside it: no offset, however wrong, may read or write beside it."""

import os
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from everlog.errors import Unsupported
from everlog.native.queue import ring as native
from everlog.native.queue.ring import view_at
from tests.native.mappings import attach_reader, attach_writer, bytes_of, map_bytes
from tests.support.command_lines import assert_survives

SIZE = 1024


def test_words_are_loaded_and_stored_little_endian() -> None:
    mapping = map_bytes(bytes(SIZE))
    mapping.store_u32(8, 0x01020304)
    mapping.store_u64(16, 0x0102030405060708)
    assert bytes_of(mapping)[8:12] == bytes([4, 3, 2, 1])
    assert bytes_of(mapping)[16:24] == bytes([8, 7, 6, 5, 4, 3, 2, 1])
    assert mapping.load_u32(8) == 0x01020304
    assert mapping.load_u64(16) == 0x0102030405060708
    assert (len(mapping), mapping.length, mapping.writable) == (SIZE, SIZE, True)


def test_the_last_word_can_be_used() -> None:
    mapping = map_bytes(bytes(SIZE))
    mapping.store_u32(SIZE - 4, 7)
    mapping.store_u64(SIZE - 8, 9)
    assert (mapping.load_u32(SIZE - 4), mapping.load_u64(SIZE - 8)) == (0, 9)


@pytest.mark.parametrize("offset", [SIZE - 3, SIZE - 2, SIZE, SIZE + 4, 2**31, 2**63, 1, 2, 6])
def test_a_word_outside_or_across_a_boundary_is_refused(offset: int) -> None:
    mapping = map_bytes(bytes(SIZE))
    refused: list[Callable[[], object]] = [
        lambda: mapping.load_u32(offset),
        lambda: mapping.load_u64(offset),
        lambda: mapping.store_u32(offset, 1),
        lambda: mapping.store_u64(offset, 1),
    ]
    for call in refused:
        with pytest.raises(IndexError, match=f"offset {offset} of . bytes is not inside 1024 bytes"):
            call()
    assert bytes_of(mapping) == bytes(SIZE)


@pytest.mark.parametrize("offset", [-1, 2**64])
def test_an_offset_that_is_no_unsigned_number_is_refused(offset: int) -> None:
    with pytest.raises(OverflowError):
        map_bytes(bytes(SIZE)).load_u32(offset)


def test_values_that_do_not_fit_are_refused() -> None:
    mapping = map_bytes(bytes(SIZE))
    for value in (-1, 2**32):
        with pytest.raises(OverflowError):
            mapping.store_u32(0, value)
    for value in (-1, 2**64):
        with pytest.raises(OverflowError):
            mapping.store_u64(0, value)


def test_a_read_only_mapping_cannot_be_written_by_any_way() -> None:
    mapping = map_bytes(bytes(SIZE), writable=False)
    writes: list[Callable[[], object]] = [
        lambda: mapping.store_u32(0, 1),
        lambda: mapping.store_u64(0, 1),
        lambda: native.publish_head(mapping, 1, 64),
        lambda: native.notify(mapping),
        lambda: native.pad_segment(mapping, 64),
        lambda: native.seal_segment(mapping),
        lambda: attach_writer(mapping, mapping),
    ]
    for write in writes:
        with pytest.raises(Unsupported, match="read-only"):
            write()
    view = memoryview(mapping)
    assert view.readonly
    array = np.frombuffer(mapping, dtype=np.uint8)
    with pytest.raises(ValueError, match="read-only"):
        array[0] = 1
    assert bytes_of(mapping) == bytes(SIZE)


def test_a_file_that_cannot_be_mapped_is_an_os_error(tmp_path: Path) -> None:
    with pytest.raises(OSError, match="Bad file descriptor"):
        native.Mapping(-1, SIZE, True)
    (tmp_path / "file").write_bytes(bytes(SIZE))
    fd = os.open(tmp_path / "file", os.O_RDONLY)
    try:
        with pytest.raises(PermissionError):
            native.Mapping(fd, SIZE, True)
        with pytest.raises(OSError, match="Invalid argument"):
            native.Mapping(fd, 0, False)
    finally:
        os.close(fd)


def test_a_control_block_that_is_too_short_is_refused() -> None:
    short = map_bytes(bytes(511))
    uses: list[Callable[[], object]] = [
        lambda: native.read_head(short),
        lambda: native.publish_head(short, 0, 64),
        lambda: native.notify(short),
        lambda: attach_reader(short, map_bytes(bytes(SIZE))),
        lambda: attach_writer(short, map_bytes(bytes(SIZE))),
    ]
    for use in uses:
        with pytest.raises(IndexError):
            use()


@pytest.mark.parametrize("offset", [1, 63, 65, SIZE + 64, SIZE - 1, 2**63, 2**64 - 64])
def test_no_kernel_starts_where_no_record_can_start(offset: int) -> None:
    segment = map_bytes(bytes(SIZE))
    control = map_bytes(bytes(512))
    starts: list[Callable[[], object]] = [
        lambda: native.scan_segment(segment, offset),
        lambda: native.find_record(segment, offset, 0, by_timestamp=False),
        lambda: native.run_offsets(segment, offset, 1, np.zeros(1, np.uint64)),
        lambda: attach_reader(control, segment, offset),
        lambda: attach_writer(control, segment, offset),
        lambda: view_at(segment, 0, offset),
    ]
    for start in starts:
        with pytest.raises(IndexError, match="no record can start at offset"):
            start()


def test_offsets_need_room_for_all_of_them() -> None:
    with pytest.raises(IndexError, match="1 places cannot hold 2 offsets"):
        native.run_offsets(map_bytes(bytes(SIZE)), 64, 2, np.zeros(1, np.uint64))


@pytest.mark.parametrize(("offset", "length"), [(0, SIZE + 1), (SIZE, 1), (1000, 100), (2**63, 0)])
def test_a_range_to_write_back_must_be_inside(offset: int, length: int) -> None:
    with pytest.raises(IndexError, match="is not inside 1024 bytes"):
        map_bytes(bytes(SIZE)).msync(offset, length, True)


@pytest.mark.parametrize("wait", [True, False])
def test_any_range_inside_can_be_written_back(wait: bool) -> None:
    mapping = map_bytes(bytes(3 * 4096))
    for offset, length in ((0, 0), (0, 3 * 4096), (5000, 1), (4095, 2), (3 * 4096, 0)):
        mapping.msync(offset, length, wait)


def test_prefaulting_and_locking_change_nothing() -> None:
    content = os.urandom(3 * 4096)
    for writable in (True, False):
        mapping = map_bytes(content, writable=writable)
        mapping.prefault()
        mapping.lock()
        assert bytes_of(mapping) == content


# Each of these reads or writes beside the mapping if a sum of an offset and a size is allowed to overflow,
# or if a record is taken for committed without a look. A fault would end the interpreter, so a new one runs.
BESIDE = {
    "load_u32": "mapping.load_u32(2**64 - 4)",
    "load_u64": "mapping.load_u64(2**64 - 8)",
    "store_u32": "mapping.store_u32(2**64 - 4, 1)",
    "store_u64": "mapping.store_u64(2**64 - 8, 1)",
    "msync": "mapping.msync(2**64 - 4096, 4096, True)",
    "msync of almost everything": "mapping.msync(4096, 2**64 - 4096, True)",
    "pad below the start": "native.pad_segment(mapping, 2**64 - 64)",
    "pad across a boundary": "native.pad_segment(mapping, 100)",
    "view at the very end": "view_at(mapping, 0, len(mapping)).seq",
    "view of nothing committed": "bytes(view_at(mapping, 0, 64))",
    "view that leaves the segment": "mapping.store_u32(64, 2**31); bytes(view_at(mapping, 0, 64))",
    "offsets beyond the records": "native.run_offsets(mapping, 64, 9, array('Q', [0] * 9))",
}

PROBE = """
import sys, os
from array import array
from everlog.errors import EverlogError
from everlog.native.queue import ring as native
from everlog.native.queue.ring import view_at
fd = os.memfd_create("probe")
os.ftruncate(fd, 8192)
mapping = native.Mapping(fd, 8192, True)
try:
    exec(sys.argv[1])
except (IndexError, EverlogError) as error:
    print("refused", error)
else:
    print("accepted")
"""


@pytest.mark.parametrize("what", BESIDE)
def test_nothing_beside_the_mapping_can_be_reached(what: str) -> None:
    assert assert_survives(PROBE, BESIDE[what]).startswith("refused")
