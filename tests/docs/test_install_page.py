"""The page on installing names what `pyproject.toml` has."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "guide" / "install.md").read_text(encoding="utf-8")


def test_the_table_has_every_extra_and_no_other() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    assert re.findall(r"^\| `(\w+)` \|", PAGE, re.MULTILINE) == list(project["optional-dependencies"])


def test_every_extra_that_a_page_names_exists() -> None:
    known = set(re.findall(r"^\| `(\w+)` \|", PAGE, re.MULTILINE))
    named = {
        extra
        for page in [ROOT / "README.md", *(ROOT / "docs").rglob("*.md")]
        for extras in re.findall(r"(?:everlog|install '\.)\[([\w,]+)\]", page.read_text(encoding="utf-8"))
        for extra in extras.split(",")
    }
    assert named
    assert named <= known
