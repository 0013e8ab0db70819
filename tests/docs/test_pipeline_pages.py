"""The pages about Spark and about replays: every example in them runs."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from everlog.pipeline.sources import queue, topics

ROOT = Path(__file__).resolve().parents[2]
GUIDE = ROOT / "docs" / "guide"

_RUN = """
import sys
from pathlib import Path
from tests.support.snippets import run_page

print(run_page(Path(sys.argv[1]), Path.cwd()))
"""


@pytest.mark.timeout(300)
@pytest.mark.parametrize(("page", "blocks"), [("spark.md", 6), ("replaying.md", 3)])
def test_every_example_of_the_page_runs(page: str, blocks: int, tmp_path: Path) -> None:
    # As a reader would: in a process whose first Spark session is the page's, in the page's directory.
    done = subprocess.run(
        [sys.executable, "-c", _RUN, GUIDE / page],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert int(done.stdout.split()[-1]) >= blocks


@pytest.mark.parametrize("options", [queue.OPTIONS, topics.OPTIONS])
def test_every_option_of_a_format_is_explained(options: tuple[str, ...]) -> None:
    text = (GUIDE / "spark.md").read_text(encoding="utf-8")
    assert [name for name in options if f"`{name}`" not in text] == []
