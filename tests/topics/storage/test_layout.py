"""Names in a topics data directory: each is found again, and nothing that only looks like one."""

import re
import struct
from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from everlog.topics.storage import layout

Names = tuple[Callable[[int], str], Callable[[str], int | None], str]

NAMES: list[Names] = [
    (layout.wal_file_name, layout.parse_wal_file_name, "wal-0000000000000042.log"),
    (layout.shard_dir_name, layout.parse_shard_dir_name, "shard-42"),
    (layout.snapshot_file_name, layout.parse_snapshot_file_name, "snapshot-0000000000000042.bin"),
    (layout.segment_data_name, layout.parse_segment_data_name, "seg-0000000000000042.data"),
    (layout.segment_index_name, layout.parse_segment_index_name, "seg-0000000000000042.idx"),
    (layout.topic_dir_name, layout.parse_topic_dir_name, "0000002A"),
]
every_name = pytest.mark.parametrize("names", NAMES, ids=[row[2] for row in NAMES])


@every_name
@given(number=st.integers(0, 2**64 - 1))
def test_a_number_is_found_again_in_its_name(names: Names, number: int) -> None:
    make, parse, _ = names
    assert parse(make(number)) == number


@every_name
def test_a_name_is_written_as_documented(names: Names) -> None:
    make, parse, example = names
    assert make(42) == example
    others = [name for _, _, name in NAMES if name != example]
    variants = [
        re.sub("[0-9]", r"0\g<0>", example, count=1),
        example.replace("0", "", 1),
        example.replace("2A", "2a").replace("wal", "WAL").replace("s", "S"),
        example.replace("2", "\N{ARABIC-INDIC DIGIT TWO}"),
        example + layout.TEMPORARY_SUFFIX,
        " " + example,
        example + "\n",
        "",
    ]
    for name in others + [variant for variant in variants if variant != example]:
        assert parse(name) is None, name


@given(numbers=st.lists(st.integers(0, 10**16 - 1), min_size=2, max_size=2))
def test_names_sort_as_their_numbers(numbers: list[int]) -> None:
    assert sorted(map(layout.wal_file_name, numbers)) == list(map(layout.wal_file_name, sorted(numbers)))


@pytest.mark.parametrize(
    ("header", "offsets"),
    [
        (layout.LOG_HEADER, [0, 4, 5, 6, 14, 22, 30, 32, 34]),
        (layout.SEGMENT_HEADER, [0, 4, 5, 13, 21, 23, 25]),
        (layout.INDEX_ENTRY, [0, 4, 8, 16]),
        (layout.SNAPSHOT_HEADER, [0, 8, 12]),
    ],
    ids=["log", "segment", "index", "snapshot"],
)
def test_a_header_has_its_fields_where_the_diagram_shows_them(
    header: struct.Struct, offsets: list[int]
) -> None:
    order, codes = header.format[0], header.format[1:]
    fields = codes.replace("8s", "S").replace("3x", "")
    found = [struct.calcsize(order + fields[:place].replace("S", "8s")) for place in range(len(fields))]
    assert found == offsets


def test_offsets_of_an_index_entry_are_those_of_its_struct() -> None:
    entry = layout.INDEX_ENTRY.pack(1, 2, 3, 4)
    assert entry[layout.INDEX_OFFSET] == 1
    assert entry[layout.INDEX_SIZE] == 2
    assert entry[layout.INDEX_TS] == 3
    assert entry[layout.INDEX_FLAGS :] == b"\x04\0\0\0"
