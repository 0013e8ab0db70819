"""The simulated machine: files that fail, a disk that fills up, power that goes away, time that jumps.

Owns the faults of one simulation; knows no topic.
"""

from __future__ import annotations

import errno
import os
import random

from everlog.clock import TestClock
from everlog.fault_fs import FaultFs
from tests.support.files import UnsyncedFs

FAILING = ("pwrite", "fdatasync", "fsync", "fsync_dir", "rename", "allocate", "truncate", "unlink")
ERRORS = (errno.EIO, errno.ENOSPC)


class FlakyFs(UnsyncedFs):
    """The file system below the power switch: chosen calls fail, writes may fail half done."""

    def __init__(self, rng: random.Random) -> None:
        self._rng = rng
        self._countdown: dict[str, int] = {}
        self.is_full = False
        self.failures = 0

    @property
    def is_armed(self) -> bool:
        """Whether a call may still fail."""
        return bool(self._countdown) or self.is_full

    def arm(self, name: str, calls: int) -> None:
        """Let the operation `name` fail at its `calls`-th call from now."""
        self._countdown[name] = calls

    def disarm(self) -> None:
        """Plan no more failures."""
        self._countdown.clear()
        self.is_full = False

    def _step(self, name: str, *, needs_space: bool = False) -> None:
        if name in self._countdown:
            self._countdown[name] -= 1
            if self._countdown[name] <= 0:
                del self._countdown[name]
                self._fail(self._rng.choice(ERRORS), name)
        if needs_space and self.is_full:
            self._fail(errno.ENOSPC, name)

    def _fail(self, number: int, name: str) -> None:
        self.failures += 1
        raise OSError(number, f"{os.strerror(number)} (simulated in {name})")

    def pwrite(self, fd: int, data: bytes | memoryview, offset: int) -> None:
        """Write all, or fail after a part."""
        try:
            self._step("pwrite", needs_space=True)
        except OSError:
            super().pwrite(fd, data[: self._rng.randrange(len(data) + 1)], offset)
            raise
        super().pwrite(fd, data, offset)

    def allocate(self, fd: int, length: int) -> None:
        """Reserve, or fail."""
        self._step("allocate", needs_space=True)
        super().allocate(fd, length)

    def truncate(self, fd: int, length: int) -> None:
        """Cut, or fail."""
        self._step("truncate")
        super().truncate(fd, length)

    def fsync(self, fd: int) -> None:
        """Count as synced, or fail."""
        self._step("fsync")

    def fdatasync(self, fd: int) -> None:
        """Count as synced, or fail."""
        self._step("fdatasync")

    def fsync_dir(self, path: str) -> None:
        """Count as synced, or fail."""
        self._step("fsync_dir")

    def rename(self, source: str, target: str) -> None:
        """Rename, or fail."""
        self._step("rename")
        super().rename(source, target)

    def unlink(self, path: str) -> None:
        """Remove, or fail."""
        self._step("unlink")
        super().unlink(path)


class Machine:
    """Files, clock and the chance of faults, all drawn from one generator."""

    def __init__(self, rng: random.Random, root: str) -> None:
        self.rng = rng
        self.root = root
        self.flaky = FlakyFs(rng)
        self.fs = FaultFs(
            root, seed=rng.getrandbits(32), inner=self.flaky, page_size=rng.choice((64, 256, 512))
        )
        self.clock = TestClock()

    @property
    def now_ms(self) -> int:
        """Wall time in milliseconds."""
        return self.clock.wall_ns() // 1_000_000

    def advance_ms(self, duration_ms: float) -> None:
        """Let time pass."""
        self.clock.advance_ns(int(duration_ms * 1_000_000))

    def plan_power_loss(self, calls_max: int) -> None:
        """Lose power at one of the next calls, half of the time within a write."""
        call = self.fs.calls + self.rng.randint(1, calls_max)
        if self.rng.random() < 0.5:
            self.fs.tear_at(call)
        else:
            self.fs.lose_power_at(call)

    def plan_failure(self) -> str:
        """Let one of the next calls of some operation fail."""
        name = self.rng.choice(FAILING)
        self.flaky.arm(name, self.rng.randint(1, 4))
        return name
