"""A page for each job on Spark: every example in them runs, and every option of the commands is named."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
GUIDE = ROOT / "docs" / "guide"
PAGES = sorted((GUIDE / "jobs").glob("*.md"))
JOBS = ["archive", "audit", "features", "import", "refine", "replay"]

_RUN = """
import os, sys
from pathlib import Path
from tests.support.snippets import run_page

for page in map(Path, sys.argv[1:]):
    folder = Path.cwd() / page.stem
    folder.mkdir()
    os.chdir(folder)
    print(page.stem, run_page(page, folder), flush=True)
    os.chdir(folder.parent)
"""


@pytest.mark.spark
@pytest.mark.timeout(300)
def test_every_example_of_the_jobs_runs(tmp_path: Path) -> None:
    # One session for all pages: starting one is most of the time.
    done = subprocess.run(
        [sys.executable, "-c", _RUN, *PAGES],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    ran = [line.split() for line in done.stdout.splitlines()]
    assert [(name, int(count) >= 1) for name, count in ran] == [(name, True) for name in JOBS]


def test_every_job_has_a_page_that_shows_its_command() -> None:
    assert [page.stem for page in PAGES] == JOBS
    for page in PAGES:
        assert f"everlog pipeline {page.stem} " in page.read_text(encoding="utf-8")
