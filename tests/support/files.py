"""Files of tests: trees, names, damage, an `Fs` without syncs, an `Fs` with hooks before calls."""

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any, cast

from everlog.fs import Fs, OsFs


def tree(root: Path) -> dict[str, bytes | None]:
    """Everything below root: relative path to content, None for a directory."""
    return {
        str(path.relative_to(root)): None if path.is_dir() else path.read_bytes()
        for path in sorted(root.rglob("*"))
    }


def names_below(directory: Path, pattern: str) -> list[str]:
    """The names of the files below a directory that match, sorted."""
    return sorted(path.name for path in directory.rglob(pattern))


def flip_bit(path: Path, offset: int, bit: int = 0) -> None:
    """Damage one bit of a file."""
    content = bytearray(path.read_bytes())
    content[offset] ^= 1 << bit
    path.write_bytes(content)


def descriptors_below(root: Path) -> int:
    """How many files below root (deleted ones too) this process has open for writing."""
    count = 0
    for entry in os.listdir("/proc/self/fd"):
        try:
            path = os.readlink(f"/proc/self/fd/{entry}")
            flags = int(Path(f"/proc/self/fdinfo/{entry}").read_text(encoding="ascii").split()[3], 8)
        except FileNotFoundError:
            continue  # the descriptor that listed the directory
        count += path.startswith(f"{root}/") and flags & os.O_ACCMODE != os.O_RDONLY
    return count


class UnsyncedFs(OsFs):
    """The real file system without waiting for the disk, for tests that lose no power or simulate it."""

    def fsync(self, fd: int) -> None:
        """Do not wait."""

    def fdatasync(self, fd: int) -> None:
        """Do not wait."""

    def fsync_dir(self, path: str) -> None:
        """Do not wait."""


class _HookedFs:
    def __init__(self, before: Callable[[str, tuple[Any, ...]], None]) -> None:
        self._inner = OsFs()
        self._before = before

    def __getattr__(self, name: str) -> Callable[..., Any]:
        operation = getattr(self._inner, name)

        def call(*arguments: Any) -> Any:
            self._before(name, arguments)
            return operation(*arguments)

        return call


def hooked_fs(before: Callable[[str, tuple[Any, ...]], None]) -> Fs:
    """Return an `OsFs` that calls `before(operation, arguments)` before every operation."""
    return cast(Fs, _HookedFs(before))


def interrupting_fs(operation: str, pending: list[Callable[[], object]]) -> Fs:
    """Return an `OsFs` in which each of `pending` happens (and leaves the list) before an `operation`."""

    def before(name: str, _: tuple[Any, ...]) -> None:
        if name == operation and pending:
            pending.pop(0)()

    return hooked_fs(before)
