"""Segments in an object store: moving them there, reading single blocks of them, bringing them back.

Owns the stub's life and the local cache. A move uploads data and block index, reads their sizes back, writes
the stub durably, and only then removes the local files; killed anywhere it can be done again. Reading fetches
the index once and then only the blocks that are needed, and keeps both in a cache of bounded size, in a
folder named by the FNV-1a hash of the object's address. Cached bytes carry a checksum: a damaged file is
fetched again.

What a move leaves below an address is an archive by itself, and so is a copy of an archive's files there:
`directories` and `segments` list it, and `open` takes its directories, which are addresses, as it takes local
ones. Plain segments are read by ranges too, as if each block of them were stored.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import zlib
from typing import Final, NamedTuple
from urllib.parse import urlsplit

import msgspec

from everlog.archive.layout import (
    BLOCK_INDEX_SUFFIX,
    META_FILE,
    STUB_SUFFIX,
    ZST_SUFFIX,
    RemoteStub,
    decode_stub,
    parse_directory,
    parse_file_name,
    segment_file,
)
from everlog.archive.tiers import (
    ArchivedSegment,
    Tier,
    compress_segment,
    load_block_index,
    load_stub,
    remove_compressed,
)
from everlog.archive.windows import Blocks, check_blocks
from everlog.archive.zstd_blocks import BlockDecoder, BlockIndex, decode_index, plain_index
from everlog.errors import Corrupt, InvalidConfig, ObjectExists, ObjectNotFound
from everlog.fs import Fs, create_directory, opened, read_file, replace_file
from everlog.objects import SCHEMES, ObjectStore, open_store
from everlog.queue.layout import CONTROL_FILE, SEG_FLAG_SEALED, SEG_FLAGS, seek_index_name, segment_name
from everlog.queue.seek_index import SeekIndex
from everlog.queue.seek_index import decode as decode_seek_index
from everlog.queue.segment import TEMP_SUFFIX

CACHE_BYTES: Final = 1 << 30
_FETCH_BYTES: Final = 8 << 20
_CRC_BYTES: Final = 4


def is_url(path: str) -> bool:
    """Whether a path is the address of an object store."""
    return path.partition("://")[0] in SCHEMES and "://" in path


def fnv1a(text: str) -> int:
    """Return the 64-bit FNV-1a hash of a text."""
    value = 0xCBF29CE484222325
    for byte in text.encode():
        value = (value ^ byte) * 0x100000001B3 & 0xFFFFFFFFFFFFFFFF
    return value


class BlockCache:
    """Fetched bytes on local disk, the least recently used removed beyond `limit_bytes`."""

    def __init__(self, directory: str, fs: Fs, limit_bytes: int = CACHE_BYTES) -> None:
        if limit_bytes < 1:
            raise InvalidConfig(f"a cache has at least 1 byte, got {limit_bytes}")
        self._directory = directory
        self._fs = fs
        self._limit_bytes = limit_bytes
        self._sizes: dict[str, int] = {}
        with contextlib.suppress(FileNotFoundError):
            found = [os.path.join(folder, name) for folder, _, names in os.walk(directory) for name in names]
            for path in sorted(found, key=lambda path: os.stat(path).st_mtime_ns):
                self._sizes[path] = os.stat(path).st_size
        self.bytes = sum(self._sizes.values())

    def _path(self, uri: str, part: str) -> str:
        return os.path.join(self._directory, f"{fnv1a(uri):016x}", part)

    def load(self, uri: str, part: str) -> bytes | None:
        """Return cached bytes, None if there are none or they are damaged."""
        path = self._path(uri, part)
        try:
            data = read_file(self._fs, path)
        except FileNotFoundError:
            return None
        if zlib.crc32(data[_CRC_BYTES:]) != int.from_bytes(data[:_CRC_BYTES], "little"):
            return None
        self._sizes[path] = self._sizes.pop(path, len(data))  # now the most recently used
        return data[_CRC_BYTES:]

    def store(self, uri: str, part: str, data: bytes) -> None:
        """Keep bytes; without room, or on a disk that refuses, they are just not kept."""
        path = self._path(uri, part)
        size = len(data) + _CRC_BYTES
        if size > self._limit_bytes:
            return
        self.bytes -= self._sizes.pop(path, 0)
        while self._sizes and self.bytes + size > self._limit_bytes:
            oldest = next(iter(self._sizes))
            self.bytes -= self._sizes.pop(oldest)
            with contextlib.suppress(OSError):
                self._fs.unlink(oldest)
        with contextlib.suppress(OSError):
            create_directory(self._fs, os.path.dirname(path))
            checksum = zlib.crc32(data).to_bytes(_CRC_BYTES, "little")
            replace_file(self._fs, path, checksum + data, durable=False)
            self._sizes[path] = size
            self.bytes += size


class RemoteBlocks:
    """The blocks of one segment in an object store, fetched as they are needed."""

    def __init__(self, store: ObjectStore, key: str, stub: RemoteStub, cache: BlockCache | None) -> None:
        self.path = stub.remote_uri
        self._store, self._key, self._stub, self._cache = store, key, stub, cache
        self._decoder = BlockDecoder(self.path) if stub.is_compressed else None
        self.fetched_bytes = 0
        self.index = self._load_index() if stub.is_compressed else plain_index(stub.size_bytes)

    def _load_index(self) -> BlockIndex:
        data = self._cache.load(self.path, "index") if self._cache else None
        if data is None:
            key = self._key.removesuffix(ZST_SUFFIX) + BLOCK_INDEX_SUFFIX
            data = self._fetch(key, 0, self._stub.idx_size_bytes)
            if self._cache is not None:
                self._cache.store(self.path, "index", data)
        return decode_index(data, self._stub.size_bytes, self._stub.index_uri)

    def _fetch(self, key: str, begin: int, end: int) -> bytes:
        self.fetched_bytes += end - begin
        return self._store.get_range(key, begin, end)

    def read(self, first: int, end: int) -> list[bytes]:
        """See `Blocks.read`; what the cache does not have is fetched with one request."""
        frames = self.index.frames
        found = {
            number: data
            for number in range(first, end)
            if self._cache is not None and (data := self._cache.load(self.path, str(number))) is not None
        }
        missing = [number for number in range(first, end) if number not in found]
        if missing:
            low, high = frames[missing[0]], frames[missing[-1]]
            begin = low.compressed_offset
            data = self._fetch(self._key, begin, high.compressed_offset + high.compressed_size)
            for number in range(missing[0], missing[-1] + 1):
                at = frames[number].compressed_offset - begin
                found[number] = data[at : at + frames[number].compressed_size]
                if self._cache is not None and number in missing:
                    self._cache.store(self.path, str(number), found[number])
        if self._decoder is None:
            return [found[number] for number in range(first, end)]
        return [self._decoder.decode(number, frames[number], found[number]) for number in range(first, end)]


class _Listed(NamedTuple):
    """What a listing says of a segment: the file of it that counts, and sizes."""

    suffix: str
    size_bytes: int
    idx_size_bytes: int = 0


class RemoteTier:
    """The object stores that the stubs of an archive name, with one cache for all of them."""

    def __init__(self, fs: Fs, *, cache_directory: str | None = None, cache_bytes: int = CACHE_BYTES) -> None:
        self._fs = fs
        self._cache = None if cache_directory is None else BlockCache(cache_directory, fs, cache_bytes)
        self._stores: dict[str, ObjectStore] = {}
        self._opened: list[RemoteBlocks] = []
        self._listed: dict[str, dict[int, _Listed]] = {}  # by directory and segment

    @property
    def fetched_bytes(self) -> int:
        """How many bytes were asked of the stores so far."""
        return self._fetched + sum(blocks.fetched_bytes for blocks in self._opened)

    _fetched = 0

    def _store_of(self, uri: str) -> tuple[ObjectStore, str]:
        """Return the store of an address, opened once, and the key of the object in it."""
        parts = urlsplit(uri)
        base, key = (
            ("file://" + os.path.dirname(parts.path), os.path.basename(parts.path))
            if parts.scheme == "file"
            else (f"{parts.scheme}://{parts.netloc}", parts.path.strip("/"))
        )
        if base not in self._stores:
            if len(self._stores) >= 64:
                self._stores.clear()
            self._stores[base] = open_store(base)
        return self._stores[base], key

    # -- archives whose root is an address ------------------------------------------------------

    def directories(self, url: str) -> list[str]:
        """List an archive below an address: the addresses of its directories, in order."""
        url = url.rstrip("/")
        sizes = {item.key: item.size for item in open_store(url).list()}
        found: dict[str, dict[int, _Listed]] = {}
        for key, size in sizes.items():
            folder, _, name = key.rpartition("/")
            parsed = parse_file_name(name)
            if parsed is None or (parsed[1] == ZST_SUFFIX and f"{key}.idx" not in sizes):
                continue
            segments = found.setdefault("/".join(part for part in (url, folder) if part), {})
            one = _Listed(parsed[1], size, sizes.get(f"{key}.idx", 0))
            # The names sort as the tiers do: plain, compressed, stub.
            segments[parsed[0]] = min(one, segments.get(parsed[0], one))
        for directory in [one for one in self._listed if f"{one}/".startswith(f"{url}/")]:
            del self._listed[directory]
        for directory, segments in found.items():
            if f"{directory.removeprefix(url).strip('/')}/{CONTROL_FILE}".lstrip("/") in sizes:
                self._drop_open(directory, segments)
        self._listed.update(found)
        return sorted(directory for directory, segments in found.items() if segments)

    def _drop_open(self, directory: str, segments: dict[int, _Listed]) -> None:
        """Leave out the newest segments of a copied queue to which its writer was still appending."""
        for segment_id in sorted(segments, reverse=True):
            if segments[segment_id].suffix:
                break
            store, key = self._store_of(f"{directory}/{segment_name(segment_id)}")
            if store.get_range(key, SEG_FLAGS, SEG_FLAGS + 1)[0] & SEG_FLAG_SEALED:
                break
            del segments[segment_id]

    def segments(self, directory: str) -> list[ArchivedSegment]:
        """The segments of a directory that was listed last."""
        return [ArchivedSegment(directory, number, Tier.REMOTE) for number in sorted(self._listed[directory])]

    def size(self, segment: ArchivedSegment) -> int:
        """How many bytes a segment has in its store."""
        return self._stub(segment.directory, segment.segment_id).size_bytes

    def _stub(self, directory: str, segment_id: int) -> RemoteStub:
        """Return the stub of a segment, or what one would say of a segment of a listed archive."""
        if not is_url(directory):
            return load_stub(self._fs, directory, segment_id)
        if segment_id not in self._listed.get(directory, {}):
            self.directories(directory)  # a task of Spark is told the segment only
        listed = self._listed.get(directory, {}).get(segment_id)
        uri = f"{directory}/{segment_name(segment_id)}"
        if listed is None:
            raise ObjectNotFound(f"{uri} is in no tier any more; restore it, or start behind it")
        if listed.suffix == STUB_SUFFIX:
            store, key = self._store_of(uri + STUB_SUFFIX)
            return decode_stub(uri + STUB_SUFFIX, store.get(key).data)
        return RemoteStub(
            remote_uri=uri + listed.suffix,
            size_bytes=listed.size_bytes,
            idx_size_bytes=listed.idx_size_bytes,
            sha256="",
        )

    def seek_index(self, directory: str, segment_id: int, segment_size: int) -> SeekIndex | None:
        """Return the seek index that a move has left beside a segment; None if there is none."""
        uri = f"{directory}/{seek_index_name(segment_id)}"
        data = self._cache.load(uri, "seek") if self._cache else None
        if data is None:
            store, key = self._store_of(uri)
            try:
                data = store.get(key).data
            except ObjectNotFound:
                return None
            self._fetched += len(data)
            if self._cache is not None:
                self._cache.store(uri, "seek", data)
        try:
            index = decode_seek_index(data)
        except Corrupt:
            return None
        is_of_it = (index.segment_id, index.segment_size) == (segment_id, segment_size)
        return index if is_of_it else None

    # -- segments ---------------------------------------------------------------------------------

    def open(self, directory: str, segment_id: int) -> Blocks:
        """Return the blocks of the segment that a stub points to, or of one in a directory of a store."""
        stub = self._stub(directory, segment_id)
        store, key = self._store_of(stub.remote_uri)
        blocks = RemoteBlocks(store, key, stub, self._cache)
        while len(self._opened) >= 8:
            self._fetched += self._opened.pop(0).fetched_bytes
        self._opened.append(blocks)
        return blocks

    def move(self, directory: str, segment_id: int, url: str, name: str) -> RemoteStub:
        """Move a segment to `<url>/<name>/NNNNNNNNN.q.zst`; the caller holds `changing`.

        A plain one is compressed first.
        """
        if self._fs.exists(segment_file(directory, segment_id)):
            compress_segment(self._fs, directory, segment_id)
        index = load_block_index(self._fs, directory, segment_id)
        index_path = segment_file(directory, segment_id, BLOCK_INDEX_SUFFIX)
        data = read_file(self._fs, segment_file(directory, segment_id, ZST_SUFFIX))
        index_data = read_file(self._fs, index_path)
        if len(data) != index.compressed_size:
            raise Corrupt(f"{index_path} does not describe its data; nothing was moved")
        uri = f"{url.rstrip('/')}/{name}/{segment_name(segment_id)}{ZST_SUFFIX}"
        stub = RemoteStub(
            remote_uri=uri,
            size_bytes=len(data),
            idx_size_bytes=len(index_data),
            sha256=hashlib.sha256(data).hexdigest(),
        )
        store, key = self._store_of(uri)
        index_key = key.removesuffix(ZST_SUFFIX) + BLOCK_INDEX_SUFFIX
        for name_of, content in ((key, data), (index_key, index_data)):
            try:
                store.put_new(name_of, content)  # the same bytes count as ours: a move that was killed
            except ObjectExists:
                raise ObjectExists(
                    f"{store.describe(name_of)} exists and holds something else, maybe of another archive; "
                    "move to another URL, or delete the object if nothing refers to it"
                ) from None
            size = store.head(name_of).size
            if size != len(content):
                raise Corrupt(
                    f"{store.describe(name_of)} has {size} bytes after an upload of {len(content)}; "
                    "the local file was kept"
                )
        # With these the store can be read without this directory.
        for beside in (seek_index_name(segment_id), META_FILE):
            with contextlib.suppress(FileNotFoundError):
                folder = key.rpartition("/")[0]
                store.put(
                    "/".join((folder, beside)).lstrip("/"),
                    read_file(self._fs, os.path.join(directory, beside)),
                )
        text = msgspec.json.format(msgspec.json.encode(stub), indent=2) + b"\n"
        replace_file(self._fs, segment_file(directory, segment_id, STUB_SUFFIX), text)
        remove_compressed(self._fs, directory, segment_id)
        return stub

    def verify(self, directory: str, segment_id: int) -> int:
        """Read a remote segment whole and compare it with its stub, if there is one; return its size."""
        blocks = self.open(directory, segment_id)
        if not is_url(directory):
            self._checked_data(load_stub(self._fs, directory, segment_id))
        else:
            check_blocks(blocks)
        return blocks.index.compressed_size

    def _checked_data(self, stub: RemoteStub) -> bytes:
        store, key = self._store_of(stub.remote_uri)
        data = bytearray()
        for begin in range(0, stub.size_bytes, _FETCH_BYTES):
            data += store.get_range(key, begin, min(stub.size_bytes, begin + _FETCH_BYTES))
        self._fetched += len(data)
        if hashlib.sha256(data).hexdigest() != stub.sha256:
            raise Corrupt(f"{stub.remote_uri} does not have the SHA-256 of its stub; restore it from a copy")
        return bytes(data)

    def restore(self, directory: str, segment_id: int) -> int:
        """Bring a segment back, compressed and checked, and return its size; the objects stay."""
        stub = load_stub(self._fs, directory, segment_id)
        store, key = self._store_of(stub.remote_uri)
        data = self._checked_data(stub)
        index_data = store.get(key.removesuffix(ZST_SUFFIX) + BLOCK_INDEX_SUFFIX).data
        decode_index(index_data, len(data), stub.index_uri)
        target = segment_file(directory, segment_id, ZST_SUFFIX)
        with opened(self._fs, target + TEMP_SUFFIX, os.O_RDWR | os.O_CREAT | os.O_TRUNC) as fd:
            self._fs.pwrite(fd, data, 0)
            self._fs.fsync(fd)
        replace_file(self._fs, segment_file(directory, segment_id, BLOCK_INDEX_SUFFIX), index_data)
        self._fs.rename(target + TEMP_SUFFIX, target)
        self._fs.fsync_dir(directory)
        self._fs.unlink(segment_file(directory, segment_id, STUB_SUFFIX))
        self._fs.fsync_dir(directory)
        return len(data)


def remote_name(root: str, directory: str) -> str:
    """Return the name of a directory in a store: its path of the contract, else that below `root`."""
    if parse_directory(directory) is not None:
        parts = os.path.abspath(directory).split(os.sep)
        key = parse_directory(directory)
        assert key is not None
        return "/".join(parts[-4:] if key.symbol is None and not key.is_raw else parts[-5:])
    return os.path.relpath(directory, root).replace(os.sep, "/").replace("./", "") or "queue"
