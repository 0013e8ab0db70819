"""The pages about Spark and about replays: every example in them runs."""

from __future__ import annotations

from pathlib import Path

import pytest

from everlog.pipeline.sources import queue, topics
from tests.support.snippets import run_page

GUIDE = Path(__file__).parents[2] / "docs" / "guide"


@pytest.mark.timeout(300)
@pytest.mark.parametrize(("page", "blocks"), [("spark.md", 6), ("replaying.md", 3)])
def test_every_example_of_the_page_runs(
    page: str, blocks: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert run_page(GUIDE / page, tmp_path) >= blocks


@pytest.mark.parametrize("options", [queue.OPTIONS, topics.OPTIONS])
def test_every_option_of_a_format_is_explained(options: tuple[str, ...]) -> None:
    text = (GUIDE / "spark.md").read_text(encoding="utf-8")
    assert [name for name in options if f"`{name}`" not in text] == []
