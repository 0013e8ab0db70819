"""The raw archiver and the reader that goes on from an archive into the live queue."""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path

import pytest

from everlog.archive.history import HistoryReader
from everlog.archive.policies import Immediate
from everlog.archive.raw_archiver import RawArchiver
from everlog.archive.reader import open_archive
from everlog.archive.tap import ArchiveTap
from everlog.archive.tiers import Tier, list_segments
from everlog.errors import SegmentMissing, Unsupported
from everlog.fs import OsFs
from everlog.queue import Message
from everlog.queue.reader_meta import list_readers
from tests.support.archives import FIRST_NS, archive_raw_and_die, compress
from tests.support.files import UnsyncedFs
from tests.support.processes import Child, eventually
from tests.support.queues import open_writer

DAY_NS = 86_400 * 10**9


def message(number: int) -> Message:
    return Message(number, FIRST_NS + number * 10**12, 1, b"%d" % number)


def fill(path: Path, begin: int, end: int, **settings: object) -> None:
    options = {"segment_size": 1024, "retention": False, **settings}
    with open_writer(path, **options) as writer:
        for number in range(begin, end):
            writer.append(1, b"%d" % number, message(number).timestamp_ns)


def archive(live: Path, root: Path, **options: object) -> list[int]:
    with RawArchiver(live, root, "binance", fs=UnsyncedFs(), **options) as archiver:  # type: ignore[arg-type]
        return [segment.segment_id for segment in archiver.run_once()]


def read(root: Path) -> list[Message]:
    with open_archive(root) as reader:
        return reader.drain(10**6)


@pytest.mark.parametrize("policy", [None, Immediate()])
def test_sealed_segments_go_to_the_day_of_their_first_message(
    tmp_path: Path, policy: Immediate | None
) -> None:
    live, root = tmp_path / "live", tmp_path / "archive"
    fill(live, 0, 100)
    assert archive(live, root, policy=policy) == list(range(14))
    assert archive(live, root, policy=policy) == []
    assert read(root) == [message(number) for number in range(98)]
    days = sorted(path.name for path in (root / "raw" / "v1" / "binance").iterdir())
    assert days == ["2023-11-14", "2023-11-15"]
    directory = root / "raw/v1/binance/2023-11-14/raw"
    tiers = {segment.tier for segment in list_segments(OsFs(), str(directory))}
    assert tiers == {Tier.PLAIN if policy is None else Tier.COMPRESSED}
    if policy is None:
        assert (directory / "000000000.q").read_bytes() == (live / "000000000.q").read_bytes()
    meta = json.loads((directory / "meta.json").read_text())
    assert meta["venue"] == "binance" and meta["source"] == str(live)
    assert meta["event_time_range"][0] == FIRST_NS
    fill(live, 100, 120)
    assert archive(live, root) == [14, 15, 16]
    assert read(root) == [message(number) for number in range(119)]


def test_padding_does_not_make_a_segment_one_of_1970(tmp_path: Path) -> None:
    with open_writer(tmp_path / "live", segment_size=1024) as writer:
        for _ in range(3):
            writer.append(1, bytes(500), FIRST_NS)  # each leaves a padded rest
    archive(tmp_path / "live", tmp_path / "archive")
    assert [path.name for path in (tmp_path / "archive/raw/v1/binance").iterdir()] == ["2023-11-14"]


def test_retention_waits_for_the_archiver_and_goes_on_behind_it(tmp_path: Path) -> None:
    live, root = tmp_path / "live", tmp_path / "archive"
    with open_writer(live, segment_size=1024) as writer:
        writer.append(1, b"0", FIRST_NS)
        with RawArchiver(live, root, "binance", fs=UnsyncedFs()) as archiver:
            for number in range(1, 50):
                writer.append(1, b"%d" % number, message(number).timestamp_ns)
            assert (live / "000000000.q").exists()
            archiver.run_once()
            eventually("retention goes on", lambda: not (live / "000000000.q").exists())
            readers = list_readers(OsFs(), str(live))
            assert readers["raw-archiver"].segment_id == 7  # type: ignore[union-attr]
    assert read(root) == [message(number) for number in range(49)]


@pytest.mark.parametrize("compresses", [False, True])
def test_an_archiver_killed_before_any_file_operation_loses_and_repeats_nothing(
    tmp_path: Path, compresses: bool
) -> None:
    live = tmp_path / "live"
    fill(live, 0, 20)
    number, was_killed = 1, True
    while was_killed:
        image, root = tmp_path / f"live-{number}", tmp_path / str(number)
        shutil.copytree(live, image)
        with Child(archive_raw_and_die, str(image), str(root), number, compresses) as child:
            was_killed = child.wait_for_death() == -9
        archive(image, root, policy=Immediate() if compresses else None)
        assert read(root) == [message(n) for n in range(14)], f"killed before operation {number}"
        assert not list(root.rglob("*.q")) or not compresses
        shutil.rmtree(image)
        shutil.rmtree(root)
        number += 2
    assert number > 30


def test_another_segment_under_the_same_id_is_an_error_and_not_skipped(tmp_path: Path) -> None:
    live, root = tmp_path / "live", tmp_path / "archive"
    fill(live, 0, 20)
    archive(live, root)
    shutil.rmtree(live)
    with open_writer(live, segment_size=1024) as writer:
        for _ in range(20):
            writer.append(2, b"other", FIRST_NS)
    with pytest.raises(Unsupported, match="made anew"):
        archive(live, root)
    assert read(root) == [message(number) for number in range(14)]


def test_history_goes_on_from_a_raw_archive_into_the_live_queue(tmp_path: Path) -> None:
    live, root = tmp_path / "live", tmp_path / "archive"
    fill(live, 0, 50)
    archive(live, root)
    for segment in sorted(live.glob("*.q"))[:4]:
        segment.unlink()
    with HistoryReader(lambda: open_archive(root), live) as reader:
        numbers = [int(bytes(view)) for view in reader]
        assert numbers == list(range(50))
        assert reader.is_live
        fill(live, 50, 55)
        assert reader.wait(10)
        assert [view.seq for view in reader] == list(range(50, 55))
        for target in (0, 20, 48, 49, 54):
            assert reader.seek_seq(target)
            assert [view.seq for view in reader] == list(range(target, 55))
            assert reader.seek_time(message(target).timestamp_ns)
            assert sum(len(batch) for batch in iter(lambda: reader.read_batch(7), EMPTY)) == 55 - target
        assert not reader.seek_seq(55)


class _Empty:
    def __eq__(self, other: object) -> bool:
        return len(other) == 0  # type: ignore[arg-type]

    __hash__ = None  # type: ignore[assignment]


EMPTY = _Empty()


def test_history_goes_through_sealed_and_open_segments_of_an_archive_queue(tmp_path: Path) -> None:
    live, archived = tmp_path / "live", tmp_path / "archived"
    fill(live, 0, 50)
    (live / "000000000.q").unlink()
    with ArchiveTap(live, archived, fs=UnsyncedFs()) as tap:
        while tap.run_once():
            pass
    compress(archived, 0)
    fill(live, 50, 60)
    for segment in sorted(live.glob("*.q"))[:5]:
        segment.unlink()
    with HistoryReader(lambda: open_archive(archived), live, archive_queue=os.fspath(archived)) as reader:
        assert [int(bytes(view)) for view in reader] == list(range(7, 60))
        assert reader.seek_seq(55)
        assert [view.seq for view in reader] == list(range(55, 60))
        assert reader.seek_seq(9)
        assert [int(bytes(view)) for view in reader] == list(range(9, 60))


def test_history_that_is_in_neither_is_an_error(tmp_path: Path) -> None:
    live, root = tmp_path / "live", tmp_path / "archive"
    fill(live, 0, 20)
    archive(live, root)
    fill(live, 20, 60)
    for segment in sorted(live.glob("*.q"))[:5]:
        segment.unlink()
    with HistoryReader(lambda: open_archive(root), live) as reader, pytest.raises(SegmentMissing, match="14"):
        list(reader)
