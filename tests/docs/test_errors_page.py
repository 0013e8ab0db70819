"""The page on troubleshooting: its table of errors is complete and says what the code says."""

import inspect
import re
from collections import Counter
from pathlib import Path

import pytest

from everlog import errors
from everlog.errors import EverlogError

PAGE = Path(__file__).resolve().parents[2] / "docs" / "guide" / "troubleshooting.md"
COLUMNS = ["Code", "Class", "Meaning", "What to do"]


def error_rows(text: str) -> list[list[str]]:
    """Return the rows of the table of errors, without its header."""
    lines = text.splitlines()
    starts = [number for number, line in enumerate(lines) if cells(line) == COLUMNS]
    assert len(starts) == 1, f"expected one table with the columns {COLUMNS}, found {len(starts)}"
    rows = []
    for line in lines[starts[0] + 2 :]:
        if not line.startswith("|"):
            break
        rows.append(cells(line))
    return rows


def cells(line: str) -> list[str]:
    """Return the cells of a table row, [] for any other line."""
    return [cell.strip() for cell in line.strip("|").split("|")] if line.startswith("|") else []


def error_classes() -> list[type[EverlogError]]:
    """Return every error that `everlog.errors` defines."""
    return [
        value
        for _, value in inspect.getmembers(errors, inspect.isclass)
        if issubclass(value, EverlogError) and value.__module__ == errors.__name__
    ]


def page_rows() -> list[list[str]]:
    """Return the rows of the real page."""
    return error_rows(PAGE.read_text(encoding="utf-8"))


def test_every_code_appears_exactly_once_beside_its_class() -> None:
    documented = Counter((code, name) for code, name, *_ in page_rows())
    assert documented == Counter((f"`{cls.code}`", f"`{cls.__name__}`") for cls in error_classes())


def test_every_error_has_a_meaning_and_something_to_do() -> None:
    incomplete = [row for row in page_rows() if len(row) != len(COLUMNS) or not all(row)]
    assert incomplete == []


def test_every_section_that_the_table_points_to_exists() -> None:
    text = PAGE.read_text(encoding="utf-8")
    headings = re.findall(r"^#+ (.+)$", text, re.MULTILINE)
    anchors = {re.sub(r"[^a-z0-9]+", "-", heading.lower()).strip("-") for heading in headings}
    wanted = set(re.findall(r"\]\(#([^)]+)\)", text))
    assert wanted
    assert wanted - anchors == set()


def test_a_row_that_is_missing_or_repeated_would_be_noticed() -> None:
    header = "| Code | Class | Meaning | What to do |\n| --- | --- | --- | --- |\n"
    row = "| `io` | `Io` | no | yes |\n"
    assert error_rows(header + row + row + "\n" + row) == [["`io`", "`Io`", "no", "yes"]] * 2
    with pytest.raises(AssertionError, match="found 0"):
        error_rows(row)
