"""The page of numbers and the README: both are what the generator makes of the stored results."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from benchmarks import page

ROOT = Path(__file__).resolve().parents[2]
README = ROOT / "README.md"
GUIDES = sorted((ROOT / "docs" / "guide").rglob("*.md"))
RATE = re.compile(r"\d[\d,.]*\s*(?:[kM]/s|million (?:records|messages|events) a second)")

QUEUE_ROW = {
    "section": "Cost of a call",
    "row": "append",
    "number": "append_ns",
    "unit": "ns",
    "target": "<= 100",
    "verdict": "MISSED",
    "values": {"everlog": 123.456, "redis": 1234.5},
}
ENGINE_ROW = {key: QUEUE_ROW[key] for key in ("section", "row", "number", "unit")} | {
    "target": None,
    "verdict": "",
    "min": 1.0,
    "median": 2.0,
    "max": 3.0,
    "rounds": [1.0, 2.0, 3.0],
}
MACHINE = {"cpu": "a processor", "files": "/somewhere/private (ext4)", "took": "3 s"}


def test_the_page_is_what_the_generator_makes_of_the_results() -> None:
    assert page.PAGE.read_text(encoding="utf-8") == page.page(page.load()), "run `make bench-page`"


def test_the_numbers_of_the_readme_are_what_the_generator_makes_of_the_results() -> None:
    text = README.read_text(encoding="utf-8")
    assert page.with_numbers(text, page.readme_table(page.load())) == text, "run `make bench-page`"


def test_the_readme_is_short_and_says_first_why_to_choose_everlog() -> None:
    text = README.read_text(encoding="utf-8")
    first_lines = " ".join([line for line in text.splitlines() if line.strip()][:5])
    assert len(text.split()) <= 1200
    assert all(name in first_lines for name in ("NATS", "Redis", "Kafka"))
    rows = text.split(page.BEGIN)[1].split(page.END)[0].count("\n| ") - 2
    assert 1 <= rows <= page.README_ROWS_MAX


@pytest.mark.parametrize("guide", GUIDES, ids=lambda guide: guide.name)
def test_no_guide_states_a_rate_of_its_own(guide: Path) -> None:
    assert RATE.findall(guide.read_text(encoding="utf-8")) == []


def test_results_are_stored_without_paths_and_with_three_digits(tmp_path: Path) -> None:
    (tmp_path / "queue.json").write_text(json.dumps({"machine": MACHINE, "rows": [QUEUE_ROW], "numbers": {}}))
    (tmp_path / "engine.json").write_text(json.dumps({"machine": MACHINE, "rows": [ENGINE_ROW]}))
    (tmp_path / "other.json").write_text("{}")
    results = tmp_path / "results"
    results.mkdir()
    assert page.store(tmp_path, results) == ["queue", "engine"]
    stored = page.load(results)
    assert stored["queue"]["machine"] == {"cpu": "a processor", "files": "ext4"}
    assert stored["queue"]["rows"][0]["values"] == {"everlog": 123.0, "redis": 1230.0}
    assert stored["engine"]["rows"][0]["values"] == {"lowest": 1.0, "median": 2.0, "highest": 3.0}
    text = page.page(stored)
    assert "| append | ns | 123 | 1,230 | ≤ 100, *missed* |" in text
    assert "`make bench-server`" in text.split("Not measured here")[1].splitlines()[0]
    readme = page.readme_table(stored)
    assert "| append 64 bytes to a queue, checksum included | 123 ns | Redis Streams 1,230 |" in readme


@pytest.mark.parametrize(
    ("value", "text"),
    [(0.27, "0.27"), (0.5, "0.5"), (8.64, "8.64"), (44.0, "44"), (100.0, "100"), (1450.4, "1,450")],
)
def test_values_have_three_digits(value: float, text: str) -> None:
    assert page.shown(value) == text
