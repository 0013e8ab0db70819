"""The guides to live capture: the example runs, and every venue, field, reason and fault is named."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest

from everlog.feeds import VENUES, FeedConfig
from everlog.feeds.rehearsal import Faults
from tests.support.snippets import run_page

GUIDES = Path(__file__).resolve().parents[2] / "docs/guide"


def test_the_example_of_a_venue_runs_and_gives_what_it_says(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert run_page(GUIDES / "adding-a-venue.md", tmp_path) >= 1


def test_the_guide_names_every_venue_field_and_fault() -> None:
    text = (GUIDES / "live-capture.md").read_text(encoding="utf-8")
    fields = [field.name for field in msgspec.structs.fields(FeedConfig)]
    for name in (*VENUES, *fields, *Faults.__dataclass_fields__):
        assert f"`{name}`" in text
