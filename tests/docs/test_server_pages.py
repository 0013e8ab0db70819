"""The pages on pub/sub, durable streams, operations and security: what they show is run against a server."""

from __future__ import annotations

import os
import re
import threading
import tomllib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from everlog.client.wire import DEFAULT_URL
from everlog.server.auth import SCOPE_WORDS
from everlog.server.settings import ServerSettings
from tests.support import curl_program
from tests.support.http_cases import running
from tests.support.server_processes import ServerProcess, running_server
from tests.support.snippets import blocks_of, run_page

REPOSITORY = Path(__file__).resolve().parents[2]
GUIDE = REPOSITORY / "docs" / "guide"
PAGES = ("job-queues.md", "pub-sub.md", "durable-streams.md", "operations.md", "security.md")


@contextmanager
def server_for(page: str, folder: Path) -> Iterator[ServerProcess]:
    """The server that a page talks about."""
    if page == "security.md":
        config = folder / "server.toml"
        config.write_text(toml_of(page))
        key = tomllib.loads(config.read_text())["api_keys"][0]
        with running_server(folder, "--config", config, key=key) as server:
            yield server
        return
    with running_server(folder) as server:
        process = server.command.process
        (folder / "server.pid").write_text(f"{process.pid}\n")
        # Who ends it by its number waits until the number is gone, and that needs a parent that collects it.
        reaper = threading.Thread(target=process.wait)
        reaper.start()
        try:
            yield server
        finally:
            if process.poll() is None:
                process.terminate()
            reaper.join()


def toml_of(page: str) -> str:
    """The settings file that a page shows."""
    return next(block.text for block in blocks_of(GUIDE / page) if re.match(r"# \S*server\.toml", block.text))


def with_url(text: str, url: str) -> str:
    """The page, with another server."""
    return text.replace(DEFAULT_URL, url).replace(
        DEFAULT_URL.replace("http://", "ws://"), url.replace("http://", "ws://")
    )


@pytest.mark.parametrize("page", PAGES)
def test_every_block_of_the_page_gives_what_it_says(
    page: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("TOPICS_ALLOW_INSECURE_NO_AUTH", raising=False)
    curl_program.install(tmp_path / "programs")
    monkeypatch.setenv("PATH", f"{tmp_path / 'programs'}{os.pathsep}{os.environ['PATH']}")
    with server_for(page, tmp_path) as server:
        copy = tmp_path / page
        copy.write_text(with_url((GUIDE / page).read_text(encoding="utf-8"), server.url), encoding="utf-8")
        assert run_page(copy, tmp_path) >= 3


@pytest.mark.parametrize("page", PAGES)
def test_every_link_of_the_page_leads_somewhere(page: str) -> None:
    text = (GUIDE / page).read_text(encoding="utf-8")
    for target, anchor in re.findall(r"\]\(([^)#:]*)(?:#([^)]*))?\)", text):
        path = GUIDE / target if target else GUIDE / page
        assert path.exists(), target
        headings = re.findall(r"^#+ (.+)$", path.read_text(encoding="utf-8"), re.MULTILINE)
        anchors = {re.sub(r"[^\w-]+", "-", heading.lower()).strip("-") for heading in headings}
        assert not anchor or anchor in anchors, f"{target}#{anchor}"


def test_every_metric_that_the_page_on_operations_names_exists() -> None:
    text = (GUIDE / "operations.md").read_text(encoding="utf-8")
    named = set(re.findall(r"\btopics_[a-z_]+", text))
    with running() as server:
        known = set(re.findall(r"topics_[a-z_]+", server.api().request("GET", "/v0/metrics").text))
    assert len(named) > 8
    assert named - known == set()


@pytest.mark.parametrize("page", ["operations.md", "security.md"])
def test_every_setting_that_the_page_names_exists(page: str) -> None:
    text = (GUIDE / page).read_text(encoding="utf-8")
    named = set(re.findall(r"`(max_[a-z_]*[a-z]|\w+_dir|log_format|cors_origins)`", text))
    assert named
    assert named - set(ServerSettings.__dataclass_fields__) == set()


def test_the_settings_files_of_the_pages_are_accepted(tmp_path: Path) -> None:
    for page in ("operations.md", "security.md"):
        path = tmp_path / f"{page}.toml"
        path.write_text(toml_of(page))
        settings = ServerSettings.from_sources({}, str(path), {})
        assert settings.api_keys.enabled == (page == "security.md")


def test_the_page_on_security_names_every_scope() -> None:
    table = (GUIDE / "security.md").read_text(encoding="utf-8").split("\n## Scopes\n")[1].split("\n## ")[0]
    assert {word for word in SCOPE_WORDS if f"`{word}`" not in table} == set()
