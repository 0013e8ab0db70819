"""Files with chosen failures and simulated power loss: the `Fs` that tests and simulations use.

Owns the faults and the record of what is certainly on disk; the files themselves are real.
"""

from __future__ import annotations

import errno
import os
import random
import shutil
import stat
import threading
import weakref
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import NamedTuple

from everlog.fs import Fs, OsFs, Syncable


class PowerLoss(BaseException):
    """The simulated machine has no power: nothing after this call happens until `restore`.

    Not an `Exception`: a dead machine runs no error handler, so neither `except OSError` nor the
    `except Exception` of a worker thread may survive it and, say, count it as a failed sync.
    """


class Call(NamedTuple):
    """One call of a `FaultFs`; numbers start at 1. A rename has the path `source -> target`."""

    number: int
    name: str
    path: str


class _Node:
    """A file or directory, held open.

    So it stays readable when its last name is gone (a power loss may undo the unlink), and its
    inode number, which is its identity here, cannot be given to another file.
    """

    def __init__(self, path: str) -> None:
        self.pin = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        weakref.finalize(self, os.close, self.pin)


class _File(_Node):
    """A file and the bytes of it that are certainly on disk."""

    def __init__(self, path: str) -> None:
        super().__init__(path)
        self.durable = bytearray()

    def present(self) -> bytes:
        """Return what the file holds now, stores into mappings included."""
        return os.pread(self.pin, os.fstat(self.pin).st_size, 0)


class _Directory(_Node):
    """A directory: its entries now, and those that are certainly on disk."""

    def __init__(self, path: str) -> None:
        super().__init__(path)
        self.entries: dict[str, _Node] = {}
        self.durable: dict[str, _Node] = {}


class _Change(NamedTuple):
    """`name` in `directory` now means `node`, or nothing."""

    directory: _Directory
    name: str
    node: _Node | None

    def apply(self, entries: dict[str, _Node]) -> None:
        """Make the change in `entries`."""
        if self.node is None:
            entries.pop(self.name, None)
        else:
            entries[self.name] = self.node


def _directories_of(operation: list[_Change]) -> list[_Directory]:
    # A dict, not a set: the order decides which random number goes where.
    return list(dict.fromkeys(change.directory for change in operation))


def _path_of(fd: int) -> str:
    # The kernel follows renames, so the log names a file as it is called now.
    try:
        return os.readlink(f"/proc/self/fd/{fd}")
    except OSError:
        return f"descriptor {fd}"


def _inode_at(path: str) -> tuple[int, int] | None:
    try:
        status = os.lstat(path)
    except (FileNotFoundError, NotADirectoryError):
        return None
    return status.st_dev, status.st_ino


def _mix_pages(old: bytes, new: bytes, page_size: int, rng: random.Random) -> bytes:
    """Take each page from `old` or `new`; the length is one of theirs or a page border between."""
    if old == new:
        return new
    shorter, longer = sorted((len(old), len(new)))
    border = rng.randint(shorter // page_size, longer // page_size) * page_size
    length = rng.choice((len(old), len(new), max(shorter, border)))
    pages = []
    for start in range(0, length, page_size):
        versions = [version[start : start + page_size].ljust(page_size, b"\0") for version in (old, new)]
        pages.append(rng.choice(versions) if versions[0] != versions[1] else versions[0])
    return b"".join(pages)[:length]


class FaultFs:
    """Real files below `root` with chosen failures and simulated power loss; owns that tree.

    What survives a power loss:

    - Contents: a page is as of the last `fsync` (or waiting `msync` of it) or as of now, at
      random and independently of every other page. The length is the synced one, the present
      one, or a page border between them. `fsync` of a file says nothing about its name.
    - Names: the creates, renames and unlinks in a directory since its last `fsync_dir` survive up
      to a random point; a rename happens wholly or not at all. A directory is a name in its
      parent, so a new one needs `fsync_dir` of the parent or is lost with all it holds.

    Changes made past this object (by a mapping, by other code) count as not synced. `restore`
    writes new files: mappings, locks and descriptors of the life before cannot touch the next.
    Every synced file is also held in memory, so keep the files small. Calls are serialised.
    """

    LOG_LENGTH = 10_000

    def __init__(
        self, root: str | os.PathLike[str], seed: int = 0, inner: Fs | None = None, *, page_size: int = 4096
    ) -> None:
        self._root_path = os.path.realpath(root)
        self._seed = seed
        self._page_size = page_size
        self._inner: Fs = inner if inner is not None else OsFs()
        self._rng = random.Random(seed)
        self._mutex = threading.RLock()
        self._calls = 0
        self._restores = 0
        self._log: deque[Call] = deque(maxlen=self.LOG_LENGTH)
        self._failures: dict[int, int] = {}
        self._tears: set[int] = set()
        self._losses: set[int] = set()
        self._conditions: list[tuple[Callable[[Call], bool], int]] = []
        self._lost_at: Call | None = None
        self._descriptors: set[int] = set()
        self._nodes: weakref.WeakValueDictionary[tuple[int, int], _Node]
        self._pending: list[list[_Change]] = []
        self._mark_all_durable()

    def __repr__(self) -> str:
        return f"FaultFs({self._root_path!r}, seed={self._seed}, calls={self._calls})"

    @property
    def calls(self) -> int:
        """The number of calls so far; the next one has number `calls + 1`."""
        return self._calls

    @property
    def log(self) -> list[Call]:
        """The last `LOG_LENGTH` calls, oldest first."""
        with self._mutex:
            return list(self._log)

    def fail_at(self, call_number: int, errno: int) -> None:
        """Let one call raise `OSError(errno)` and do nothing (a `close` still closes, as on Linux)."""
        self._failures[self._future(call_number)] = errno

    def fail_when(
        self, condition: str | Callable[[Call], bool], errno: int, *, path: str = "", times: int = 1
    ) -> None:
        """Let the next `times` calls that match fail as in `fail_at`.

        `condition` is a predicate, or the name of an operation whose path must contain `path`.
        """
        if callable(condition):
            predicate = condition
        elif hasattr(Fs, condition):
            name = condition

            def predicate(call: Call) -> bool:
                return call.name == name and path in call.path
        else:
            raise ValueError(f"{condition!r} is no operation of Fs, so it would never fail; check the name")
        self._conditions += [(predicate, errno)] * times

    def tear_at(self, call_number: int) -> None:
        """Lose power within a `pwrite`, after a random prefix; within any other call, before it."""
        self._tears.add(self._future(call_number))

    def lose_power_at(self, call_number: int) -> None:
        """Lose power just before a call takes effect."""
        self._losses.add(self._future(call_number))

    def power_loss_image(self, rng: random.Random | None = None) -> dict[str, bytes | None]:
        """Draw one state that could be found after losing power now; changes no file.

        Maps paths relative to the root to contents (None: a directory), parents first.
        """
        rng = rng or self._rng
        image: dict[str, bytes | None] = {}
        with self._mutex:
            self._observe_tree(self._root_path, self._root)
            entries = self._surviving_entries(rng)
            rest = [("", self._root)]
            while rest:
                parent, directory = rest.pop()
                for name, node in sorted(entries.get(directory, directory.durable).items()):
                    path = os.path.join(parent, name)
                    if isinstance(node, _Directory):
                        image[path] = None
                        rest.append((path, node))
                    elif isinstance(node, _File):
                        image[path] = _mix_pages(bytes(node.durable), node.present(), self._page_size, rng)
        return image

    def restore(self, rng: random.Random | None = None) -> None:
        """Lose power if that has not happened, rewrite the tree to a `power_loss_image`, go on.

        Planned faults stay planned and calls keep counting, so that recovery can be hit too.
        """
        with self._mutex:
            self._restores += 1
            image = self.power_loss_image(rng)
            for entry in os.scandir(self._root_path):
                if entry.is_dir(follow_symlinks=False):
                    shutil.rmtree(entry.path)
                else:
                    os.unlink(entry.path)
            for name, content in image.items():
                path = os.path.join(self._root_path, name)
                if content is None:
                    os.mkdir(path)
                else:
                    with open(path, "xb") as file:
                        file.write(content)
            self._mark_all_durable()
            self._lost_at = None

    def _future(self, call_number: int) -> int:
        if call_number <= self._calls:
            raise ValueError(f"call {call_number} is over; the next one has number {self._calls + 1}")
        return call_number

    @contextmanager
    def _call(self, name: str, target: str | int) -> Iterator[bool]:
        """Count and log a call and raise what is planned for it; yields whether it must tear."""
        with self._mutex:
            self._calls += 1
            call = Call(self._calls, name, target if isinstance(target, str) else _path_of(target))
            self._log.append(call)
            torn = call.number in self._tears
            if self._lost_at is not None or call.number in self._losses or (torn and name != "pwrite"):
                self._lose_power(call)
            number = self._failures.pop(call.number, None)
            if number is None:
                hit = next((entry for entry in self._conditions if entry[0](call)), None)
                if hit is not None:
                    self._conditions.remove(hit)
                    number = hit[1]
            if number is not None:
                raise OSError(number, f"{os.strerror(number)} (planned for call {call.number})", call.path)
            yield torn

    def _lose_power(self, call: Call) -> None:
        self._lost_at = self._lost_at or call
        raise PowerLoss(f"power lost at {self._lost_at}, seed {self._seed}; now {call}")

    @contextmanager
    def _renaming(self, name: str, *paths: str) -> Iterator[None]:
        """`_call` for what changes directory entries: the change at all `paths` is one operation."""
        with self._call(name, " -> ".join(paths)):
            for path in paths:
                self._observe(path)
            yield
            self._observe(*paths)

    def _observe(self, *paths: str) -> None:
        """Record what is new about the entries at `paths` as one operation that is not synced."""
        operation: list[_Change] = []
        for path in paths:
            parent, name = os.path.split(os.path.abspath(path))
            directory = self._directory_at(os.path.realpath(parent))
            if directory is not None:
                operation += self._changes_at(parent, directory, name)
        self._add_operation(operation)

    def _changes_at(self, parent: str, directory: _Directory, name: str) -> list[_Change]:
        node = self._node_at(os.path.join(parent, name))
        return [] if directory.entries.get(name) is node else [_Change(directory, name, node)]

    def _add_operation(self, operation: list[_Change]) -> None:
        for change in operation:
            change.apply(change.directory.entries)
        if operation:
            self._pending.append(operation)

    def _observe_entries(self, path: str, directory: _Directory) -> None:
        for name in sorted({*os.listdir(path), *directory.entries}):
            self._add_operation(self._changes_at(path, directory, name))

    def _observe_tree(self, path: str, directory: _Directory) -> None:
        self._observe_entries(path, directory)
        for name, node in directory.entries.items():
            if isinstance(node, _Directory):
                self._observe_tree(os.path.join(path, name), node)

    def _directory_at(self, path: str) -> _Directory | None:
        """Find a directory by its real path, noticing new ones on the way; None outside the root."""
        if path != self._root_path and not path.startswith(os.path.join(self._root_path, "")):
            return None
        inode = _inode_at(path)
        if inode is not None and inode not in self._nodes:
            self._observe(path)
        node = self._nodes.get(inode) if inode is not None else None
        return node if isinstance(node, _Directory) else None

    def _node_at(self, path: str) -> _Node | None:
        inode = _inode_at(path)
        if inode is None:
            return None
        node = self._nodes.get(inode)
        if node is None:
            mode = os.lstat(path).st_mode
            if not (stat.S_ISREG(mode) or stat.S_ISDIR(mode)):
                return None  # sockets and the like hold no bytes to lose
            node = _Directory(path) if stat.S_ISDIR(mode) else _File(path)
            self._nodes[inode] = node
        return node

    def _node_of(self, fd: int) -> _Node | None:
        status = os.fstat(fd)
        return self._nodes.get((status.st_dev, status.st_ino))

    def _surviving_entries(self, rng: random.Random) -> dict[_Directory, dict[str, _Node]]:
        """Apply, in each directory, the operations up to a random point to the durable entries."""
        counts: dict[_Directory, int] = {}
        for operation in self._pending:
            for directory in _directories_of(operation):
                counts[directory] = counts.get(directory, 0) + 1
        left = {directory: rng.randint(0, count) for directory, count in counts.items()}
        entries = {directory: dict(directory.durable) for directory in counts}
        for operation in self._pending:
            directories = _directories_of(operation)
            survives = all(left[directory] > 0 for directory in directories)
            for change in operation if survives else ():
                change.apply(entries[change.directory])
            for directory in directories:
                left[directory] = left[directory] - 1 if survives else 0
        return entries

    def _commit(self, path: str) -> None:
        """Make the operations in a directory durable, and those elsewhere that come before them."""
        directory = self._directory_at(os.path.realpath(path))
        if directory is None:
            return
        self._observe_entries(path, directory)
        wanted = {directory}
        synced, pending = [], []
        for operation in reversed(self._pending):
            directories = _directories_of(operation)
            if wanted.isdisjoint(directories):
                pending.append(operation)
            else:
                wanted.update(directories)
                synced.append(operation)
        self._pending = pending[::-1]
        for operation in synced[::-1]:
            for change in operation:
                change.apply(change.directory.durable)

    def _mark_all_durable(self) -> None:
        """Take the tree as it is now for durable."""
        self._nodes = weakref.WeakValueDictionary()
        root = self._node_at(self._root_path)
        if not isinstance(root, _Directory):
            raise NotADirectoryError(f"{self._root_path} must be an existing directory to simulate faults in")
        self._root = root
        self._observe_tree(self._root_path, root)
        for node in list(self._nodes.values()):
            if isinstance(node, _File):
                node.durable[:] = node.present()
            elif isinstance(node, _Directory):
                node.durable = dict(node.entries)
        self._pending.clear()

    def open(self, path: str, flags: int, mode: int = 0o600) -> int:
        """Open `path` and return the descriptor; a new file has the mode, and what its group is given."""
        with self._renaming("open", path):
            fd = self._inner.open(path, flags, mode)
            self._descriptors.add(fd)
        return fd

    def close(self, fd: int) -> None:
        """See `Fs.close`; the descriptor is closed whatever is planned, silently without power."""
        with self._mutex:
            was_lost = self._lost_at is not None
            try:
                with self._call("close", fd):
                    if fd not in self._descriptors:
                        raise OSError(errno.EBADF, "descriptor is not open in this FaultFs", str(fd))
            except PowerLoss:
                if not was_lost:
                    raise
            finally:
                # Only ours: after a second close the number may belong to another file.
                if fd in self._descriptors:
                    self._descriptors.remove(fd)
                    self._inner.close(fd)

    def pread(self, fd: int, length: int, offset: int) -> bytes:
        """Read at most `length` bytes at `offset`."""
        with self._call("pread", fd):
            return self._inner.pread(fd, length, offset)

    def pwrite(self, fd: int, data: bytes | memoryview, offset: int) -> None:
        """Write all of `data` at `offset`."""
        with self._call("pwrite", fd) as torn:
            if torn:
                self._inner.pwrite(fd, data[: self._rng.randrange(max(1, len(data)))], offset)
                self._lose_power(self._log[-1])
            self._inner.pwrite(fd, data, offset)

    def size(self, fd: int) -> int:
        """Return the length of the open file."""
        with self._call("size", fd):
            return self._inner.size(fd)

    def truncate(self, fd: int, length: int) -> None:
        """Set the length of the open file."""
        with self._call("truncate", fd):
            self._inner.truncate(fd, length)

    def allocate(self, fd: int, length: int) -> None:
        """Reserve `length` bytes on disk, so that a later store into a mapping cannot fault."""
        with self._call("allocate", fd):
            self._inner.allocate(fd, length)

    def write_zeros(self, fd: int, offset: int, length: int) -> None:
        """Write zeros to reserved bytes, which are zero already, so that syncs of them cost less later."""
        with self._call("write_zeros", fd):
            self._inner.write_zeros(fd, offset, length)

    def fsync(self, fd: int) -> None:
        """Force data and metadata of the open file to disk."""
        with self._call("fsync", fd):
            self._sync_node(fd, self._inner.fsync)

    def fdatasync(self, fd: int) -> None:
        """See `Fs.fdatasync`; the length counts as metadata that is needed to read the data."""
        with self._call("fdatasync", fd):
            self._sync_node(fd, self._inner.fdatasync)

    def _sync_node(self, fd: int, sync: Callable[[int], None]) -> None:
        node = self._node_of(fd)
        # Read first: a store into a mapping while the sync runs is not covered by it.
        content = node.present() if isinstance(node, _File) else b""
        sync(fd)
        if isinstance(node, _File):
            node.durable[:] = content
        elif isinstance(node, _Directory):
            self._commit(_path_of(fd))

    def fsync_dir(self, path: str) -> None:
        """Force the entries of a directory to disk."""
        with self._call("fsync_dir", path):
            self._inner.fsync_dir(path)
            self._commit(path)

    def sync_file_system(self, path: str) -> None:
        """See `Fs.sync_file_system`; only what is below the root counts."""
        with self._call("sync_file_system", path):
            self._observe_tree(self._root_path, self._root)
            contents = {
                node: node.present() for node in list(self._nodes.values()) if isinstance(node, _File)
            }
            self._inner.sync_file_system(path)
            for file, content in contents.items():
                file.durable[:] = content
            for operation in self._pending:
                for change in operation:
                    change.apply(change.directory.durable)
            self._pending.clear()

    def msync(self, mapping: Syncable, fd: int, offset: int, length: int, wait: bool) -> None:
        """See `Fs.msync`; `fd` must still be open."""
        with self._call("msync", fd):
            node = self._node_of(fd)
            start = offset // self._page_size * self._page_size
            end = -(-(offset + length) // self._page_size) * self._page_size
            content = os.pread(node.pin, end - start, start) if isinstance(node, _File) else b""
            self._inner.msync(mapping, fd, offset, length, wait)
            if wait and isinstance(node, _File) and content:
                node.durable.extend(bytes(max(0, start - len(node.durable))))
                node.durable[start : start + len(content)] = content

    def rename(self, source: str, target: str) -> None:
        """Atomically replace `target` by `source`."""
        with self._renaming("rename", source, target):
            self._inner.rename(source, target)

    def rename_noreplace(self, source: str, target: str) -> None:
        """Atomically rename; `FileExistsError` if `target` exists."""
        with self._renaming("rename_noreplace", source, target):
            self._inner.rename_noreplace(source, target)

    def unlink(self, path: str) -> None:
        """Remove a file."""
        with self._renaming("unlink", path):
            self._inner.unlink(path)

    def makedirs(self, path: str) -> None:
        """Create a directory and its parents; existing ones are fine."""
        with self._call("makedirs", path):
            self._inner.makedirs(path)
            self._directory_at(os.path.realpath(path))

    def rmdir(self, path: str) -> None:
        """Remove an empty directory."""
        with self._renaming("rmdir", path):
            self._inner.rmdir(path)

    def listdir(self, path: str) -> list[str]:
        """Return the names in a directory, sorted."""
        with self._call("listdir", path):
            return self._inner.listdir(path)

    def exists(self, path: str) -> bool:
        """Whether `path` exists."""
        with self._call("exists", path):
            return self._inner.exists(path)

    def boot_id(self) -> str:
        """See `Fs.boot_id`; another one after every `restore`."""
        with self._call("boot_id", self._root_path):
            return f"simulated {self._seed} {self._restores}"

    def try_lock(self, fd: int) -> bool:
        """Take an exclusive flock without waiting; False if it is held elsewhere."""
        with self._call("try_lock", fd):
            return self._inner.try_lock(fd)

    def unlock(self, fd: int) -> None:
        """Release the flock, also if a forked child has inherited the descriptor."""
        with self._call("unlock", fd):
            self._inner.unlock(fd)
