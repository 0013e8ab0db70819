"""The pages about Spark and about replays: every example in them runs."""

from __future__ import annotations

from pathlib import Path

import pytest

from everlog.pipeline.sources import queue_sink, topics_sink
from everlog.pipeline.sources.queue import QueueSource
from everlog.pipeline.sources.topics import TopicsSource
from tests.support.snippets import run_page_alone

ROOT = Path(__file__).resolve().parents[2]
GUIDE = ROOT / "docs" / "guide"


@pytest.mark.spark
@pytest.mark.timeout(300)
@pytest.mark.parametrize(
    ("page", "blocks"),
    [("spark.md", 8), ("querying-a-lake.md", 5), ("replaying.md", 2), ("writing-a-feature.md", 5)],
)
def test_every_example_of_the_page_runs(page: str, blocks: int, tmp_path: Path) -> None:
    assert run_page_alone(GUIDE / page, tmp_path) >= blocks


@pytest.mark.parametrize(
    "options", [QueueSource.OPTIONS, queue_sink.OPTIONS, TopicsSource.OPTIONS, topics_sink.OPTIONS]
)
def test_every_option_of_a_format_is_explained(options: tuple[str, ...]) -> None:
    text = (GUIDE / "spark.md").read_text(encoding="utf-8")
    assert [name for name in options if f"`{name}`" not in text] == []
