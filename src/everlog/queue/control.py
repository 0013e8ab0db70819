"""The control block (`control.meta`): what writer and readers share besides the segments.

Owns creation, validation and typed access. The hot words are touched by the native core.
"""

from __future__ import annotations

import os
import struct

from everlog.clock import Clock
from everlog.errors import CorruptMetadata, QueueNotFound, UnsupportedVersion
from everlog.fs import Fs
from everlog.native.queue import ring as native
from everlog.queue import identity, layout
from everlog.queue.config import SEGMENT_SIZE_MAX
from everlog.queue.layout import SEG_DATA_OFFSET

READY_WAIT_NS_MAX = 1_000_000_000
"""How long a subscriber waits for a control block that is being initialised."""

_READY_POLL_NS = 1_000_000


class ControlBlock:
    """The mapped control block of one queue."""

    def __init__(self, fs: Fs, path: str, fd: int, mapping: native.Mapping) -> None:
        """Use `create` or `open`."""
        self.path = path
        self.mapping = mapping
        self.segment_size = mapping.load_u64(layout.CTRL_SEGMENT_SIZE)
        self._fs = fs
        self._fd = fd

    @classmethod
    def exists(cls, fs: Fs, queue_path: str) -> bool:
        """Whether the queue has a control block."""
        return fs.exists(os.path.join(queue_path, layout.CONTROL_FILE))

    @classmethod
    def create(cls, fs: Fs, queue_path: str, segment_size: int) -> None:
        """Create a block that says it is being initialised.

        It appears under its name complete or not at all. Subscribers wait until the writer has
        made the first segment and calls `mark_ready`.
        """
        identity.create(fs, queue_path)
        path = os.path.join(queue_path, layout.CONTROL_FILE)
        block = bytearray(layout.CTRL_SIZE)
        layout.CTRL_PREFIX.pack_into(
            block, 0, layout.CTRL_MAGIC, layout.CTRL_VERSION, layout.INIT_STATE_INITIALIZING, 0, segment_size
        )
        struct.pack_into("<Q", block, layout.CTRL_WRITE_OFFSET, SEG_DATA_OFFSET)
        temp = path + ".tmp"
        fd = fs.open(temp, os.O_RDWR | os.O_CREAT | os.O_TRUNC)
        try:
            fs.allocate(fd, layout.CTRL_SIZE)
            fs.pwrite(fd, bytes(block), 0)
            fs.fsync(fd)
        finally:
            fs.close(fd)
        fs.rename(temp, path)
        fs.fsync_dir(queue_path)

    @classmethod
    def open(
        cls, fs: Fs, clock: Clock, queue_path: str, *, writable: bool = True, wait_ready: bool = True
    ) -> ControlBlock:
        """Map the block, waiting up to a second for one that is still being initialised.

        The writer does not wait: it finishes what a dead predecessor began.
        """
        path = os.path.join(queue_path, layout.CONTROL_FILE)
        try:
            fd = fs.open(path, os.O_RDWR if writable else os.O_RDONLY)
        except (FileNotFoundError, NotADirectoryError):
            raise QueueNotFound(
                f"no queue at {queue_path}: {layout.CONTROL_FILE} is missing; check the path, or let its "
                "writer create the queue first"
            ) from None
        try:
            size = fs.size(fd)
            if size < layout.CTRL_SIZE:
                raise CorruptMetadata(f"{path} has {size} bytes, expected {layout.CTRL_SIZE}")
            mapping = native.Mapping(fd, layout.CTRL_SIZE, writable)
            if wait_ready:
                _wait_until_ready(clock, path, mapping)
            check_prefix(path, bytes(memoryview(mapping)[: layout.CTRL_PREFIX.size]))
            return cls(fs, path, fd, mapping)
        except BaseException:
            fs.close(fd)
            raise

    @classmethod
    def is_ready(cls, fs: Fs, queue_path: str) -> bool:
        """Whether a subscriber can open the queue now: the file exists and is initialised."""
        try:
            fd = fs.open(os.path.join(queue_path, layout.CONTROL_FILE), os.O_RDONLY)
        except (FileNotFoundError, NotADirectoryError):
            return False
        try:
            state = fs.pread(fd, 4, layout.CTRL_INIT_STATE)
        finally:
            fs.close(fd)
        # A file too short to hold the state is damaged, not new: opening it reports that.
        return len(state) < 4 or state == struct.pack("<I", layout.INIT_STATE_READY)

    @property
    def ready(self) -> bool:
        """Whether a writer has finished creating the queue."""
        return self.mapping.load_u32(layout.CTRL_INIT_STATE) == layout.INIT_STATE_READY

    @property
    def writer_epoch(self) -> int:
        """How often a writer has opened this queue."""
        return self.mapping.load_u64(layout.CTRL_WRITER_EPOCH)

    @property
    def writer_heartbeat_ns(self) -> int:
        """The writer's last heartbeat (wall clock)."""
        return self.mapping.load_u64(layout.CTRL_WRITER_HEARTBEAT_NS)

    @property
    def waiters_pending(self) -> int:
        """How many readers are asleep or about to sleep."""
        return self.mapping.load_u32(layout.CTRL_WAITERS_PENDING)

    def head(self) -> tuple[int, int]:
        """Return the published (segment id, offset)."""
        return native.read_head(self.mapping)

    def beat(self, wall_ns: int) -> None:
        """Store the writer's heartbeat."""
        self.mapping.store_u64(layout.CTRL_WRITER_HEARTBEAT_NS, wall_ns)

    def begin_epoch(self, epoch: int) -> None:
        """Reset the waiters, store the epoch of a new writer and wake all sleeping readers.

        A reader that was killed while asleep has left `waiters_pending` too high. A reader that
        sleeps now sees from the epoch that its registration is gone; one that is about to sleep
        may sleep for up to a second.
        """
        self.mapping.store_u32(layout.CTRL_WAITERS_PENDING, 0)
        self.mapping.store_u64(layout.CTRL_WRITER_EPOCH, epoch)
        native.wake_all(self.mapping)

    def publish_head(self, segment_id: int, offset: int) -> None:
        """Publish the writer's position and wake all waiting readers."""
        native.publish_head(self.mapping, segment_id, offset)
        native.notify(self.mapping)

    def mark_ready(self) -> None:
        """Allow subscribers to open the queue: there is a segment to read."""
        self.mapping.store_u32(layout.CTRL_INIT_STATE, layout.INIT_STATE_READY)

    def sync(self) -> None:
        """Force the block to disk."""
        self._fs.msync(self.mapping, self._fd, 0, layout.CTRL_SIZE, True)

    def close(self) -> None:
        """Close the descriptor; the mapping lives as long as it is referenced."""
        if self._fd >= 0:
            self._fs.close(self._fd)
            self._fd = -1


def _wait_until_ready(clock: Clock, path: str, mapping: native.Mapping) -> None:
    deadline_ns = clock.monotonic_ns() + READY_WAIT_NS_MAX
    while mapping.load_u32(layout.CTRL_INIT_STATE) != layout.INIT_STATE_READY:
        if clock.monotonic_ns() >= deadline_ns:
            state = mapping.load_u32(layout.CTRL_INIT_STATE)
            raise CorruptMetadata(
                f"{path} is not initialised after 1 s (init_state {state}, expected 2); "
                "its writer died while creating it: open a publisher to finish it"
            )
        clock.sleep_ns(_READY_POLL_NS)


def check_prefix(path: str, block: bytes) -> None:
    """Refuse a control block with another magic, another version or an impossible segment size."""
    magic, version, _, _, segment_size = layout.CTRL_PREFIX.unpack_from(block)
    if magic != layout.CTRL_MAGIC:
        raise CorruptMetadata(
            f"{path} has magic {magic:#010x}, expected {layout.CTRL_MAGIC:#010x}; restore it from a backup"
        )
    if version != layout.CTRL_VERSION:
        raise UnsupportedVersion(
            f"{path} has version {version}; this build knows {layout.CTRL_VERSION}", version
        )
    if segment_size % layout.RECORD_ALIGN or not layout.SEGMENT_SIZE_MIN <= segment_size <= SEGMENT_SIZE_MAX:
        raise CorruptMetadata(
            f"{path} has an impossible segment_size of {segment_size}; restore it from a backup"
        )
