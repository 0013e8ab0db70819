"""Segments for tests: bytes of records, a topic's tiers below a root, every crash, and a plain reader."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from pathlib import Path

from hypothesis import strategies as st

from everlog.errors import Io
from everlog.fault_fs import FaultFs, PowerLoss
from everlog.fs import Fs
from everlog.native.topics.log import read_segment_frame
from everlog.topics.storage import layout
from everlog.topics.storage.segment_loading import LoadedSegments, index_entries, load_segments
from everlog.topics.storage.segment_store import SegmentPart, SegmentStore
from everlog.topics.storage.segments import AppendPlan, SegmentLimits, SegmentSet, write_piece
from everlog.topics.storage.tier import TopicTier
from tests.native.frame_twin import Parts, segment_frame
from tests.support.files import UnsyncedFs

TOPIC_ID = 10
SMALL_PAGE = 64
Records = dict[int, bytes]

payloads = st.lists(st.none() | st.binary(min_size=1, max_size=120), min_size=1, max_size=12)
"""Records in seq order; None is a seq without one."""


def fault_fs(root: Path, seed: int = 0) -> FaultFs:
    """Faults below `root`, with pages so small that files of a few records tear."""
    return FaultFs(root, seed=seed, inner=UnsyncedFs(), page_size=SMALL_PAGE)


def time_of(seq: int) -> int:
    """A time that never goes back."""
    return 1_700_000_000_000 + seq // 3


def segment_bytes(
    first_seq: int, records: list[bytes | None], data_offset: int = 0, *, tag: bytes = b""
) -> tuple[bytes, bytes]:
    """Data and index of records as they lie in a segment from `data_offset` on."""
    data, index = bytearray(), bytearray()
    for seq, record in enumerate(records, start=first_seq):
        offset = data_offset + len(data)
        flags, size = layout.INDEX_FLAG_DELETED, 0
        if record is not None:
            flags = layout.FLAG_HAS_TAG if tag else 0
            frame = segment_frame(
                Parts(layout.TYPE_APPEND, flags, 0, seq, time_of(seq), b"", tag, record, False)
            )
            size = len(frame)
            data += frame
        index += layout.INDEX_ENTRY.pack(offset, size, time_of(seq), flags)
    return bytes(data), bytes(index)


def sample_records(first_seq: int, count: int) -> list[bytes | None]:
    """Different records of different lengths; every seventh seq has none."""
    seqs = range(first_seq, first_seq + count)
    return [None if seq % 7 == 0 else b'"%d"' % seq + b" " * (seq % 23) for seq in seqs]


def kept(first_seq: int, records: list[bytes | None]) -> Records:
    """The records by seq, without the seqs that have none."""
    return {seq: record for seq, record in enumerate(records, start=first_seq) if record is not None}


def open_tier(root: Path, fs: Fs | None = None, *, cold: bool = True) -> TopicTier:
    """The stores of one topic below `root`; the directories above them exist."""
    name = layout.TOPIC_DIR.name(TOPIC_ID)
    fs = fs or UnsyncedFs()
    for above in ("hot", "cold"):
        (root / above).mkdir(exist_ok=True)
    hot = SegmentStore(str(root / "hot" / name), fs)
    return TopicTier(hot, SegmentStore(str(root / "cold" / name), fs) if cold else None)


def append_all(
    tier: TopicTier,
    segments: SegmentSet,
    first_seq: int,
    records: list[bytes | None],
    *,
    now_ms: int = 0,
) -> AppendPlan:
    """Plan, write and apply an append, as a checkpoint does."""
    sizes = [0 if record is None else len(record) + 60 for record in records]
    plan = segments.plan_stretches([(first_seq, sizes)], now_ms)
    plan.prepare(tier)
    for piece in plan.pieces:
        start = piece.first_seq - first_seq
        data, index = segment_bytes(piece.first_seq, records[start : start + piece.count], piece.data_offset)
        write_piece(tier.hot, piece, data, index)
        segments.apply_append(plan, piece, len(data), index, now_ms)
    return plan


def filled_tier(
    root: Path, count: int, max_events: int, fs: Fs | None = None
) -> tuple[TopicTier, SegmentSet]:
    """A topic with the sample records 1 .. count in segments of `max_events`."""
    tier = open_tier(root, fs)
    segments = SegmentSet(SegmentLimits(max_events=max_events, hot_retain_segments=0))
    append_all(tier, segments, 1, sample_records(1, count))
    return tier, segments


def read_records(tier: TopicTier, loaded: LoadedSegments) -> Records:
    """All records that are not marked as deleted, read frame by frame with their checksums."""
    found: Records = {}
    for segment in loaded.segments:
        store = tier.store(segment.tier)
        data = store.read(segment.first_seq, SegmentPart.DATA, 0)
        for seq, entry in enumerate(index_entries(segment.index), start=segment.first_seq):
            if entry["flags"] & layout.INDEX_FLAG_DELETED:
                continue
            frame = read_segment_frame(data, int(entry["offset"]))
            assert (frame.seq, frame.ts) == (seq, entry["ts"])
            found[seq] = frame.data
    return found


def load_records(tier: TopicTier, durable_through_seq: int = 0) -> Records:
    """What a start would find."""
    return read_records(tier, load_segments(tier, durable_through_seq=durable_through_seq))


def is_between(found: Mapping[int, bytes], lower: Mapping[int, bytes], upper: Mapping[int, bytes]) -> bool:
    """Whether all of `lower` was found, and nothing that is not in `upper`."""
    return lower.items() <= found.items() <= upper.items()


def every_power_loss(
    root: Path, prepare: Callable[[Path], object], act: Callable[[Path, FaultFs], object], seeds: int = 3
) -> Iterator[tuple[Path, FaultFs]]:
    """Lose power at each call of `act` (and within each write) and yield what is found afterwards.

    Every crash has its own directory, which `prepare` fills; pages are small, so that files tear.
    """
    for number in itertools.count(1):
        for seed in range(seeds):
            place = root / f"loss-{number}-{seed}"
            place.mkdir()
            prepare(place)
            fs = fault_fs(place, number * 1000 + seed)
            if seed % 2:
                fs.tear_at(number)
            else:
                fs.lose_power_at(number)
            try:
                act(place, fs)
            except PowerLoss:
                fs.restore()
                yield place, fs
                continue
            assert number > 3, "nothing was done that a crash could interrupt"
            return


def every_failure(
    root: Path, errno: int, prepare: Callable[[Path], object], act: Callable[[Path, FaultFs], object]
) -> Iterator[tuple[Path, FaultFs]]:
    """Let each call of `act` fail in turn and yield the state after it; the error must be an `Io`."""
    for number in itertools.count(1):
        place = root / f"failure-{errno}-{number}"
        place.mkdir()
        prepare(place)
        fs = fault_fs(place)
        fs.fail_at(number, errno)
        failed = True
        with suppress(Io):
            act(place, fs)
            failed = False
        if fs.calls < number:
            assert number > 3, "nothing was done that could fail"
            return
        assert failed, f"the failure of {fs.log[number - 1]} was not reported"
        yield place, fs
