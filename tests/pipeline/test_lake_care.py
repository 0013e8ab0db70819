"""Care of tables without Spark: where they may be, what a vacuum spares, and a commit that is not whole."""

from __future__ import annotations

import os
import time
from datetime import timedelta
from pathlib import Path

import deltalake
import pyarrow as pa
import pytest
from typer.testing import CliRunner

from everlog.cli import pipeline
from everlog.errors import Corrupt, InvalidConfig
from everlog.pipeline.lake import LakeTable
from tests.support.command_lines import run


def test_a_bucket_without_credentials_is_one_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in list(os.environ):
        if name.startswith(("AWS_", "RUST_")):
            monkeypatch.delenv(name)
    # The machine gives neither credentials nor a region.
    monkeypatch.setenv("AWS_EC2_METADATA_SERVICE_ENDPOINT", "http://127.0.0.1:1")
    monkeypatch.setenv("HOME", str(tmp_path))
    done = run("everlog", "pipeline", "compact", "--lake", "s3://nowhere/x")
    assert done.returncode == 1
    (line,) = done.stderr.splitlines()
    assert line.startswith("error: cannot open the table s3://nowhere/x/records: there are no credentials")
    assert "set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY" in line and "\x1b" not in line


def filled(lake: Path, commits: int) -> LakeTable:
    """A table of one row a commit."""
    for number in range(commits):
        deltalake.write_deltalake(str(lake / "t"), pa.table({"n": [number]}), mode="append")
    return LakeTable(lake, "t")


@pytest.mark.parametrize("root", ["hdfs://name/lake", "S3A://b/x", "http://host/lake"])
def test_a_place_that_is_not_a_directory_is_refused_and_nothing_is_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, root: str
) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(InvalidConfig, match="is not supported: give a directory"):
        LakeTable(root, "t")
    assert os.listdir(tmp_path) == []


def test_a_file_url_is_its_path(tmp_path: Path) -> None:
    assert LakeTable(f"file://{tmp_path}", "t").path == LakeTable(tmp_path, "t").path


def test_a_vacuum_spares_files_of_a_batch_that_is_not_committed_yet(tmp_path: Path) -> None:
    table = filled(tmp_path, 3)
    table.compact()
    fresh, old = (Path(table.path, f"part-{age}.parquet") for age in ("fresh", "old"))
    for path in (fresh, old):
        path.write_bytes(b"x")
    long_ago_s = time.time() - 3 * 86_400
    os.utime(old, (long_ago_s, long_ago_s))
    removed = table.vacuum(timedelta(0))
    assert fresh.exists() and not old.exists()
    assert len(removed) == 3 + 1, "the files that were joined, and that of a task that failed"
    assert len(deltalake.DeltaTable(table.path).to_pyarrow_table()) == 3


def cut(table: LakeTable, version: int) -> Path:
    """Leave half of a commit, as a power loss does."""
    path = Path(table.path, "_delta_log", f"{version:020}.json")
    content = path.read_bytes()
    path.write_bytes(content[: len(content) // 2])
    return path


def test_a_commit_that_is_not_whole_is_named_and_set_aside(tmp_path: Path) -> None:
    table = filled(tmp_path, 3)
    path = cut(table, 2)
    with pytest.raises(Corrupt, match=r"00002\.json of table .* is not whole; 'everlog pipeline repair'"):
        table.open()
    done = CliRunner().invoke(pipeline.app, ["repair", "--lake", str(tmp_path), "--table", "t"])
    assert (done.exit_code, path.name in done.output.replace("\n", "")) == (0, True)
    opened = table.open()
    assert opened is not None and opened.version() == 1
    assert table.repair() == []


def test_a_damaged_commit_below_whole_ones_is_not_set_aside(tmp_path: Path) -> None:
    table = filled(tmp_path, 3)
    path = cut(table, 1)
    with pytest.raises(Corrupt, match="later ones build on it"):
        table.repair()
    assert path.exists()
