"""The notebooks of the pipeline: their cells run, and what they assert holds."""

from __future__ import annotations

from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from tests.support.notebooks import run_notebook

NOTEBOOKS = Path(__file__).parents[2] / "examples" / "notebooks"
pytestmark = pytest.mark.timeout(300)


@pytest.mark.parametrize("name", ["archive-and-query", "audit", "replay-and-features"])
def test_a_notebook_of_the_pipeline_runs(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    monkeypatch.chdir(tmp_path)
    assert run_notebook(NOTEBOOKS / f"{name}.ipynb")["spark"] is spark
