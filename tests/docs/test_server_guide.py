"""The guide to the server: its commands are run against one, and its tables say what the code says."""

from __future__ import annotations

import os
import re
from pathlib import Path

import pytest

from everlog.cli import serve
from everlog.client.wire import DEFAULT_URL
from everlog.server.errors import _STATUS
from everlog.server.settings import ServerSettings
from tests.support import curl_program
from tests.support.api_documents import codes_in
from tests.support.server_processes import running_server
from tests.support.snippets import run_page

REPOSITORY = Path(__file__).resolve().parents[2]
GUIDE = REPOSITORY / "docs" / "guide" / "server.md"
REFERENCE = REPOSITORY / "docs" / "reference" / "http.md"
SERVER = REPOSITORY / "src" / "everlog" / "server"

# Sent over a WebSocket only; the page names them in a table of their own.
OF_SOCKETS = {"invalid_json"}


def section(heading: str) -> str:
    """What stands below a heading of the second level."""
    return GUIDE.read_text(encoding="utf-8").split(f"\n## {heading}\n")[1].split("\n## ")[0]


def rows(heading: str) -> list[list[str]]:
    """The cells of the table below a heading, header left out, without backquotes around a whole cell."""
    lines = [line for line in section(heading).splitlines() if line.startswith("|")]
    cells = [[cell.strip() for cell in line.strip("|").split("|")] for line in lines[2:]]
    return [[re.sub(r"^`([^`]*)`$", r"\1", cell) for cell in row] for row in cells]


def test_every_command_of_the_guide_gives_what_it_says(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    curl_program.install(tmp_path / "programs")
    monkeypatch.setenv("PATH", f"{tmp_path / 'programs'}{os.pathsep}{os.environ['PATH']}")
    with running_server(tmp_path) as server:
        page = tmp_path / GUIDE.name
        page.write_text(GUIDE.read_text(encoding="utf-8").replace(DEFAULT_URL, server.url), encoding="utf-8")
        assert run_page(page, tmp_path) >= 6


def test_the_settings_file_of_the_guide_is_accepted(tmp_path: Path) -> None:
    path = tmp_path / "server.toml"
    path.write_text(section("Settings").split("```text\n")[1].split("```")[0])
    assert ServerSettings.from_sources({}, str(path), {}).max_total_bytes == 10_000_000_000


def test_the_reference_lists_every_error_with_its_status() -> None:
    known = {pair for path in SERVER.glob("*.py") for pair in codes_in(path.read_text(encoding="utf-8"))}
    known |= {(status, kind.code) for kind, status in _STATUS.items()}
    table = REFERENCE.read_text(encoding="utf-8").split("\n## Error codes\n")[1]
    found = re.findall(r"^\| (\d+)[ *]*\| `(\w+)` \|", table, re.MULTILINE)
    listed = [(int(status), code) for status, code in found]
    assert len(listed) == len(set(listed))
    assert {pair for pair in known if pair[1] not in OF_SOCKETS} - set(listed) == set()
    assert (503, "not_ready") in known
    assert all(f"`{code}`" in table for code in OF_SOCKETS)
    assert {(int(status), code) for status, code, _ in rows("Errors")} <= set(listed)


def test_the_guide_lists_every_exit_code() -> None:
    listed = {int(code) for code, _ in rows("When it does not start")}
    documented = {int(code) for code in re.findall(r"^    exit (\d)", serve.__doc__ or "", re.MULTILINE)}
    assert listed == documented


def test_a_code_that_is_missing_would_be_noticed() -> None:
    assert dict(codes_in('raise ApiError(404, "not_found", "no")\nApiError(status, code, "x")')) == {
        404: "not_found"
    }


def test_every_link_of_the_guide_leads_somewhere() -> None:
    links = re.findall(r"\]\(([^)#:]+)(?:#[^)]*)?\)", GUIDE.read_text(encoding="utf-8"))
    assert [link for link in links if not (GUIDE.parent / link).exists()] == []
