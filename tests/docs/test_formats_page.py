"""The page on the formats of the topics plane: its tables say what the code says."""

from __future__ import annotations

import re
from pathlib import Path

import msgspec
import pytest

from everlog.topics.storage import control, layout

PAGE = Path(__file__).resolve().parents[2] / "docs" / "internals" / "formats.md"

CONTROL_ENTRIES: dict[str, type[msgspec.Struct]] = {
    "TopicCreate": control.TopicCreate,
    "TopicDelete": control.TopicDelete,
    "Delete": control.Delete,
    "EvictWatermark": control.EvictWatermark,
    "ConfigUpdate": control.ConfigUpdate,
    "HeadWatermark": control.HeadWatermark,
    "IdempotencyKey": control.IdempotencyKey,
    "DeleteSeqs": control.DeleteSeqs,
    "Lease": control.Lease,
}


def table_below(anchor: str) -> list[list[str]]:
    """The rows of the first table behind `anchor`, header left out."""
    lines = PAGE.read_text(encoding="utf-8").split(anchor)[1].splitlines()
    start = next(number for number, line in enumerate(lines) if line.startswith("| --- "))
    rows = []
    for line in lines[start + 1 :]:
        if not line.startswith("|"):
            break
        rows.append([cell.strip().strip("`") for cell in line.strip("|").split("|")])
    return rows


def fields_of(entry: type[msgspec.Struct]) -> list[str]:
    """The names of the fields in the order in which they are stored."""
    return [field.name for field in msgspec.structs.fields(entry)]


def test_every_type_of_frame_is_on_the_page_with_its_number() -> None:
    listed: dict[int, str] = {}
    for numbers, names, *_ in table_below("### Types"):
        pairs = zip(numbers.split(", "), names.split(", "), strict=True)
        listed |= {int(number): name for number, name in pairs}
    assert listed == {kind.value: kind.name.title().replace("_", "") for kind in layout.FrameType}


def test_every_control_entry_is_on_the_page_with_its_fields_in_order() -> None:
    listed = {
        name: re.findall(r"\w+", fields.replace("`", ""))
        for _, name, fields, _ in table_below("### Types")
        if name in CONTROL_ENTRIES
    }
    assert listed == {name: fields_of(entry) for name, entry in CONTROL_ENTRIES.items()}


@pytest.mark.parametrize(
    ("anchor", "entry"),
    [("The payload is a msgpack array:", control.SnapshotBody), ("\nA topic:\n", control.TopicRecord)],
    ids=["snapshot", "topic"],
)
def test_the_snapshot_is_on_the_page_field_by_field(anchor: str, entry: type[msgspec.Struct]) -> None:
    assert [row[0] for row in table_below(anchor)] == fields_of(entry)


@pytest.mark.parametrize(
    ("anchor", "offsets"),
    [
        (
            "### Log frame",
            {
                "frame_len": layout.LOG_FRAME_LEN,
                "type": layout.LOG_TYPE,
                "flags": layout.LOG_FLAGS,
                "topic_id": layout.LOG_TOPIC_ID,
                "seq": layout.LOG_SEQ,
                "ts": layout.LOG_TS,
                "node_len": layout.LOG_NODE_LEN,
                "tag_len": layout.LOG_TAG_LEN,
                "data_len": layout.LOG_DATA_LEN,
            },
        ),
        (
            "### Segment frame",
            {
                "frame_len": layout.SEGMENT_FRAME_LEN,
                "flags": layout.SEGMENT_FLAGS,
                "seq": layout.SEGMENT_SEQ,
                "ts": layout.SEGMENT_TS,
                "node_len": layout.SEGMENT_NODE_LEN,
                "tag_len": layout.SEGMENT_TAG_LEN,
                "data_len": layout.SEGMENT_DATA_LEN,
            },
        ),
        (
            "### Index entry",
            {
                "offset": layout.INDEX_OFFSET,
                "size": layout.INDEX_SIZE,
                "ts": layout.INDEX_TS,
                "flags": layout.INDEX_FLAGS,
                "zero": layout.INDEX_FLAGS + 1,
            },
        ),
    ],
    ids=["log frame", "segment frame", "index entry"],
)
def test_every_field_is_on_the_page_at_its_offset(anchor: str, offsets: dict[str, int]) -> None:
    rows = [row for row in table_below(anchor) if row[0] and row[2] in offsets]
    assert {name: int(offset) for offset, _, name, *_ in rows} == offsets


def test_every_flag_is_on_the_page_with_its_bit() -> None:
    page = PAGE.read_text(encoding="utf-8")
    listed = {name: int(bit) for bit, name in re.findall(r"^\| (\d+) \| `([A-Z_]+)` \|", page, re.MULTILINE)}
    flags = {
        name.removeprefix("FLAG_"): bit for name, bit in vars(layout).items() if name.startswith("FLAG_")
    }
    assert listed == flags
