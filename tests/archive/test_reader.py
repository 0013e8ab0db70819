"""`ArchiveReader` against a list: any mixture of tiers, any block size, seeks, damage, growth."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from everlog.archive import windows
from everlog.archive.layout import raw_directory, stream_directory
from everlog.archive.reader import ArchiveReader, open_archive
from everlog.archive.tiers import decompress_segment
from everlog.errors import Corrupt, InvalidConfig, SegmentMissing, UnsupportedVersion
from everlog.queue import Message, Queue
from tests.support.archives import DAY, FIRST_NS, compress, known_messages, write_archive
from tests.support.files import UnsyncedFs
from tests.support.queues import flip

COUNT = 200


def read_all(reader: ArchiveReader) -> list[Message]:
    return reader.drain(2**31)


@settings(max_examples=40, deadline=None)
@given(data=st.data(), seed=st.integers(0, 2**32), block_size=st.sampled_from((64, 100, 1000, 4096, 10_000)))
def test_any_mixture_of_tiers_reads_as_the_messages_that_were_written(
    data: st.DataObject, seed: int, block_size: int, tmp_path_factory: pytest.TempPathFactory
) -> None:
    directory = tmp_path_factory.mktemp("archive")
    messages = known_messages(COUNT, seed)
    for segment_id in write_archive(directory, messages):
        if data.draw(st.booleans()):
            compress(directory, segment_id, block_size)
            if data.draw(st.booleans()):
                (directory / f"{segment_id:09d}.idx").unlink()  # a seek without it scans
    with open_archive(directory) as reader:
        assert read_all(reader) == messages
        for _ in range(5):
            seq = data.draw(st.integers(0, COUNT + 5))
            assert reader.seek_seq(seq) is (seq < COUNT)
            assert reader.drain(3) == messages[seq : seq + 3]
            time_ns = data.draw(st.integers(FIRST_NS - 2, messages[-1].timestamp_ns + 2))
            later = [message for message in messages if message.timestamp_ns >= time_ns]
            assert reader.seek_time(time_ns) is bool(later)
            assert read_all(reader) == later
        reader.seek_seq(0)
        batches: list[Message] = []
        while len(batch := reader.read_batch(data.draw(st.integers(1, 70)))):
            batches += [Message(view.seq, view.timestamp_ns, view.type_id, bytes(view)) for view in batch]
        assert batches == messages
    shutil.rmtree(directory)


def test_a_window_that_reached_its_bound_goes_on_in_a_new_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(windows, "WINDOW_BYTES_MAX", 4096)
    messages = known_messages(2000, length_max=300)
    for segment_id in write_archive(tmp_path, messages, segment_size=1 << 19):
        compress(tmp_path, segment_id, 512)
    with open_archive(tmp_path) as reader:
        assert read_all(reader) == messages
        assert reader.seek_time(messages[1500].timestamp_ns)
        assert [found.timestamp_ns for found in reader.drain(1)] == [messages[1500].timestamp_ns]


def test_a_record_larger_than_many_blocks_is_read(tmp_path: Path) -> None:
    messages = [Message(0, FIRST_NS, 1, bytes(100)), Message(1, FIRST_NS, 2, b"x" * 50_000)]
    messages.append(Message(2, FIRST_NS, 3, b"end"))
    for segment_id in write_archive(tmp_path, messages, segment_size=1 << 17):
        compress(tmp_path, segment_id, 128)
    with open_archive(tmp_path) as reader:
        assert read_all(reader) == messages


def test_a_segment_that_changes_its_tier_while_it_is_read_is_resolved_again(tmp_path: Path) -> None:
    messages = known_messages(COUNT)
    ids = write_archive(tmp_path, messages)
    assert len(ids) > 4
    with open_archive(tmp_path) as reader:
        found = reader.drain(1)
        for segment_id in ids:
            compress(tmp_path, segment_id)
        found += reader.drain(COUNT // 2)
        decompress_segment(UnsyncedFs(), str(tmp_path), ids[-1])
        assert found + read_all(reader) == messages


def test_a_segment_that_is_in_no_tier_is_an_error_that_names_it(tmp_path: Path) -> None:
    ids = write_archive(tmp_path, known_messages(COUNT))
    with open_archive(tmp_path) as reader:
        reader.drain(1)
        for segment_id in ids[1:]:
            (tmp_path / f"{segment_id:09d}.q").unlink()
        with pytest.raises(SegmentMissing, match="segment 1 of"):
            read_all(reader)


def test_segments_that_are_added_later_are_read_without_opening_again(tmp_path: Path) -> None:
    messages = known_messages(COUNT)
    write_archive(tmp_path, messages[:50])
    with open_archive(tmp_path) as reader:
        assert read_all(reader) == messages[:50]
        assert reader.next() is None
        write_archive(tmp_path, messages[50:])
        assert read_all(reader) == messages[50:]
        assert not reader.seek_seq(COUNT)
        assert reader.next() is None


@pytest.mark.parametrize("is_compressed", [False, True])
def test_damage_to_any_byte_of_a_segment_is_reported(tmp_path: Path, is_compressed: bool) -> None:
    messages = known_messages(6, length_max=30)
    write_archive(tmp_path, messages, segment_size=1024)
    if is_compressed:
        compress(tmp_path, 0, 256)
    file = tmp_path / ("000000000.q.zst" if is_compressed else "000000000.q")
    whole = file.read_bytes()
    used = len(whole) if is_compressed else 64 + 128 * 6
    unnoticed = []
    for place in range(used):
        flip(file, place)
        try:
            with open_archive(tmp_path) as reader:
                if read_all(reader) != messages:
                    raise AssertionError(f"byte {place} changed what was read")
            unnoticed.append(place)
        except (Corrupt, UnsupportedVersion):
            pass
        file.write_bytes(whole)
    if not is_compressed:
        # Bytes between a payload and the next record, and reserved ones of the segment header, carry nothing.
        padding = {64 + 128 * number + 64 + len(messages[number].payload) for number in range(6)}
        assert all(place < 64 or any(start <= place for start in padding) for place in unnoticed)
    else:
        assert unnoticed == []


def test_a_missing_segment_in_the_middle_is_reported_as_a_gap_of_seqs(tmp_path: Path) -> None:
    write_archive(tmp_path, known_messages(COUNT))
    (tmp_path / "000000001.q").unlink()
    with open_archive(tmp_path) as reader, pytest.raises(Corrupt, match="expected"):
        read_all(reader)


def test_days_of_a_stream_are_read_one_after_the_other_and_can_be_chosen(tmp_path: Path) -> None:
    first, second = known_messages(30, 1), known_messages(40, 2)
    for day, messages in (("2023-11-14", first), ("2023-11-15", second)):
        write_archive(Path(stream_directory(str(tmp_path), "binance", "btc-usdt", day, "book")), messages)
    write_archive(Path(stream_directory(str(tmp_path), "binance", "btc-usdt", "2023-11-15", "trades")), first)
    with open_archive(tmp_path, stream="book") as reader:
        assert read_all(reader) == first + second
    with open_archive(tmp_path, stream="book", first_date="2023-11-15") as reader:
        assert read_all(reader) == second
    with open_archive(tmp_path, stream="book", last_date="2023-11-14", symbol="btc-usdt") as reader:
        assert read_all(reader) == first
    with pytest.raises(InvalidConfig, match="more than one stream"):
        open_archive(tmp_path)
    with pytest.raises(InvalidConfig, match="no archive"):
        open_archive(tmp_path / "nothing")


def test_a_gap_between_the_days_of_a_raw_archive_is_damage(tmp_path: Path) -> None:
    messages = known_messages(COUNT)
    staging = tmp_path / "all"
    write_archive(staging, messages)
    for number, file in enumerate(sorted(staging.glob("*.q"))):
        day = Path(raw_directory(str(tmp_path), "binance", f"2023-11-{14 + number:02}"))
        day.mkdir(parents=True)
        file.rename(day / file.name)
    with open_archive(tmp_path / "raw") as reader:
        assert read_all(reader) == messages
    shutil.rmtree(tmp_path / "raw" / "v1" / "binance" / "2023-11-15")
    with open_archive(tmp_path / "raw") as reader, pytest.raises(Corrupt, match="expected"):
        read_all(reader)


def test_the_open_segment_of_a_queue_is_not_part_of_the_archive(tmp_path: Path) -> None:
    with Queue.open_publisher(tmp_path, segment_size=1024) as writer:
        for seq in range(20):
            writer.append(1, b"%d" % seq)
        with open_archive(tmp_path) as reader:
            found = read_all(reader)
    assert [message.seq for message in found] == list(range(len(found)))
    assert 7 <= len(found) < 20


def test_an_empty_archive_has_no_messages_and_a_day_that_is_none_is_refused(tmp_path: Path) -> None:
    with open_archive(tmp_path) as reader:
        assert reader.next() is None
        assert not reader.seek_time(0)
        write_archive(tmp_path / "v1/x/y" / DAY / "book", known_messages(3))
        assert len(read_all(reader)) == 3
    with pytest.raises(Exception, match="2023-02-30"):
        open_archive(tmp_path, first_date="2023-02-30")


@pytest.mark.parametrize("has_indexes", [True, False])
def test_the_range_of_seqs_is_known_without_reading_all_of_it(tmp_path: Path, has_indexes: bool) -> None:
    ids = write_archive(tmp_path / "one", known_messages(100)[10:], segment_size=4096)
    for number in ids[1:3]:
        compress(tmp_path / "one", number, 1024)
    if not has_indexes:
        for path in (tmp_path / "one").glob("*[0-9].idx"):
            path.unlink()
    with open_archive(tmp_path / "one") as reader:
        messages = reader.drain(1000)
        assert reader.seq_bounds() == (messages[0].seq, messages[-1].seq + 1)
    (tmp_path / "none").mkdir()
    with open_archive(tmp_path / "none") as reader:
        assert reader.seq_bounds() == (0, 0)
