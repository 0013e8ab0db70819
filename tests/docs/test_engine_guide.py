"""The guide to the engine: every snippet gives what the page says, and no setting or error is left out."""

from __future__ import annotations

import dataclasses
import inspect
import json
import re
from enum import StrEnum
from pathlib import Path
from typing import Any

import msgspec
import pytest

from everlog import errors
from everlog.errors import EverlogError
from everlog.topics import EngineSettings, TopicConfig
from tests.support.snippets import run_page

DOCS = Path(__file__).resolve().parents[2] / "docs"
GUIDE = DOCS / "guide" / "engine.md"
SETTINGS = DOCS / "reference" / "settings.md"
QUEUE_GUIDE = DOCS / "guide" / "queue.md"
SHARDS_DEFAULT = "processors, at most 8"

# Raised by parts of everlog that have no guide of this kind.
NOT_IN_A_GUIDE = {"BookGap", "DataLost", "InvalidPartition", "InvalidSource", "LateData", "SnapshotGap"}
NOT_IN_A_GUIDE |= {
    "ObjectChanged",
    "ObjectExists",
    "ObjectNotFound",
    "ObjectTooShort",
    "ObjectStoreFailed",
    "Superseded",
}


def rows_of(text: str) -> list[tuple[str, str]]:
    """The first two cells of each row whose first cell is a name in backquotes."""
    return re.findall(r"^\| `([^`]+)` \| (.+?) \|", text, re.MULTILINE)


def section(page: Path, heading: str) -> str:
    """What stands below a heading of the second level."""
    return page.read_text(encoding="utf-8").split(f"\n## {heading}\n")[1].split("\n## ")[0]


def shown(default: Any) -> str:
    """A default as the page writes it."""
    return f"`{(default.value if isinstance(default, StrEnum) else default)!r}`"


def in_json(default: Any) -> str:
    """A default as the reference writes it: as JSON, without the quotes of a text."""
    return "unset" if default is None else "`" + json.dumps(default).strip('"') + "`"


def test_every_snippet_of_the_guide_runs_and_gives_what_it_says(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert run_page(GUIDE, tmp_path) >= 9


def test_the_reference_lists_every_field_of_a_topic_with_its_default() -> None:
    fields = msgspec.structs.fields(TopicConfig)
    wanted = [(field.name, in_json(field.default)) for field in fields]
    assert rows_of(section(SETTINGS, "Topics")) == wanted


def test_the_guide_lists_every_setting_of_the_engine_with_its_default() -> None:
    table = section(GUIDE, "Settings").split("`EngineSettings`")[1]
    wanted = [
        (field.name, SHARDS_DEFAULT if field.name == "shards" else shown(field.default))
        for field in dataclasses.fields(EngineSettings)
    ]
    assert rows_of(table) == wanted


def test_the_guides_together_list_every_error() -> None:
    known = {
        name
        for name, kind in inspect.getmembers(errors, inspect.isclass)
        if issubclass(kind, EverlogError) and kind is not EverlogError
    }
    listed = [name for name, _ in rows_of(section(GUIDE, "Errors"))]
    of_the_queue = {name for name, _ in rows_of(section(QUEUE_GUIDE, "Errors"))}
    assert len(listed) == len(set(listed))
    assert set(listed) | of_the_queue | NOT_IN_A_GUIDE == known


def test_every_link_of_the_guide_leads_somewhere() -> None:
    links = re.findall(r"\]\(([^)#:]+)(?:#[^)]*)?\)", GUIDE.read_text(encoding="utf-8"))
    assert [link for link in links if not (GUIDE.parent / link).exists()] == []
