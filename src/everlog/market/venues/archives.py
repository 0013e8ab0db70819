"""Files to import, opened as streams of bytes: plain, `.gz`, `.zst`, `.zip` and `.7z`, in bounded memory.

Owns how compression is recognised (by the first bytes, not by the name) and how far a file has
been read. Knows nothing of what the bytes mean.
"""

from __future__ import annotations

import contextlib
import gzip
import hashlib
import io
import lzma
import os
import shutil
import tempfile
import zipfile
import zlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import IO, Any, Final

import zstandard

from everlog.errors import InvalidSource, Unsupported
from everlog.queue.faults import io_errors

BLOCK_BYTES: Final = 1 << 20
COMPRESSED_BLOCK_BYTES: Final = 1 << 16
"""Read at once from a compressed file; every open file has that much memory."""
ZSTD_INPUT_BYTES: Final = 1 << 14
"""Compressed bytes taken at once: what they become is held in memory."""
LINE_BYTES_MAX: Final = 16 << 20
MAGIC_BYTES: Final = 6
BYTE_ORDER_MARK: Final = b"\xef\xbb\xbf"
GZIP_MAGIC: Final = b"\x1f\x8b"
ZSTD_MAGIC: Final = b"\x28\xb5\x2f\xfd"
ZIP_MAGIC: Final = b"PK\x03\x04"
EMPTY_ZIP_MAGIC: Final = b"PK\x05\x06"
SEVEN_ZIP_MAGIC: Final = b"7z\xbc\xaf\x27\x1c"
SEVEN_ZIP_FILES_MAX: Final = 100_000
SEVEN_ZIP_RATIO_MAX: Final = 1000
"""Bytes that a byte of an archive may become; market data becomes 10 to 50."""


class CountedFile(io.RawIOBase):
    """A file that reports how many of its bytes were read, for the progress bar.

    There may be thousands, more than a process may have open: it is open only while it is read.
    """

    def __init__(self, path: str, advance: Callable[[int], None] = lambda count: None) -> None:
        """Begin at the start of `path`; `advance` is called for every read."""
        self._path = path
        self._place = 0
        self._advance = advance

    def readable(self) -> bool:
        """Files to import are read."""
        return True

    def seekable(self) -> bool:
        """Zip archives have their directory at the end."""
        return True

    def readinto(self, buffer: Any) -> int:
        """Read on into `buffer` and count the bytes."""
        with io.FileIO(self._path) as file:
            file.seek(self._place)
            count = file.readinto(buffer) or 0
        self._place += count
        self._advance(count)
        return count

    def seek(self, offset: int, whence: int = os.SEEK_SET) -> int:
        """Go to a place in the file."""
        base = {os.SEEK_SET: 0, os.SEEK_CUR: self._place}.get(whence)
        self._place = offset + (os.stat(self._path).st_size if base is None else base)
        return self._place

    def tell(self) -> int:
        """Return the place in the file."""
        return self._place


class ZstdStream(io.RawIOBase):
    """Zstd frames as a stream. The package's own reader does not report a truncated frame."""

    def __init__(self, source: IO[bytes]) -> None:
        """Read compressed bytes from `source`."""
        self._source = source
        self._decompressor = zstandard.ZstdDecompressor()
        self._frame: Any = None
        self._compressed = b""
        self._ready = memoryview(b"")

    def readable(self) -> bool:
        """Files to import are read."""
        return True

    def readinto(self, buffer: Any) -> int:
        """Fill `buffer`, less only at the end; EOFError if the data ends within a frame."""
        filled = 0
        while filled < len(buffer) and (self._ready or self._decompress()):
            count = min(len(buffer) - filled, len(self._ready))
            buffer[filled : filled + count] = self._ready[:count]
            self._ready = self._ready[count:]
            filled += count
        return filled

    def _decompress(self) -> bool:
        """Have more bytes ready; False at the end."""
        while not self._ready:
            self._compressed = self._compressed or self._source.read(ZSTD_INPUT_BYTES)
            if not self._compressed:
                if self._frame is not None:
                    raise EOFError("the data ends in the middle of a zstd frame")
                return False
            if self._frame is None:
                self._frame = self._decompressor.decompressobj()
            self._ready = memoryview(self._frame.decompress(self._compressed))
            self._compressed = b""
            if self._frame.eof:
                self._compressed, self._frame = self._frame.unused_data, None
        return True


@dataclass(slots=True)
class Member:
    """One stream of bytes: a file, or one file of a zip archive."""

    label: str
    """What errors call it: the path, and the name inside an archive."""
    name: str
    """The name of the data itself, without folders and without `.gz` or `.zst`."""
    path: str
    stream: IO[bytes]
    ahead: bytes = b""
    """Bytes that were looked at and are still to be read."""

    def peek(self, size: int) -> bytes:
        """Return the next bytes without reading on: `size` of them, or all if there are fewer."""
        while len(self.ahead) < size and (data := self._read(size - len(self.ahead))):
            self.ahead += data
        return self.ahead[:size]

    def read(self, size: int = BLOCK_BYTES) -> bytes:
        """Return up to `size` bytes, b"" at the end; a broken archive is an InvalidSource."""
        if self.ahead:
            data, self.ahead = self.ahead[:size], self.ahead[size:]
            return data
        return self._read(size)

    def _read(self, size: int) -> bytes:
        try:
            data = self.stream.read(size)
        except (EOFError, zlib.error, gzip.BadGzipFile, zipfile.BadZipFile) as error:
            raise damaged(self.label, error) from error
        except OSError as error:
            raise InvalidSource(f"cannot read {self.label}: {error}") from error
        except Exception as error:
            if type(error).__name__ != "ZstdError":
                raise
            raise damaged(self.label, error) from error
        return data

    def skip_byte_order_mark(self) -> None:
        """Read over the mark with which some programs begin text in UTF-8."""
        if self.peek(len(BYTE_ORDER_MARK)) == BYTE_ORDER_MARK:
            self.read(len(BYTE_ORDER_MARK))

    def lines(self) -> Iterator[tuple[int, bytes]]:
        """Yield the number of each line, counted from 1, and its bytes without the line feed."""
        self.skip_byte_order_mark()
        number, rest = 1, b""
        for block in self.blocks():
            lines = (rest + block).split(b"\n")
            rest = lines.pop()
            for text in lines:
                yield number, text
                number += 1
            if len(rest) > LINE_BYTES_MAX:
                raise InvalidSource(
                    f"{self.label}:{number}: a line of more than {LINE_BYTES_MAX} bytes; is it text?",
                    self.label,
                    number,
                )
        if rest:
            yield number, rest

    def blocks(self) -> Iterator[bytes]:
        """Yield the bytes in blocks until the end."""
        while data := self.read(BLOCK_BYTES):
            yield data


def damaged(label: str, error: Exception) -> InvalidSource:
    """Return the error for compressed data that is cut or changed."""
    reason = str(error) or type(error).__name__
    return InvalidSource(f"{label} is damaged or cut off: {reason}; fetch it again")


def file_hash(path: str) -> str:
    """Return the BLAKE2b-256 of the data in hex: of what is inside a `.gz`, a `.zst` or a `.zip` of one file.

    A `.7z` or a `.zip` of several files is hashed as it is.
    """
    with io_errors(f"read {path}"), open(path, "rb", buffering=0) as file:
        magic = file.read(MAGIC_BYTES)
    if not magic.startswith((GZIP_MAGIC, ZSTD_MAGIC, ZIP_MAGIC)):
        return stored_hash(path)
    with open_members(path) as members:
        if len(members) != 1:
            return stored_hash(path)
        digest = hashlib.blake2b(digest_size=32)
        for block in members[0].blocks():
            digest.update(block)
    return digest.hexdigest()


def stored_hash(path: str) -> str:
    """Return the BLAKE2b-256 of the file as it is, in hex."""
    with io_errors(f"read {path}"), open(path, "rb") as file:
        return hashlib.file_digest(file, partial(hashlib.blake2b, digest_size=32)).hexdigest()


@contextlib.contextmanager
def open_members(path: str, advance: Callable[[int], None] = lambda count: None) -> Iterator[list[Member]]:
    """Open a file; an archive gives one member per file in it, in the order of their names.

    The members of an archive may be read side by side: each holds its own place. A `.7z` is compressed as a
    whole, so it is unpacked to the directory for temporary files (`TMPDIR`) for as long as it is open.
    """
    with contextlib.ExitStack() as opened:
        with io_errors(f"open {path}"):
            raw = opened.enter_context(CountedFile(path, advance))
            magic = raw.read(MAGIC_BYTES) or b""
            raw.seek(0)
        if magic.startswith((ZIP_MAGIC, EMPTY_ZIP_MAGIC)):
            yield _zip_members(path, raw, opened)
            return
        if magic.startswith(SEVEN_ZIP_MAGIC):
            yield _seven_zip_members(path, raw, opened)
            return
        stream = opened.enter_context(_decompressed(magic, raw))
        yield [Member(path, data_name(path), path, stream)]


def _decompressed(magic: bytes, raw: io.RawIOBase) -> Any:
    if magic.startswith(GZIP_MAGIC):
        return gzip.GzipFile(fileobj=io.BufferedReader(raw, COMPRESSED_BLOCK_BYTES), mode="rb")
    if magic.startswith(ZSTD_MAGIC):
        return ZstdStream(io.BufferedReader(raw, COMPRESSED_BLOCK_BYTES))
    return raw


def _zip_members(path: str, raw: CountedFile, opened: contextlib.ExitStack) -> list[Member]:
    try:
        archive = opened.enter_context(zipfile.ZipFile(io.BufferedReader(raw, COMPRESSED_BLOCK_BYTES)))
        entries = sorted((entry for entry in archive.infolist() if not entry.is_dir()), key=_entry_name)
        members = [
            _archived(path, entry.filename, opened.enter_context(archive.open(entry))) for entry in entries
        ]
    except (zipfile.BadZipFile, NotImplementedError, RuntimeError) as error:
        raise damaged(path, error) from error
    if not members:
        raise InvalidSource(f"{path} is an archive without any file")
    return members


def _seven_zip_members(path: str, raw: CountedFile, opened: contextlib.ExitStack) -> list[Member]:
    package = _py7zr(path)
    with io_errors(f"unpack {path}"):
        folder = opened.enter_context(tempfile.TemporaryDirectory(prefix="everlog-import-"))
        try:
            with package.SevenZipFile(io.BufferedReader(raw, BLOCK_BYTES)) as archive:
                sizes = [entry.uncompressed or 0 for entry in archive.list()]
                _check_unpacked(path, sizes, os.path.getsize(path), shutil.disk_usage(folder).free)
                archive.extractall(folder)
        except package.exceptions.PasswordRequired:
            raise Unsupported(f"{path} needs a password; unpack it first") from None
        except (package.exceptions.ArchiveError, EOFError, lzma.LZMAError, ValueError) as error:
            raise damaged(path, error) from error
        files = sorted(
            os.path.relpath(os.path.join(parent, name), folder)
            for parent, _, names in os.walk(folder)
            for name in names
        )
    if not files:
        raise InvalidSource(f"{path} is an archive without any file")
    streams = [io.BufferedReader(CountedFile(os.path.join(folder, name)), ZSTD_INPUT_BYTES) for name in files]
    return [_archived(path, name, stream) for name, stream in zip(files, streams, strict=True)]


def _check_unpacked(path: str, sizes: list[int], packed_bytes: int, free_bytes: int) -> None:
    """Refuse an archive before it fills the disk."""
    total = sum(sizes)
    if len(sizes) > SEVEN_ZIP_FILES_MAX:
        raise InvalidSource(
            f"{path} has {len(sizes)} files; at most {SEVEN_ZIP_FILES_MAX} are unpacked, unpack it yourself "
            f"and import the files"
        )
    if total > packed_bytes * SEVEN_ZIP_RATIO_MAX:
        raise InvalidSource(
            f"{path} has {packed_bytes} bytes and would become {total}, more than {SEVEN_ZIP_RATIO_MAX} "
            f"times as many; if you trust it, unpack it yourself and import the files"
        )
    if total > free_bytes // 2:
        raise InvalidSource(
            f"{path} would become {total} bytes, and the directory for temporary files has {free_bytes} "
            f"free, of which at most half is used; set TMPDIR to a larger disk"
        )


def _archived(path: str, name: str, stream: Any) -> Member:
    """Return one file of an archive, which may be compressed by itself too."""
    member = Member(f"{path}!{name}", data_name(name), path, stream)
    if name.endswith((".gz", ".zst")):
        magic = member.peek(MAGIC_BYTES)
        member = Member(member.label, member.name, path, _decompressed(magic, _Resumed(member)))
    return member


class _Resumed(io.RawIOBase):
    """A member as a file again, from where it is."""

    def __init__(self, member: Member) -> None:
        self._member = member

    def readable(self) -> bool:
        """Files to import are read."""
        return True

    def readinto(self, buffer: Any) -> int:
        """Read on into `buffer`."""
        data = self._member.read(len(buffer))
        buffer[: len(data)] = data
        return len(data)


def _py7zr(path: str) -> Any:
    try:
        import py7zr
    except ImportError:
        raise Unsupported(
            f"{path} is a 7z archive and the package py7zr is not installed; "
            "run: pip install 'everlog[market]', or unpack it first"
        ) from None
    return py7zr


def _entry_name(entry: zipfile.ZipInfo) -> str:
    return entry.filename


def data_name(path: str) -> str:
    """Return the name of the data itself, without folders and without `.gz` or `.zst`."""
    name = os.path.basename(path)
    for suffix in (".gz", ".zst"):
        name = name.removesuffix(suffix)
    return name
