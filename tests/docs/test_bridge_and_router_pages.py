"""The guides to bridges and routers: their commands do what the pages say."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from everlog.queue import Queue
from tests.support.server_processes import running_server
from tests.support.snippets import run_page

GUIDE = Path(__file__).resolve().parents[2] / "docs" / "guide"
MESSAGES = 1000


@pytest.mark.parametrize("page", ["bridge.md", "routers.md"])
def test_every_command_of_the_page_gives_what_it_says(
    page: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    with Queue.open_publisher("queue", segment_size=1 << 20) as writer:
        writer.append_many(1, [json.dumps({"id": number}).encode() for number in range(MESSAGES)])
    with running_server(tmp_path, "--memory") as server:
        monkeypatch.setenv("EVERLOG_URL", server.url)
        assert run_page(GUIDE / page, tmp_path) >= 2
