"""The documentation site: every page can be found, and the comparison says where others are better."""

from __future__ import annotations

import pkgutil
import re
import tomllib
from pathlib import Path

import pytest

from everlog.client.wire import DEFAULT_URL
from tests.support.server_processes import running_server
from tests.support.snippets import run_page

ROOT = Path(__file__).resolve().parents[2]
DOCS = ROOT / "docs"
COMPARED = ("Kafka", "NATS and JetStream", "Redis Streams", "Chronicle Queue", "BullMQ")


def test_every_page_is_in_the_navigation_once() -> None:
    settings = (ROOT / "mkdocs.yml").read_text(encoding="utf-8")
    nav = re.search(r"^nav:\n((?:[ \n].*\n?)*)", settings, re.MULTILINE)
    assert nav is not None
    listed = re.findall(r"[\w/.-]+\.md\b", nav[1])
    assert sorted(listed) == sorted(str(path.relative_to(DOCS)) for path in DOCS.rglob("*.md"))


def test_every_picture_is_shown_on_a_page() -> None:
    pages = [(path.parent, path.read_text(encoding="utf-8")) for path in DOCS.rglob("*.md")]
    shown = {
        (folder / name).resolve()
        for folder, text in pages
        for name in re.findall(r"\]\(([^)]+\.png)\)", text)
    }
    assert shown == set(DOCS.rglob("*.png"))


def test_every_decision_is_in_the_list_of_decisions() -> None:
    index = (DOCS / "internals" / "index.md").read_text(encoding="utf-8")
    listed = re.findall(r"\]\(adr/([^)]+)\)", index)
    assert listed == sorted(path.name for path in (DOCS / "internals" / "adr").glob("*.md"))


def test_every_page_of_the_reference_is_in_its_index() -> None:
    index = (DOCS / "reference" / "index.md").read_text(encoding="utf-8")
    names = {path.name for path in (DOCS / "reference").iterdir()} - {"index.md"}
    assert {name for name in names if f"]({name})" not in index} == set()


def test_every_name_that_the_reference_shows_exists() -> None:
    pages = (DOCS / "reference").glob("*.md")
    names = [name for page in pages for name in re.findall(r"^::: (\S+)", page.read_text(), re.MULTILINE)]
    assert len(names) > 40
    unknown = []
    for name in names:
        try:
            pkgutil.resolve_name(name)
        except (ImportError, AttributeError):
            unknown.append(name)
    assert unknown == []


@pytest.mark.parametrize("name", COMPARED)
def test_the_comparison_says_where_the_other_one_is_better_and_when_to_take_it(name: str) -> None:
    text = (DOCS / "guide" / "comparison.md").read_text(encoding="utf-8")
    section = text.split(f"\n## {name}\n")[1].split("\n## ")[0]
    rows = re.findall(r"^\| (?!\||---)([^|]*) \| ([^|]*) \| ([^|]*) \|$", section, re.MULTILINE)
    better = [row for row in rows if row[1].startswith("**")]
    assert len(rows) >= 7
    assert len(better) >= 4
    assert re.search(rf"^Take {name.split(maxsplit=1)[0]}", section, re.MULTILINE)


def test_the_comparison_claims_no_figures() -> None:
    text = (DOCS / "guide" / "comparison.md").read_text(encoding="utf-8")
    assert re.findall(r"\d[\d,.]*\s*(?:[kMG]/s|ns|us|ms|µs|M\b|million|times|%)", text) == []


def test_the_code_of_the_home_page_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    with running_server(tmp_path, "--memory") as server:
        page = tmp_path / "index.md"
        text = (DOCS / "index.md").read_text(encoding="utf-8")
        page.write_text(text.replace(DEFAULT_URL, server.url), encoding="utf-8")
        assert run_page(page, tmp_path) == 1


def test_the_site_loads_nothing_from_elsewhere() -> None:
    settings = (ROOT / "mkdocs.yml").read_text(encoding="utf-8")
    assert "font: false" in settings
    assert re.findall(r"https?://", settings) == []


def test_contributing_shows_the_layers_and_every_folder() -> None:
    text = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")
    contract = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["tool"]["importlinter"]
    assert "\n".join(contract["contracts"][0]["layers"]) in text
    folders = [path.name for path in (ROOT / "src" / "everlog").iterdir() if (path / "__init__.py").exists()]
    assert [name for name in folders if f"`src/everlog/{name}`" not in text] == []
