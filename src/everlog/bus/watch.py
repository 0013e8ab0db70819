"""A bounded set of inotify watches on directories.

Owns the inotify descriptor. Knows nothing about strategies or queues: it answers one question,
"did a watched name appear or vanish since the last poll?". A watch only makes discovery
faster; whatever cannot be watched is still found by the periodic scan, so no failure here is an
error. `degraded_reason` reports it instead.
"""

from __future__ import annotations

import errno
import os
import select

from inotify_simple import INotify, flags, parse_events  # type: ignore[import-untyped]

from everlog.bus.markers import NOT_THERE

# Not MODIFY, OPEN or the like: a busy queue would fire all the time. DELETE_SELF adds nothing to
# DELETE as seen by the directory above; MOVE_SELF reports that the topmost directory itself moved.
_MASK = int(flags.CREATE | flags.MOVED_TO | flags.MOVED_FROM | flags.DELETE | flags.MOVE_SELF | flags.ONLYDIR)

# One read holds some 1,500 events. Sixteen of them empty the kernel's default queue of 16,384
# events; what is left after that waits for the next call.
_READ_BYTES = 64 * 1024
_READS_MAX = 16


class DirectoryWatches:
    """Watches that are renewed as a whole: `begin`, `watch` each directory, `end`.

    Renewing matters: a watch belongs to an inode, not to a path. If a directory is replaced by
    another of the same name, only a new `watch` call sees what happens in the new one. For an
    unchanged directory the kernel hands back the watch that exists, and nothing is lost.
    """

    def __init__(self, max_watches: int) -> None:
        self._max_watches = max_watches
        self._inotify: INotify | None = None
        # Watch descriptor -> names that count in that directory; None stands for every name.
        self._names: dict[int, set[str | None]] = {}
        self._outdated: set[int] = set()
        self._reason: str | None = None

    @property
    def degraded_reason(self) -> str | None:
        """None while every directory is watched, otherwise why some or all are not."""
        return self._reason

    @property
    def watching(self) -> bool:
        """True while there is an inotify descriptor to wait on."""
        return self._inotify is not None

    @property
    def count(self) -> int:
        """Number of watches in place."""
        return len(self._names)

    def begin(self) -> None:
        """Start a new round; opens inotify if that has not worked so far."""
        self._reason = None
        # A round that was broken off by an error never came to `end`: keep what it left over.
        self._outdated |= self._names.keys()
        self._names = {}
        if self._inotify is not None:
            return
        try:
            self._inotify = INotify(nonblocking=True)
        except OSError as error:
            self._reason = f"inotify is not available: {error.strerror}"

    def watch(self, path: str, name: str | None) -> None:
        """Care about `name` (None: any name) in the directory `path`, if it is there."""
        if self._inotify is None:
            return
        if len(self._names) >= self._max_watches:
            self._reason = f"the limit of {self._max_watches} watches is reached"
            return
        try:
            descriptor = self._inotify.add_watch(path, _MASK)
        except OSError as error:
            if error.errno not in NOT_THERE:
                self._reason = f"inotify cannot watch {path}: {error.strerror}"
            return
        # Two paths can lead to one inode through links; then the names of both count.
        self._names.setdefault(descriptor, set()).add(name)

    def end(self) -> None:
        """Drop the watches that this round did not ask for."""
        if self._inotify is None:
            return
        for descriptor in self._outdated - self._names.keys():
            try:
                self._inotify.rm_watch(descriptor)
            except OSError as error:
                if error.errno != errno.EINVAL:  # EINVAL: went away together with its directory
                    raise
        self._outdated.clear()

    def fired(self) -> bool:
        """Consume pending events; True if one of them concerns a watched name."""
        if self._inotify is None:
            return False
        fired = False
        for _ in range(_READS_MAX):
            try:
                data = os.read(self._inotify.fileno(), _READ_BYTES)
            except BlockingIOError:
                break
            for event in parse_events(data):
                fired = fired or self._concerns(event.wd, event.mask, event.name)
        return fired

    def wait(self, timeout_ms: float) -> None:
        """Sleep until an event is pending or the time is over; return at once if not `watching`."""
        if self._inotify is None:
            return
        poller = select.poll()
        poller.register(self._inotify.fileno(), select.POLLIN)
        poller.poll(timeout_ms)

    def close(self) -> None:
        """Close the descriptor; the kernel drops all watches with it."""
        self._names = {}
        self._outdated.clear()
        if self._inotify is not None:
            self._inotify.close()
            self._inotify = None

    def _concerns(self, descriptor: int, mask: int, name: str) -> bool:
        if mask & flags.IGNORED:
            # Only says that a watch is gone: it was removed here, or its directory was deleted, which
            # the directory above has reported.
            return False
        names = self._names.get(descriptor)
        if names is None or not name:
            # An overflow of the event queue, an event older than the last round, or the
            # directory itself moved: nothing is certain, so look.
            return True
        return None in names or name in names
