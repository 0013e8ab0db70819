"""The page of market data formats agrees with the dtypes, field by field."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import pytest

from everlog.market import book_results, books, protocol, snapshots

PAGE = Path(__file__).parents[2] / "docs/internals/market-formats.md"
LAYOUTS: dict[str, np.dtype[np.void]] = {
    "BOOK_EVENT_HEADER": protocol.BOOK_EVENT_HEADER,
    "L2_DIFF": protocol.L2_DIFF,
    "L2_SNAPSHOT": protocol.L2_SNAPSHOT,
    "LEVEL": protocol.LEVEL,
    "L3_EVENT": protocol.L3_EVENT,
    "BOOK_TICKER": protocol.BOOK_TICKER,
    "TRADE": protocol.TRADE,
    "BAR": protocol.BAR,
    "SNAPSHOT_HEADER": snapshots.SNAPSHOT_HEADER,
    "L3_SNAPSHOT": books.L3_SNAPSHOT,
    "ORDER_ROW": book_results.ORDER_ROW,
}


def test_every_layout_is_on_the_page() -> None:
    headings = re.findall(r"^#+ ([A-Z0-9_]+), \d+ bytes$", PAGE.read_text(encoding="utf-8"), re.MULTILINE)
    assert headings == list(LAYOUTS)


@pytest.mark.parametrize("name", LAYOUTS)
def test_the_table_names_every_field_with_its_place_and_type(name: str) -> None:
    layout = LAYOUTS[name]
    text = PAGE.read_text(encoding="utf-8")
    section = re.search(rf"^#+ {name}, (\d+) bytes$(.*?)(?=^#|\Z)", text, re.MULTILINE | re.DOTALL)
    assert section is not None
    assert int(section[1]) == layout.itemsize
    rows = re.findall(r"^\| (\d+) \| (\w+) \| `(\w+)` \|$", section[2], re.MULTILINE)
    fields = layout.fields or {}
    assert rows == [
        (str(fields[field][1]), fields[field][0].str.lstrip("<|"), field)
        for field in layout.names or ()
        if not field.startswith(protocol.RESERVED)
    ]
