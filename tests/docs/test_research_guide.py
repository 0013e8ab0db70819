"""The guide and the notebook of research: every command and cell runs, on simulated and on real data."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

from everlog.market.book_pictures import KINDS
from everlog.market.feature_choice import NAMES
from tests.support.notebooks import code_cells
from tests.support.snippets import blocks_of, run_page

ROOT = Path(__file__).resolve().parents[2]
GUIDE = ROOT / "docs/guide/research.md"
NOTEBOOK = ROOT / "examples/notebooks/research.ipynb"
DATA = Path(os.environ.get("EVERLOG_TEST_DATA", ROOT / ".." / "shared" / "data")) / "xrpusdt-ob500.data.zip"


def real_file() -> Path:
    """Return the real file that the guide is about."""
    if not DATA.is_file():
        pytest.skip(f"no real data at {DATA.parent}; set EVERLOG_TEST_DATA")
    return DATA


def test_every_example_of_the_guide_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert run_page(GUIDE, tmp_path) >= 4


def test_the_five_commands_take_a_real_file_to_a_plot(tmp_path: Path) -> None:
    (tmp_path / DATA.name).symlink_to(real_file().resolve())
    commands = blocks_of(GUIDE)[0].text
    assert len(commands.splitlines()) == 5
    environment = {**os.environ, "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"}
    done = subprocess.run(
        ["sh", "-ec", commands], cwd=tmp_path, env=environment, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    table = pq.read_table(tmp_path / "features.parquet")
    assert set(table["symbol"].to_pylist()) == {"XRPUSDT"} and set(table["venue"].to_pylist()) == {"bybit"}
    assert table.num_rows > 20 and min(table["mid_price"].to_pylist()) > 1.5
    assert "mid_price" in done.stdout
    for plot in ("depth.svg", "mid.png"):
        assert (tmp_path / plot).stat().st_size > 10_000


def test_the_guide_names_every_feature_and_kind_of_plot() -> None:
    text = GUIDE.read_text(encoding="utf-8")
    named = set(re.findall(r"`(\w+)(?::[NS])?`", text))
    assert set(NAMES) - named <= {"time", "seq"}  # always there
    assert set(KINDS) <= set(re.findall(r"`([\w-]+)`", text))


def code_of(notebook: Path) -> str:
    """Return the cells of a notebook as one program, in which the last value of each cell is shown."""
    document: dict[str, Any] = json.loads(notebook.read_text(encoding="utf-8"))
    assert all(not cell.get("outputs") for cell in document["cells"]), "a notebook is stored without outputs"
    return "\n\n".join(code_cells(notebook))


@pytest.mark.parametrize("is_real", [False, True], ids=["simulated", "real"])
def test_every_cell_of_the_notebook_runs(is_real: bool, tmp_path: Path) -> None:
    variables = {"EVERLOG_NOTEBOOK_FILE": str(real_file())} if is_real else {}
    shown = (
        "\nprint(symbol, len(features), len(bars), features.mid_price.mean())\nfigure.savefig('plot.png')\n"
    )
    if is_real:  # a book without trades has no bars
        shown = shown.replace("len(bars)", "'-'")
    program = tmp_path / "research.py"
    program.write_text(code_of(NOTEBOOK) + shown, encoding="utf-8")
    done = subprocess.run(
        [sys.executable, program.name],
        cwd=tmp_path,
        env={**os.environ, "TMPDIR": str(tmp_path), **variables},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    symbol, count, _, mid = done.stdout.split()
    assert symbol == ("XRPUSDT" if is_real else "SIMUSD")
    assert int(count) > 40 and float(mid) > 1
    assert (tmp_path / "plot.png").stat().st_size > 10_000
