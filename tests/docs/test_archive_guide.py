"""The guide to archives: its examples give what it says."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.snippets import run_page

PAGE = Path(__file__).resolve().parents[2] / "docs" / "guide" / "archive.md"


def test_every_example_of_the_page_gives_what_it_says(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert run_page(PAGE, tmp_path) >= 3
