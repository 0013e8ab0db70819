"""`ArchiveTap`: every message once and in order, whatever is killed, and from one queue only."""

from __future__ import annotations

import random
import shutil
from pathlib import Path

import pytest

from everlog.archive.tap import ArchiveTap
from everlog.errors import CorruptMetadata, SegmentMissing, Unsupported
from everlog.queue import Message, Queue
from tests.support.archives import FIRST_NS, append_known, tap_and_die, tap_for_ever
from tests.support.files import UnsyncedFs
from tests.support.processes import Child, eventually, fresh_seed
from tests.support.queues import open_reader, open_writer, read_all


def expected(count: int, first: int = 0) -> list[Message]:
    return [
        Message(number - first, FIRST_NS + number, 1 + number % 3, b"%d" % number)
        for number in range(first, count)
    ]


def fill(path: Path, begin: int, end: int) -> None:
    with open_writer(path, segment_size=4096, retention=False) as writer:
        for number in range(begin, end):
            writer.append(1 + number % 3, b"%d" % number, FIRST_NS + number)


def tap_all(live: Path, archive: Path) -> int:
    with ArchiveTap(live, archive, fs=UnsyncedFs()) as tap:
        while tap.run_once(50):
            pass
        return tap.copied


def test_a_tap_copies_time_type_flags_and_payload_and_goes_on_where_it_was(tmp_path: Path) -> None:
    live, archive = tmp_path / "live", tmp_path / "archive"
    fill(live, 0, 100)
    assert tap_all(live, archive) == 100
    assert tap_all(live, archive) == 0
    fill(live, 100, 130)
    assert tap_all(live, archive) == 30
    assert read_all(archive) == expected(130)


def test_flags_are_copied(tmp_path: Path) -> None:
    import numpy as np

    with open_writer(tmp_path / "live") as writer:
        flags = np.array([0, 2, 6, 8], dtype=np.uint16)
        payloads, ends = np.zeros(12, np.uint8), np.array([3, 3, 7, 12], np.uint64)
        writer.append_packed(7, payloads, ends, np.arange(4, dtype=np.uint64), flags)
    tap_all(tmp_path / "live", tmp_path / "archive")
    with open_reader(tmp_path / "archive", None, "earliest") as reader:
        assert [(view.flags, len(view)) for view in reader] == [(0, 3), (2, 0), (6, 4), (8, 5)]


def test_the_live_queue_deletes_only_what_the_tap_has_committed(tmp_path: Path) -> None:
    live, archive = tmp_path / "live", tmp_path / "archive"
    with open_writer(live, segment_size=1024) as writer:
        writer.append(1, b"0", FIRST_NS)
        with ArchiveTap(live, archive, fs=UnsyncedFs()) as tap:
            for number in range(1, 60):
                writer.append(1 + number % 3, b"%d" % number, FIRST_NS + number)
            assert (live / "000000000.q").exists()
            while tap.run_once():
                pass
            eventually("retention goes on", lambda: not (live / "000000000.q").exists())
    assert read_all(archive) == expected(60)
    fill(live, 60, 70)
    tap_all(live, archive)
    assert read_all(archive) == expected(70)


def test_a_tap_that_starts_late_numbers_its_archive_from_0(tmp_path: Path) -> None:
    live, archive = tmp_path / "live", tmp_path / "archive"
    fill(live, 0, 100)
    (live / "000000000.q").unlink()
    with open_reader(live, None, "earliest") as reader:
        first = reader.drain(1)[0].seq
    assert first > 0
    tap_all(live, archive)
    assert read_all(archive) == expected(100, first)


@pytest.mark.parametrize("step", range(2))
def test_a_tap_killed_before_any_file_operation_neither_loses_nor_repeats(tmp_path: Path, step: int) -> None:
    live = tmp_path / "live"
    fill(live, 0, 60)
    number, was_killed = 1 + step, True
    while was_killed:
        archive = tmp_path / str(number)
        image = tmp_path / f"live-{number}"
        shutil.copytree(live, image)
        with Child(tap_and_die, str(image), str(archive), number) as child:
            was_killed = child.wait_for_death() == -9
        tap_all(image, archive)
        assert read_all(archive) == expected(60), f"killed before operation {number}"
        shutil.rmtree(image)
        shutil.rmtree(archive)
        number += 7
    assert number > 40


def test_a_tap_killed_at_random_while_the_writer_goes_on_neither_loses_nor_repeats(tmp_path: Path) -> None:
    source = random.Random(fresh_seed("tap kills"))
    live, archive = tmp_path / "live", tmp_path / "archive"
    count = 20_000
    Queue.open_publisher(live, segment_size=4096).close()
    Queue.open_subscriber(live, "archive_tap").close()  # before the first message, so that none is deleted
    with Child(append_known, str(live), count) as writer:
        for _ in range(15):
            with Child(tap_for_ever, str(live), str(archive)) as tap:
                tap.receive()
                tap._process.join(source.random() * 0.05)
                tap.kill()
        writer.receive()
    tap_all(live, archive)
    assert read_all(archive) == expected(count)


def test_an_archive_that_another_program_began_is_continued_behind_its_last_message(tmp_path: Path) -> None:
    live, archive = tmp_path / "live", tmp_path / "archive"
    fill(live, 0, 50)
    fill(archive, 0, 20)
    assert tap_all(live, archive) == 30
    assert read_all(archive) == expected(50)


def test_a_live_queue_that_was_made_anew_is_not_taken_for_the_old_one(tmp_path: Path) -> None:
    live, archive = tmp_path / "live", tmp_path / "archive"
    fill(live, 0, 50)
    tap_all(live, archive)
    shutil.rmtree(live)
    fill(live, 1000, 1100)
    with pytest.raises(Unsupported, match="another queue"):
        tap_all(live, archive)
    shutil.rmtree(live)
    Queue.open_publisher(live, segment_size=4096).close()
    with pytest.raises(Unsupported, match="or none"):
        tap_all(live, archive)
    assert read_all(archive) == expected(50)


def test_what_retention_took_from_the_tap_is_an_error(tmp_path: Path) -> None:
    live, archive = tmp_path / "live", tmp_path / "archive"
    fill(live, 0, 20)
    tap_all(live, archive)
    fill(live, 20, 200)
    for segment in sorted(live.glob("*.q"))[:2]:
        segment.unlink()
    (live / "readers" / "archive_tap.meta").unlink()
    with pytest.raises(SegmentMissing, match="no message 20"):
        tap_all(live, archive)
    assert read_all(archive) == expected(20)
    (archive / "tap.json").write_text("{")
    with pytest.raises(CorruptMetadata, match=r"tap\.json"):
        tap_all(live, archive)
