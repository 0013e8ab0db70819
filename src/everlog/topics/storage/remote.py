"""The cold tier on an object store: data of sealed segments as immutable objects, the rest stays local.

Owns the objects below `TOPICS_COLD_URL` and the files below `remote` of the data directory. A segment there
has the two files of any segment: its index as it is, and in place of its data a stub that names the object,
its size and its checksum, with the heads of its frames (`frame_heads`) behind that line. So a start, a
listing, a deletion mark and a removal need no request, and all rules of crashes are those of `segment_store`.
Marks are in the index alone, because an object never changes::

    segments/<topic id>/seg-<first seq>-<checksum>.data    an object; created once, never replaced
    manifest.json                                          which run may remove objects (its epoch)
    remote/topics/<topic id>/seg-<first seq>.data, .idx    stub and index
    remote/garbage/<name>                                  the key of an object that may have to go

An entry in `garbage` is written before an object is stored and removed when the stub is durable, and written
again before the stub goes: an object that no stub names is always listed there, whatever crashes.
"""

from __future__ import annotations

import os
import secrets
from collections.abc import Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Final, TypeVar

import msgspec
import numpy as np
from xxhash import xxh3_64_hexdigest, xxh3_128_hexdigest

from everlog.clock import NS_PER_S, Clock
from everlog.errors import (
    Corrupt,
    Fenced,
    InvalidConfig,
    ObjectNotFound,
    ObjectStoreFailed,
    ObjectTooShort,
    Unsupported,
)
from everlog.fs import Fs, create_directory, read_file, replace_file
from everlog.objects import ObjectStore, open_store, probe
from everlog.topics.storage import layout
from everlog.topics.storage.frame_heads import data_of_heads, heads_of
from everlog.topics.storage.segment_store import Mark, SegmentPart, SegmentStore, delete_topic, list_topics

if TYPE_CHECKING:
    from typing_extensions import Buffer

MANIFEST: Final = "manifest.json"
STUB_VERSION: Final = 2
READ_PART_BYTES: Final = 8 << 20
"""A segment is read in ranges of this size, several at a time."""
PAUSE_NS: Final = NS_PER_S
"""After a failure reads are refused for so long, instead of waiting for the time limit each."""
_COLLECT_MAX: Final = 500
_T = TypeVar("_T")


class Stub(msgspec.Struct, frozen=True):
    """What is stored locally in place of the data of a segment."""

    url: str
    key: str
    size: int
    checksum: str
    index_size: int
    index_checksum: str
    """Of the index without its deletion marks."""
    heads_checksum: str = ""
    """Of what is behind this line; version 1 has nothing there."""
    version: int = STUB_VERSION


class Manifest(msgspec.Struct, frozen=True):
    """Which run of a server may remove objects: the one with the highest epoch."""

    epoch: int
    owner: str
    version: int = 1


def unmarked(index: bytes) -> str:
    """The checksum of an index without its deletion marks."""
    entries = np.frombuffer(bytearray(index), dtype=np.uint8).reshape(-1, layout.INDEX_ENTRY_SIZE)
    entries[:, layout.INDEX_FLAGS] &= np.uint8(0xFF ^ layout.INDEX_FLAG_DELETED)
    return xxh3_64_hexdigest(entries.tobytes())


def with_marks(data: bytes, index: bytes) -> bytes:
    """The data of a segment with the deletion marks that its index has."""
    marked = np.frombuffer(bytearray(data), dtype=np.uint8)
    fields = np.frombuffer(index, dtype="<u4").reshape(-1, layout.INDEX_ENTRY_SIZE // 4)
    sizes = fields[:, 1].astype(np.int64)
    ends = fields[:, 0].astype(np.int64) + sizes
    flags = np.frombuffer(index, dtype=np.uint8).reshape(-1, layout.INDEX_ENTRY_SIZE)[:, layout.INDEX_FLAGS]
    deleted = (flags & layout.INDEX_FLAG_DELETED != 0) & (sizes > 0) & (ends <= len(marked))
    marked[ends[deleted] - 1] = layout.SEGMENT_DELETED
    return marked.tobytes()


class RemoteTier:
    """The object store of one engine and the local files that say what is in it.

    All methods block. Storing and collecting run in one lane, one at a time; reads may run beside them.
    """

    def __init__(self, url: str, data_dir: str, fs: Fs, clock: Clock) -> None:
        self.objects: ObjectStore = open_store(url, fs=fs)
        self._url = url
        self._is_proven = False
        self.topics_dir = os.path.join(data_dir, layout.REMOTE_DIR, layout.TOPICS_DIR)
        self.garbage_dir = os.path.join(data_dir, layout.REMOTE_DIR, "garbage")
        self._fs = fs
        self._clock = clock
        self._owner = secrets.token_hex(8)
        self._epoch: int | None = None
        self._paused_until_ns = 0
        for directory in (self.topics_dir, self.garbage_dir):
            create_directory(fs, directory)

    def store_of(self, topic_id: int) -> RemoteSegmentStore:
        """The segments of a topic."""
        return RemoteSegmentStore(
            os.path.join(self.topics_dir, layout.TOPIC_DIR.name(topic_id)), self, self._fs
        )

    def probe(self) -> ObjectStoreFailed | None:
        """Refuse a store that ignores conditional puts; the error is returned if it cannot be reached now."""
        error = probe(self._url, self._fs)
        self._is_proven = error is None
        return error

    def prove(self) -> None:
        """Probe a store that could not be reached at the start; nothing is stored in one that is refused."""
        if not self._is_proven:
            self.objects.check_conditional_puts()
            self._is_proven = True

    def claim(self) -> None:
        """Take the next epoch, once in a run; `Fenced` if a later run has taken one since."""
        self.prove()
        try:
            found = self.objects.get(MANIFEST)
        except ObjectNotFound:
            if self._epoch is None:
                self.objects.put_new(MANIFEST, msgspec.json.encode(Manifest(1, self._owner)))
                self._epoch = 1
            return
        current = _decoded(found.data, Manifest, self.objects.describe(MANIFEST))
        if self._epoch is None:
            mine = Manifest(current.epoch + 1, self._owner)
            self.objects.swap(MANIFEST, msgspec.json.encode(mine), found.tag)
            self._epoch = mine.epoch
        elif current.owner != self._owner:
            raise Fenced(
                f"{self.objects.url} belongs to a server that started later (epoch {current.epoch}, ours is "
                f"{self._epoch}); stop one of them or give each a prefix of its own",
                current.epoch,
            )

    # --- Objects -----------------------------------------------------------------------------------------

    def store(self, key: str, data: Buffer) -> None:
        """Store an object, noted as garbage until `keep`."""
        self.claim()
        self.note_garbage(key)
        self.objects.put_new(key, data)

    def note_garbage(self, key: str) -> None:
        """Durably note that an object may have to go."""
        replace_file(self._fs, self._garbage_path(key), key.encode())

    def keep(self, key: str) -> None:
        """A durable stub names the object: it is no garbage."""
        with suppress(FileNotFoundError):
            self._fs.unlink(self._garbage_path(key))

    def _garbage_path(self, key: str) -> str:
        return os.path.join(self.garbage_dir, key.replace("/", "-"))

    def collect(self) -> int:
        """Remove objects that no stub names, at most some; return how many entries were dealt with."""
        self.prove()
        names = [name for name in self._fs.listdir(self.garbage_dir) if not name.endswith(".tmp")][
            :_COLLECT_MAX
        ]
        if not names:
            return 0
        keys = [read_file(self._fs, os.path.join(self.garbage_dir, name)).decode() for name in names]
        gone = [key for key in keys if not self._is_named(key)]
        if gone:
            self.claim()
            self.objects.delete(gone)
        for key in keys:
            self.keep(key)
        return len(keys)

    def _is_named(self, key: str) -> bool:
        """Whether a stub names this object."""
        _, topic, name = key.split("/")
        path = os.path.join(self.topics_dir, topic, name.rpartition("-")[0] + ".data")
        try:
            return load_stub(self._fs, path).key == key
        except FileNotFoundError:
            return False

    def delete_topic(self, topic_id: int) -> None:
        """Remove all segments of a topic; may be repeated."""
        store = self.store_of(topic_id)
        for segment_id in store.list():
            self.note_garbage(store.stub(segment_id).key)
        delete_topic(self._fs, self.topics_dir, topic_id)

    def read(self, stub: Stub, offset: int, length: int) -> bytes:
        """Read from an object; fails at once if the store has just failed."""
        if self._clock.monotonic_ns() < self._paused_until_ns:
            raise ObjectStoreFailed(f"{self.objects.url} has just failed; try again in a second")
        ends = range(offset, offset + length, READ_PART_BYTES)
        ranges = [(start, min(start + READ_PART_BYTES, offset + length)) for start in ends]
        try:
            data = b"".join(self.objects.get_ranges(stub.key, ranges))
        except ObjectNotFound as error:
            raise Corrupt(
                f"{self.objects.describe(stub.key)} is missing; restore it from a backup"
            ) from error
        except ObjectTooShort as error:
            raise Corrupt(f"{error}; restore it from a backup") from error
        except ObjectStoreFailed:
            self._paused_until_ns = self._clock.monotonic_ns() + PAUSE_NS
            raise
        if length == stub.size and xxh3_128_hexdigest(data) != stub.checksum:
            raise Corrupt(
                f"{self.objects.describe(stub.key)} does not match its checksum; restore it from a backup"
            )
        return data


def check_no_remote(fs: Fs, data_dir: str) -> None:
    """Refuse to open a directory without the URL that its older segments are at."""
    root = os.path.join(data_dir, layout.REMOTE_DIR, layout.TOPICS_DIR)
    for topic_id in list_topics(fs, root):
        directory = os.path.join(root, layout.TOPIC_DIR.name(topic_id))
        for name in fs.listdir(directory):
            if layout.SEGMENT_DATA.number(name) is not None:
                stub = load_stub(fs, os.path.join(directory, name))
                raise InvalidConfig(
                    f"older segments of {data_dir} are at {stub.url}; set TOPICS_COLD_URL to it (cold_url)"
                )


def load_stub(fs: Fs, path: str) -> Stub:
    """Read a stub."""
    return stub_and_heads(read_file(fs, path), path)[0]


def stub_and_heads(content: bytes, path: str) -> tuple[Stub, bytes]:
    """Decode a stub and what is behind its line."""
    line, _, heads = content.partition(b"\n")
    stub = _decoded(line, Stub, path)
    if stub.version > STUB_VERSION:
        raise Unsupported(f"{path} has version {stub.version}; start the build that wrote it")
    return stub, heads


class RemoteSegmentStore(SegmentStore):
    """The segments of one topic whose data is in the object store. See the module."""

    __slots__ = ("_remote",)
    is_remote = True

    def __init__(self, directory: str, remote: RemoteTier, fs: Fs) -> None:
        super().__init__(directory, fs)
        self._remote = remote

    def stub(self, segment_id: int) -> Stub:
        """Return what stands for the data of a segment; `Corrupt` if it is missing or damaged."""
        return self._local(segment_id)[0]

    def _local(self, segment_id: int) -> tuple[Stub, bytes]:
        """The stub and the heads of a segment."""
        path = self.describe(segment_id, SegmentPart.DATA)
        return stub_and_heads(super().read(segment_id, SegmentPart.DATA, 0), path)

    def put(self, segment_id: int, data: Buffer, index: Buffer) -> None:
        """See `SegmentStore.put`: the object first, then stub and index."""
        content = bytes(data)
        checksum = xxh3_128_hexdigest(content)
        name = layout.SEGMENT_DATA.name(segment_id).removesuffix(".data")
        key = f"segments/{os.path.basename(self.directory)}/{name}-{checksum}.data"
        entries = bytes(index)
        heads = heads_of(content, entries)
        stub = Stub(
            self._remote.objects.url,
            key,
            len(content),
            checksum,
            len(entries),
            unmarked(entries),
            xxh3_64_hexdigest(heads),
        )
        self._remote.store(key, content)
        if self.exists(segment_id, SegmentPart.DATA) and (earlier := self.stub(segment_id)).key != key:
            self._remote.note_garbage(earlier.key)
        super().put(segment_id, msgspec.json.encode(stub) + b"\n" + heads, index)
        self._remote.keep(key)

    def read(self, segment_id: int, part: SegmentPart, offset: int, length: int | None = None) -> bytes:
        """See `SegmentStore.read`; an index is checked against the stub, whatever marks it has."""
        if part is SegmentPart.INDEX:
            index = super().read(segment_id, part, offset, length)
            stub = self.stub(segment_id)
            is_whole = offset == 0 and length in (None, stub.index_size)
            if is_whole and (len(index) != stub.index_size or unmarked(index) != stub.index_checksum):
                path = self.describe(segment_id, part)
                raise Corrupt(f"{path} does not match its checksum; restore it from a backup")
            return index
        stub = self.stub(segment_id)
        wanted = stub.size - offset if length is None else length
        if offset + wanted > stub.size:
            raise Corrupt(f"{self._remote.objects.describe(stub.key)} has only {stub.size} bytes")
        return self._remote.read(stub, offset, wanted)

    def map(self, segment_id: int, part: SegmentPart, length: int) -> Buffer:
        """Return the first `length` bytes as a mapping; the bytes are in memory."""
        return self.read(segment_id, part, 0, length)

    def map_heads(self, segment_id: int, index: bytes, length: int, *, is_alone: bool) -> Buffer:
        """See `SegmentStore.map_heads`; needs a request only if the heads are damaged or of version 1."""
        stub, heads = self._local(segment_id)
        if xxh3_64_hexdigest(heads) == stub.heads_checksum:
            return data_of_heads(heads, index, stub.size)
        data = self.read(segment_id, SegmentPart.DATA, 0)
        if is_alone:  # the next start needs no request
            heads = heads_of(data, index)
            stub = msgspec.structs.replace(
                stub, heads_checksum=xxh3_64_hexdigest(heads), version=STUB_VERSION
            )
            path = self.describe(segment_id, SegmentPart.DATA)
            replace_file(self._fs, path, msgspec.json.encode(stub) + b"\n" + heads)
        return data

    def length(self, segment_id: int, part: SegmentPart) -> int:
        """Return the length of a part; needs no request."""
        return self.stub(segment_id).size if part is SegmentPart.DATA else super().length(segment_id, part)

    def trim(self, segment_id: int, data_length: int, index_length: int) -> None:
        """See `SegmentStore.trim`; a shorter object takes the place of the longer one."""
        if self.length(segment_id, SegmentPart.DATA) != data_length:
            data = self.read(segment_id, SegmentPart.DATA, 0, data_length)
            index = super().read(segment_id, SegmentPart.INDEX, 0, index_length)
            self.put(segment_id, data, index)

    def mark_deleted(self, segment_id: int, marks: Sequence[Mark]) -> None:
        """Durably mark records as deleted in both parts; the index alone is marked."""
        self._write_bytes(
            segment_id, SegmentPart.INDEX, [(mark.index_offset, mark.index_flags) for mark in marks]
        )

    def delete(self, segment_ids: Sequence[int]) -> None:
        """See `SegmentStore.delete`; objects go when `RemoteTier.collect` runs."""
        for segment_id in segment_ids:
            if self.exists(segment_id, SegmentPart.DATA):
                self._remote.note_garbage(self.stub(segment_id).key)
        super().delete(segment_ids)


def _decoded(data: bytes, kind: type[_T], name: str) -> _T:
    try:
        return msgspec.json.decode(data, type=kind)
    except msgspec.MsgspecError as error:
        raise Corrupt(f"{name} is damaged ({error}); restore it from a backup") from error
