"""Books at a time without all messages before it: sets of snapshots, and replays that begin with one.

Owns the files `<queue>/snapshots/set_<seq>.bin`: which snapshots together are all books of the queue after
message `seq`, and the numbers that snapshots do not hold. A replay that begins with a set has the books of
one that begins with the first message.
"""

from __future__ import annotations

import os
from collections.abc import Collection, Sequence
from contextlib import closing, suppress
from dataclasses import replace
from typing import TYPE_CHECKING, Final, NamedTuple

import msgspec

from everlog.errors import Corrupt, EverlogError, Io, Unsupported
from everlog.fs import Fs, OsFs, create_directory, read_file, replace_file
from everlog.market.book_results import Outputs
from everlog.market.book_set import Book, BookSet, BookSettings, Market
from everlog.market.book_states import load_books, save_books
from everlog.market.books import GapPolicy, Priority
from everlog.market.import_runs import NO_SEQ
from everlog.market.protocol import TypeId
from everlog.market.snapshots import SnapshotStore, numbered_files

if TYPE_CHECKING:
    from everlog.market.replay import MessageReader, Replay

SET_VERSION: Final = 1
_PREFIX: Final = "set_"
_SUFFIX: Final = ".bin"


class _SnapshotSet(msgspec.Struct, array_like=True):
    version: int
    snapshots: list[tuple[int, int, int]]
    """Venue, market and seq of each snapshot."""
    state: bytes
    """What `save_books` returns, without payloads."""


class SnapshotSets:
    """The sets beside the snapshots of one queue."""

    def __init__(self, store: SnapshotStore, fs: Fs | None = None) -> None:
        self._store = store
        self._fs = fs or OsFs()

    def write(self, seq: int, books: BookSet, snapshots: dict[Market, int]) -> None:
        """Note, durably, that these snapshots are all books after message `seq`; drop sets that lack one."""
        data = msgspec.msgpack.encode(
            _SnapshotSet(
                SET_VERSION,
                [(*market, number) for market, number in snapshots.items()],
                save_books(books, with_payloads=False),
            )
        )
        path = self._path(seq)
        try:
            create_directory(self._fs, self._store.root)
            replace_file(self._fs, path, data)
        except OSError as error:
            raise Io(f"cannot write the set of snapshots {path}: {error.strerror}", error.errno) from error
        self._drop_old()

    def seqs(self) -> list[int]:
        """Return the messages after which there is a set, rising."""
        return numbered_files(self._fs, self._store.root, _PREFIX, _SUFFIX)

    def snapshots(self, seq: int) -> dict[Market, int]:
        """Return the seq of each market's snapshot in a set."""
        return {Market(venue, market): number for venue, market, number in self._read(seq).snapshots}

    def load(
        self, seq: int, settings: BookSettings | None = None, market_ids: Collection[int] | None = None
    ) -> BookSet:
        """Return all books after message `seq`; those of other markets than `market_ids` are left empty."""
        found = self._read(seq)
        numbers = {Market(venue, market): number for venue, market, number in found.snapshots}

        def fill(market: Market, book: Book) -> None:
            if market_ids is None or market.market_id in market_ids:
                self._store.load(self._store.info(market, numbers[market]), book)

        try:
            return load_books(found.state, settings, fill)
        except KeyError as error:
            raise Corrupt(f"{self._path(seq)} has no snapshot of market {error}; remove it") from None

    def _path(self, seq: int) -> str:
        return os.path.join(self._store.root, f"{_PREFIX}{seq}{_SUFFIX}")

    def _read(self, seq: int) -> _SnapshotSet:
        path = self._path(seq)
        try:
            found = msgspec.msgpack.decode(read_file(self._fs, path), type=_SnapshotSet)
        except OSError as error:
            raise Io(f"cannot read the set of snapshots {path}: {error.strerror}", error.errno) from error
        except msgspec.DecodeError as error:
            raise Corrupt(f"{path} is not a set of snapshots ({error}); remove it") from None
        if found.version != SET_VERSION:
            raise Unsupported(f"{path} has version {found.version}, this build reads {SET_VERSION}")
        return found

    def _drop_old(self) -> None:
        """Remove the oldest sets while retention has taken one of their snapshots."""
        for seq in self.seqs()[:-1]:
            with suppress(EverlogError):
                if all(self._store.has(market, number) for market, number in self.snapshots(seq).items()):
                    return
            with suppress(FileNotFoundError):
                self._fs.unlink(self._path(seq))


class WarmStart(NamedTuple):
    """The books before replays begin, and the replays that go on with the next messages."""

    books: BookSet
    rests: tuple[Replay, ...]
    """Without the beginnings of their time ranges: what comes before these belongs into the books."""
    start_ns: int
    set_seqs: tuple[int | None, ...]
    """The message after which each source's set is; None: its books are empty, as at its first message."""
    sources: dict[Market, int]
    """The place of the replay from whose set each book is."""


def begin(replays: Sequence[Replay], settings: BookSettings, warm_up_ns: int) -> WarmStart:
    """Return books from each source's newest set of snapshots that is `warm_up_ns` older than the range.

    All sources that have books begin with a set, or all begin with the first message there is: filters and
    settings that a set cannot stand for, a source without one, and a market in two sources are reasons.
    Where the first message is gone, no book is made of a market before its next snapshot or reset.
    """
    parts = [one.from_the_start() for one in replays]
    rests, start_ns = tuple(rest for rest, _ in parts), max(start_ns for _, start_ns in parts)
    warm_ns = max(0, start_ns - warm_up_ns)
    start = _warm(replays, rests, settings, start_ns, warm_ns) if start_ns and _stands_for(settings) else None
    if start is None:
        nothing: tuple[int | None, ...] = (None,) * len(rests)
        start = WarmStart(BookSet(settings), rests, start_ns, nothing, {})
    for rest, seq in zip(start.rests, start.set_seqs, strict=True):
        if not rest.has_all_markets:
            start.books.take_some_markets()
        if seq is None and rest.begins_in_middle() and _has_books(rest):
            start.books.begin_in_middle()
    return start


def _warm(
    replays: Sequence[Replay], rests: tuple[Replay, ...], settings: BookSettings, start_ns: int, warm_ns: int
) -> WarmStart | None:
    """Return a start with a set of every source that has books; None without one."""
    found = [_newest_set(one, settings, warm_ns) for one in replays]
    if all(one is None for one in found):
        return None
    books, begun = BookSet(settings), list(rests)
    sources: dict[Market, int] = {}
    for place, (one, rest) in enumerate(zip(found, rests, strict=True)):
        if one is not None:
            if not books.add(one.books):
                return None  # which of two queues has said the last of a market is not known
            sources |= dict.fromkeys(one.books.books, place)
            begun[place] = replace(rest, from_seq=one.seq + 1)
        elif _has_books(rest):
            return None
        else:
            begun[place] = rest.between(warm_ns, NO_SEQ - 1)
    seqs = tuple(None if one is None else one.seq for one in found)
    return WarmStart(books, tuple(begun), start_ns, seqs, sources)


class _FoundSet(NamedTuple):
    seq: int
    books: BookSet


def _newest_set(replay: Replay, settings: BookSettings, before_ns: int) -> _FoundSet | None:
    """Return the newest set of a source that is older than a time and that its messages go on from."""
    sets = SnapshotSets(SnapshotStore(replay.snapshots or replay.path))
    if not replay.has_whole_markets or not (seqs := sets.seqs()) or len(replay.runs()) > 1:
        return None  # a set is of what came before a message, not before a time
    with closing(replay.open()) as reader:
        first = _first_at(reader, before_ns)
        for seq in reversed([one for one in seqs if first is None or one < first]):
            try:
                books = sets.load(seq, settings, replay.market_ids)
            except EverlogError:
                continue  # an older one may be sound
            if not _follows(reader, seq):
                break
            if settings.gap_policy != GapPolicy.IGNORE or not any(
                b.quarantined for b in books.books.values()
            ):
                return _FoundSet(seq, books)
    return None


def books_at(replays: Sequence[Replay], timestamp_ns: int, settings: BookSettings) -> BookSet | None:
    """Return the books that replays have before their first message at or after a time.

    None if a market's book is unknown: the first messages are gone, and nothing later says what it is.
    """
    from everlog.market.merge import in_time_order  # which replays

    start = begin([one.between(timestamp_ns, timestamp_ns) for one in replays], settings, 0)
    books = start.books
    for some in in_time_order([one.types(TypeId.BOOK_EVENT) for one in start.rests]):
        books.apply_packed(some.packed, Outputs(top=False))
    return None if books.unanchored.keys() - books.books.keys() else books


def _has_books(replay: Replay) -> bool:
    """Whether a replay has a book event."""
    with closing(replay.types(TypeId.BOOK_EVENT).batches()) as batches:
        return next(batches, None) is not None


def _stands_for(settings: BookSettings) -> bool:
    """Whether books with these settings are those that the snapshotter keeps."""
    return settings.mode is None and settings.priority == Priority.VENUE


def _first_at(reader: MessageReader, timestamp_ns: int) -> int | None:
    """Return the seq of the first message at or after a time."""
    if not reader.seek_time(timestamp_ns):
        return None
    batch = reader.read_batch(1)
    return int(batch.seq[0]) if len(batch) else None


def _follows(reader: MessageReader, seq: int) -> bool:
    """Whether the message behind a set is there, or the set is at the end."""
    if not reader.seek_seq(seq + 1):
        return True
    batch = reader.read_batch(1)
    return not len(batch) or int(batch.seq[0]) == seq + 1
