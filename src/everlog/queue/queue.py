"""The entry points: `Queue.open_publisher` and `Queue.open_subscriber`."""

from __future__ import annotations

import os
from typing import Final, Unpack

from everlog.clock import NS_PER_S, Clock, SystemClock
from everlog.errors import InvalidConfig
from everlog.fs import Fs, OsFs, create_directory
from everlog.queue.config import WriterConfig, WriterSettings
from everlog.queue.control import ControlBlock
from everlog.queue.faults import io_errors
from everlog.queue.names import check_component
from everlog.queue.reader import QueueReader, StartMode
from everlog.queue.wait import SpinThenPark, WaitStrategy
from everlog.queue.writer import QueueWriter

StrPath = str | os.PathLike[str]
_LOOK_INTERVAL_NS: Final = 5_000_000


class Queue:
    """A directory of memory-mapped segments: one writer, any number of readers."""

    def __init__(self, *args: object, **kwargs: object) -> None:
        """There is nothing to make: a queue is opened for writing or for reading."""
        raise TypeError("open a queue with Queue.open_publisher(path) or Queue.open_subscriber(path, name)")

    @staticmethod
    def open_publisher(
        path: StrPath,
        config: WriterConfig | None = None,
        *,
        clock: Clock | None = None,
        fs: Fs | None = None,
        **settings: Unpack[WriterSettings],
    ) -> QueueWriter:
        """Open the queue for writing, creating it if there is none.

        `settings` are fields of `WriterConfig` and win over `config`. The segment size of an
        existing queue wins over both. Raises WriterAlreadyActive if another writer is open.
        """
        directory = os.fspath(path)
        wanted = (config or WriterConfig()).replace(**settings)
        files = fs or OsFs()
        with io_errors(f"create the queue directory {directory}"):
            create_directory(files, directory)
        return QueueWriter(directory, wanted, clock or SystemClock(), files)

    @staticmethod
    def open_subscriber(
        path: StrPath,
        reader: str | None,
        start: StartMode | str = StartMode.RESUME_STRICT,
        *,
        wait: float = 0.0,
        wait_strategy: WaitStrategy | None = None,
        verify: bool = True,
        clock: Clock | None = None,
        fs: Fs | None = None,
    ) -> QueueReader:
        """Open the queue for reading under a name that remembers its position.

        `reader=None` opens an anonymous reader: it has no position to commit and does not hold
        back retention. `verify=False` skips the checksums. `wait` is how many seconds to wait for
        a queue that does not exist yet. Raises QueueNotFound, ReaderAlreadyActive or SegmentMissing.
        """
        if reader is not None:
            check_component(reader, "reader name")
        if wait > 0:
            _wait_for_queue(os.fspath(path), wait, clock or SystemClock(), fs or OsFs())
        return QueueReader(
            os.fspath(path),
            reader,
            _start_mode(start),
            wait_strategy if wait_strategy is not None else SpinThenPark(),
            verify,
            clock or SystemClock(),
            fs or OsFs(),
        )

    @staticmethod
    def try_open_subscriber(
        path: StrPath,
        reader: str | None,
        start: StartMode | str = StartMode.RESUME_STRICT,
        *,
        wait_strategy: WaitStrategy | None = None,
        verify: bool = True,
        clock: Clock | None = None,
        fs: Fs | None = None,
    ) -> QueueReader | None:
        """Like `open_subscriber`, but return None while the queue does not exist yet."""
        directory = os.fspath(path)
        with io_errors(f"look for a queue at {directory}"):
            if not ControlBlock.is_ready(fs or OsFs(), directory):
                return None
        return Queue.open_subscriber(
            directory, reader, start, wait_strategy=wait_strategy, verify=verify, clock=clock, fs=fs
        )


def _wait_for_queue(directory: str, wait_s: float, clock: Clock, fs: Fs) -> None:
    """Return when the queue is ready to be read, or the time is over; opening it then says which."""
    deadline_ns = clock.monotonic_ns() + int(wait_s * NS_PER_S)
    with io_errors(f"look for a queue at {directory}"):
        while not ControlBlock.is_ready(fs, directory) and clock.monotonic_ns() < deadline_ns:
            clock.sleep_ns(_LOOK_INTERVAL_NS)


def _start_mode(start: StartMode | str) -> StartMode:
    try:
        return StartMode(start)
    except ValueError:
        valid = ", ".join(mode.value for mode in StartMode)
        raise InvalidConfig(f"unknown start mode {start!r}; valid are {valid}") from None
