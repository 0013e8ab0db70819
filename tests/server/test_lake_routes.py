"""The tables of a lake as the server shows them: sizes, versions, reports of jobs; bounded, and read only."""

from __future__ import annotations

from pathlib import Path

import pytest

from everlog.lake_reports import FOLDER, ArchiveProgress, AuditedStream, AuditSummary, write_report
from everlog.server import lake_routes
from everlog.server.lake_routes import lake_state
from tests.support.http_cases import running

PROGRESS = ArchiveProgress(
    source="http://127.0.0.1:4000 orders*",
    updated_ms=1_700_000_000_000,
    is_running=False,
    rows=1200,
    commits=3,
    files=5,
    version=2,
    seconds=1.5,
)
STREAM = AuditedStream(
    name="orders.eu",
    first_seq=1,
    last_seq=1200,
    delivered=1190,
    gap=6,
    deleted=4,
    duplicate=0,
    overlapping=0,
    missing=0,
    altered=0,
    behind=7,
    is_sound=True,
)
AUDIT = AuditSummary(
    updated_ms=1_700_000_060_000, is_sound=True, unreadable=[], stream_count=1, streams=[STREAM]
)


def make_lake(root: Path) -> Path:
    """A lake as jobs leave it: a table with partitions, its checkpoint, a table without reports, reports."""
    for table, versions in (("records", 3), ("tops", 1)):
        log = root / table / "_delta_log"
        log.mkdir(parents=True)
        for version in range(versions):
            (log / f"{version:020}.json").write_text("{}")
            part = root / table / f"date=2024-12-0{version + 1}"
            part.mkdir()
            (part / f"part-{version}.parquet").write_bytes(b"x" * 1000)
    (root / "records" / "_delta_log" / f"{1:020}.checkpoint.parquet").write_bytes(b"x" * 50)
    (root / "records.checkpoint" / "offsets").mkdir(parents=True)
    write_report(str(root), "records", PROGRESS)
    write_report(str(root), "records", AUDIT)
    return root


def test_tables_have_sizes_versions_and_the_last_reports(tmp_path: Path) -> None:
    lake = make_lake(tmp_path / "lake")
    with running(lake=str(lake)) as server:
        answer = server.api().request("GET", "/v0/lake").json
    records, tops = answer["tables"]
    assert (records["table"], records["version"], records["files"], records["bytes_on_disk"]) == (
        "records",
        2,
        3,
        3000,
    )
    assert records["archive"]["rows"] == 1200 and records["archive"]["source"] == PROGRESS.source
    assert records["audit"]["is_sound"] and records["audit"]["streams"][0]["behind"] == 7
    assert (tops["version"], tops["files"], tops["archive"], tops["audit"]) == (0, 1, None, None)


def test_a_report_that_cannot_be_read_is_none(tmp_path: Path) -> None:
    lake = make_lake(tmp_path / "lake")
    (lake / FOLDER / "archive.records.json").write_bytes(b'{"rows": "many"}')
    (lake / FOLDER / "audit.records.json").write_bytes(b"{")
    table = lake_state(str(lake)).tables[0]
    assert (table.archive, table.audit, table.files) == (None, None, 3)


def test_a_look_counts_a_bounded_number_of_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    lake = make_lake(tmp_path / "lake")
    monkeypatch.setattr(lake_routes, "FILES_MAX", 2)
    first, second = lake_state(str(lake)).tables
    assert (first.files, first.is_counted) == (2, False)
    assert (second.files, second.is_counted) == (0, False)
    monkeypatch.setattr(lake_routes, "TABLES_MAX", 1)
    assert len(lake_state(str(lake)).tables) == 1


def test_no_lake_a_missing_one_and_keys_with_prefixes(tmp_path: Path) -> None:
    with running(keys="all,some:read:own.") as server:
        assert server.api("all").request("GET", "/v0/lake").json["root"] is None
        assert server.api("some").request("GET", "/v0/lake").status == 403
    assert lake_state(str(tmp_path / "nothing")).tables == []


def test_looking_at_a_lake_changes_nothing(tmp_path: Path) -> None:
    lake = make_lake(tmp_path / "lake")
    before = {path: path.stat().st_mtime_ns for path in lake.rglob("*")}
    lake_state(str(lake))
    assert {path: path.stat().st_mtime_ns for path in lake.rglob("*")} == before
