"""The page on backups: its examples run as they stand."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.snippets import run_page

PAGE = Path(__file__).resolve().parents[2] / "docs" / "guide" / "backup.md"


def test_every_example_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert run_page(PAGE, tmp_path) >= 2
