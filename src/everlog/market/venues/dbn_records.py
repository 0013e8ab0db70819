"""How DBN files are built: metadata, then records of different kinds and lengths one after another.

Owns the framing: which records are of the wanted kind, what else lies between them, and where a file is cut
off. What the fields of a record mean is known to `everlog.market.venues.dbn`.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Generator, Iterator
from typing import Any, Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from everlog.errors import InvalidSource
from everlog.market.venues.archives import Member

PRELUDE_BYTES: Final = 8
METADATA_BYTES_MAX: Final = 256 << 20
LENGTH_UNIT: Final = 4
HEADER_BYTES: Final = 16
TS_OUT_BYTES: Final = 8
SYMBOL_MAPPING: Final = 0x16
FIRST_LOOK_RECORDS: Final = 32
"""After a record of another kind: looked at together, then twice as many each time."""


class RecordBlock(NamedTuple):
    """Records of the wanted kind, and the number in the file of each, counted from 1."""

    numbers: NDArray[np.int64]
    records: NDArray[np.void]

    def take(self, chosen: NDArray[np.bool_]) -> RecordBlock:
        """Return only the chosen records."""
        return RecordBlock(self.numbers[chosen], self.records[chosen])


class Mapping(NamedTuple):
    """A record that says how an instrument is called from here on."""

    instrument_id: int
    symbol: str


def read_metadata(package: Any, member: Member) -> Any:
    """Return the metadata at the beginning of a file."""
    prelude = _read_exactly(member, PRELUDE_BYTES)
    if len(prelude) < PRELUDE_BYTES or not prelude.startswith(b"DBN"):
        raise InvalidSource(f"{member.label} is not a DBN file: it begins with {prelude[:4]!r}", member.label)
    length = int.from_bytes(prelude[4:], "little")
    if length > METADATA_BYTES_MAX:
        raise InvalidSource(f"{member.label} claims {length} bytes of metadata; it is damaged", member.label)
    try:
        return package.Metadata.decode(prelude + _read_exactly(member, length))
    except Exception as error:
        # The package raises its own DBNError, which is no class of the public module in all versions.
        raise InvalidSource(f"{member.label} has unreadable metadata: {error}", member.label) from error


def _read_exactly(member: Member, size: int) -> bytes:
    parts = []
    while size > 0 and (part := member.read(size)):
        parts.append(part)
        size -= len(part)
    return b"".join(parts)


class RecordStream:
    """The records of one file, in blocks; counts those of other kinds by their name."""

    def __init__(
        self, package: Any, member: Member, layout: Any, kinds: Collection[int], *, ts_out: bool
    ) -> None:
        """`layout` is the package's class of the wanted records, `kinds` their record types."""
        self._package = package
        self._member = member
        self._tail_bytes = TS_OUT_BYTES if ts_out else 0
        self._dtype = _padded(np.dtype(layout._dtypes), self._tail_bytes)
        self._is_wanted = np.zeros(256, dtype=bool)
        self._is_wanted[list(kinds)] = True
        self._number = 1
        self.others: Counter[str] = Counter()
        self._names = {int(kind.value): str(kind) for kind in package.RType.variants()}

    def blocks(self) -> Iterator[RecordBlock | Mapping]:
        """Yield the wanted records and, where they stand, new names of instruments."""
        rest = b""
        for data in self._member.blocks():
            rest += data
            at = yield from self._whole_records(rest)
            rest = rest[at:]
        if rest:
            raise InvalidSource(
                f"{self._member.label} ends in the middle of record {self._number}; fetch it again",
                self._member.label,
            )

    def _whole_records(self, data: bytes) -> Generator[RecordBlock | Mapping, None, int]:
        """Yield what the whole records of `data` are; return where the first cut one begins."""
        parts: list[RecordBlock] = []
        at, look = 0, len(data)
        while at < len(data):
            found = self._wanted_from(data, at, look)
            if found:
                parts.append(self._part(data, at, found))
                at += found * self._dtype.itemsize
                look *= 2
                continue
            length = data[at] * LENGTH_UNIT
            if length < HEADER_BYTES:
                raise InvalidSource(
                    f"{self._member.label}: record {self._number} has {length} bytes, a header alone has "
                    f"{HEADER_BYTES}; the file is damaged",
                    self._member.label,
                )
            if at + length > len(data):
                break
            mapping = self._other(data[at : at + length])
            if mapping is not None:
                yield from _joined(parts)
                parts = []
                yield mapping
            at, look = at + length, FIRST_LOOK_RECORDS
        yield from _joined(parts)
        return at

    def _wanted_from(self, data: bytes, at: int, look: int) -> int:
        """Return how many records of the wanted kind follow each other, among the next `look`."""
        count = min(look, (len(data) - at) // self._dtype.itemsize)
        records = np.frombuffer(data, self._dtype, count, at)
        odd = (records["length"] != self._dtype.itemsize // LENGTH_UNIT) | ~self._is_wanted[records["rtype"]]
        return int(odd.argmax()) if odd.any() else count

    def _part(self, data: bytes, at: int, count: int) -> RecordBlock:
        numbers = np.arange(self._number, self._number + count, dtype=np.int64)
        self._number += count
        return RecordBlock(numbers, np.frombuffer(data, self._dtype, count, at))

    def _other(self, record: bytes) -> Mapping | None:
        """Count a record of another kind; return what it says of the instrument's name, if it does."""
        self._number += 1
        kind = record[1]
        if kind != SYMBOL_MAPPING:
            self.others[self._names.get(kind, f"type {kind}")] += 1
            return None
        for layout in (self._package.SymbolMappingMsg, self._package.SymbolMappingMsgV1):
            dtype = np.dtype(layout._dtypes)
            if dtype.itemsize + self._tail_bytes == len(record):
                fields = np.frombuffer(record, dtype, 1)[0]
                names = [bytes(fields[name]).decode() for name in ("stype_out_symbol", "stype_in_symbol")]
                named = [name for name in names if name and not name.isdigit()]
                return Mapping(int(fields["instrument_id"]), (named or names)[0])
        self.others["symbol-mapping of unknown length"] += 1
        return None


def _joined(parts: list[RecordBlock]) -> Iterator[RecordBlock]:
    if len(parts) == 1:
        yield parts[0]
    elif parts:
        numbers, records = zip(*parts, strict=True)
        yield RecordBlock(np.concatenate(numbers), np.concatenate(records))


def _padded(fields: np.dtype[np.void], tail_bytes: int) -> np.dtype[np.void]:
    """Return the layout with room for what follows each record."""
    assert fields.names is not None and fields.fields is not None
    return np.dtype(
        {
            "names": list(fields.names),
            "formats": [fields.fields[name][0] for name in fields.names],
            "offsets": [fields.fields[name][1] for name in fields.names],
            "itemsize": fields.itemsize + tail_bytes,
        }
    )
