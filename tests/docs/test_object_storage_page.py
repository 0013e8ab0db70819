"""The page on object storage: its examples run, and it lists every variable."""

from __future__ import annotations

from pathlib import Path

import pytest

from everlog.objects import SCHEMES, VARIABLES
from tests.support.snippets import run_page

PAGE = Path(__file__).resolve().parents[2] / "docs" / "guide" / "object-storage.md"


def test_every_example_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert run_page(PAGE, tmp_path) >= 1


def test_every_scheme_and_variable_is_listed() -> None:
    text = PAGE.read_text(encoding="utf-8")
    assert [name for name in VARIABLES.values() if f"| `{name}` |" not in text] == []
    assert [scheme for scheme in SCHEMES if f"| `{scheme}://" not in text] == []
