"""Disks that are full, read-only or of another user: real ones where this user may make them."""

import contextlib
import os
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path

UNPRIVILEGED_UID = 65534
"""A user without rights; every Linux has it."""


class CannotMount(Exception):
    """This user may not mount; the message says what the system answered."""


@contextlib.contextmanager
def small_tmpfs(path: Path, size_kib: int) -> Iterator[Path]:
    """A real file system of so many KiB, gone at the end; raises `CannotMount`."""
    path.mkdir()
    answer = _run("mount", "-t", "tmpfs", "-o", f"size={size_kib}k", "tmpfs", str(path))
    if answer is not None:
        raise CannotMount(answer)
    try:
        yield path
    finally:
        _run("umount", "--lazy", str(path))


def remount_read_only(path: Path) -> None:
    """Let the kernel refuse every write below a mount point of `small_tmpfs`."""
    answer = _run("mount", "-o", "remount,ro", str(path))
    assert answer is None, answer


@contextlib.contextmanager
def directory_for_all_users() -> Iterator[Path]:
    """A temporary directory that other users can enter; pytest's own belongs to one user."""
    with tempfile.TemporaryDirectory(prefix="everlog-test-") as name:
        os.chmod(name, 0o755)
        yield Path(name)


def _run(*command: str) -> str | None:
    """Run a command; return what went wrong."""
    try:
        ended = subprocess.run(command, capture_output=True, text=True, check=False)
    except OSError as error:
        return str(error)
    return None if ended.returncode == 0 else ended.stderr.strip() or f"exit status {ended.returncode}"
