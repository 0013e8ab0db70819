"""Two tiers: a segment is always in force in exactly one of them, with every deletion it ever had."""

from __future__ import annotations

import errno
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from everlog.errors import Corrupt, Io, Unsupported
from everlog.fault_fs import FaultFs, PowerLoss
from everlog.topics.storage.segment_loading import load_segments
from everlog.topics.storage.segment_store import Mark, SegmentPart
from everlog.topics.storage.segments import MarkPlan, Relocation, SegmentLimits, SegmentSet
from everlog.topics.storage.tier import Tier, TopicTier
from tests.support.effort import effort
from tests.topics.storage.segment_samples import (
    Records,
    every_failure,
    every_power_loss,
    fault_fs,
    filled_tier,
    kept,
    load_records,
    open_tier,
    sample_records,
)

COUNT = 12
EVENTS = 4
ALL = kept(1, sample_records(1, COUNT))
LIMITS = SegmentLimits(max_events=EVENTS, hot_retain_segments=0)


def prepare(root: Path) -> None:
    filled_tier(root, COUNT, EVENTS)


def move(tier: TopicTier, segments: SegmentSet) -> None:
    """Relocate all that may be relocated, one after the other."""
    while plans := segments.plan_relocations():
        for plan in plans:
            plan.copy(tier)
            assert segments.apply_copied(plan) is not None
            plan.delete_hot(tier)
            segments.apply_moved(plan)


def reopen(root: Path, fs: FaultFs | None = None) -> tuple[TopicTier, SegmentSet]:
    """Load what is there; all of it was promised by a checkpoint."""
    tier = open_tier(root, fs)
    loaded = load_segments(tier, durable_through_seq=COUNT)
    return tier, SegmentSet.from_loaded(LIMITS, loaded.segments)


def move_all(root: Path, fs: FaultFs) -> None:
    move(*reopen(root, fs))


# --- Where a segment is ----------------------------------------------------------------------------------


def test_the_hot_copy_is_preferred_and_the_cold_one_found(tmp_path: Path) -> None:
    tier = open_tier(tmp_path)
    tier.hot.put(1, b"hot", b"h")
    tier.store(Tier.COLD).put(1, b"cold", b"c")
    tier.store(Tier.COLD).put(9, b"cold", b"c")
    assert [tier.resolve(segment_id) for segment_id in (1, 5, 9)] == [Tier.HOT, None, Tier.COLD]
    assert tier.list() == [(1, Tier.HOT), (9, Tier.COLD)]
    assert tier.read(1, SegmentPart.DATA, 0, 3) == b"hot"
    assert tier.read(9, SegmentPart.DATA, 0, 4) == b"cold"


def test_without_a_cold_directory_nothing_can_be_copied_there(tmp_path: Path) -> None:
    tier = open_tier(tmp_path, cold=False)
    tier.hot.put(1, b"hot", b"h")
    with pytest.raises(Unsupported, match="no cold directory is set"):
        tier.copy_to_cold(1, 3, 1)
    assert tier.list() == [(1, Tier.HOT)]


def test_a_hot_copy_is_not_removed_while_the_cold_one_is_incomplete(tmp_path: Path) -> None:
    tier = open_tier(tmp_path)
    tier.hot.put(1, b"hot", b"h")
    tier.copy_to_cold(1, 3, 1)
    index = tier.store(Tier.COLD).describe(1, SegmentPart.INDEX)
    Path(index).unlink()
    with pytest.raises(Corrupt, match="so the hot copy stays"):
        tier.delete_hot(1)
    assert tier.resolve(1) is Tier.HOT


def test_relocation_moves_sealed_segments_and_changes_no_record(tmp_path: Path) -> None:
    prepare(tmp_path)
    tier, segments = reopen(tmp_path)
    segments.seal_due(0)
    move(tier, segments)
    assert tier.list() == [(first, Tier.COLD) for first in (1, 5, 9)]
    assert load_records(tier, COUNT) == ALL


def test_what_a_failed_append_left_is_not_copied(tmp_path: Path) -> None:
    tier, segments = filled_tier(tmp_path, EVENTS, EVENTS)
    (info,) = segments.infos
    tier.hot.append(1, info.data_bytes, b"torn", info.index_bytes, b"x" * 13)
    segments.seal_due(0)
    tier.copy_to_cold(1, info.data_bytes, info.index_bytes)
    # A crash now would leave both; the cold copy makes the hot one a sealed segment.
    assert load_records(tier, EVENTS) == kept(1, sample_records(1, EVENTS))
    move(tier, segments)
    assert tier.list() == [(1, Tier.COLD)]
    assert load_records(tier, EVENTS) == kept(1, sample_records(1, EVENTS))


# --- Crashes and failures during a relocation ------------------------------------------------------------


def test_power_loss_at_any_call_of_a_relocation_loses_nothing(tmp_path: Path) -> None:
    for root, _ in every_power_loss(tmp_path, prepare, move_all, seeds=2):
        tier = open_tier(root)
        assert load_records(tier, COUNT) == ALL
        move(*reopen(root))
        assert load_records(tier, COUNT) == ALL
        # The newest one is full, but it is sealed only by the next append.
        assert tier.list() == [(1, Tier.COLD), (5, Tier.COLD), (9, Tier.HOT)]


@pytest.mark.parametrize("number", [errno.EIO, errno.ENOSPC])
def test_a_failed_call_of_a_relocation_loses_nothing_and_the_next_one_goes_on(
    tmp_path: Path, number: int
) -> None:
    for root, fs in every_failure(tmp_path, number, prepare, move_all):
        assert load_records(open_tier(root), COUNT) == ALL
        move_all(root, fs)
        assert load_records(open_tier(root), COUNT) == ALL


def test_a_relocation_that_failed_is_finished_in_the_same_life(tmp_path: Path) -> None:
    prepare(tmp_path)
    fs = fault_fs(tmp_path)
    tier, segments = reopen(tmp_path, fs)
    (plan,) = segments.plan_relocations()
    plan.copy(tier)
    assert segments.apply_copied(plan) is not None
    fs.fail_when("unlink", errno.EIO)
    with pytest.raises(Io):
        plan.delete_hot(tier)
    segments.abandon(plan)
    assert segments.infos[0].tier is Tier.COLD
    (again,) = segments.plan_relocations()
    assert (again.segment_id, again.copied) == (plan.segment_id, True)
    move(tier, segments)
    segments.abandon(again)
    move(tier, segments)
    assert tier.hot.list() == [9]
    assert load_records(tier, COUNT) == ALL


# --- Deletions beside a relocation -----------------------------------------------------------------------


def mark(segments: SegmentSet, tier: TopicTier, seqs: list[int]) -> None:
    for plan in segments.plan_marks(np.array(seqs, dtype=np.uint64)):
        segments.apply_marks(plan, plan.write(tier))


def without(seqs: list[int]) -> Records:
    return {seq: record for seq, record in ALL.items() if seq not in seqs}


def test_a_copy_that_missed_a_deletion_is_not_taken(tmp_path: Path) -> None:
    prepare(tmp_path)
    tier, segments = reopen(tmp_path)
    (plan,) = segments.plan_relocations()
    plan.copy(tier)
    mark(segments, tier, [2])
    assert segments.apply_copied(plan) is None
    assert segments.infos[0].tier is Tier.HOT
    assert load_records(tier, COUNT) == without([2])
    move(tier, segments)
    assert tier.resolve(1) is Tier.COLD
    assert load_records(tier, COUNT) == without([2])


def test_a_copy_is_not_taken_while_a_deletion_is_under_way(tmp_path: Path) -> None:
    prepare(tmp_path)
    tier, segments = reopen(tmp_path)
    (relocation,) = segments.plan_relocations()
    (marks,) = segments.plan_marks(np.array([2], dtype=np.uint64))
    relocation.copy(tier)
    assert segments.apply_copied(relocation) is None
    assert all(plan.segment_id != 1 for plan in segments.plan_relocations(limit=9))
    segments.apply_marks(marks, marks.write(tier))
    assert load_records(tier, COUNT) == without([2])


def test_a_deletion_with_both_copies_there_marks_both(tmp_path: Path) -> None:
    prepare(tmp_path)
    tier, segments = reopen(tmp_path)
    (plan,) = segments.plan_relocations()
    plan.copy(tier)
    assert segments.apply_copied(plan) is not None
    mark(segments, tier, [2])
    # Whichever copy a crash leaves in force, the record stays deleted.
    assert load_records(tier, COUNT) == without([2])
    plan.delete_hot(tier)
    segments.apply_moved(plan)
    assert tier.resolve(1) is Tier.COLD
    assert load_records(tier, COUNT) == without([2])


def test_the_hot_copy_outlives_a_stale_cold_one(tmp_path: Path) -> None:
    def stale(root: Path) -> None:
        prepare(root)
        tier, segments = reopen(root)
        (plan,) = segments.plan_relocations()
        plan.copy(tier)
        cold, tier.cold = tier.cold, None
        mark(segments, tier, [2])
        tier.cold = cold

    for root, _ in every_power_loss(
        tmp_path, stale, lambda root, fs: open_tier(root, fs).delete([1]), seeds=4
    ):
        found = load_records(open_tier(root), COUNT)
        assert 2 not in found
        assert found in (without([2]), without([1, 2, 3, 4]))


def test_a_mark_survives_the_hot_copy_being_removed_meanwhile(tmp_path: Path) -> None:
    class Racing(TopicTier):
        """A relocation removes the hot copy between the two marks."""

        __slots__ = ()

        def mark_deleted(self, segment_id: int, marks: list[Mark]) -> None:  # type: ignore[override]
            hot = self.hot
            real_exists = hot.exists

            class Late:
                def __getattr__(self, name: str) -> object:
                    return getattr(hot, name)

                def exists(self, segment_id: int, part: SegmentPart) -> bool:
                    there = real_exists(segment_id, part)
                    if part is SegmentPart.INDEX:
                        hot.delete([segment_id])
                    return there

            self.hot = Late()  # type: ignore[assignment]
            super().mark_deleted(segment_id, marks)
            self.hot = hot

    prepare(tmp_path)
    tier, segments = reopen(tmp_path)
    (plan,) = segments.plan_relocations()
    plan.copy(tier)
    assert segments.apply_copied(plan) is not None
    mark(segments, Racing(tier.hot, tier.cold), [2])
    assert tier.resolve(1) is Tier.COLD
    assert load_records(tier, COUNT) == without([2])


# --- All of it, at random --------------------------------------------------------------------------------


class TierHarness:
    """A topic under deletions, relocations and crashes, beside the set of records that must be there."""

    def __init__(self, root: Path, seed: int) -> None:
        prepare(root)
        self.root = root
        self.fs = fault_fs(root, seed)
        self.deleted: set[int] = set()
        self.unsure: set[int] = set()
        self.relocations: list[Relocation] = []
        self.open()

    def open(self) -> None:
        self.tier, self.segments = reopen(self.root, self.fs)
        self.relocations.clear()

    def check(self) -> None:
        found = load_records(open_tier(self.root), COUNT)
        assert found.keys() | self.unsure | self.deleted == ALL.keys()
        assert not found.keys() & self.deleted
        assert found.items() <= ALL.items()

    def delete(self, seqs: list[int]) -> None:
        self.unsure |= set(seqs) & ALL.keys()
        plans: list[MarkPlan] = self.segments.plan_marks(np.array(seqs, dtype=np.uint64))
        for plan in plans:
            self.segments.apply_marks(plan, plan.write(self.tier))
        self.deleted |= set(seqs) & ALL.keys()

    def begin_relocation(self) -> None:
        for plan in self.segments.plan_relocations():
            plan.copy(self.tier)
            self.relocations.append(plan)

    def end_relocation(self) -> None:
        if self.relocations:
            plan = self.relocations.pop(0)
            if self.segments.apply_copied(plan) is not None:
                plan.delete_hot(self.tier)
                self.segments.apply_moved(plan)

    def drop(self) -> None:
        self.tier.delete([info.first_seq for info in self.segments.drop_dead(0)])

    def crash(self) -> None:
        self.fs.restore()
        try:
            self.open()
        except PowerLoss:
            self.fs.restore()
            self.open()
        self.check()


steps = st.lists(
    st.one_of(
        st.tuples(st.just("delete"), st.lists(st.integers(1, COUNT), min_size=1, max_size=8)),
        st.tuples(st.sampled_from(["begin", "end", "drop", "crash"]), st.none()),
    ),
    max_size=12,
)


@settings(max_examples=effort(60))
@given(steps, st.integers(0, 150), st.integers(0, 2**16))
def test_no_deleted_record_returns_and_no_other_is_lost(
    tmp_path_factory: pytest.TempPathFactory,
    plan: list[tuple[str, list[int] | None]],
    loss_after: int,
    seed: int,
) -> None:
    harness = TierHarness(tmp_path_factory.mktemp("tier"), seed)
    harness.fs.lose_power_at(harness.fs.calls + 1 + loss_after)
    for name, seqs in plan:
        try:
            if name == "delete":
                harness.delete(seqs or [])
            elif name == "begin":
                harness.begin_relocation()
            elif name == "end":
                harness.end_relocation()
            elif name == "drop":
                harness.drop()
            else:
                harness.crash()
        except PowerLoss:
            harness.crash()
    harness.crash()
