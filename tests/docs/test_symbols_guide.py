"""The guide to symbols: its snippets run and give what they say."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.snippets import run_page

GUIDE = Path(__file__).resolve().parents[2] / "docs/guide/symbols.md"


def test_every_snippet_runs_and_gives_what_it_says(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert run_page(GUIDE, tmp_path) == 2
