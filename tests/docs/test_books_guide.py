"""The guide to order books: every snippet gives what the page says, and no output is left out."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest

from everlog.market import BookResult, GapPolicy
from tests.support.snippets import run_page

GUIDE = Path(__file__).resolve().parents[2] / "docs/guide/books.md"


def test_every_snippet_of_the_guide_runs_and_gives_what_it_says(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert run_page(GUIDE, tmp_path) >= 4


def test_the_guide_names_every_output_and_policy() -> None:
    text = GUIDE.read_text(encoding="utf-8")
    for field in dataclasses.fields(BookResult):
        assert field.name in text or field.name == "count"
    for policy in GapPolicy:
        assert f"`{policy}`" in text
