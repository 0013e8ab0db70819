"""The pages on playing and exporting recordings: their examples give what they say."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.snippets import run_page_alone

GUIDE = Path(__file__).resolve().parents[2] / "docs" / "guide"


@pytest.mark.parametrize(("page", "blocks"), [("playing.md", 2), ("exporting.md", 3)])
def test_every_example_of_the_page_gives_what_it_says(page: str, blocks: int, tmp_path: Path) -> None:
    assert run_page_alone(GUIDE / page, tmp_path) >= blocks
