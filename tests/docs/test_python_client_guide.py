"""The guide to the Python clients: every snippet gives what the page says."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.support.snippets import run_page

GUIDE = Path(__file__).resolve().parents[2] / "docs" / "guide" / "python-client.md"


def test_every_snippet_of_the_guide_runs_and_gives_what_it_says(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert run_page(GUIDE, tmp_path) > 10


def test_every_link_of_the_guide_leads_somewhere() -> None:
    links = re.findall(r"\]\(([^)#:]+)(?:#[^)]*)?\)", GUIDE.read_text(encoding="utf-8"))
    assert links
    assert [link for link in links if not (GUIDE.parent / link).exists()] == []
