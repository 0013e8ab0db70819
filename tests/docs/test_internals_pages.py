"""The pages on internals: every file and every name of code that they mention is still there."""

from __future__ import annotations

import re
from functools import cache
from pathlib import Path

import pytest

REPOSITORY = Path(__file__).resolve().parents[2]
PAGES = sorted((REPOSITORY / "docs" / "internals").rglob("*.md"))
SOURCE_SUFFIXES = {".py", ".pyx", ".pxd", ".pxi", ".pyi", ".c", ".h"}
FILE_NAME = re.compile(r"[\w/.-]+\.(?:py|pyx|pxd|pxi|pyi|c|h)")
CODE_NAME = re.compile(r"_?[A-Za-z]\w*(?:\.\w+)*")

# Names that are not ours and that no code mentions.
FOREIGN = {"io_uring", "MADV_POPULATE_READ"}


@cache
def source_files() -> tuple[Path, ...]:
    """All files of code of the repository."""
    folders = (REPOSITORY / name for name in ("src", "tests", "benchmarks", "examples"))
    return tuple(
        path
        for folder in folders
        for path in folder.rglob("*")
        if path.suffix in SOURCE_SUFFIXES and path.parent != Path(__file__).parent
    )


@cache
def words_of_the_code() -> frozenset[str]:
    """Every word in the code."""
    return frozenset(
        word for path in source_files() for word in re.findall(r"\w+", path.read_text(encoding="utf-8"))
    )


def quoted(page: Path) -> list[str]:
    """What stands in backquotes outside of blocks."""
    text = re.sub(r"^```.*?^```$", "", page.read_text(encoding="utf-8"), flags=re.MULTILINE | re.DOTALL)
    return re.findall(r"`([^`\n]+)`", text)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_every_file_that_a_page_mentions_is_there(page: Path) -> None:
    mentioned = {name for name in quoted(page) if FILE_NAME.fullmatch(name)}
    paths = [path.as_posix() for path in source_files()]
    assert [name for name in sorted(mentioned) if not any(path.endswith(f"/{name}") for path in paths)] == []


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_every_name_of_code_that_a_page_mentions_is_there(page: Path) -> None:
    mentioned = {
        name for name in quoted(page) if CODE_NAME.fullmatch(name) and ("_" in name or "." in name)
    } - FOREIGN
    unknown = [
        name
        for name in sorted(mentioned)
        if not FILE_NAME.fullmatch(name) and not set(name.split(".")) <= words_of_the_code()
    ]
    assert unknown == []


def test_the_pages_are_found_and_a_wrong_name_would_be_noticed() -> None:
    assert len(PAGES) > 10
    assert "copy_to_segment" in words_of_the_code()
    assert "a_name_that_" + "is_not_used" not in words_of_the_code()
