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
    (layout.WAL_FILE.name, layout.WAL_FILE.number, "wal-0000000000000042.log"),
    (layout.SHARD_DIR.name, layout.SHARD_DIR.number, "shard-42"),
    (layout.SNAPSHOT_FILE.name, layout.SNAPSHOT_FILE.number, "snapshot-0000000000000042.bin"),
    (layout.SEGMENT_DATA.name, layout.SEGMENT_DATA.number, "seg-0000000000000042.data"),
    (layout.SEGMENT_INDEX.name, layout.SEGMENT_INDEX.number, "seg-0000000000000042.idx"),
    (layout.TOPIC_DIR.name, layout.TOPIC_DIR.number, "0000002A"),
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
    assert sorted(map(layout.WAL_FILE.name, numbers)) == list(map(layout.WAL_FILE.name, sorted(numbers)))


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
