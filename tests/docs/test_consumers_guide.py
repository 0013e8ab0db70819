"""The guide to consumers: every snippet gives what the page says."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.snippets import run_page

GUIDE = Path(__file__).resolve().parents[2] / "docs" / "guide" / "consumers.md"


def test_every_snippet_of_the_guide_runs_and_gives_what_it_says(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert run_page(GUIDE, tmp_path) >= 5
