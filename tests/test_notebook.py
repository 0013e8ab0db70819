"""Tables in notebooks: bounded, and whatever is in a record is text."""

from __future__ import annotations

import re
from html.parser import HTMLParser
from pathlib import Path

from hypothesis import given
from hypothesis import strategies as st

from everlog.api_types import Diff, Record
from everlog.notebook import CELL_CHARS_MAX, ENDS_SHOWN, html_table
from everlog.queue import Queue


class Cells(HTMLParser):
    """The texts of the cells, and every element that there is."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: set[str] = set()
        self.texts: list[str] = []
        self.feed(text)
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.add(tag)
        if tag == "td":
            self.texts.append("")

    def handle_data(self, data: str) -> None:
        if self.texts:
            self.texts[-1] += data


@given(st.lists(st.text(max_size=2 * CELL_CHARS_MAX), max_size=3 * ENDS_SHOWN))
def test_a_table_shows_text_as_text_and_the_ends_of_many_rows(values: list[str]) -> None:
    found = Cells(html_table("<b>", ["<script>"], values, lambda value: [value]))
    assert found.tags <= {"table", "caption", "thead", "tbody", "tr", "th", "td"}
    assert len(found.texts) <= 2 * ENDS_SHOWN + 1
    if len(values) > 2 * ENDS_SHOWN:
        assert found.texts[ENDS_SHOWN] == f"{len(values) - 2 * ENDS_SHOWN:,} more"
        assert len(found.texts) == 2 * ENDS_SHOWN + 1
    else:
        assert len(found.texts) == len(values)


def test_a_read_is_a_table_in_a_notebook() -> None:
    records = [Record(7, 1000, {"a": "<script>alert(1)</script>"}), Record(8, 2000, None, tag="x")]
    found = Cells(Diff("t", records, 8, 8, 1, True, None, 0)._repr_html_())
    assert "script" not in found.tags
    assert found.texts[:6] == [
        "7",
        "1970-01-01 00:00:01+00:00",
        "",
        "",
        '{"a":"<script>alert(1)</script>"}',
        "",
    ]
    assert found.texts[6] == "8" and found.texts[9] == "x"


def test_a_batch_is_a_table_in_a_notebook(tmp_path: Path) -> None:
    with Queue.open_publisher(tmp_path) as writer:
        writer.append(1, b"hello <b>", timestamp_ns=1_000_000_000)
        writer.append(2, b"\xff\x00" * 100)
        with Queue.open_subscriber(tmp_path, None, "earliest") as reader, reader.read_batch(10) as batch:
            found = Cells(batch._repr_html_())
    assert found.texts[:5] == ["0", "1970-01-01T00:00:01.000000000", "1", "9", "hello <b>"]
    assert found.texts[7:9] == ["2", "200"]
    assert re.fullmatch("(ff 00 ){31}ff 00", found.texts[9])
