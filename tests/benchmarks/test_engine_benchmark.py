"""The engine benchmark runs from end to end, fills every row of its table, and can tell a miss."""

import json
from dataclasses import replace
from typing import Any

import pytest

from benchmarks.engine import command, samples
from benchmarks.engine.measures import FULL, QUICK
from benchmarks.engine.report import Results, at_least, at_most, sections
from benchmarks.queue.report import Row, Section, Verdict

TINY = replace(
    QUICK,
    append_records=2000,
    lone_commits=5,
    diff_records=2000,
    scan_bytes=1 << 20,
    log_records=5000,
    segment_records=100_000,
    tags=100,
    idle_topics=30,
    disk_topics=3,
    curve_points=(5000, 10_000),
    curve_chunk=2000,
)


@pytest.fixture(scope="module")
def outcome(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """What one round of a quick run with tiny sizes writes as JSON, and what it leaves behind."""
    directory = tmp_path_factory.mktemp("engine-benchmark")
    out = tmp_path_factory.mktemp("out") / "out.json"
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(command, "QUICK", TINY)
        command.main(["--quick", "--rounds", "1", "--dir", str(directory), "--json", str(out)])
    written: dict[str, Any] = json.loads(out.read_text())
    return written | {"left": [path.name for path in directory.iterdir()]}


def test_every_row_has_a_number_and_nothing_failed(outcome: dict[str, Any]) -> None:
    wanted = [row.number for section in sections(TINY) for row in section.rows]
    assert outcome["failures"] == []
    assert [row["number"] for row in outcome["rows"]] == wanted


def test_every_number_was_measured(outcome: dict[str, Any]) -> None:
    # These are differences, which a tiny run may not show.
    zero = {"delete_disk_record_us", "delete_ephemeral_record_us", "idle_resident_mib"}
    assert [
        row["number"] for row in outcome["rows"] if row["median"] <= 0 and row["number"] not in zero
    ] == []


def test_nothing_is_left_in_the_directory(outcome: dict[str, Any]) -> None:
    assert outcome["left"] == []


def test_the_machine_is_described(outcome: dict[str, Any]) -> None:
    assert {"cpu", "kernel", "load", "noise", "pinned", "files"} <= set(outcome["machine"])


@pytest.mark.parametrize("number", [0, 7, samples.RING_RECORDS - 1, 10**9])
def test_payloads_are_64_bytes_of_compact_json(number: int) -> None:
    text = samples.payload(number)
    assert len(text) == 64
    assert json.dumps(json.loads(text), separators=(",", ":")).encode() == text
    assert json.loads(text)["number"] == number


@pytest.mark.parametrize("size", [1, 100, 1000, 5000])
def test_batches_number_their_records_by_seq(size: int) -> None:
    source = samples.batches(size)
    records = [record for batch in samples.take(source, 10) for record in batch]
    assert [json.loads(bytes(record.data))["number"] for record in records] == [
        samples.expected_number(seq) for seq in range(1, 10 * size + 1)
    ]


@pytest.mark.parametrize(("tags", "distinct"), [(7, 7), (1500, 1500), (0, 3000)])
def test_tagged_batches_carry_as_many_tags_as_asked_for(tags: int, distinct: int) -> None:
    source = samples.tagged_batches(1000, tags)
    names = [record.tag for batch in samples.take(source, 3) for record in batch]
    assert len(set(names)) == distinct
    assert len(names) == 3000


def test_a_missed_target_is_a_miss_and_counts_for_the_exit_code() -> None:
    fast = Row("fast", "fast_per_s", "M/s", at_least(2), scale=1e-6)
    slow = Row("slow", "slow_s", "s", at_most(3))
    results = Results([Section("rows", (fast, slow))])
    assert results.verdict(fast) is Verdict.UNKNOWN
    for rate, seconds in ((1e6, 2.0), (2.5e6, 9.0), (3e6, 9.0)):
        results.add({"fast_per_s": rate, "slow_s": seconds})
    assert results.verdict(fast) is Verdict.OK
    assert results.missed() == ["rows: slow"]


def test_targets_that_name_a_size_hold_for_that_size_only() -> None:
    def targets(sizes: Any) -> set[str]:
        return {row.number for section in sections(sizes) for row in section.rows if row.target}

    by_size = targets(FULL) - targets(QUICK)
    assert by_size == {
        "start_untagged_s",
        "delete_disk_fixed_us",
        "delete_ephemeral_fixed_us",
        "idle_start_s",
        "idle_resident_mib",
    }
