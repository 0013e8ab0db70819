"""Lines in, records out, and back: what `append` reads and what `read` prints."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from everlog.cli import record_input
from everlog.cli.record_format import renderer
from everlog.cli.record_input import Defaults, Line, LineFormat, batches, parse, read_lines
from everlog.errors import InvalidRecord, Io

NONE = Defaults()
VALUES = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**40), 2**40) | st.text(),
    lambda below: st.lists(below, max_size=3) | st.dictionaries(st.text(), below, max_size=3),
    max_leaves=5,
)
NAMES = st.text(st.characters(codec="utf-8"), min_size=1, max_size=5)


def sent(record: Any) -> Any:
    """A record as the server would read it."""
    return json.loads(msgspec.json.encode(record))


def line(text: str | bytes) -> Line:
    """A line that stands somewhere."""
    return Line("here, line 1", text.encode() if isinstance(text, str) else text)


def received(**fields: Any) -> msgspec.Raw:
    """A record as the server sends it."""
    names = {"seq": "$seq", "ts": "$ts", "node": "$node", "tag": "$tag"}
    record = {"seq": 7, "ts": 1_700_000_000_000, **fields}
    renamed = {names.get(name, name): value for name, value in record.items()}
    return msgspec.Raw(json.dumps(renamed, ensure_ascii=False, separators=(",", ":")).encode())


# --- Lines in --------------------------------------------------------------------------------------------


@given(VALUES)
def test_a_json_line_is_the_data(value: Any) -> None:
    assert sent(parse(line(json.dumps(value)), LineFormat.JSON, NONE) or {}) == {"data": value}


@given(st.text(st.characters(codec="utf-8", exclude_characters="\n")))
def test_a_text_line_is_a_string(text: str) -> None:
    assert sent(parse(line(text), LineFormat.TEXT, NONE) or {}) == {"data": text}


@given(VALUES, st.none() | NAMES, st.none() | NAMES, st.none() | st.dictionaries(NAMES, VALUES, min_size=1))
def test_what_is_printed_as_json_can_be_appended_as_records(
    value: Any, tag: str | None, node: str | None, meta: dict[str, Any] | None
) -> None:
    fields = {"tag": tag, "node": node, "meta": meta}
    given_fields = {name: field for name, field in fields.items() if field is not None}
    printed = renderer("json")("t", received(data=value, **given_fields))
    assert sent(parse(line(printed), LineFormat.RECORD, NONE) or {}) == {"data": value, **given_fields}


def test_numbers_stay_as_they_are_written() -> None:
    record = parse(line('{"price": 1.10, "huge": 123456789012345678901234567890}'), LineFormat.JSON, NONE)
    assert b"1.10" in msgspec.json.encode(record)
    assert b"123456789012345678901234567890" in msgspec.json.encode(record)


def test_a_record_keeps_its_own_tag_and_node() -> None:
    defaults = Defaults("default tag", "default node")
    own = '{"data":1,"tag":"t","node":"n"}'
    assert sent(parse(line(own), LineFormat.RECORD, defaults) or {}) == {"data": 1, "tag": "t", "node": "n"}
    wanted = {"data": 1, "tag": "default tag", "node": "default node"}
    assert sent(parse(line('{"data":1}'), LineFormat.RECORD, defaults) or {}) == wanted
    assert sent(parse(line("1"), LineFormat.JSON, defaults) or {}) == wanted


@pytest.mark.parametrize("form", [LineFormat.JSON, LineFormat.RECORD])
def test_a_blank_line_holds_no_record(form: LineFormat) -> None:
    assert parse(line("  \t"), form, NONE) is None


@pytest.mark.parametrize(
    ("text", "form"),
    [
        (b'{"a":', LineFormat.JSON),
        (b"NaN", LineFormat.JSON),
        (b'"\xff"', LineFormat.JSON),
        (b"\xff", LineFormat.TEXT),
        (b'{"dato":1}', LineFormat.RECORD),
        (b"[1]", LineFormat.RECORD),
    ],
)
def test_a_line_that_is_no_record_is_named(text: bytes, form: LineFormat) -> None:
    with pytest.raises(InvalidRecord, match="here, line 1"):
        parse(line(text), form, NONE)


@given(st.lists(st.text(st.characters(codec="utf-8", exclude_characters="\n\r"))), st.booleans())
def test_files_are_read_line_by_line_as_split_would(
    tmp_path_factory: pytest.TempPathFactory, texts: list[str], is_ended: bool
) -> None:
    path = tmp_path_factory.mktemp("lines") / "file"
    content = "\n".join(texts) + ("\n" if is_ended else "")
    path.write_bytes(content.encode())
    read = [found for found in read_lines([str(path), str(path)]) if found is not None]
    wanted = content.removesuffix("\n").split("\n") if content else []
    assert [found.text.decode() for found in read] == wanted * 2
    assert [found.where for found in read[: len(wanted)]] == [
        f"{path}, line {number}" for number in range(1, len(wanted) + 1)
    ]


def test_a_windows_line_end_is_no_part_of_the_line(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"a\r\nb\r\n")
    assert [found.text for found in read_lines([str(tmp_path / "file")]) if found] == [b"a", b"b"]


def test_a_file_that_cannot_be_read_is_named(tmp_path: Path) -> None:
    for path in (tmp_path / "nothing", tmp_path):
        with pytest.raises(Io, match=str(path)):
            list(read_lines([str(path)]))


def test_a_line_without_end_is_given_up_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(record_input, "LINE_BYTES_MAX", 1000)
    (tmp_path / "file").write_bytes(b"short\n" + b"x" * 5000)
    with pytest.raises(InvalidRecord, match="line 2 is longer than 1000 bytes"):
        list(read_lines([str(tmp_path / "file")]))


def test_a_pause_of_the_input_is_told(tmp_path: Path) -> None:
    path = tmp_path / "pipe"
    os.mkfifo(path)
    writer = os.open(path, os.O_RDWR)
    lines = read_lines([str(path)])
    os.write(writer, b"one\nhalf")
    first = next(lines)
    assert first is not None
    assert first.text == b"one"
    assert next(lines) is None
    os.write(writer, b" more\n")
    second = next(lines)
    assert second is not None
    assert second.text == b"half more"
    os.close(writer)
    lines.close()


@given(
    st.lists(st.none() | st.integers(0, 40), max_size=40),
    st.integers(1, 5),
    st.booleans(),
    st.integers(1, 60),
)
def test_batches_hold_every_record_once_in_order_and_are_never_too_big(
    sizes: list[int | None], size_max: int, patient: bool, bytes_max: int
) -> None:
    lines = [None if size is None else line("x" * size) for size in sizes]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(record_input, "BATCH_BYTES_MAX", bytes_max)
        cut = list(batches(lines, LineFormat.TEXT, NONE, size_max=size_max, patient=patient))
    lengths = [[len(record.data) for record in batch] for batch in cut]
    assert [length for batch in lengths for length in batch] == [size for size in sizes if size is not None]
    for batch in lengths:
        assert 1 <= len(batch) <= size_max
        assert len(batch) == 1 or sum(batch) <= bytes_max


def test_a_pause_ends_a_batch_unless_the_cut_must_be_the_same_every_time() -> None:
    lines = [line("1"), None, line("2"), line("3")]
    eager = batches(lines, LineFormat.JSON, NONE, size_max=10, patient=False)
    assert [len(batch) for batch in eager] == [1, 2]
    patient = batches(lines, LineFormat.JSON, NONE, size_max=10, patient=True)
    assert [len(batch) for batch in patient] == [3]


# --- Records out -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("form", "shown"),
    [
        ("text", 'seq=7 ts=1700000000000 node=n tag="a b" meta={"m":1} {"x":"ü"}\n'),
        ("json", '{"seq":7'),
        ("raw", '{"x":"ü"}\n'),
        ("{seq} {ts} {node} {tag} {topic}", "7 1700000000000 n a b orders\n"),
        ("{time}", "2023-11-14T22:13:20.000+00:00\n"),
        ("{{{seq}}} 100%% {bytes}", "{7} 100% 10\n"),
        ("%t/%o/%T/%n/%k/%h/%s/%S", 'orders/7/1700000000000/n/a b/{"m":1}/{"x":"ü"}/10\n'),
        (r"%o\t%s\n", '7\t{"x":"ü"}\n'),
        (r"%o\0", "7\0"),
        (r"\\%o", "\\7\n"),
    ],
)
def test_the_formats(form: str, shown: str) -> None:
    record = received(node="n", tag="a b", meta={"m": 1}, data={"x": "ü"})
    printed = renderer(form)("orders", record)
    if form == "json":
        assert json.loads(printed) == json.loads(bytes(record))
        assert printed.endswith("\n")
    else:
        assert printed == shown


def test_strings_are_printed_raw_as_the_text_they_stand_for() -> None:
    assert renderer("raw")("t", received(data='a "b"\nc')) == 'a "b"\nc\n'
    assert renderer("{data}")("t", received(data="a\tb")) == "a\tb\n"


@pytest.mark.parametrize(
    "form", ["", "plain", "{seq", "seq}", "{}", "{sex}", "%x", "%", "{seq}%", r"{seq}\q"]
)
def test_a_template_that_makes_no_sense_is_refused(form: str) -> None:
    with pytest.raises(ValueError, match=r"field|template|escape"):
        renderer(form)


@given(st.text(st.characters(codec="utf-8"), max_size=5), NAMES)
def test_text_and_json_never_steer_a_terminal(text: str, tag: str) -> None:
    record = received(data=text, tag=tag)
    for form in ("text", "json"):
        printed = renderer(form)("t", record)
        assert printed.endswith("\n")
        assert not any(character < " " or "\x7f" <= character <= "\x9f" for character in printed[:-1])
    assert json.loads(renderer("json")("t", record)) == json.loads(bytes(record))
