"""README and queue guide: every snippet gives what the page says, and no setting or error is left out."""

from __future__ import annotations

import dataclasses
import inspect
import os
import re
from pathlib import Path

import pytest

from everlog import errors
from everlog.client.wire import DEFAULT_URL
from everlog.errors import EverlogError
from everlog.queue import StartMode, WriterConfig
from tests.support import curl_program
from tests.support.server_processes import running_server
from tests.support.snippets import blocks_of, run_page, run_page_alone

REPOSITORY = Path(__file__).resolve().parents[2]
README = REPOSITORY / "README.md"
GUIDE = REPOSITORY / "docs" / "guide" / "queue.md"

# Raised by parts of everlog that the queue does not use.
NOT_OF_THE_QUEUE = {
    "BookGap",
    "ConsumerNotFound",
    "CursorBackwards",
    "Fenced",
    "SnapshotGap",
    "BatchTooLarge",
    "DamagedData",
    "DataDirInUse",
    "ObjectChanged",
    "Superseded",
    "ObjectExists",
    "ObjectNotFound",
    "ObjectTooShort",
    "ObjectStoreFailed",
    "InvalidPartition",
    "InvalidRecord",
    "InvalidRequest",
    "InvalidSource",
    "DataLost",
    "LateData",
    "LimitReached",
    "JobNotFound",
    "ScheduleNotFound",
    "NotAQueue",
    "NotReady",
    "OutcomeUnknown",
    "ReadOnly",
    "RouterCycle",
    "RouterIncompatible",
    "RouterNotFound",
    "RecordTooLarge",
    "StorageFailed",
    "TopicDamaged",
    "TopicFull",
    "TopicIncompatible",
    "TopicNotEmpty",
    "TopicNotFound",
}


def test_every_snippet_of_the_guide_runs_and_gives_what_it_says(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert run_page(GUIDE, tmp_path) > 5


@pytest.mark.spark
@pytest.mark.timeout(300)
def test_every_snippet_of_the_tour_runs_and_gives_what_it_says(tmp_path: Path) -> None:
    curl_program.install(tmp_path / "programs")
    path = f"{tmp_path / 'programs'}{os.pathsep}{os.environ['PATH']}"
    home = tmp_path / "home"
    home.mkdir()
    # The reader's `everlog serve`, on a port that is free here.
    with running_server(tmp_path) as server:
        page = tmp_path / README.name
        page.write_text(README.read_text(encoding="utf-8").replace(DEFAULT_URL, server.url), encoding="utf-8")
        assert run_page_alone(page, home, PATH=path, EVERLOG_URL=server.url) >= 8


def test_the_tour_goes_through_all_planes_and_leaves_no_snippet_unrun() -> None:
    tour = README.read_text(encoding="utf-8").split("[start:tour]")[1].split("[end:tour]")[0]
    assert re.findall(r"^### (.+)$", tour, re.MULTILINE) == ["A queue", "A topic", "A job queue", "Spark"]
    languages = re.findall(r"^```(\w+)$", tour, re.MULTILINE)
    # A `text` block is what the block before it prints.
    assert set(languages) == {"python", "console", "text"}
    assert "](" not in tour, "the site shows the tour too, where links of the README lead nowhere"


def test_every_make_target_of_the_readme_exists() -> None:
    targets = set(re.findall(r"^([a-z-]+):", (REPOSITORY / "Makefile").read_text(), re.MULTILINE))
    mentioned = set(re.findall(r"(?:^|`)make ([a-z-]+)", README.read_text(encoding="utf-8"), re.MULTILINE))
    assert {"demo", "test", "bench", "docs"} <= mentioned
    assert mentioned - targets == set()


@pytest.mark.parametrize("page", [README, GUIDE], ids=lambda page: page.name)
def test_every_link_of_the_page_leads_somewhere(page: Path) -> None:
    links = re.findall(r"\]\(([^)#:]+)(?:#[^)]*)?\)", page.read_text(encoding="utf-8"))
    assert [link for link in links if not (page.parent / link).exists()] == []


def rows_below(heading: str) -> list[tuple[str, str]]:
    """The first two cells of each row of the guide's table below a heading, header left out."""
    section = GUIDE.read_text(encoding="utf-8").split(f"\n## {heading}\n")[1].split("\n## ")[0]
    return re.findall(r"^\| `([^`]+)` \| (.+?) \|", section, re.MULTILINE)


def test_the_guide_lists_every_setting_with_its_default() -> None:
    fields = dataclasses.fields(WriterConfig)
    wanted = [(field.name, f"`{field.default!r}`") for field in fields]
    assert rows_below("Settings and presets") == wanted


def test_the_guide_lists_every_start_mode() -> None:
    assert [mode for mode, _ in rows_below("Where a reader starts")] == [mode.value for mode in StartMode]


def test_the_guide_lists_every_error_of_the_queue() -> None:
    known = {
        name
        for name, kind in inspect.getmembers(errors, inspect.isclass)
        if issubclass(kind, EverlogError) and kind is not EverlogError
    }
    listed = [name for name, _ in rows_below("Errors")]
    assert len(listed) == len(set(listed))
    assert set(listed) == known - NOT_OF_THE_QUEUE


@pytest.mark.parametrize(
    ("page", "problem"),
    [
        ("```python\n1 + 1  # -> 3\n```\n", "line 2 gives 2, not 3"),
        ("```python\nprint('a')\n```\n", "prints:\na"),
        ("```python\nprint('a')\n```\n```text\nb\n```\n", "but the page shows:\nb"),
        ("```python\nx = 1  # -> 1\n```\n", "has no value to compare"),
        ("```python\nif True:\n    x = 1  # -> 1\n    y = 2\n```\n", "no statement ends on the lines [3]"),
        ("```console\n$ echo a\nb\n```\n", "`echo a` prints:\na"),
        ("```console\n$ exit 3\n```\n", "ends with 3"),
    ],
)
def test_a_page_that_says_something_wrong_is_refused(page: str, problem: str, tmp_path: Path) -> None:
    path = tmp_path / "page.md"
    path.write_text(page)
    with pytest.raises(AssertionError, match=re.escape(problem)):
        run_page(path, tmp_path)


def test_blocks_are_found_with_their_lines(tmp_path: Path) -> None:
    path = tmp_path / "page.md"
    path.write_text("words\n\n```python\nx = 1\n```\n\n```sh\nmake demo\n```\n")
    assert [(block.language, block.line, block.text) for block in blocks_of(path)] == [
        ("python", 4, "x = 1\n"),
        ("sh", 8, "make demo\n"),
    ]
