"""The page of data paths: every step names files and functions that exist; no path has too many files."""

from __future__ import annotations

import re
from pathlib import Path
from typing import NamedTuple

import pytest

ROOT = Path(__file__).resolve().parents[2]
PAGE = ROOT / "docs" / "internals" / "data-path.md"
SOURCE = ROOT / "src" / "everlog"

FILES_MAX = {
    "1 Queue: append and read": 4,
    "2 POST to acknowledgement": 10,
    "3 Delivery over server-sent events": 8,
    "4 Claim and ack": 8,
    "5 Recovery": 8,
    "6 Spark reads": 8,
    "7 Archive": 8,
    "8 Import": 8,
}
"""Sections of the page, and how many files one of their tables may name."""

HEADER = "| Step | File | Function | What it does |"


class Step(NamedTuple):
    """One row: a file below `src/everlog`, and the functions or classes that do the step."""

    file: str
    functions: list[str]


def paths(text: str) -> dict[str, list[list[Step]]]:
    """The tables of steps of each section."""
    sections = re.split(r"^## ", text, flags=re.MULTILINE)[1:]
    return {section.splitlines()[0]: tables(section) for section in sections}


def tables(section: str) -> list[list[Step]]:
    """The tables of one section."""
    found = []
    for part in section.split(HEADER + "\n")[1:]:
        rows = [line for line in part.split("\n\n")[0].splitlines() if line.startswith("|")][1:]
        cells = [[cell.strip() for cell in row.strip("|").split("|")] for row in rows]
        found.append([Step(row[1].strip("`"), re.findall(r"`([\w.]+)`", row[2])) for row in cells])
    return found


def defines(source: str, suffix: str, name: str) -> bool:
    """Whether a file of this kind defines a function or class of this name."""
    if suffix in (".c", ".h"):
        return re.search(rf"^\w[\w \t*]*\b{name}\(", source, re.MULTILINE) is not None
    keyword = r"(?:async def|def|cdef class|cdef|cpdef|class)"
    return re.search(rf"^\s*{keyword}\b[^\n=#]*\b{name}\b", source, re.MULTILINE) is not None


def unknown(step: Step) -> list[str]:
    """What a step names and the code does not have."""
    path = SOURCE / step.file
    if not path.is_file():
        return [step.file]
    source = path.read_text(encoding="utf-8")
    parts = {part for name in step.functions for part in name.split(".")}
    return [f"{step.file}: {part}" for part in sorted(parts) if not defines(source, path.suffix, part)]


PATHS = paths(PAGE.read_text(encoding="utf-8"))


def test_the_page_has_all_eight_paths() -> None:
    assert list(PATHS) == list(FILES_MAX)


@pytest.mark.parametrize("section", FILES_MAX)
def test_every_step_names_a_file_and_functions_that_exist(section: str) -> None:
    steps = [step for table in PATHS[section] for step in table]
    assert len(steps) >= 3
    assert all(step.functions for step in steps)
    assert [name for step in steps for name in unknown(step)] == []


@pytest.mark.parametrize("section", FILES_MAX)
def test_no_path_has_more_files_than_a_reader_can_hold(section: str) -> None:
    counts = [len({step.file for step in table}) for table in PATHS[section]]
    assert max(counts) <= FILES_MAX[section]


def test_a_wrong_row_would_be_noticed() -> None:
    text = f"## 1\n\n{HEADER}\n| - | - | - | - |\n| 1 | `fs.py` | `OsFs.open`, `fly` | x |\n"
    [[step]] = paths(text)["1"]
    assert step == Step("fs.py", ["OsFs.open", "fly"])
    assert unknown(step) == ["fs.py: fly"]
    assert unknown(Step("nowhere.py", ["x"])) == ["nowhere.py"]
    assert defines("static int append_one(int x)\n", ".c", "append_one")
    assert not defines("    append_one(x)\n", ".py", "append_one")
