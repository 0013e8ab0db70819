"""Delimited text in blocks of columns: fast, exact, and with the line of every row.

Owns finding columns by name, cutting streams into blocks at line ends and turning a bad row into
an error or a line in quarantine. The conversion itself is native (`everlog.native.market.events`).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray

from everlog.errors import InvalidSource
from everlog.market.venues.archives import LINE_BYTES_MAX, Member
from everlog.market.venues.interface import Rejects
from everlog.native.market import events as native
from everlog.native.market.events import CHOICE, DECIMAL, HASH, IDENTIFIER, PRICE, SIGNED, UNSIGNED

__all__ = [
    "CHOICE",
    "DECIMAL",
    "HASH",
    "IDENTIFIER",
    "PRICE",
    "SIGNED",
    "UNSIGNED",
    "Column",
    "CsvReader",
    "RowBlock",
]

BLOCK_BYTES: Final = 1 << 20
SHOWN_BYTES_MAX: Final = 120
NAMES_SHOWN_MAX: Final = 400
I64_MAX: Final = np.uint64(2**63 - 1)
POWERS_OF_TEN: Final = np.array([10**exponent for exponent in range(19)], dtype=np.uint64)
FIELD_COUNT, UNKNOWN_CHOICE = 1, 5
"""Problems of rows that are explained with more than their own words: numbers into the native `PROBLEMS`."""


@dataclass(frozen=True, slots=True)
class Column:
    """A wanted column: what its text is and, for choices, which texts are allowed."""

    name: str
    kind: int
    choices: tuple[tuple[str, int], ...] = ()


@dataclass(slots=True)
class RowBlock:
    """Rows as columns. `values` are integers, `extras` the decimals or codes that go with them.

    Values of SIGNED and PRICE columns are in the bits of the unsigned ones: view them as int64.
    """

    label: str
    values: dict[str, NDArray[np.uint64]]
    extras: dict[str, NDArray[np.uint8]]
    lines: NDArray[np.int64]
    text: memoryview
    first_line: int
    """The line number of the first line of `text`."""

    def __len__(self) -> int:
        """Return the number of rows."""
        return len(self.lines)

    def take(self, chosen: NDArray[np.bool_]) -> RowBlock:
        """Return the block with only the chosen rows."""
        return RowBlock(
            self.label,
            {name: column[chosen] for name, column in self.values.items()},
            {name: column[chosen] for name, column in self.extras.items()},
            self.lines[chosen],
            self.text,
            self.first_line,
        )

    def refuse(self, bad: NDArray[np.bool_], reason: str, rejects: Rejects) -> RowBlock:
        """Return the block without its bad rows, after every one of them was rejected."""
        if not bad.any():
            return self
        texts = bytes(self.text).split(b"\n")
        for line in self.lines[bad].tolist():
            rejects.reject(self.label, line, reason, _decoded(texts[line - self.first_line]))
        return self.take(~bad)

    def at_scale(self, name: str, scale: int, rejects: Rejects) -> RowBlock:
        """Return the block with a DECIMAL column at a scale; rows whose digits would be lost are refused."""
        block = self.refuse(self.extras[name] > scale, f"{name} has more than {scale} decimals", rejects)
        largest = I64_MAX // POWERS_OF_TEN[scale - block.extras[name]]
        block = block.refuse(block.values[name] > largest, f"{name} needs more than 64 bits", rejects)
        block.values[name] = block.values[name] * POWERS_OF_TEN[scale - block.extras[name]]
        block.extras[name] = np.full(len(block), scale, dtype=np.uint8)
        return block


class CsvReader:
    """One stream of rows. Reads the header at once, the rows block by block."""

    def __init__(
        self,
        member: Member,
        rejects: Rejects,
        names: Sequence[str] | None = None,
        block_bytes: int | None = None,
        *,
        fill_empty: bool = False,
    ) -> None:
        """`names` are the columns of a file without a header line; `fill_empty` makes empty fields 0."""
        self._fill_empty = fill_empty
        self._block_bytes = block_bytes or BLOCK_BYTES
        self.label = member.label
        self._member = member
        self._rejects = rejects
        self._rest = b""
        self._ended = False
        self._line = 1
        self._constants: dict[str, str] = {}
        member.skip_byte_order_mark()
        self._fill()
        first = self._fields(self._rest.partition(b"\n")[0])
        if names is None:
            self.names = tuple(first)
            self._drop_line()
            self.field_count = len(self.names)
        else:
            self.names = tuple(names)
            self.field_count = max(len(first), len(self.names))

    def first_row(self) -> dict[str, str]:
        """Return the first whole row as text, without consuming it; empty if none was read yet."""
        for line in self._rest.split(b"\n"):
            fields = self._fields(line)
            if len(fields) == self.field_count and any(fields):
                return dict(zip(self.names, fields, strict=True))
        return {}

    def require(self, names: Sequence[str]) -> None:
        """Refuse the file if it lacks one of these columns."""
        missing = [name for name in names if name not in self.names]
        if missing:
            shown = ", ".join(self.names)[:NAMES_SHOWN_MAX]
            found = f"the file has {shown}" if shown.strip(", ") else "the file is empty"
            raise InvalidSource(
                f"{self.label}:1: no column {', '.join(missing)}; {found}",
                self.label,
                1,
            )

    def blocks(self, columns: Sequence[Column]) -> Iterator[RowBlock]:
        """Yield the rows with the wanted columns converted."""
        self.require([column.name for column in columns])
        self._constants = {
            column.name: column.choices[0][0] for column in columns if len(column.choices) == 1
        }
        ordered = sorted(columns, key=lambda column: self.names.index(column.name))
        parser = native.RowParser(
            [
                (
                    self.names.index(column.name),
                    column.kind,
                    [(text.encode(), code) for text, code in column.choices],
                )
                for column in ordered
            ],
            self.field_count,
            b",",
        )
        while self._rest or not self._ended:
            yield from self._parse_rest(parser, ordered)
            if not self._ended:
                self._fill()

    def _parse_rest(self, parser: native.RowParser, columns: Sequence[Column]) -> Iterator[RowBlock]:
        """Yield the rows of the whole lines read so far, and keep what is left."""
        text, first_line = memoryview(self._rest), self._line
        capacity = self._rest.count(b"\n")
        values = [np.empty(capacity, dtype=np.uint64) for _ in columns]
        extras = [np.empty(capacity, dtype=np.uint8) for _ in columns]
        row_lines: NDArray[np.uint32] = np.empty(capacity, dtype=np.uint32)
        at = filled = 0
        while True:
            rows, consumed, lines, problem, field = parser.parse(
                text[at:],
                [column[filled:] for column in values],
                [column[filled:] for column in extras],
                row_lines[filled:],
            )
            row_lines[filled : filled + rows] += np.uint32(self._line - first_line)
            at, filled, self._line = at + consumed, filled + rows, self._line + lines
            if not problem:
                break
            at = self._reject_line(self._rest, at, problem, field)
        if filled:
            yield RowBlock(
                self.label,
                {c.name: column[:filled] for c, column in zip(columns, values, strict=True)},
                {c.name: column[:filled] for c, column in zip(columns, extras, strict=True)},
                row_lines[:filled].astype(np.int64) + first_line,
                text,
                first_line,
            )
        self._rest = bytes(text[at:])

    def _reject_line(self, text: bytes, at: int, problem: int, field: int) -> int:
        """Reject the line that begins at `at` and return where the next one begins."""
        end = text.index(b"\n", at)
        line = _decoded(text[at:end])
        fields = line.split(",")
        reason = native.PROBLEMS[problem]
        if problem == FIELD_COUNT:
            reason = f"the row {reason} ({len(fields)} instead of {self.field_count})"
        else:
            name = self.names[field] if field < len(self.names) else f"column {field + 1}"
            if name in self._constants and problem == UNKNOWN_CHOICE:
                reason = f"is not {self._constants[name]!r} as in the first row"
            reason = f"{name} {fields[field].strip()[:SHOWN_BYTES_MAX]!r} {reason}"
        self._rejects.reject(self.label, self._line, reason, line)
        self._line += 1
        return end + 1

    def _fill(self) -> None:
        """Read on until there is at least one more whole line, or the end."""
        while not self._ended:
            block = self._member.read(self._block_bytes)
            if not block:
                self._ended = True
                # The last line need not end with a line feed.
                if self._rest and not self._rest.endswith(b"\n"):
                    self._rest = self._filled(self._rest + b"\n")
                return
            self._rest = self._filled(self._rest + block)
            if b"\n" in block:
                return
            if len(self._rest) > LINE_BYTES_MAX:
                raise InvalidSource(
                    f"{self.label}:{self._line}: a line of more than {LINE_BYTES_MAX} bytes; is it text?",
                    self.label,
                    self._line,
                )

    def _filled(self, text: bytes) -> bytes:
        """Return the text with 0 in its empty fields, if that is wanted."""
        if not self._fill_empty:
            return text
        for end in (b",", b",", b"\r\n", b"\n"):  # neighbouring fields need two turns
            text = text.replace(b"," + end, b",0" + end)
        return text

    def _fields(self, line: bytes) -> list[str]:
        return [field.strip().strip('"').strip() for field in _decoded(line).split(",")]

    def _drop_line(self) -> None:
        self._rest = self._rest.partition(b"\n")[2]
        self._line += 1
        if b"\n" not in self._rest:
            self._fill()  # the first row must be complete


def _decoded(line: bytes) -> str:
    """Return a line as text that can be shown, without its end."""
    return line.decode("utf-8", "backslashreplace").rstrip("\r")
