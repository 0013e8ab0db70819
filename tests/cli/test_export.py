"""`everlog export`: files of a queue, and a queue of a file."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
from typer.testing import CliRunner

from everlog.cli import main
from tests.support.command_lines import on_terminal
from tests.support.import_runs import messages_of
from tests.support.market_queues import DIFFS, SECOND_NS, START_NS, write_market_queue


def export(*arguments: object, code: int = 0) -> Any:
    result = CliRunner().invoke(main.app, ["export", *map(str, arguments), "--json"])
    assert result.exit_code == code, result.output
    return json.loads(result.stdout if code == 0 else result.stderr)


def test_a_range_of_a_queue_becomes_a_file_and_a_file_a_queue(tmp_path: Path) -> None:
    write_market_queue(str(tmp_path / "q"))
    assert export(tmp_path / "q", "--to", tmp_path / "t.parquet", "--kind", "trade")["rows"] == DIFFS // 10
    span = ("--start", "2024-10-04", "--end", START_NS + SECOND_NS)
    assert START_NS == 1_728_000_000_000_000_000  # 2024-10-04
    export(tmp_path / "q", "--to", tmp_path / "b.parquet", "--kind", "book", *span, "--symbols", "7")
    found = pq.read_table(tmp_path / "b.parquet")
    assert set(found["market_id"].to_pylist()) == {7} and min(found["ts_ns"].to_pylist()) == START_NS
    assert export(tmp_path / "q", "--to", tmp_path / "all.arrow")["rows"] == len(messages_of(tmp_path / "q"))
    export(tmp_path / "all.arrow", "--to", tmp_path / "back")
    assert messages_of(tmp_path / "back") == messages_of(tmp_path / "q")
    export(tmp_path / "q", "--to", tmp_path / "h.npz", "--symbols", "7")
    with np.load(tmp_path / "h.npz") as file:
        assert len(file["data"]) > DIFFS
    shown = CliRunner().invoke(main.app, ["export", str(tmp_path / "q"), "--to", str(tmp_path / "x.csv")])
    assert shown.stdout == f"{len(messages_of(tmp_path / 'q'))} rows in {tmp_path / 'x.csv'}\n"


def test_an_export_shows_how_many_rows_are_written_on_a_terminal(tmp_path: Path) -> None:
    write_market_queue(str(tmp_path / "q"))
    for source, to in (("q", "t.parquet"), ("q", "h.npz"), ("t.parquet", "back")):
        more = ("--symbols", "7") if to == "h.npz" else ()
        code, shown = on_terminal("everlog", "export", tmp_path / source, "--to", tmp_path / to, *more)
        assert code == 0, shown
        assert "exporting" in shown and re.search(r"[1-9][\d,]* rows", shown)


def test_what_cannot_be_exported_is_refused(tmp_path: Path) -> None:
    write_market_queue(str(tmp_path / "q"))
    assert "of one market" in str(export(tmp_path / "q", "--to", tmp_path / "h.npz", code=1))
    assert "leave out --kind" in str(export(tmp_path / "q", "--to", "h.npz", "--kind", "book", code=1))
    assert "tables end with" in str(export(tmp_path / "q", "--to", tmp_path / "h.txt", code=1))
    export(tmp_path / "q", "--to", tmp_path / "t.parquet")
    assert "not empty" in str(export(tmp_path / "t.parquet", "--to", tmp_path / "q", code=1))
    assert "is a file" in str(export(tmp_path / "t.parquet", "--to", tmp_path / "o.parquet", code=1))
