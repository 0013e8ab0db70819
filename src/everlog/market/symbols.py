"""The symbol catalogue `dim_symbol`: which symbol a market is, and its tick size, at any time.

Owns the rows (one per version of a symbol, SCD2), how a definition becomes a version, how a market of a
message is resolved, and the file `symbols.jsonl` beside a queue, a bus or an archive. The same rows as a
Delta table are in `everlog.pipeline.symbols`.

    catalogue = load_nearby("./queue")                       # a SymbolCatalogue: of the queue, and its bus
    catalogue.symbol_of(venue_id, market_id)                 # "BTCUSDT", or None
    catalogue.resolve(exchange_id, market_id, event_ns)      # the SymbolVersion valid then, or None
    catalogue.version_rows(venue_ids, market_ids, times_ns)  # the same for columns: rows of `versions`, or -1
    catalogue.names(venue_ids, market_ids)                   # venue and symbol names for columns
    catalogue.trade_names(symbol_hashes)                     # the same for trades and tickers
    add_names(batch, catalogue)                              # an Arrow batch with columns `venue`, `symbol`
    record_symbols(directory, [SymbolDefinition(...)])       # what an import or a feed has learned

Times of versions are microseconds, `valid_until_ts` is exclusive; times of events are nanoseconds.
"""

from __future__ import annotations

import heapq
import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from enum import IntEnum
from typing import TYPE_CHECKING, Any, Final

import msgspec
import numpy as np
from numpy.typing import NDArray

from everlog.clock import SystemClock
from everlog.errors import CorruptMetadata
from everlog.fs import Fs, OsFs, close_locked, create_directory, read_file, replace_file
from everlog.market.protocol import crypto_market_id, symbol_hash
from everlog.market.venues.registry import NUMERIC_VENUES, VENUE_NAMES, venue_id
from everlog.queue.faults import io_errors

if TYPE_CHECKING:
    import pyarrow as pa

SYMBOLS_FILE: Final = "symbols.jsonl"
FOREVER: Final = 2**63 - 1
"""`valid_until_ts` of a version that is still valid."""
_LOCK_POLL_NS: Final = 2_000_000
"""A catalogue is changed in some milliseconds."""
_BELOW_ROOTS: Final = ("streams", "v1")
"""The folders below the root of a bus and of an archive."""
NS_PER_US: Final = 1000


class AssetType(IntEnum):
    """`asset_type` of a row."""

    UNKNOWN = 0
    SPOT = 1
    FUTURE = 2
    PERPETUAL = 3
    OPTION = 4
    EQUITY = 5


class SymbolDefinition(msgspec.Struct, kw_only=True, frozen=True, omit_defaults=True):
    """What a source says of a symbol; None is what it does not say.

    Without a tick size the increments are the finest decimals that were seen.
    """

    exchange: str
    exchange_symbol: str
    base_asset: str | None = None
    quote_asset: str | None = None
    asset_type: int = AssetType.UNKNOWN
    tick_size: float | None = None
    lot_size: float | None = None
    price_increment: float | None = None
    amount_increment: float | None = None
    contract_size: float | None = None
    at_ts: int | None = None
    """From when on this is known to be so, in microseconds."""
    is_deleted: bool = False
    """From then on the venue does not have the symbol; the other fields do not matter."""


class SymbolVersion(msgspec.Struct, kw_only=True, frozen=True):
    """A row of `dim_symbol`: a symbol as it was from `valid_from_ts` until before `valid_until_ts`."""

    exchange_id: int
    exchange: str
    exchange_symbol: str
    base_asset: str | None = None
    quote_asset: str | None = None
    asset_type: int = AssetType.UNKNOWN
    tick_size: float | None = None
    lot_size: float | None = None
    price_increment: float | None = None
    amount_increment: float | None = None
    contract_size: float | None = None
    valid_from_ts: int
    valid_until_ts: int = FOREVER
    is_current: bool = True
    symbol_id: int

    @property
    def market_id(self) -> int:
        """The id of this symbol in book events."""
        return market_id_of(self.exchange, self.exchange_symbol)

    @property
    def symbol_version_id(self) -> int:
        """The id of this version: a hash of the symbol's id and the times."""
        return symbol_hash(f"{self.symbol_id}:{self.valid_from_ts}:{self.valid_until_ts}")


_KNOWN: Final = (
    "base_asset",
    "quote_asset",
    "asset_type",
    "tick_size",
    "lot_size",
    "price_increment",
    "amount_increment",
    "contract_size",
)
_INCREMENTS: Final = ("price_increment", "amount_increment")
_KEYS: Final = ("exchange_id", "valid_from_ts", "valid_until_ts", "symbol_id")


def market_id_of(venue: str, symbol: str) -> int:
    """Return the id that a symbol has in the book events of a venue."""
    if venue.lower() in NUMERIC_VENUES and symbol.isascii() and symbol.isdigit() and int(symbol) < 2**32:
        return int(symbol)
    return crypto_market_id(symbol)


def symbol_id_of(exchange_id: int, symbol: str) -> int:
    """Return the id of a symbol through all its versions."""
    return symbol_hash(f"{exchange_id}:{symbol}") >> 1


class SymbolCatalogue:
    """All versions of all symbols. `record` adds what is learned, the rest only looks."""

    def __init__(self, rows: Iterable[Mapping[str, Any] | SymbolVersion] = ()) -> None:
        """Skip, and count, rows that have a null or negative key, or end before they begin."""
        self.versions: list[SymbolVersion] = []
        self.skipped = 0
        for row in rows:
            version = row if isinstance(row, SymbolVersion) else _version_of(row)
            if version is None or not _is_usable(version):
                self.skipped += 1
            else:
                self.versions.append(version)
        self._found: _Index | None = None

    def __len__(self) -> int:
        """Return the number of versions."""
        return len(self.versions)

    # -- learning ------------------------------------------------------------------------

    def record(self, definitions: Iterable[SymbolDefinition], at_ts: int) -> int:
        """Take in what sources say; return how many versions are new or changed.

        A definition that contradicts the version of its time closes it and opens another; one that only adds
        to it is added to it; a deletion closes it. `at_ts` is the time, in microseconds, of definitions that
        have none.
        """
        timelines: dict[tuple[int, str], list[SymbolVersion]] = {}
        for version in self.versions:
            timelines.setdefault((version.exchange_id, version.exchange_symbol), []).append(version)
        changed = 0
        for one in definitions:
            key = (venue_id(one.exchange), one.exchange_symbol)
            before = sorted(timelines.get(key, ()), key=lambda version: version.valid_from_ts)
            after = _with_definition(before, one, key[0], at_ts if one.at_ts is None else one.at_ts)
            changed += sum(version not in before for version in after)
            timelines[key] = after
        if changed:
            self.versions = [version for key in sorted(timelines) for version in timelines[key]]
            self._found = None
        return changed

    def completed_by(self, other: SymbolCatalogue) -> SymbolCatalogue:
        """Return this catalogue with what only the other has: its symbols, and fields that are None here."""
        if not len(self) or not len(other):
            return self if len(self) else other
        here = {(version.exchange_id, version.exchange_symbol) for version in self.versions}
        rows = []
        for version in self.versions:
            at_ns = version.valid_from_ts * NS_PER_US
            known = other.resolve(version.exchange_id, version.market_id, at_ns)
            rows.append(version if known is None else _merged(version, _definition_of(known)) or version)
        rows += [
            version
            for version in other.versions
            if (version.exchange_id, version.exchange_symbol) not in here
        ]
        return SymbolCatalogue(rows)

    def definitions(self) -> list[SymbolDefinition]:
        """Return what the versions say, in the order of their times, for another catalogue to record."""
        begun = {(one.exchange_id, one.exchange_symbol, one.valid_from_ts) for one in self.versions}
        found = [_definition_of(version) for version in self.versions]
        found += [
            SymbolDefinition(
                exchange=one.exchange,
                exchange_symbol=one.exchange_symbol,
                at_ts=one.valid_until_ts,
                is_deleted=True,
            )
            for one in self.versions
            if one.valid_until_ts != FOREVER
            and (one.exchange_id, one.exchange_symbol, one.valid_until_ts) not in begun
        ]
        return sorted(found, key=lambda one: one.at_ts or 0)

    # -- looking up ----------------------------------------------------------------------

    def resolve(self, exchange_id: int, market_id: int, event_ns: int) -> SymbolVersion | None:
        """Return the version of a market at a time: the one that began last of those valid then."""
        row = self.version_rows(np.array([exchange_id]), np.array([market_id]), np.array([event_ns]))[0]
        return None if row < 0 else self.versions[row]

    def version_rows(
        self, venue_ids: NDArray[Any], market_ids: NDArray[Any], times_ns: NDArray[Any]
    ) -> NDArray[np.int64]:
        """Return the place in `versions` of each market at its time, -1 where there is none."""
        return self._index.rows(_keys(venue_ids, market_ids), times_ns.astype(np.int64) // NS_PER_US)

    def symbol_of(self, venue_id: int, market_id: int) -> str | None:
        """Return the exchange's symbol of a market, None if the catalogue does not have it."""
        return self._index.symbols.get(venue_id << 32 | market_id)

    def latest(self, venue_id: int, symbol: str) -> SymbolVersion | None:
        """Return the newest version of a symbol."""
        found = [
            version
            for version in self.versions
            if (version.exchange_id, version.exchange_symbol) == (venue_id, symbol)
        ]
        return max(found, key=lambda version: version.valid_from_ts, default=None)

    def names(
        self, venue_ids: NDArray[Any], market_ids: NDArray[Any]
    ) -> tuple[NDArray[np.object_], NDArray[np.object_]]:
        """Return the venue and the symbol of each market; a symbol that is not known is None."""
        keys, where = np.unique(_keys(venue_ids, market_ids), return_inverse=True)
        index = self._index
        pairs = [
            (index.venues.get(key) or VENUE_NAMES.get(key >> 32), index.symbols.get(key))
            for key in keys.tolist()
        ]
        return _columns(pairs, where)

    def names_of_event(self, event: Mapping[str, Any]) -> dict[str, str | None]:
        """Return venue and symbol of an event as JSON has it: by venue and market id, or by its hash."""
        if "market_id" in event:
            key = event["venue_id"] << 32 | event["market_id"]
            venue = self._index.venues.get(key) or VENUE_NAMES.get(event["venue_id"])
            return {"venue": venue, "symbol": self._index.symbols.get(key)}
        venue, symbol = self._index.hashes.get(event.get("symbol_hash", -1), (None, None))
        return {"venue": venue, "symbol": symbol}

    def trade_names(self, symbol_hashes: NDArray[Any]) -> tuple[NDArray[np.object_], NDArray[np.object_]]:
        """Return the venue and the symbol of each trade or ticker, which name their symbol by its hash only.

        The venue is None where several venues have such a symbol.
        """
        hashes, where = np.unique(symbol_hashes, return_inverse=True)
        return _columns([self._index.hashes.get(one, (None, None)) for one in hashes.tolist()], where)

    @property
    def _index(self) -> _Index:
        if self._found is None:
            self._found = _Index(self.versions)
        return self._found


class RefreshedCatalogue:
    """A catalogue that is loaded again now and then; if that fails the old copy stays."""

    def __init__(self, load: Callable[[], SymbolCatalogue], interval_ns: int, now_ns: int) -> None:
        """`load` returns a catalogue; the first time it may fail. An interval of 0 never loads again."""
        self.catalogue = load()
        self.failures = 0
        self.last_error = ""
        self._load = load
        self._interval_ns = interval_ns
        self._next_ns = now_ns + interval_ns

    def refresh(self, now_ns: int) -> bool:
        """Load again if it is time; return whether the copy is a new one."""
        if not self._interval_ns or now_ns < self._next_ns:
            return False
        self._next_ns = now_ns + self._interval_ns
        try:
            self.catalogue = self._load()
        except Exception as error:  # whatever it is, the names that are known stay
            self.failures += 1
            self.last_error = f"{type(error).__name__}: {error}"
            return False
        return True


# --- Versions --------------------------------------------------------------------------------------------


def _version_of(row: Mapping[str, Any]) -> SymbolVersion | None:
    """Return a row as a version, None if a key is missing or of another type."""
    given = {name: value for name, value in row.items() if value is not None}
    try:
        return msgspec.convert(given, SymbolVersion)
    except msgspec.ValidationError:
        return None


def _is_usable(version: SymbolVersion) -> bool:
    has_keys = all(getattr(version, name) >= 0 for name in _KEYS) and version.exchange_symbol != ""
    return has_keys and version.valid_until_ts > version.valid_from_ts


def _with_definition(
    timeline: Sequence[SymbolVersion], one: SymbolDefinition, exchange_id: int, at_ts: int
) -> list[SymbolVersion]:
    """Return the versions of a symbol, in order, after a definition of this time."""
    if one.is_deleted:
        return [_closed(version, at_ts) for version in timeline]
    versions = list(timeline)
    for place, version in enumerate(versions):
        if version.valid_until_ts <= at_ts:
            continue
        merged = _merged(version, one)
        if merged is not None:
            # What was learned of a later time holds from this one on, if nothing is known in between.
            begins = min(at_ts, version.valid_from_ts)
            versions[place] = msgspec.structs.replace(merged, valid_from_ts=begins)
        elif at_ts < version.valid_from_ts:
            versions.insert(place, _opened(one, exchange_id, at_ts, version.valid_from_ts, version))
        else:
            opened = _opened(one, exchange_id, at_ts, version.valid_until_ts, version)
            versions[place] = opened
            if at_ts > version.valid_from_ts:
                versions.insert(place, _closed(version, at_ts))
        return versions
    versions.append(_opened(one, exchange_id, at_ts, FOREVER, versions[-1] if versions else None))
    return versions


def _closed(version: SymbolVersion, at_ts: int) -> SymbolVersion:
    """Return the version with its end at a time, if it is valid then and began before."""
    if not version.valid_from_ts < at_ts < version.valid_until_ts:
        return version
    return msgspec.structs.replace(version, valid_until_ts=at_ts, is_current=False)


def _merged(version: SymbolVersion, one: SymbolDefinition) -> SymbolVersion | None:
    """Return the version with what the definition adds to it, None if they contradict each other."""
    new: dict[str, Any] = {}
    is_seen = version.tick_size is None or one.tick_size is None
    for name in _KNOWN:
        old, given = getattr(version, name), getattr(one, name)
        if given is None or given == old or (name == "asset_type" and not given):
            continue
        if old is None or (name == "asset_type" and not old):
            new[name] = given
        elif name in _INCREMENTS and is_seen:
            if version.tick_size is None:
                new[name] = given if one.tick_size is not None else min(old, given)
        else:
            return None
    return msgspec.structs.replace(version, **new)


def _definition_of(version: SymbolVersion) -> SymbolDefinition:
    return SymbolDefinition(
        exchange=version.exchange,
        exchange_symbol=version.exchange_symbol,
        **{name: getattr(version, name) for name in _KNOWN},
        at_ts=version.valid_from_ts,
    )


def _opened(
    one: SymbolDefinition, exchange_id: int, from_ts: int, until_ts: int, known: SymbolVersion | None
) -> SymbolVersion:
    """Return a new version; what its definition does not say is as in the one that is known."""
    values = {name: getattr(one, name) for name in _KNOWN}
    if known is not None:
        values = {name: value or getattr(known, name) for name, value in values.items()}
    return SymbolVersion(
        exchange_id=exchange_id,
        exchange=one.exchange,
        exchange_symbol=one.exchange_symbol,
        **values,
        valid_from_ts=from_ts,
        valid_until_ts=until_ts,
        is_current=until_ts == FOREVER,
        symbol_id=symbol_id_of(exchange_id, one.exchange_symbol) if known is None else known.symbol_id,
    )


# --- Lookup ----------------------------------------------------------------------------------------------


class _Index:
    """Versions by market and time. A market's times are cut where the version that counts changes."""

    def __init__(self, versions: Sequence[SymbolVersion]) -> None:
        self.symbols: dict[int, str] = {}
        self.venues: dict[int, str] = {}
        self.hashes: dict[int, tuple[str | None, str | None]] = {}
        markets: dict[int, list[int]] = {}
        for row, version in enumerate(versions):
            self._add(markets, version, version.market_id, row)
            number, symbol = symbol_hash(version.exchange_symbol), version.exchange_symbol
            venue, _ = self.hashes.setdefault(number, (version.exchange, symbol))
            if venue != version.exchange:
                self.hashes[number] = (None, symbol)
        for row, version in enumerate(versions):  # ids of other writers, where they are not taken
            self._add(markets, version, crypto_market_id(version.exchange_symbol, compatible=True), row)
        cuts = [(key, *cut) for key in sorted(markets) for cut in _cuts(versions, markets[key])]
        self._markets = np.array(sorted(markets), dtype=np.int64)
        self._times = np.unique(np.array([time for _, time, _ in cuts], dtype=np.int64))
        self._rows = np.array([row for *_, row in cuts], dtype=np.int64)
        keys, times = (np.array([cut[at] for cut in cuts], dtype=np.int64) for at in (0, 1))
        self._cuts = self._composed(np.searchsorted(self._markets, keys), times)

    def _add(self, markets: dict[int, list[int]], version: SymbolVersion, market_id: int, row: int) -> None:
        key = version.exchange_id << 32 | market_id
        if self.symbols.setdefault(key, version.exchange_symbol) == version.exchange_symbol:
            self.venues[key] = version.exchange
            markets.setdefault(key, []).append(row)

    def _composed(self, markets: NDArray[np.int64], times: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return numbers that sort by market, then by the last cut of any market up to the time."""
        ranks = np.searchsorted(self._times, times, side="right")
        composed: NDArray[np.int64] = markets * (len(self._times) + 1) + ranks
        return composed

    def rows(self, keys: NDArray[np.int64], times: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return the row of each market at each time, -1 for none."""
        if not len(self._markets):
            return np.full(len(keys), -1, dtype=np.int64)
        markets = np.minimum(np.searchsorted(self._markets, keys), len(self._markets) - 1)
        places = np.searchsorted(self._cuts, self._composed(markets, times), side="right") - 1
        of_market = self._cuts[np.maximum(places, 0)] // (len(self._times) + 1)
        is_there = (places >= 0) & (self._markets[markets] == keys) & (of_market == markets)
        return np.where(is_there, self._rows[np.maximum(places, 0)], -1)


def _cuts(versions: Sequence[SymbolVersion], rows: Sequence[int]) -> list[tuple[int, int]]:
    """Return from when on which row counts, -1 for none: of those valid the one that began last."""
    begins = sorted(rows, key=lambda row: versions[row].valid_from_ts)
    times = {getattr(versions[row], name) for row in rows for name in ("valid_from_ts", "valid_until_ts")}
    valid: list[tuple[int, int, int]] = []
    cuts: list[tuple[int, int]] = []
    place = 0
    for time in sorted(times):
        while place < len(begins) and versions[begins[place]].valid_from_ts == time:
            heapq.heappush(valid, (-time, -place, begins[place]))
            place += 1
        while valid and versions[valid[0][2]].valid_until_ts <= time:
            heapq.heappop(valid)
        cuts.append((time, valid[0][2] if valid else -1))
    return cuts


def _keys(venue_ids: NDArray[Any], market_ids: NDArray[Any]) -> NDArray[np.int64]:
    keys: NDArray[np.int64] = (venue_ids.astype(np.int64) << 32) | (market_ids.astype(np.int64) & 0xFFFFFFFF)
    return keys


def _columns(
    pairs: Sequence[tuple[str | None, str | None]], where: NDArray[np.intp]
) -> tuple[NDArray[np.object_], NDArray[np.object_]]:
    venues, symbols = (np.array([pair[at] for pair in pairs], dtype=object) for at in (0, 1))
    return venues[where], symbols[where]


def add_names(
    batch: pa.RecordBatch,
    catalogue: SymbolCatalogue,
    venue_column: str = "venue_id",
    market_column: str = "market_id",
    hash_column: str | None = None,
) -> pa.RecordBatch:
    """Return the batch with columns `venue` and `symbol` behind the others; null is not known.

    With the name of a column of symbol hashes, the rows are those of trades or tickers.
    """
    import pyarrow as pa

    def numbers(name: str) -> NDArray[Any]:
        values = batch.column(name).fill_null(0).to_numpy(zero_copy_only=False)
        unsigned: NDArray[Any] = values.view(np.uint64) if name == hash_column else values
        return unsigned

    if hash_column is None:
        venues, symbols = catalogue.names(numbers(venue_column), numbers(market_column))
    else:
        venues, symbols = catalogue.trade_names(numbers(hash_column))
    columns = [*batch.columns, pa.array(venues, pa.string()), pa.array(symbols, pa.string())]
    return pa.RecordBatch.from_arrays(columns, names=[*batch.schema.names, "venue", "symbol"])


# --- The file --------------------------------------------------------------------------------------------


def load_symbols(directory: str | os.PathLike[str], fs: Fs | None = None) -> SymbolCatalogue:
    """Return the catalogue in a directory; it is empty if there is no file."""
    return read_symbols(os.path.join(os.fspath(directory), SYMBOLS_FILE), fs or OsFs(), is_wanted=False)


def read_symbols(path: str, fs: Fs | None = None, *, is_wanted: bool = True) -> SymbolCatalogue:
    """Return the catalogue in a file of JSON lines; a line that is not JSON raises CorruptMetadata."""
    fs = fs or OsFs()
    if not is_wanted and not fs.exists(path):
        return SymbolCatalogue()
    with io_errors(f"read {path}"):
        lines = read_file(fs, path).splitlines()
    rows = []
    for number, line in enumerate(lines, 1):
        try:
            rows.append(msgspec.json.decode(line, type=dict[str, Any]))
        except msgspec.MsgspecError as error:
            raise CorruptMetadata(
                f"{path}:{number} is not a row of a symbol catalogue: {error}; restore the file, or remove "
                "it: 'everlog symbols refresh' makes it anew"
            ) from error
    return SymbolCatalogue(rows)


def load_nearby(path: str | os.PathLike[str], fs: Fs | None = None) -> SymbolCatalogue:
    """Return the catalogue of a queue, completed by those of its bus or archive above."""
    queue = os.path.abspath(os.fspath(path))
    found = load_symbols(queue, fs)
    for root in _roots_above(queue):
        found = found.completed_by(load_symbols(root, fs))
    return found


def _roots_above(queue: str) -> Iterator[str]:
    """Yield the bus or archive that a queue is in, known by the folder below its root; the nearest first."""
    folder = queue
    while (above := os.path.dirname(folder)) != folder:
        if os.path.basename(folder) in _BELOW_ROOTS:
            # The raw half of an archive is a folder of its own in it.
            yield os.path.dirname(above) if os.path.basename(above) == "raw" else above
        folder = above


def store_symbols(
    directory: str | os.PathLike[str], catalogue: SymbolCatalogue, fs: Fs | None = None
) -> None:
    """Replace the catalogue in a directory, durably: a reader sees the old rows or the new."""
    fs = fs or OsFs()
    path = os.path.join(os.fspath(directory), SYMBOLS_FILE)
    with io_errors(f"write {path}"):
        create_directory(fs, os.path.dirname(path))
        replace_file(fs, path, b"".join(msgspec.json.encode(row) + b"\n" for row in catalogue.versions))


def record_symbols(
    directory: str | os.PathLike[str],
    definitions: Iterable[SymbolDefinition],
    at_ts: int = 0,
    fs: Fs | None = None,
) -> int:
    """Add what was learned to the catalogue in a directory, and to those of the bus or archive above it.

    Return how many versions in the directory are new or changed.
    """
    queue, known = os.path.abspath(os.fspath(directory)), list(definitions)
    changes = []
    for place in (queue, *_roots_above(queue)):
        with changing_symbols(place, fs) as catalogue:
            changes.append(catalogue.record(known, at_ts))
    return changes[0]


@contextmanager
def changing_symbols(directory: str | os.PathLike[str], fs: Fs | None = None) -> Iterator[SymbolCatalogue]:
    """Give the catalogue in a directory, and store it afterwards if it has changed.

    Other processes that change it wait: several feeds tell one bus what they know.
    """
    fs, path = fs or OsFs(), os.fspath(directory)
    with io_errors(f"change the symbols in {path}"):
        create_directory(fs, path)
        fd = fs.open(path, os.O_RDONLY | os.O_DIRECTORY)
    try:
        while not fs.try_lock(fd):
            SystemClock().sleep_ns(_LOCK_POLL_NS)
        catalogue = load_symbols(path, fs)
        before = list(catalogue.versions)
        yield catalogue
        if catalogue.versions != before:
            store_symbols(path, catalogue, fs)
    finally:
        close_locked(fs, fd)
