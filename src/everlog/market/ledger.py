"""The ledger of imports: which files a queue holds already, so that no file is imported twice.

Owns the JSON files under `<queue>/imports/v1/<format>/`: `<hash>.json` of a finished import,
`<hash>.begun.json` of one that is under way or was interrupted. Knows no format and no queue.
"""

from __future__ import annotations

import os
from typing import Any, Final

import msgspec

from everlog.errors import CorruptMetadata
from everlog.fs import Fs, create_directory, replace_file
from everlog.market.symbols import SymbolDefinition
from everlog.queue.faults import io_errors

LEDGER_DIRECTORY: Final = os.path.join("imports", "v1")
FINISHED_SUFFIX: Final = ".json"
BEGUN_SUFFIX: Final = ".begun.json"
QUARANTINE_SUFFIX: Final = ".quarantine.csv"


class LedgerEntry(msgspec.Struct, kw_only=True, frozen=True):
    """What is known of a finished import. Counts are of this file alone."""

    format: str
    source_path: str
    file_hash: str
    rows: int
    groups: int
    segments: int
    min_ts_ns: int | None
    max_ts_ns: int | None
    imported_at_ns: int
    venue: str
    symbol: str
    date: str
    stream: str
    first_seq: int
    """The queue's seq of the first event; the events follow each other without a hole."""
    end_seq: int
    first_segment: int
    last_segment: int
    dropped_rows: int = 0
    gaps: int = 0
    quarantined: int = 0
    cut: int = 0
    """Prices and sizes that lost digits to `--price-scale` or `--size-scale`."""
    options: dict[str, Any] = {}
    symbols: list[SymbolDefinition] = []
    """What the symbol catalogue was told."""


class BegunEntry(msgspec.Struct, kw_only=True, frozen=True):
    """An import that has written, or may have written, events from `first_seq` on."""

    format: str
    source_path: str
    file_hash: str
    first_seq: int
    writer_epoch: int
    begun_at_ns: int


class Ledger:
    """The imports of one queue."""

    def __init__(self, fs: Fs, queue: str) -> None:
        """Look at the ledger of the queue at this path; nothing is created yet."""
        self._fs = fs
        self._root = os.path.join(queue, LEDGER_DIRECTORY)

    def finished(self, format_name: str, file_hash: str) -> LedgerEntry | None:
        """Return the entry of a finished import, None if the file was never imported."""
        entry: LedgerEntry | None = self._load(
            self._path(format_name, file_hash, FINISHED_SUFFIX), LedgerEntry
        )
        return entry

    def all_finished(self) -> list[LedgerEntry]:
        """Return every finished import in the order of the queue."""
        entries = [
            self._load(path, LedgerEntry)
            for path in self._files(FINISHED_SUFFIX)
            if not path.endswith(BEGUN_SUFFIX)
        ]
        return sorted((entry for entry in entries if entry), key=lambda entry: entry.first_seq)

    def begun(self) -> list[BegunEntry]:
        """Return the imports that did not come to their end."""
        entries = [self._load(path, BegunEntry) for path in self._files(BEGUN_SUFFIX)]
        return [entry for entry in entries if entry]

    def begin(self, entry: BegunEntry) -> None:
        """Record, durably, that events of this file are about to be written."""
        self._store(entry, BEGUN_SUFFIX)

    def continue_as(self, writer_epoch: int) -> None:
        """Record that the writer of this epoch removes what the one before it has left.

        Without this a removal that is interrupted too would look like another program's writing.
        """
        for entry in self.begun():
            if entry.writer_epoch == writer_epoch - 1:
                self.begin(msgspec.structs.replace(entry, writer_epoch=writer_epoch))

    def finish(self, entry: LedgerEntry) -> None:
        """Record, durably, that the file is in the queue."""
        self._store(entry, FINISHED_SUFFIX)
        self.forget_begun(entry.format, entry.file_hash)

    def update(self, entry: LedgerEntry) -> None:
        """Replace what is known of a finished import."""
        self._store(entry, FINISHED_SUFFIX)

    def forget(self, format_name: str, file_hash: str) -> None:
        """Remove the entry of a finished import."""
        self._remove(self._path(format_name, file_hash, FINISHED_SUFFIX))

    def forget_begun(self, format_name: str, file_hash: str) -> None:
        """Remove the mark of an import under way."""
        self._remove(self._path(format_name, file_hash, BEGUN_SUFFIX))

    def quarantine_path(self, format_name: str, file_hash: str) -> str:
        """Return where bad rows of this file go; its directory exists afterwards."""
        path = self._path(format_name, file_hash, QUARANTINE_SUFFIX)
        with io_errors(f"create the directory of {path}"):
            create_directory(self._fs, os.path.dirname(path))
        return path

    def _path(self, format_name: str, file_hash: str, suffix: str) -> str:
        return os.path.join(self._root, format_name, file_hash + suffix)

    def _files(self, suffix: str) -> list[str]:
        found = []
        with io_errors(f"look into {self._root}"):
            for name in self._names(self._root):
                directory = os.path.join(self._root, name)
                files = sorted(self._names(directory))
                found += [os.path.join(directory, file) for file in files if file.endswith(suffix)]
        return found

    def _names(self, directory: str) -> list[str]:
        try:
            return sorted(self._fs.listdir(directory))
        except (FileNotFoundError, NotADirectoryError):
            return []

    def _load(self, path: str, kind: type[Any]) -> Any:
        try:
            fd = self._fs.open(path, os.O_RDONLY)
        except FileNotFoundError:
            return None
        try:
            with io_errors(f"read {path}"):
                data = self._fs.pread(fd, self._fs.size(fd), 0)
        finally:
            self._fs.close(fd)
        try:
            return msgspec.json.decode(data, type=kind)
        except msgspec.DecodeError as error:
            raise CorruptMetadata(
                f"{path} is not a ledger entry: {error}; remove it to import again"
            ) from error

    def _store(self, entry: LedgerEntry | BegunEntry, suffix: str) -> None:
        path = self._path(entry.format, entry.file_hash, suffix)
        with io_errors(f"write {path}"):
            create_directory(self._fs, os.path.dirname(path))
            replace_file(self._fs, path, msgspec.json.format(msgspec.json.encode(entry), indent=2) + b"\n")

    def _remove(self, path: str) -> None:
        with io_errors(f"remove {path}"):
            if self._fs.exists(path):
                self._fs.unlink(path)
                self._fs.fsync_dir(os.path.dirname(path))
