"""Prints messages as they come: the loop behind `tail`.

Owns one reader and the way it ends: at the limit, at the end of what is there, or by a signal.
How a message looks is decided by the caller.

It only observes. Without a name it leaves no file behind, however it ends; it waits by looking
now and then, so the writer never has to wake it; and it never changes the queue.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from types import FrameType

import typer

from everlog.cli.output import handled_signals, print_warning, write_patiently
from everlog.errors import QueueNotFound, SegmentMissing
from everlog.queue import MessageView, Queue, QueueReader, Sleep, StartMode
from everlog.queue.layout import CONTROL_FILE

BATCH_MAX = 256
"""Messages between two flushes (and commits, for a reader with a name)."""

BATCH_LENGTH_MAX = 1 << 20
"""Characters after which a batch of large messages is flushed early."""

WAIT_SLICE_S = 0.2
"""A signal ends the wait at the latest after this."""

LOOK_INTERVAL_US = 2000.0
_REOPEN_ATTEMPTS_MAX = 16

Start = StartMode | int | None


@dataclass(frozen=True, slots=True)
class TailRequest:
    """What to print. `start` is EARLIEST, LATEST or a seq; None: where the reader left off."""

    path: str
    follow: bool = False
    reader: str | None = None
    limit: int | None = None
    start: Start = None
    as_json: bool = False


def tail(request: TailRequest, render: Callable[[MessageView], str]) -> None:
    """Print messages until the limit, the present end (without `follow`) or a signal."""
    _Tail(request, render).run()


class _Tail:
    def __init__(self, request: TailRequest, render: Callable[[MessageView], str]) -> None:
        self._request = request
        self._render = render
        self._left = request.limit
        self._first_seq = request.start if isinstance(request.start, int) else 0
        self._next_seq = self._first_seq
        self._signal = 0

    def run(self) -> None:
        request = self._request
        end = _end_of(request.path) if not request.follow else None
        self._identity = _identity(request.path)
        self._reader = self._open(request.start)
        try:
            with self._stopping_on_signals():
                self._loop(end)
        finally:
            self._reader.close()
        if self._signal and not request.follow:
            raise typer.Exit(128 + self._signal)

    def _open(self, start: Start) -> QueueReader:
        name = self._request.reader
        mode = StartMode.EARLIEST if isinstance(start, int) else start or StartMode.RESUME_STRICT
        strategy = Sleep(LOOK_INTERVAL_US)
        try:
            reader = Queue.open_subscriber(self._request.path, name, mode, wait_strategy=strategy)
        except SegmentMissing as error:
            raise self._with_advice(error) from None
        try:
            if isinstance(start, int):
                reader.seek_seq(start)
        except BaseException:
            reader.close()
            raise
        return reader

    def _loop(self, end: tuple[int, int] | None) -> None:
        while not self._signal and self._left != 0:
            try:
                printed = self._print_available(end)
                if printed:
                    continue
                if end is not None:
                    return
                if not self._reader.wait(WAIT_SLICE_S):
                    self._reopen_if_replaced()
            except SegmentMissing as error:
                self._go_on_after(error)

    def _print_available(self, end: tuple[int, int] | None) -> bool:
        """Print and commit up to a batch; False if there was nothing."""
        room = BATCH_MAX if self._left is None else min(BATCH_MAX, self._left)
        texts: list[str] = []
        length = 0
        consumed = False
        try:
            while len(texts) < room and length < BATCH_LENGTH_MAX and not self._signal:
                if end is not None and self._reader.position >= end:
                    break
                view = self._reader.next()
                if view is None:
                    break
                consumed = True
                if view.seq < self._first_seq:
                    continue  # follows a --from that lies in the future
                self._first_seq = 0
                self._next_seq = view.seq + 1
                texts.append(self._render(view))
                length += len(texts[-1])
        finally:
            # Also before a damaged record: what came before it is printed and committed.
            if texts:
                self._emit(texts)
        return consumed

    def _emit(self, texts: list[str]) -> None:
        if not write_patiently("".join(texts), give_up=lambda: self._signal != 0):
            return  # a signal came while the output was blocked: not printed, so not committed
        if self._left is not None:
            self._left -= len(texts)
        if self._request.reader is not None:
            # After printing: a crash in between prints the batch twice rather than never.
            self._reader.commit()

    def _go_on_after(self, error: SegmentMissing) -> None:
        """Retention has overtaken a reader that it does not wait for: say so and go on."""
        if self._request.reader is not None:
            raise self._with_advice(error) from None
        self._warn("segment_missing", f"{error}; going on from the oldest segment")
        for _ in range(_REOPEN_ATTEMPTS_MAX):
            try:
                self._reader.seek_seq(self._next_seq)
                return
            except SegmentMissing as again:
                error = again  # deleted while looking: look again
        raise error

    def _reopen_if_replaced(self) -> None:
        """Switch to the new queue if this one was deleted and created again; the old files never change."""
        identity = _identity(self._request.path)
        if identity is None or identity == self._identity:
            return
        try:
            reader = self._open(None)
        except (QueueNotFound, SegmentMissing):
            return  # still being created: look again after the next wait
        self._warn("queue_replaced", f"{self._request.path} was created anew; reading it from its start")
        self._reader.close()
        self._reader = reader
        self._identity = identity
        self._first_seq = self._next_seq = 0

    def _with_advice(self, error: SegmentMissing) -> SegmentMissing:
        if self._request.reader is None:
            return error
        return SegmentMissing(f"{error}; on the command line: --from earliest or --from latest")

    def _warn(self, code: str, message: str) -> None:
        print_warning(code, message, as_json=self._request.as_json)

    @contextmanager
    def _stopping_on_signals(self) -> Iterator[None]:
        """Let SIGINT and SIGTERM end the loop between two batches, or while the output is blocked."""

        def stop(number: int, frame: FrameType | None) -> None:
            self._signal = number

        with handled_signals(stop):
            yield


def _end_of(path: str) -> tuple[int, int]:
    """Where the records end now: a queue that is being written would otherwise never end."""
    with Queue.open_subscriber(path, None, StartMode.LATEST) as reader:
        return reader.position


def _identity(path: str) -> tuple[int, int] | None:
    """Identifies a queue, as opposed to one that was created later at the same path."""
    try:
        status = os.stat(os.path.join(path, CONTROL_FILE))
    except OSError:
        return None
    return status.st_dev, status.st_ino
