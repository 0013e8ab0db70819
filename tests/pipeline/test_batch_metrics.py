"""What is told after each commit of a job: metrics in a file, a line for a person, a line of JSON."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from prometheus_client.parser import text_string_to_metric_families

from everlog.cli.pipeline import _shown
from everlog.pipeline.jobs.report import RunReport, print_progress

REPORT = RunReport(
    job="archive", source="feed", table="lake/messages", rows=3000, gaps=2, batches=3, files=4, seconds=1.5
)


def test_the_metrics_of_the_last_commit_are_in_the_file(tmp_path: Path) -> None:
    path = tmp_path / "archive.prom"
    shown = _shown(str(path), as_json=False, follow=True)
    shown(RunReport(job="archive", source="feed", table="lake/messages"))
    shown(REPORT)
    samples = [one for family in text_string_to_metric_families(path.read_text()) for one in family.samples]
    found = {one.name: one.value for one in samples}
    assert found.pop("everlog_job_last_commit_timestamp_seconds") > 1_700_000_000
    assert found == {
        "everlog_job_rows_total": 3000,
        "everlog_job_gaps_total": 2,
        "everlog_job_commits_total": 3,
        "everlog_job_files_total": 4,
        "everlog_job_seconds_total": 1.5,
    }
    assert all(one.labels == {"job": "archive", "table": "lake/messages"} for one in samples)


def test_a_run_that_follows_prints_a_line_of_json_for_each_commit(capsys: pytest.CaptureFixture[str]) -> None:
    for follow in (False, True):  # one that ends prints its report then
        shown = _shown(None, as_json=True, follow=follow)
        shown(REPORT)
        shown(REPORT)
    lines = capsys.readouterr().out.splitlines()
    assert [json.loads(line)["rows"] for line in lines] == [3000, 3000]


def test_a_notebook_is_told_in_plain_text(capsys: pytest.CaptureFixture[str]) -> None:
    print_progress(REPORT)
    assert capsys.readouterr().out == "commit 3: 3,000 rows in 4 files, 2,000 rows/s\n"
