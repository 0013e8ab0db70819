"""Batches that a job plans itself: on disk before they are committed, taken up again, one run at a time."""

from __future__ import annotations

import itertools
import json
import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from everlog.errors import InvalidConfig
from everlog.pipeline.accounts import Key, RangeAccount
from everlog.pipeline.jobs.batches import ArchivedPositions, Batch, run_batches
from everlog.pipeline.lake_places import LakePlace
from everlog.pipeline.sources.base import StreamReader
from everlog.pipeline.sources.queue import QueueFormat
from everlog.queue import Queue
from tests.support.object_stores import moto_server

Later = Iterator[tuple[int, int]]
Loaded = tuple[dict[Key, int], str | None]


class KilledError(Exception):
    """Ends a run in the middle of a batch."""


@pytest.fixture
def reader(tmp_path: Path) -> StreamReader:
    """A queue of ten messages, four to a batch."""
    write(tmp_path, 10)
    return new_reader(tmp_path)


def new_reader(folder: Path) -> StreamReader:
    """Read the queue from its beginning, as a new process does."""
    return QueueFormat({"path": str(folder / "queue"), "maxRecordsPerBatch": "4"}).stream_reader()


def write(folder: Path, count: int) -> None:
    """Append messages."""
    with Queue.open_publisher(str(folder / "queue"), segment_size=1 << 14) as writer:
        for _ in range(count):
            writer.append(7, b"x")


def take(reader: StreamReader, folder: Path, fails_at: int | None = None) -> list[tuple[int, int, int]]:
    """Run until it has caught up; return number, first seq and end of each batch."""
    taken: list[tuple[int, int, int]] = []

    def commit(batch: Batch) -> None:
        taken.append((batch.number, batch.start["seq"], batch.end["seq"]))
        if batch.number == fails_at:
            raise KilledError

    try:
        end = run_batches(reader, str(folder / "checkpoint"), commit, follow=False)
    except KilledError:
        return taken
    assert end is not None and end["seq"] == taken[-1][2] if taken else True
    return taken


def test_batches_are_bounded_and_a_further_run_goes_on(reader: StreamReader, tmp_path: Path) -> None:
    assert take(reader, tmp_path) == [(0, 0, 4), (1, 4, 8), (2, 8, 10)]
    assert take(new_reader(tmp_path), tmp_path) == []
    write(tmp_path, 3)
    assert take(new_reader(tmp_path), tmp_path) == [(3, 10, 13)]


def test_a_batch_that_was_not_committed_comes_again_as_it_was(reader: StreamReader, tmp_path: Path) -> None:
    assert take(reader, tmp_path, fails_at=2) == [(0, 0, 4), (1, 4, 8), (2, 8, 10)]
    write(tmp_path, 1)  # there is room for it in the batch
    assert take(new_reader(tmp_path), tmp_path) == [(2, 8, 10), (3, 10, 11)]


def test_the_range_of_a_batch_is_on_disk_before_the_batch_is_handed_over(
    reader: StreamReader, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    synced: list[str] = []
    original = os.fsync

    def fsync(fd: int) -> None:
        original(fd)
        synced.append(os.readlink(f"/proc/self/fd/{fd}"))

    monkeypatch.setattr(os, "fsync", fsync)
    checkpoint = tmp_path / "checkpoint"
    seen: list[set[str]] = []

    def commit(batch: Batch) -> None:
        assert json.loads((checkpoint / "batch.json").read_text())["number"] == batch.number
        seen.append(set(synced))
        synced.clear()

    run_batches(reader, str(checkpoint), commit, follow=False)
    assert all({str(checkpoint / "batch.json.tmp"), str(checkpoint)} <= one for one in seen)
    assert len(seen) == 3


def test_a_second_run_with_the_same_checkpoint_is_refused(reader: StreamReader, tmp_path: Path) -> None:
    def commit(batch: Batch) -> None:
        with pytest.raises(InvalidConfig, match="another run has the checkpoint"):
            take(new_reader(tmp_path), tmp_path)

    run_batches(reader, str(tmp_path / "checkpoint"), commit, follow=False)


@pytest.mark.parametrize(
    ("offsets", "commits", "expected"),
    [
        ((4, 8), (0, 1), [(2, 8, 10)]),
        ((4, 8), (0,), [(1, 4, 8), (2, 8, 10)]),
        ((4,), (), [(0, 0, 4), (1, 4, 8), (2, 8, 10)]),
    ],
    ids=["committed", "planned", "first"],
)
def test_a_checkpoint_of_an_earlier_version_is_taken_over(
    reader: StreamReader,
    tmp_path: Path,
    offsets: tuple[int, ...],
    commits: tuple[int, ...],
    expected: list[tuple[int, int, int]],
) -> None:
    for folder in ("offsets", "commits"):
        (tmp_path / "checkpoint" / folder).mkdir(parents=True)
    for number, end in enumerate(offsets):
        text = f'v1\n{{"batchWatermarkMs":0}}\n{{"seq": {end}, "instance": null}}'
        (tmp_path / "checkpoint" / "offsets" / str(number)).write_text(text)
        (tmp_path / "checkpoint" / "offsets" / f".{number}.crc").write_bytes(b"crc")
    for number in commits:
        (tmp_path / "checkpoint" / "commits" / str(number)).write_text('v1\n{"nextBatchWatermarkMs":0}')
    (tmp_path / "checkpoint" / "offsets" / str(len(offsets))).write_bytes(b"")  # by a power loss
    assert take(reader, tmp_path) == expected


def test_jobs_that_store_their_positions_at_once_keep_all_of_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def reached(job: int, end: int) -> list[RangeAccount]:
        return [RangeAccount(f"queue-{job}", "first", 0, end, end, 0)]

    with moto_server() as server:
        for name, value in server.environment.items():
            monkeypatch.setenv(name, value)
        for place in (LakePlace.of(str(tmp_path)), LakePlace.of(server.url("t.checkpoint"))):
            jobs = [ArchivedPositions(place) for _ in range(3)]
            later = iter([(1, 20), (2, 30), (1, 25)])

            def load_before_others(jobs: list[ArchivedPositions] = jobs, later: Later = later) -> Loaded:
                """Return what is stored; then others store theirs, before the first job does."""
                found = ArchivedPositions._load(jobs[0])
                for job, end in itertools.islice(later, 1):
                    jobs[job].store(reached(job, end))
                return found

            monkeypatch.setattr(jobs[0], "_load", load_before_others)
            jobs[0].store(reached(0, 10))
            ends = {("queue-0", "first"): 10, ("queue-1", "first"): 25, ("queue-2", "first"): 30}
            assert ArchivedPositions(place).ends == ends
            jobs[2].store(reached(1, 5))
            assert ArchivedPositions(place).ends == ends, "no position goes back"
