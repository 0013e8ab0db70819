"""Records from lines: what `everlog topic append` reads from files and standard input.

Owns reading, parsing and cutting into batches. Sends nothing.
"""

from __future__ import annotations

import os
import select
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, Final, NamedTuple, cast

import msgspec

from everlog.api_types import NewRecord
from everlog.errors import InvalidRecord, Io

LINE_BYTES_MAX: Final = 8 * 1024 * 1024
BATCH_BYTES_MAX: Final = 8 * 1024 * 1024
"""A batch of large records is sent early, far below what a server takes in one body."""

STDIN: Final = "-"
_READ_BYTES: Final = 1 << 18
_ABSENT: Final = msgspec.Raw(b"")


class LineFormat(StrEnum):
    """What a line is: the data as JSON, the data as plain text, or a whole record."""

    JSON = "json"
    TEXT = "text"
    RECORD = "record"


class Line(NamedTuple):
    """One line without its end."""

    where: str
    text: bytes


@dataclass(frozen=True, slots=True)
class Defaults:
    """What records get that do not bring their own."""

    tag: str | None = None
    node: str | None = None


class _RecordLine(msgspec.Struct, forbid_unknown_fields=True):
    """A record as it is sent, or as `everlog topic read --json` prints it."""

    data: msgspec.Raw
    tag: str | None = None
    node: str | None = None
    meta: msgspec.Raw = _ABSENT
    read_tag: str | None = msgspec.field(name="$tag", default=None)
    read_node: str | None = msgspec.field(name="$node", default=None)
    read_seq: int = msgspec.field(name="$seq", default=0)
    read_ts: int = msgspec.field(name="$ts", default=0)


def read_lines(paths: Iterable[str]) -> Iterator[Line | None]:
    """Yield the lines of files; None whenever the next line is not there yet."""
    for path in paths:
        name = "standard input" if path == STDIN else path
        try:
            fd = 0 if path == STDIN else os.open(path, os.O_RDONLY)
        except OSError as error:
            raise Io(f"cannot read {path}: {error.strerror}", error.errno) from None
        try:
            yield from _lines_of(fd, name)
        except OSError as error:
            raise Io(f"cannot read {name}: {error.strerror}", error.errno) from None
        finally:
            if fd != 0:
                os.close(fd)


def _lines_of(fd: int, name: str) -> Iterator[Line | None]:
    number = 0
    pieces: list[bytes] = []
    size = 0
    while True:
        if not select.select([fd], [], [], 0)[0]:
            yield None
        data = os.read(fd, _READ_BYTES)
        *ends, rest = data.split(b"\n")
        for end in ends:
            number += 1
            yield Line(f"{name}, line {number}", b"".join([*pieces, end]).removesuffix(b"\r"))
            pieces, size = [], 0
        if rest:
            pieces.append(rest)
            size += len(rest)
        if size > LINE_BYTES_MAX:
            raise InvalidRecord(
                f"{name}, line {number + 1} is longer than {LINE_BYTES_MAX} bytes; one line is one record"
            )
        if not data:
            if pieces:
                yield Line(f"{name}, line {number + 1}", b"".join(pieces))
            return


def parse(line: Line, form: LineFormat, defaults: Defaults) -> NewRecord | None:
    """Return the record of a line; None for a blank line that holds none."""
    if form is LineFormat.TEXT:
        try:
            return NewRecord(line.text.decode("utf-8"), defaults.tag, defaults.node)
        except UnicodeDecodeError as error:
            raise InvalidRecord(f"{line.where} is not UTF-8 at byte {error.start}") from None
    if not line.text.strip():
        return None
    try:
        line.text.decode("utf-8")
        if form is LineFormat.JSON:
            data = msgspec.json.decode(line.text, type=msgspec.Raw)
            return NewRecord(data, defaults.tag, defaults.node)
        record = msgspec.json.decode(line.text, type=_RecordLine)
    except (msgspec.MsgspecError, UnicodeDecodeError) as error:
        hint = "a JSON value" if form is LineFormat.JSON else 'a record like {"data":...}'
        raise InvalidRecord(f"{line.where} is not {hint}: {error}; --input says what lines are") from None
    tag = record.tag or record.read_tag or defaults.tag
    node = record.node or record.read_node or defaults.node
    # The text of meta is sent as it is; only its type is not that of a value made by a program.
    meta = cast(dict[str, Any], record.meta) if record.meta else None
    return NewRecord(record.data, tag, node, meta)


def batches(
    lines: Iterable[Line | None], form: LineFormat, defaults: Defaults, *, size_max: int, patient: bool
) -> Iterator[list[NewRecord]]:
    """Gather records; a batch ends when it is full or, unless `patient`, when the input has a pause."""
    batch: list[NewRecord] = []
    size = 0
    for line in lines:
        if line is None:
            if batch and not patient:
                yield batch
                batch, size = [], 0
            continue
        record = parse(line, form, defaults)
        if record is None:
            continue
        if batch and size + len(line.text) > BATCH_BYTES_MAX:
            yield batch
            batch, size = [], 0
        batch.append(record)
        size += len(line.text)
        if len(batch) >= size_max:
            yield batch
            batch, size = [], 0
    if batch:
        yield batch
