"""Removes a range of messages from a queue, for `--force` and for imports that failed.

Owns the rewriting of a queue directory: everything outside the range is copied to a new queue
beside it, which then takes its place. Whatever happens in between, the old or the new queue is
there. Messages after the range get new seqs, so readers and snapshots of the old queue are dropped.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from typing import Final

import msgspec
import numpy as np

from everlog.clock import Clock
from everlog.fs import Fs
from everlog.market.ledger import Ledger
from everlog.queue import MessageView, Queue, QueueWriter
from everlog.queue.config import WriterConfig
from everlog.queue.faults import io_errors

NEW_SUFFIX: Final = ".rewritten"
OLD_SUFFIX: Final = ".replaced"
COPY_MESSAGES: Final = 4096
_OF_THE_QUEUE: Final = ("control.meta", "writer.lock", "index.meta", "readers", "snapshots")
_SEGMENT_SUFFIXES: Final = (".q", ".idx", ".tmp")


def finish_rewrite(fs: Fs, queue: str) -> None:
    """Finish or undo a rewriting that was interrupted."""
    queue = queue.rstrip("/")
    new, old = queue + NEW_SUFFIX, queue + OLD_SUFFIX
    with io_errors(f"clean up beside {queue}"):
        if fs.exists(old) and not fs.exists(queue):
            fs.rename(new, queue)  # it was complete before the old one was moved away
            fs.fsync_dir(os.path.dirname(queue) or ".")
        for leftover in (new, old):
            if fs.exists(leftover):
                shutil.rmtree(leftover)


def remove_messages(
    fs: Fs, clock: Clock, queue: str, first_seq: int, end_seq: int, forget: tuple[str, str]
) -> None:
    """Rewrite the queue without the messages `first_seq <= seq < end_seq`.

    `forget` is the format and hash of the import they came from. The caller must not have the
    queue open; the writer lock keeps other writers out meanwhile.
    """
    queue = queue.rstrip("/")
    new = queue + NEW_SUFFIX
    with (
        Queue.open_publisher(queue, WriterConfig.archive(), clock=clock, fs=fs) as lock_holder,
        Queue.open_subscriber(queue, None, "earliest", clock=clock, fs=fs) as reader,
    ):
        Ledger(fs, queue).continue_as(lock_holder.epoch)
        config = WriterConfig.archive().replace(segment_size=lock_holder.segment_size)
        base = None
        with Queue.open_publisher(new, config, clock=clock, fs=fs) as writer:
            for run in _runs(reader):
                base = run[0].seq if base is None else base
                _copy([view for view in run if not first_seq <= view.seq < end_seq], writer)
            writer.flush_sync()
        with io_errors(f"copy what lies beside the segments of {queue}"):
            _copy_the_rest(queue, new)
        _renumber(Ledger(fs, new), forget, first_seq, end_seq, base or 0)
        with io_errors(f"put {new} in the place of {queue}"):
            fs.sync_file_system(new)
            fs.rename(queue, queue + OLD_SUFFIX)
            fs.rename(new, queue)
            fs.fsync_dir(os.path.dirname(queue) or ".")
    finish_rewrite(fs, queue)


def _runs(reader: Iterator[MessageView]) -> Iterator[list[MessageView]]:
    run: list[MessageView] = []
    for view in reader:
        if run and (len(run) == COPY_MESSAGES or run[0].type_id != view.type_id):
            yield run
            run = []
        run.append(view)
    if run:
        yield run


def _copy(views: list[MessageView], writer: QueueWriter) -> None:
    if not views:
        return
    ends = np.cumsum([len(view) for view in views], dtype=np.uint64)
    writer.append_packed(
        views[0].type_id,
        np.frombuffer(b"".join(bytes(view) for view in views), dtype=np.uint8),
        ends,
        np.array([view.timestamp_ns for view in views], dtype=np.uint64),
        np.array([view.flags for view in views], dtype=np.uint16),
    )


def _copy_the_rest(queue: str, new: str) -> None:
    for name in sorted(os.listdir(queue)):
        if name in _OF_THE_QUEUE or name.endswith(_SEGMENT_SUFFIXES):
            continue
        source, target = os.path.join(queue, name), os.path.join(new, name)
        if os.path.isdir(source):
            shutil.copytree(source, target)
        else:
            shutil.copy2(source, target)


def _renumber(ledger: Ledger, forget: tuple[str, str], first_seq: int, end_seq: int, base: int) -> None:
    """Let the entries of the other imports say where their events are now."""
    ledger.forget(*forget)
    ledger.forget_begun(*forget)
    for entry in ledger.all_finished():
        gone = base + (end_seq - first_seq if entry.first_seq >= end_seq else 0)
        if gone:
            moved = msgspec.structs.replace(
                entry, first_seq=max(0, entry.first_seq - gone), end_seq=max(0, entry.end_seq - gone)
            )
            ledger.update(moved)
