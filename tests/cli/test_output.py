"""How commands print: plain tables, safe words, human numbers, output that is not read."""

import io
import os
import re
import sys
import threading

import pytest
from hypothesis import given
from hypothesis import strategies as st

from everlog.cli.output import (
    Table,
    counted,
    human_age,
    human_bytes,
    one_line,
    print_table,
    printable,
    visible_text,
    write_patiently,
)
from everlog.clock import NS_PER_S


def test_a_plain_table_is_aligned_and_leaves_out_empty_columns(capsys: pytest.CaptureFixture[str]) -> None:
    print_table(Table("title", ("name", "number>", "problem"), [("a", "1", ""), ("long", "234", "")]))
    assert capsys.readouterr().out.splitlines() == ["title", "name  number", "a          1", "long     234"]
    print_table(Table("title", ("name", "problem"), [("a", "bad")]))
    assert capsys.readouterr().out.splitlines() == ["title", "name  problem", "a     bad"]


@pytest.mark.parametrize(
    ("count", "text"),
    [
        (0, "0 B"),
        (1023, "1023 B"),
        (1024, "1.0 KiB"),
        (1536, "1.5 KiB"),
        (128 << 20, "128.0 MiB"),
        (10 << 30, "10.0 GiB"),
        (3 << 40, "3.0 TiB"),
        (5 << 50, "5120.0 TiB"),
    ],
)
def test_bytes_for_people(count: int, text: str) -> None:
    assert human_bytes(count) == text


class Screen(io.StringIO):
    """Output that a person looks at."""

    def isatty(self) -> bool:
        """It is a terminal."""
        return True


def test_ages_for_people() -> None:
    now_ns = 1_000_000 * NS_PER_S
    assert human_age(0, now_ns) == "never"
    assert human_age(now_ns - 2_500_000_000, now_ns) == "2.5 s ago"
    assert human_age(now_ns + 1, now_ns) == "0.0 s ago"
    assert human_age(now_ns - 119 * NS_PER_S, now_ns) == "119.0 s ago"
    assert human_age(now_ns - 150 * NS_PER_S, now_ns) == "2.5 min ago"
    assert human_age(now_ns - 9000 * NS_PER_S, now_ns) == "2.5 h ago"
    assert human_age(now_ns - 216_000 * NS_PER_S, now_ns) == "2.5 days ago"


def test_what_is_counted_is_one_or_many() -> None:
    assert [counted(count, "segment") for count in (0, 1, 2)] == ["0 segments", "1 segment", "2 segments"]


def test_on_a_narrow_terminal_a_table_becomes_fields_and_nothing_is_cut_off(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    table = Table(
        "readers", ("reader", "number>", "what it is"), [("a-reader-with-a-name", "1", "two words")]
    )
    shown = {}
    for columns in (120, 30):
        monkeypatch.setenv("COLUMNS", str(columns))
        monkeypatch.setattr("sys.stdout", Screen())
        print_table(table)
        shown[columns] = re.sub(r"\x1b\[[0-9;]*m", "", sys.stdout.getvalue())  # type: ignore[attr-defined]
    assert "a-reader-with-a-name        1   two words" in shown[120]
    assert shown[30].splitlines() == [
        "readers",
        "  reader      a-reader-with-a-name",
        "  number      1",
        "  what it is  two words",
        "",
    ]


def test_in_a_table_that_is_too_wide_long_names_go_on_in_the_next_line_and_numbers_stay_whole(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    name = "sensor-readings.building-7.floor-12.room-1234.temperature"
    rows = [(name, "ephemeral", "1234567", "3.2 MiB"), ("orders", "disk", "1", "7 B")]
    monkeypatch.setenv("COLUMNS", "60")
    monkeypatch.setattr("sys.stdout", Screen())
    print_table(Table("topics", ("topic", "class", "records behind>", "bytes>"), rows))
    shown = re.sub(r"\x1b\[[0-9;]*m", "", sys.stdout.getvalue())  # type: ignore[attr-defined]
    lines = shown.splitlines()
    assert max(len(line) for line in lines) <= 60
    first = next(place for place, line in enumerate(lines) if "sensor" in line)
    assert lines[first].split()[1:] == ["ephemeral", "1234567", "3.2", "MiB"]
    last = next(place for place, line in enumerate(lines) if "orders" in line)
    assert "".join(line.split()[0] for line in lines[first:last]) == name
    assert lines[last].split() == ["orders", "disk", "1", "7", "B"]
    assert any(line.split() == ["records"] for line in lines)


@given(st.text(min_size=1))
def test_a_printable_word_never_holds_blanks_or_control_characters_unquoted(text: str) -> None:
    word = printable(text)
    assert "\n" not in word
    assert "\x1b" not in word
    if not word.startswith('"'):
        assert word == text
        assert len(word.split()) == 1


@given(st.binary())
def test_visible_text_cannot_steer_a_terminal(payload: bytes) -> None:
    assert all(character in "\n\t" or character.isprintable() for character in visible_text(payload))
    assert "\n" not in one_line(payload.decode("utf-8", "surrogateescape"))


def test_visible_text_keeps_what_can_be_seen() -> None:
    assert visible_text("grün\t\n".encode()) == "grün\t\n"
    assert visible_text(b"\xff\x07") == "\\xff\\x07"


def test_everything_is_written_to_a_slow_reader_even_after_a_signal(monkeypatch: pytest.MonkeyPatch) -> None:
    ours, theirs = os.pipe()
    received = bytearray()

    def read_slowly() -> None:
        while data := os.read(ours, 1000):
            received.extend(data)

    reader = threading.Thread(target=read_slowly)
    reader.start()
    text = "0123456789" * 50_000
    with os.fdopen(theirs, "w", encoding="ascii") as stream:
        monkeypatch.setattr("sys.stdout", stream)
        assert write_patiently(text, give_up=lambda: True)
        monkeypatch.undo()
    reader.join()
    os.close(ours)
    assert received.decode() == text


def test_output_that_is_not_read_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    ours, theirs = os.pipe()
    asked = []

    def give_up() -> bool:
        asked.append(1)
        return len(asked) == 3

    with os.fdopen(theirs, "w", encoding="ascii") as stream:
        monkeypatch.setattr("sys.stdout", stream)
        assert not write_patiently("x" * 1_000_000, give_up)
        monkeypatch.undo()
    os.close(ours)
    assert len(asked) == 3
