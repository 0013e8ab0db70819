"""Deleting records: the predicate, what is removed, point in time, silence, and restarts."""

from __future__ import annotations

import errno
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from everlog.errors import InvalidRequest, StorageFailed, TopicNotFound
from everlog.topics import Engine, RecordsDeleted, record_of, tag_search
from everlog.topics.jobs.steps import Steps
from everlog.topics.records import NewRecord, parse_match
from tests.support.engines import EngineHarness, records, sized
from tests.support.timings import assert_short, repeated_if_slow

TAGS = ("a", "a:1", "a:2", None, "b", "a*", "*", "A", "ü:1")


@pytest.fixture(params=["ephemeral", "memory", "disk", "fsync"])
def harness(tmp_path: Path, request: pytest.FixtureRequest) -> EngineHarness:
    """A topic `t` with one record per tag of `TAGS`."""
    harness = EngineHarness(tmp_path)
    harness.put("t", durability=request.param)
    harness.append("t", *[record_of(tag, tag=tag) for tag in TAGS])
    return harness


# --- The predicate ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("match", "gone"),
    [
        (["tag", "Eq", "a"], ["a"]),
        (["tag", "Eq", "a*"], ["a*"]),
        (["tag", "Eq", "*"], ["*"]),
        (["tag", "Eq", ""], []),
        (["tag", "Glob", "a*"], ["a", "a:1", "a:2", "a*"]),
        (["tag", "Glob", "a:*"], ["a:1", "a:2"]),
        (["tag", "Glob", "a**"], ["a*"]),
        (["tag", "Glob", "*"], [tag for tag in TAGS if tag]),
        (["tag", "Glob", "ü*"], ["ü:1"]),
        (("tag", "Eq", "b"), ["b"]),
        ("a", ["a"]),
        ("a:*", ["a:1", "a:2"]),
        ("*", [tag for tag in TAGS if tag]),
        ("zz*", []),
    ],
)
def test_a_match_removes_exactly_the_records_it_names(
    harness: EngineHarness, match: Any, gone: list[str]
) -> None:
    answer = harness.delete("t", match=match)
    assert answer.deleted == len(gone)
    assert harness.values("t") == [tag for tag in TAGS if tag not in gone]


@pytest.mark.parametrize(
    "match",
    [
        ["tag", "Eq"],
        ["tag", "Eq", "a", "b"],
        [],
        ["node", "Eq", "a"],
        ["tag", "eq", "a"],
        ["tag", "Regex", "a*"],
        ["tag", "Glob", "a"],
        ["tag", "Glob", ""],
        ["tag", "Eq", 1],
        7,
        {"tag": "a"},
    ],
)
def test_a_match_that_is_none_is_refused(harness: EngineHarness, match: Any) -> None:
    with pytest.raises(InvalidRequest):
        harness.engine.delete_records("t", match=match)
    assert harness.state("t").count == len(TAGS)


def test_a_delete_of_nothing_in_particular_is_refused(harness: EngineHarness) -> None:
    with pytest.raises(InvalidRequest):
        harness.engine.delete_records("t")


@pytest.mark.parametrize("before_seq", [-1, 2**64])
def test_before_seq_must_be_a_u64(harness: EngineHarness, before_seq: int) -> None:
    with pytest.raises(InvalidRequest):
        harness.engine.delete_records("t", before_seq=before_seq)


@pytest.mark.parametrize(
    ("match", "canonical"),
    [("a", ["tag", "Eq", "a"]), ("a*", ["tag", "Glob", "a*"]), ("*", ["tag", "Glob", "*"])],
)
def test_every_predicate_has_one_canonical_form(match: str, canonical: list[str]) -> None:
    assert parse_match(match).canonical() == canonical
    assert parse_match(canonical) == parse_match(match)


# --- What is removed -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("before_seq", "earliest"), [(0, 1), (1, 1), (2, 2), (9, 9), (10, 10), (11, 10), (2**64 - 1, 10)]
)
def test_before_seq_removes_what_is_below_it_at_most_up_to_the_head(
    harness: EngineHarness, before_seq: int, earliest: int
) -> None:
    answer = harness.delete("t", before_seq=before_seq)
    assert (answer.deleted, answer.earliest_seq, answer.head_seq) == (earliest - 1, earliest, 9)
    assert harness.append("t", "later").first_seq == 10
    assert harness.seqs("t") == list(range(earliest, 11))


def test_both_selectors_remove_the_intersection_and_leave_the_rest_of_the_prefix(
    harness: EngineHarness,
) -> None:
    answer = harness.delete("t", match="a*", before_seq=3)
    assert (answer.deleted, answer.earliest_seq) == (2, 3)
    assert harness.seqs("t") == [3, 4, 5, 6, 7, 8, 9]
    assert harness.delete("t", match="b", before_seq=5).deleted == 0


def test_the_answer_tells_what_is_left(harness: EngineHarness) -> None:
    answer = harness.delete("t", match="a:*")
    state = harness.state("t")
    assert (answer.deleted, answer.count, answer.earliest_seq, answer.head_seq) == (2, 7, 1, 9)
    assert (state.count, state.bytes, state.earliest_seq) == (answer.count, answer.bytes, 1)
    assert answer.bytes == sum(len(record_of(tag).data) for tag in TAGS if tag not in ("a:1", "a:2"))


def test_a_second_delete_finds_nothing_more(harness: EngineHarness) -> None:
    harness.delete("t", match="a*")
    assert harness.delete("t", match="a*").deleted == 0
    harness.delete("t", before_seq=5)
    assert harness.delete("t", before_seq=5).deleted == 0


def test_the_first_live_seq_moves_only_when_the_front_dies_and_the_evict_floor_never(
    harness: EngineHarness,
) -> None:
    assert harness.delete("t", match="a:1").earliest_seq == 1
    assert harness.delete("t", match=["tag", "Eq", "a"]).earliest_seq == 3
    assert harness.delete("t", before_seq=100).earliest_seq == 10
    assert harness.state("t").evict_floor == 1
    assert harness.gap("t") is None


def test_expired_records_are_not_counted_as_deleted(harness: EngineHarness) -> None:
    harness.put("t", ttl_ms=100, durability=harness.state("t").config.durability)
    harness.advance_ms(101)
    harness.append("t", record_of("new", tag="a"))
    assert harness.delete("t", match="*").deleted == 1


def test_deleting_in_an_absent_topic_creates_none(harness: EngineHarness) -> None:
    with pytest.raises(TopicNotFound):
        harness.engine.delete_records("absent", before_seq=1)


# --- Point in time ---------------------------------------------------------------------------------------


def test_later_records_with_the_tag_survive_also_over_a_replay(tmp_path: Path) -> None:
    harness = EngineHarness(tmp_path)
    for durability in ("memory", "disk", "fsync"):
        harness.put(durability, durability=durability)
        harness.append(durability, record_of("old", tag="x"), record_of("other"))
        harness.delete(durability, match="x")
        harness.append(durability, record_of("new", tag="x"))
        harness.delete(durability, before_seq=100)
        harness.append(durability, record_of("newest", tag="x"))
    harness.crash()
    for durability in ("memory", "disk", "fsync"):
        assert harness.values(durability) == ["newest"]


def test_records_that_are_not_visible_yet_are_later_records(tmp_path: Path) -> None:
    harness = EngineHarness(tmp_path)
    harness.put("t", durability="fsync")
    harness.append("t", record_of("old", tag="x"))
    pending = harness.engine.append("t", [record_of("pending", tag="x")])
    answers = [
        harness.engine.delete_records("t", match="x"),
        harness.engine.delete_records("t", before_seq=99),
    ]
    for commit in (pending.commit, *(answer.commit for answer in answers)):
        harness.wait_for(commit)
    assert [answer.deleted for answer in answers] == [1, 0]
    assert harness.values("t") == ["pending"]
    harness.crash()
    assert harness.values("t") == ["pending"]


def test_a_delete_covers_every_record_up_to_the_head_it_answers(tmp_path: Path) -> None:
    harness = EngineHarness(tmp_path)
    harness.put("t", durability="disk")
    harness.append("t", record_of("old", tag="x"))
    pending = harness.engine.append("t", [record_of("gathered", tag="x")])
    answer = harness.engine.delete_records("t", match="x")
    harness.wait_for(pending.commit)
    assert (answer.deleted, answer.head_seq, answer.count) == (2, 2, 0)


@pytest.mark.parametrize("again", ["crash", "restart", "checkpoint and crash", "lose_power"])
def test_deleted_records_never_return(tmp_path: Path, again: str) -> None:
    harness = EngineHarness(tmp_path, segment_max_events=4)
    harness.put("t", durability="fsync")
    harness.append("t", *[record_of(number, tag="x" if number % 3 else None) for number in range(10)])
    harness.checkpoint()
    harness.append("t", *[record_of(number, tag="x" if number % 3 else None) for number in range(10, 15)])
    harness.delete("t", match="x", before_seq=14)
    harness.delete("t", before_seq=5)
    expected = [6, 9, 12, 13, 14]
    assert harness.values("t") == expected
    if again == "checkpoint and crash":
        harness.checkpoint(3)
        again = "crash"
    for _ in range(2):
        getattr(harness, again)()
        assert harness.values("t") == expected
        assert harness.gap("t") is None


def test_a_delete_of_an_fsync_topic_is_done_when_it_is_synced(tmp_path: Path) -> None:
    harness = EngineHarness(tmp_path)
    harness.put("t", durability="fsync")
    harness.append("t", 1, 2)
    answer = harness.engine.delete_records("t", before_seq=2)
    assert not answer.commit.done
    assert not harness.engine.diff("t").commit.done, "a reader may see the delete before it is kept"
    harness.wait_for(answer.commit)
    assert harness.engine.diff("t").commit.done
    harness.lose_power()
    assert harness.values("t") == [2]


def test_a_delete_that_cannot_be_logged_removes_nothing(tmp_path: Path) -> None:
    harness = EngineHarness(tmp_path)
    harness.put("t")
    harness.append("t", record_of(1, tag="x"), record_of(2))
    for selection in ({"match": "x"}, {"before_seq": 3}):
        harness.disk.fail_when("pwrite", errno.EIO)
        with pytest.raises(StorageFailed):
            harness.delete("t", **selection)
        assert harness.values("t") == [1, 2]
    harness.crash()
    assert harness.values("t") == [1, 2]


def test_deleted_records_make_room_under_a_cap(harness: EngineHarness) -> None:
    harness.put("t", cap_records=9, durability=harness.state("t").config.durability)
    harness.delete("t", match="a:*")
    harness.append("t", sized(3), sized(3))
    assert (harness.state("t").count, harness.gap("t")) == (9, None)
    harness.append("t", sized(3))
    assert harness.gap("t") == (1, 3, "cap")


def test_a_delete_between_pending_batches_does_not_loosen_the_cap(tmp_path: Path) -> None:
    harness = EngineHarness(tmp_path)
    harness.put("t", durability="fsync", cap_records=5)
    harness.append("t", 1, 2, 3, 4, 5)
    harness.engine.append("t", records([6, 7]))
    harness.engine.delete_records("t", before_seq=3)
    last = harness.engine.append("t", records([8, 9]))
    harness.wait_for(last.commit)
    assert harness.values("t") == [5, 6, 7, 8, 9]


# --- Very many records -----------------------------------------------------------------------------------


class StepTimes:
    """Runs steps and notes the time of each on the processor, in milliseconds."""

    def __init__(self) -> None:
        self.steps: list[float] = []

    def run(self, step: Callable[[], Any]) -> Any:
        """One step."""
        started_ns = time.thread_time_ns()
        try:
            return step()
        finally:
            self.steps.append((time.thread_time_ns() - started_ns) / 1e6)


def filled(tag_of: Callable[[int], str | None]) -> Engine:
    """A million records of a topic `t` in memory, with the clock of the system: it ends the turns."""
    engine = Engine.open(None)
    for first in range(0, 1_000_000, 10_000):
        batch = [NewRecord(b"1234", tag_of(number)) for number in range(first, first + 10_000)]
        engine.wait_for(engine.append("t", batch).commit)
    return engine


def run_steps(
    steps: Steps[RecordsDeleted], timed: StepTimes, between: Callable[[], object]
) -> RecordsDeleted:
    """Take the steps of a delete; `between` is called between two of them."""
    while True:
        try:
            timed.run(lambda: next(steps))
        except StopIteration as done:
            answer: RecordsDeleted = done.value
            return answer
        between()


@repeated_if_slow
def test_no_step_of_a_delete_below_a_seq_is_long_and_its_counts_are_exact() -> None:
    timed = StepTimes()
    engine = filled(lambda _: None)
    log = engine._core.topics["t"].log
    held_bytes = log.index_memory_bytes
    answer = timed.run(lambda: engine.delete_records("t", before_seq=999_990))
    assert (answer.deleted, answer.earliest_seq, answer.count) == (999_989, 999_990, 11)
    assert engine._core.totals.bytes == answer.bytes == 4 * 11
    while not engine.is_quiet:
        timed.run(engine.poll)
    assert len(timed.steps) > 2  # the memory is freed in several steps
    assert_short(timed.steps)
    assert log.index_memory_bytes < held_bytes / 100


@repeated_if_slow
@pytest.mark.parametrize(
    ("tag_of", "match", "expected"),
    [
        pytest.param(lambda number: "x" if number % 2 else "y", "x", 500_000, id="one tag"),
        pytest.param(lambda number: f"{number % 2}:{number % 1000}", "1:*", 500_000, id="many tags"),
        pytest.param(lambda number: f"{number % 2}:{number}", "1:*", 500_000, id="a tag each"),
        pytest.param(lambda number: "same-" * 40 + f"{number}", "same-*", 1_000_000, id="long tags"),
    ],
)
def test_no_step_of_a_delete_by_tag_is_long_and_a_reader_sees_all_of_it_or_nothing(
    monkeypatch: pytest.MonkeyPatch,
    tag_of: Callable[[int], str],
    match: str,
    expected: int,
) -> None:
    monkeypatch.setattr("everlog.topics.jobs.steps.SLICE_NS", 500_000)  # several turns on a fast machine, too
    timed = StepTimes()
    engine = filled(tag_of)

    def append_and_look() -> None:
        """What is appended meanwhile goes, too; until then nothing is gone."""
        engine.wait_for(engine.append("t", [NewRecord(b"1", tag_of(1))]).commit)
        state = engine.state("t")
        assert (state.count, state.earliest_seq) == (state.head_seq, 1)
        looks.append(state.head_seq)

    looks: list[int] = []
    dry = run_steps(engine.delete_steps("t", match=match, dry_run=True), timed, lambda: None)
    assert (dry.deleted, dry.count) == (expected, 1_000_000)
    answer = run_steps(engine.delete_steps("t", match=match), timed, append_and_look)
    assert len(looks) > 2
    assert answer.deleted == expected + len(looks)
    assert (answer.head_seq, answer.count) == (1_000_000 + len(looks), 1_000_000 - expected)
    assert engine._core.totals.bytes == answer.bytes == 4 * answer.count
    assert_short(timed.steps)


@pytest.fixture
def tiny_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every step of a search looks at two records and is a turn."""
    monkeypatch.setattr(tag_search, "SEARCH_STEPS", 2)
    monkeypatch.setattr("everlog.topics.jobs.steps.SLICE_NS", 0)


@pytest.mark.usefixtures("tiny_steps")
def test_a_delete_by_tag_in_steps_leaves_what_died_meanwhile_out_of_its_count(tmp_path: Path) -> None:
    harness = EngineHarness(tmp_path, segment_max_events=4)
    harness.put("t", durability="fsync")
    harness.append("t", *[record_of(number, tag=f"x{number % 5}") for number in range(20)])
    steps = harness.engine.delete_steps("t", match="x*", before_seq=30)
    for number in range(20, 26):
        assert next(steps) is None
        harness.append("t", record_of(number, tag="x9" if number % 2 else "y"))
        harness.delete("t", before_seq=number - 17)
        harness.checkpoint()  # the new records are in segments, which the search has to load
        assert harness.seqs("t") == list(range(number - 17, number + 2))
    answer = harness.engine.run_steps(steps)
    harness.wait_for(answer.commit)
    assert (answer.deleted, answer.count, answer.head_seq) == (16, 3, 26)
    assert harness.values("t") == [20, 22, 24]
    harness.crash()
    assert harness.values("t") == [20, 22, 24]


@pytest.mark.usefixtures("tiny_steps")
def test_a_delete_by_tag_ends_when_its_topic_is_deleted_meanwhile() -> None:
    harness = EngineHarness(None)
    harness.append("t", *[record_of(number, tag=f"x{number}") for number in range(20)])
    steps = harness.engine.delete_steps("t", match="x*")
    next(steps)
    harness.engine.delete_topic("t")
    harness.append("t", record_of("new", tag="x1"))
    with pytest.raises(TopicNotFound):
        next(steps)
    assert harness.values("t") == ["new"]


def test_a_delete_of_many_jobs_by_tag_forgets_the_leased_ones() -> None:
    harness = EngineHarness(None)
    harness.put("q", type="queue")
    harness.append("q", *[record_of(number, tag="x" if number % 2 else "y") for number in range(1000)])
    harness.engine.claim("q", "n", 10)
    assert harness.delete("q", match="x").deleted == 500
    counts = harness.state("q").queue
    assert counts is not None
    assert (counts.ready, counts.in_flight) == (495, 5)
