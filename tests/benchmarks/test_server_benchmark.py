"""The server benchmark runs from end to end, fills every row of everlog's, and can tell a miss and a loss."""

import json
import os
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from benchmarks.queue.processes import ChildFailed
from benchmarks.queue.report import EVERLOG, Row, Section, Verdict
from benchmarks.server import command, measures, wrk
from benchmarks.server.load import WrongAnswer, http_missing, http_request, lines_missing
from benchmarks.server.measures import CONTENDERS, FULL, QUICK, Bench, Contender
from benchmarks.server.report import Results, at_least, sections

TINY = replace(
    QUICK,
    singles=100,
    batches=40,
    diffs=20,
    diff_records=2000,
    few_writes=2,
    many_writes=2,
    idle_watchers=20,
    python_singles=20,
    python_batches=10,
    python_reads=2,
    jobs=2000,
    commits=160,
    filtered_records=2000,
    filtered_reads=2,
    watched_topics=20,
    watched_rounds=2,
    idle_consumers=20,
    idle_s=0.2,
    scheduled_jobs=1000,
    due_jobs=50,
    keys=1000,
    dead_letters=1000,
)


@pytest.fixture(scope="module")
def outcome(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """What one round of a quick run with tiny sizes writes as JSON, and what it leaves behind."""
    directory = tmp_path_factory.mktemp("server-benchmark")
    out = tmp_path_factory.mktemp("out") / "out.json"
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(command, "QUICK", TINY)
        patch.setattr(wrk, "is_installed", lambda: False)
        patch.setattr(measures, "MANY_WATCHERS", 30)
        patch.setattr(measures, "FEW_WATCHERS", 10)
        only = ["--only", EVERLOG]
        command.main(["--quick", "--rounds", "1", *only, "--dir", str(directory), "--json", str(out)])
    written: dict[str, Any] = json.loads(out.read_text())
    return written | {"left": [path.name for path in directory.iterdir()]}


def test_every_row_of_everlog_has_a_number_and_nothing_failed(outcome: dict[str, Any]) -> None:
    wanted = [row.number for section in sections(TINY) for row in section.rows if row.versus is None]
    assert outcome["failures"] == []
    assert [row["number"] for row in outcome["rows"] if row["values"]] == wanted


def test_every_number_was_measured(outcome: dict[str, Any]) -> None:
    # Processor time is counted in ticks, which so little work may not fill.
    coarse = {"single_cpu_us", "client_keys_cpu_us", "batch_cpu_us", "many_cpu_us", "commit_cpu_us"}
    coarse |= {"pattern_change_cpu_us", "named_change_cpu_us", "pattern_share", "idle_consumers_core"}
    measured = {row["number"]: row["values"] for row in outcome["rows"] if row["values"]}
    assert [name for name, values in measured.items() if values[EVERLOG] <= 0 and name not in coarse] == []


@pytest.mark.skipif(not wrk.is_installed(), reason=f"wrk is not installed: {wrk.INSTALL_COMMAND}")
def test_writes_through_wrk_give_the_numbers_that_python_gives(
    outcome: dict[str, Any], tmp_path: Path
) -> None:
    bench = Bench(tmp_path, *sorted(os.sched_getaffinity(0))[:2], TINY)
    for measure in measures.MEASURES[:2]:
        numbers = measure.runs[EVERLOG](bench)
        filled = {row["number"] for row in outcome["rows"] if row["values"]}
        assert {name for name in filled if name.startswith(f"{measure.name}_")} <= set(numbers)
        assert numbers[f"{measure.name}_per_s"] > 0
        assert 0 < numbers[f"{measure.name}_p50_ms"] <= numbers[f"{measure.name}_p99_ms"]
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("output", "complaint"),
    [
        ("wrk: no such thing", "wrk failed: wrk: no such thing"),
        ('{"requests":9,"duration_us":1,"p50_us":1,"p99_us":1,"errors":2}', "2 failed requests of 9"),
        ('{"requests":0,"duration_us":1,"p50_us":1,"p99_us":1,"errors":0}', "0 failed requests of 0"),
    ],
)
def test_a_run_of_wrk_that_went_wrong_is_no_result(output: str, complaint: str) -> None:
    with pytest.raises(ChildFailed, match=complaint):
        wrk.read_summary(output)


def test_nothing_is_left_in_the_directory(outcome: dict[str, Any]) -> None:
    assert outcome["left"] == []


def test_the_machine_is_described(outcome: dict[str, Any]) -> None:
    assert {"cpu", "kernel", "load", "noise", "pinned", "files"} <= set(outcome["machine"])


def test_a_ratio_below_one_is_told_as_a_loss_and_a_target_below_its_bound_as_a_miss() -> None:
    row = Row("times Redis", "single_per_s", "x", at_least(0.9), versus="redis")
    results = Results(rounds_planned=3, sections=(Section("Single records, disk", (row,)),))
    assert results.verdict(row) is Verdict.UNKNOWN
    for ours, theirs in ((90.0, 100.0), (95.0, 100.0), (10.0, 100.0)):
        results.add(EVERLOG, {"single_per_s": ours})
        results.add("redis", {"single_per_s": theirs})
    assert results.verdict(row) is Verdict.OK
    assert results.lost() == ["Single records: times Redis: 0.90"]
    results.add(EVERLOG, {"single_per_s": 1.0})
    assert results.missed() == ["Single records, disk: times Redis"]


def test_a_contender_that_is_not_installed_says_what_is_missing() -> None:
    assert CONTENDERS[EVERLOG].missing() is None
    assert Contender("x", "X", ("no-such-server",), "everlog", "").missing() == "no-such-server"
    assert Contender("x", "X", (), "no-such-package", "").missing() == "the Python package no-such-package"


def test_the_target_of_idle_watchers_holds_for_its_number_of_watchers_only() -> None:
    def with_target(sizes: measures.Sizes) -> set[str]:
        return {row.number for section in sections(sizes) for row in section.rows if row.target}

    assert with_target(FULL) - with_target(QUICK) == {"idle_resident_mib"}


@pytest.mark.parametrize("cut", range(1, 12))
def test_an_http_answer_is_complete_with_its_last_byte(cut: int) -> None:
    answer = b"HTTP/1.1 200 OK\r\nContent-Length: 12\r\n\r\nhello, world"
    buffer = bytearray(answer) + b"of an answer before"
    assert http_missing(buffer, len(answer)) == 0
    assert http_missing(buffer, len(answer) - cut) > 0


def test_an_answer_that_is_no_success_ends_the_run() -> None:
    answer = bytearray(b"HTTP/1.1 429 Too Many Requests\r\nContent-Length: 0\r\n\r\n")
    with pytest.raises(WrongAnswer, match="429"):
        http_missing(answer, len(answer))
    with pytest.raises(WrongAnswer, match="ERR"):
        lines_missing(2, b"-ERR")(bytearray(b"-ERR no\r\n"), 9)


def test_answers_in_lines_are_complete_with_the_last_line() -> None:
    missing = lines_missing(4, b"-ERR")
    buffer = bytearray(b"$3\r\n1-0\r\n$3\r\n2-0\r\n")
    assert [missing(buffer, size) for size in (4, 9, 17, 18)] == [3, 2, 1, 0]


def test_a_request_says_how_long_its_body_is() -> None:
    request = http_request("POST", "/v0/topics/t", b"{}")
    assert request.startswith(b"POST /v0/topics/t HTTP/1.1\r\n")
    assert request.endswith(b"Content-Length: 2\r\n\r\n{}")
