"""Records picked out of the text of a page: the same that a JSON decoder finds, or the page is left to it."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from everlog.native.columns.frame_columns import FrameColumns
from everlog.pipeline.options import U64_MAX
from tests.support.effort import effort

MANY = 100
plain_name = st.text(st.characters(exclude_characters='"\\', exclude_categories=["Cs", "Cc"]), max_size=6)
scalar = (
    st.none() | st.booleans() | st.integers(-(10**17), 10**17) | st.floats(-1e9, 1e9) | st.text(max_size=8)
)
value = st.recursive(
    scalar,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner, max_size=3),
)
record = st.fixed_dictionaries(
    {"$seq": st.integers(1, 50), "$ts": st.integers(0, 10**13), "data": value},
    optional={"$node": st.none() | plain_name, "$tag": st.none() | plain_name, "meta": value},
)


def page_of(records: list[dict[str, Any]], spaced: bool = False) -> bytes:
    """A page as a server writes it, or with white space."""
    whole = {"topic": "t", "records": records, "head_seq": 7, "tombstone": None}
    return json.dumps(whole, ensure_ascii=False, separators=None if spaced else (",", ":")).encode()


def everything(tag: bytes | None = None, is_prefix: bool = False) -> FrameColumns:
    return FrameColumns(0, U64_MAX, tag, is_prefix)


def texts(picked: FrameColumns, name: str) -> list[str | None]:
    """One column as a list."""
    column = picked.text(name)
    ends, data = column.ends.tolist(), column.bytes.tobytes()
    valid = [
        column.valid is None or bool(column.valid[row // 8] >> row % 8 & 1) for row in range(len(picked))
    ]
    return [
        data[ends[row] : ends[row + 1]].decode() if is_there else None for row, is_there in enumerate(valid)
    ]


def rows(picked: FrameColumns) -> list[tuple[Any, ...]]:
    """What was picked, with data and meta decoded."""
    seqs, times_us = (column.tolist() for column in picked.numbers())
    payloads = [
        [None if text is None else json.loads(text) for text in texts(picked, name)]
        for name in ("data", "meta")
    ]
    return [*zip(seqs, times_us, texts(picked, "node"), texts(picked, "tag"), *payloads, strict=True)]


def expected_row(one: dict[str, Any]) -> tuple[Any, ...]:
    return one["$seq"], one["$ts"] * 1000, one.get("$node"), one.get("$tag"), one["data"], one.get("meta")


@given(st.lists(record, min_size=1, max_size=6), st.integers(0, 60), st.integers(0, 60), st.booleans())
@settings(max_examples=effort(300))
def test_what_is_picked_is_what_a_decoder_finds_in_the_range(
    records: list[dict[str, Any]], first: int, end: int, spaced: bool
) -> None:
    picked = everything()
    rest = picked.pick_page(page_of(records, spaced), first, end, MANY)
    if rest is None:
        # What is not plain was not touched: only long numbers make such a page so.
        assert len(picked) == 0
        assert any(len(word) > 15 for word in page_of(records).decode().split(","))
        return
    assert json.loads(rest) == {"topic": "t", "records": [], "head_seq": 7, "tombstone": None}
    assert rows(picked) == [expected_row(one) for one in records if first <= one["$seq"] < end]


@given(st.lists(record, min_size=1, max_size=4), st.data())
@settings(max_examples=effort(300))
def test_text_that_is_cut_or_changed_is_left_alone_or_read_right(
    records: list[dict[str, Any]], data: st.DataObject
) -> None:
    text = bytearray(page_of(records))
    at = data.draw(st.integers(0, len(text) - 1))
    if data.draw(st.booleans()):
        del text[at:]
    else:
        text[at] = data.draw(st.integers(0, 255))
    picked = everything()
    rest = picked.pick_page(bytes(text), 0, U64_MAX, MANY)
    if rest is None:
        assert len(picked) == 0
        return
    try:
        found = json.loads(text)["records"]
    except ValueError:
        # What is behind the records was not looked at: the reader of the rest meets the damage there.
        with pytest.raises(ValueError):
            json.loads(rest)
    else:
        assert rows(picked) == [expected_row(one) for one in found]


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"[]",
        b"{}",
        b'{"records":[]}',
        b'{"records":{}}',
        b'{"records":[1]}',
        b'{"records":[{"$seq":1,"$ts":2}]}',
        b'{"records":[{"$seq":1,"data":2}]}',
        b'{"records":[{"$seq":1,"$ts":2,"data":3,"more":4}]}',
        b'{"records":[{"$seq":1,"$seq":1,"$ts":2,"data":3}]}',
        b'{"records":[{"$seq":-1,"$ts":2,"data":3}]}',
        b'{"records":[{"$seq":01,"$ts":2,"data":3}]}',
        b'{"records":[{"$seq":99999999999999999999,"$ts":2,"data":3}]}',
        b'{"records":[{"$seq":1,"$ts":2,"data":3,"$tag":"a\\"b"}]}',
        b'{"records":[{"$seq":1,"$ts":2,"data":"\xff"}]}',
        b'{"records":[{"$seq":1,"$ts":2,"data":' + b"[" * 1000 + b"]" * 1000 + b"}]}",
    ],
)
def test_what_is_not_plain_is_left_to_the_decoder(body: bytes) -> None:
    picked = everything()
    assert picked.pick_page(body, 0, U64_MAX, MANY) is None
    assert len(picked) == 0 and picked.largest_bytes == 0


def test_a_page_with_more_records_than_expected_is_not_taken_in_part() -> None:
    records = [{"$seq": seq, "$ts": 1, "data": seq} for seq in range(1, 5)]
    picked = everything()
    assert picked.pick_page(page_of(records), 0, U64_MAX, 3) is None
    assert len(picked) == 0
    assert picked.pick_page(page_of(records), 0, U64_MAX, 4) is not None
    assert len(picked) == 4


def test_filters_hold_for_pages_and_for_single_records_alike() -> None:
    records = [
        {"$seq": seq, "$ts": seq, "data": seq} | ({} if tag is None else {"$tag": tag})
        for seq, tag in enumerate(["ab", "a", "b", None, "abc", ""], 1)
    ]
    for tag, is_prefix, expected in (
        (b"a", False, [2]),
        (b"a", True, [1, 2, 5]),
        (b"", True, [1, 2, 3, 5, 6]),
    ):
        from_page, one_by_one = everything(tag, is_prefix), everything(tag, is_prefix)
        from_page.pick_page(page_of(records), 0, U64_MAX, MANY)
        for one in records:
            name = one.get("$tag")
            encoded = name.encode() if isinstance(name, str) else None
            one_by_one.add(one["$seq"], one["$ts"], None, encoded, None, str(one["data"]).encode())
        assert [row[0] for row in rows(from_page)] == [row[0] for row in rows(one_by_one)] == expected


def test_pages_add_up_and_the_last_ones_can_be_forgotten() -> None:
    picked = everything()
    pages = [page_of([{"$seq": seq, "$ts": 1, "data": "x" * seq}]) for seq in range(1, 6)]
    for page in pages:
        picked.pick_page(page, 0, U64_MAX, MANY)
    picked.keep_first(2)
    assert [row[4] for row in rows(picked)] == ["x", "xx"]
    picked.pick_page(pages[4], 0, U64_MAX, MANY)
    assert [row[0] for row in rows(picked)] == [1, 2, 5]
    picked.clear()
    assert rows(picked) == []
