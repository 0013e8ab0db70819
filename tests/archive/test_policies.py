"""When segments are compressed, and what one pass over an archive does."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from everlog.archive import policies
from everlog.archive.metadata import last_access_s, note_access
from everlog.archive.policies import (
    AgeAfter,
    IdleAfter,
    Immediate,
    Never,
    SegmentFacts,
    SizeThreshold,
    compress_due,
    parse_policy,
)
from everlog.archive.reader import open_archive
from everlog.archive.tiers import Tier, changing, list_segments
from everlog.errors import InvalidConfig
from everlog.fs import OsFs
from everlog.queue import Queue
from tests.support.archives import known_messages, write_archive
from tests.support.files import UnsyncedFs

DAY_S = 86_400
NOW_S = 1_800_000_000


@given(
    st.integers(0, 20),
    st.none() | st.integers(0, 20),
    st.integers(0, 1000),
    st.floats(0, 20),
    st.integers(0, 1000),
)
def test_a_policy_is_due_from_its_bound_on(
    age_days: int, idle_days: int | None, size: int, days: float, threshold: int
) -> None:
    read_s = None if idle_days is None else NOW_S - idle_days * DAY_S
    facts = SegmentFacts(NOW_S - age_days * DAY_S, read_s, size)
    assert not Never().is_due(facts, NOW_S)
    assert Immediate().is_due(facts, NOW_S)
    assert AgeAfter(days).is_due(facts, NOW_S) is (age_days * DAY_S >= days * DAY_S)
    idle = age_days if idle_days is None else idle_days
    assert IdleAfter(days).is_due(facts, NOW_S) is (idle * DAY_S >= days * DAY_S)
    assert SizeThreshold(threshold).is_due(facts, NOW_S) is (size >= threshold)


def test_policies_are_written_as_text() -> None:
    assert parse_policy("never") == Never()
    assert parse_policy("immediate") == Immediate()
    assert parse_policy("age:30") == AgeAfter(30)
    assert parse_policy("idle") == IdleAfter(7)
    assert parse_policy("idle:0.5") == IdleAfter(0.5)
    assert parse_policy("size:64m") == SizeThreshold(64 << 20)
    for wrong in ("", "age", "age:-1", "size:x", "always", "never:1", "idle:1d"):
        with pytest.raises(InvalidConfig, match="valid are"):
            parse_policy(wrong)


def test_what_was_read_lately_stays_and_what_is_idle_is_compressed(tmp_path: Path) -> None:
    messages = known_messages(100)
    ids = write_archive(tmp_path, messages)
    for segment_id in ids:
        os.utime(tmp_path / f"{segment_id:09d}.q", (NOW_S - 30 * DAY_S,) * 2)
    note_access(OsFs(), str(tmp_path), ids[1], (NOW_S - DAY_S) * 10**9)
    report = compress_due(UnsyncedFs(), [str(tmp_path)], IdleAfter(), NOW_S * 10**9)
    tiers = {segment.segment_id: segment.tier for segment in list_segments(OsFs(), str(tmp_path))}
    assert tiers == {**dict.fromkeys(ids, Tier.COMPRESSED), ids[1]: Tier.PLAIN}
    assert [segment.segment_id for segment in report.done] == [i for i in ids if i != ids[1]]
    assert 0 < report.bytes_after < report.bytes_before
    with open_archive(tmp_path) as reader:
        assert reader.drain(1000) == messages


def test_a_segment_that_fails_is_recorded_and_the_pass_goes_on(tmp_path: Path) -> None:
    ids = write_archive(tmp_path / "a", known_messages(100))
    write_archive(tmp_path / "b", known_messages(3))
    (tmp_path / "a" / f"{ids[0]:09d}.q").write_bytes(b"no segment at all" * 10)
    directories = [str(tmp_path / "a"), str(tmp_path / "gone"), str(tmp_path / "b")]
    report = compress_due(UnsyncedFs(), directories, Immediate(), NOW_S * 10**9)
    assert len(report.done) == len(ids) - 1 + 1
    assert sorted(report.failed) == [str(tmp_path / "a" / f"{ids[0]:09d}.q"), str(tmp_path / "gone")]
    with changing(OsFs(), str(tmp_path / "b")):
        assert compress_due(UnsyncedFs(), directories[2:], Immediate(), 0).failed.keys() == {directories[2]}


def test_a_queue_keeps_the_segment_that_says_where_its_seq_goes_on(tmp_path: Path) -> None:
    with Queue.open_publisher(tmp_path, segment_size=1024) as writer:
        while writer.segment_id < 3 or writer.offset > 64 + 128:
            writer.append(1, b"12345678")
        appended = writer.next_seq
    compress_due(UnsyncedFs(), [str(tmp_path)], Immediate(), NOW_S * 10**9)
    assert [segment.tier for segment in list_segments(OsFs(), str(tmp_path))] == [
        Tier.COMPRESSED,
        Tier.COMPRESSED,
        Tier.PLAIN,
    ]
    with Queue.open_publisher(tmp_path) as writer:
        assert writer.next_seq == appended


def test_the_log_of_reads_stays_small_and_survives_senseless_lines(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("everlog.archive.metadata.ACCESS_LOG_BYTES_MAX", 500)
    (tmp_path / ".access_log").write_text("nonsense\n7,\n,5\n")
    for second in range(200):
        note_access(OsFs(), str(tmp_path), second % 3, second * 10**9)
    assert last_access_s(OsFs(), str(tmp_path)) == {0: 198, 1: 199, 2: 197}
    assert (tmp_path / ".access_log").stat().st_size < 600
    write_archive(tmp_path, known_messages(3))
    with open_archive(tmp_path, tracks_access=True) as reader:
        reader.drain(10)
    assert last_access_s(OsFs(), str(tmp_path))[0] > NOW_S - 10 * 365 * DAY_S
    assert policies.Never() == Never()
