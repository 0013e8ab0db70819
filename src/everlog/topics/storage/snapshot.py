"""Snapshot files: one opaque payload per file, numbered, the newest valid one counts.

Owns the files in the meta directory and nothing in them. A snapshot appears complete or not at all.
The log may be trimmed only up to what the oldest snapshot here needs, or falling back to that one
would lose records.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import Final, NamedTuple

from xxhash import xxh3_64, xxh3_64_intdigest

from everlog.errors import CorruptMetadata, Io, UnsupportedVersion
from everlog.fs import Fs, read_file, replace_file
from everlog.topics.storage import layout

_WRITE_BYTES: Final = 1 << 19
_NAMINGS: Final = (layout.SNAPSHOT_FILE, layout.SNAPSHOT_COPY)


class Rejected(NamedTuple):
    """A snapshot that cannot be used, and why."""

    path: str
    reason: str


class NewestSnapshot(NamedTuple):
    """The newest valid snapshot (number 0 and no payload: there is none) and the damaged newer ones."""

    number: int
    payload: bytes | None
    rejected: list[Rejected]


def write(fs: Fs, meta_dir: str, number: int, payload: Sequence[bytes]) -> str:
    """Durably write snapshot `number`, which must be higher than all before; returns its path.

    The payload comes in pieces, so that a large one does not keep the interpreter from other threads.
    """
    path = os.path.join(meta_dir, layout.SNAPSHOT_FILE.name(number))
    size = sum(map(len, payload))
    header = layout.SNAPSHOT_HEADER.pack(layout.SNAPSHOT_MAGIC, layout.SNAPSHOT_VERSION, size)
    with _reported("write the snapshot", path, "the older one stays in force; check the disk"):
        replace_file(fs, path, _joined(header, payload))
    return path


def _joined(header: bytes, payload: Sequence[bytes]) -> Iterator[bytes]:
    """Yield the bytes of a file, some hundred thousand at a time."""
    checksum = xxh3_64()
    gathered, size = [header], 0
    for piece in payload:
        checksum.update(piece)
        gathered.append(piece)
        size += len(piece)
        if size >= _WRITE_BYTES:
            yield b"".join(gathered)
            gathered, size = [], 0
    yield b"".join((*gathered, layout.CHECKSUM.pack(checksum.intdigest())))


def numbers(fs: Fs, meta_dir: str) -> list[int]:
    """Return the numbers of all snapshots, ascending, valid or not."""
    return sorted(_listed(fs, meta_dir)[0])


def newest(fs: Fs, meta_dir: str) -> NewestSnapshot:
    """Find the newest valid snapshot; damaged ones are passed over and reported.

    A file of another version raises `UnsupportedVersion`, one that cannot be read `Io`: coming up with
    an older state because of either would be wrong.
    """
    rejected: list[Rejected] = []
    for number in reversed(numbers(fs, meta_dir)):
        other_version: UnsupportedVersion | None = None
        for naming in (layout.SNAPSHOT_FILE, layout.SNAPSHOT_COPY):
            path = _path(meta_dir, naming, number)
            content = _content(fs, path)
            if content is None and naming is layout.SNAPSHOT_COPY:
                continue  # only a clean stop makes one
            try:
                reason = "it is missing" if content is None else damage(path, content)
            except UnsupportedVersion as error:
                other_version = other_version or error
                reason = str(error)
            if content is not None and reason is None:
                payload = content[layout.SNAPSHOT_HEADER_SIZE : -layout.SNAPSHOT_TRAILER_SIZE]
                return NewestSnapshot(number, payload, rejected)
            rejected.append(Rejected(path, reason or ""))
        if other_version is not None:
            raise other_version
    return NewestSnapshot(0, None, rejected)


def check_number(meta_dir: str, number: int, own_number: int) -> None:
    """Refuse a snapshot that is another one by its content; 0 is that of version 0.2, which has none."""
    if own_number not in (0, number):
        raise CorruptMetadata(
            f"{_path(meta_dir, layout.SNAPSHOT_FILE, number)} is snapshot {own_number} under another name; "
            "give each snapshot its name back, or restore the directory from a backup"
        )


def _content(fs: Fs, path: str) -> bytes | None:
    """Read a file; None if there is none."""
    with _reported("read the snapshot", path, "check the disk and the permissions, then start again"):
        try:
            return read_file(fs, path)
        except FileNotFoundError:
            return None


def copy(fs: Fs, meta_dir: str, number: int) -> None:
    """Durably write a second file with the content of snapshot `number`, which is the only one left."""
    path = _path(meta_dir, layout.SNAPSHOT_FILE, number)
    with _reported("copy the snapshot", path, "nothing depends on the copy; check the disk"):
        replace_file(fs, _path(meta_dir, layout.SNAPSHOT_COPY, number), read_file(fs, path))


def _path(meta_dir: str, naming: layout.NumberedName, number: int) -> str:
    """Where a snapshot is; the copy is in the directory above, so that `meta` holds snapshots alone."""
    directory = os.path.dirname(meta_dir) if naming is layout.SNAPSHOT_COPY else meta_dir
    return os.path.join(directory, naming.name(number))


def prune(fs: Fs, meta_dir: str, keep: int = 2) -> list[int]:
    """Remove all but the `keep` newest snapshots and what interrupted writes left; returns the numbers."""
    if keep < 1:
        raise ValueError(f"keep is {keep}; at least the newest snapshot must stay")
    found, temporary = _listed(fs, meta_dir)
    going = sorted(found)[:-keep]
    files = [_path(meta_dir, naming, number) for number in going for naming in _NAMINGS]
    for path in (*temporary, *files):
        with (
            _reported("remove the old snapshot", path, "it is not needed; remove it by hand"),
            suppress(FileNotFoundError),
        ):
            fs.unlink(path)
    return going


def _listed(fs: Fs, meta_dir: str) -> tuple[list[int], list[str]]:
    """Return the numbers of the snapshots and the paths of temporary files; refuse any other name."""
    with _reported("list the directory", meta_dir, "check the permissions, then start again"):
        try:
            names = fs.listdir(meta_dir)
            above = fs.listdir(os.path.dirname(meta_dir))
        except FileNotFoundError:
            return [], []
    found = {number for name in above if (number := layout.SNAPSHOT_COPY.number(name)) is not None}
    temporary = [
        os.path.join(os.path.dirname(meta_dir), name)
        for name in above
        if name.endswith(layout.TEMPORARY_SUFFIX)
        and layout.SNAPSHOT_COPY.number(name.removesuffix(layout.TEMPORARY_SUFFIX)) is not None
    ]
    for name in names:
        if name.endswith(layout.TEMPORARY_SUFFIX):
            temporary.append(os.path.join(meta_dir, name))
        elif (number := layout.SNAPSHOT_FILE.number(name)) is not None:
            found.add(number)
        else:
            raise CorruptMetadata(f"{os.path.join(meta_dir, name)} is no snapshot; move it elsewhere")
    return sorted(found), temporary


def damage(path: str, content: bytes) -> str | None:
    """Return what is wrong with a snapshot file, None if nothing is."""
    around = layout.SNAPSHOT_HEADER_SIZE + layout.SNAPSHOT_TRAILER_SIZE
    if len(content) < around:
        return f"it has {len(content)} bytes, fewer than header and checksum need"
    magic, version, payload_len = layout.SNAPSHOT_HEADER.unpack_from(content)
    if magic != layout.SNAPSHOT_MAGIC:
        return f"it begins with {magic!r} instead of {layout.SNAPSHOT_MAGIC!r}"
    if version != layout.SNAPSHOT_VERSION:
        raise UnsupportedVersion(
            f"{path} has version {version}, this build reads {layout.SNAPSHOT_VERSION}; start the build that "
            "wrote it, or move the file elsewhere if it is damaged",
            version,
        )
    if payload_len != len(content) - around:
        return f"its header promises {payload_len} bytes of payload, but there are {len(content) - around}"
    payload = memoryview(content)[layout.SNAPSHOT_HEADER_SIZE : -layout.SNAPSHOT_TRAILER_SIZE]
    (stored,) = layout.CHECKSUM.unpack(content[-layout.SNAPSHOT_TRAILER_SIZE :])
    if stored != xxh3_64_intdigest(payload):
        return "its payload does not match its checksum"
    return None


@contextmanager
def _reported(action: str, path: str, advice: str) -> Iterator[None]:
    """Turn an `OSError` of a block into an `Io` that names the file."""
    try:
        yield
    except OSError as error:
        raise Io(f"cannot {action} {path}: {error.strerror or error}; {advice}", error.errno) from error
