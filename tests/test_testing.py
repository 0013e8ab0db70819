"""The server for users' own tests: quick to start, gone afterwards, and a fixture of pytest."""

from __future__ import annotations

import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from everlog import Client
from everlog.client import ApiFailed, RetryPolicy
from everlog.testing import server

USER_TESTS = """
from everlog import Client


def test_one(everlog_server):
    Client(everlog_server).append("t", 1)


def test_two(everlog_server):
    assert Client(everlog_server).topics() == []
"""


def test_a_server_starts_within_200_ms_and_is_gone_after_the_block() -> None:
    took_s = []
    for _ in range(5):
        started_s = time.perf_counter()
        with server() as url:
            took_s.append(time.perf_counter() - started_s)
            with Client(url) as client:
                client.append("t", 1)
    assert min(took_s) < 0.2
    with (
        Client(url, retry=RetryPolicy(deadline_s=0)) as client,
        pytest.raises(ApiFailed, match="everlog serve"),
    ):
        client.health()
    assert "everlog-test-server" not in [thread.name for thread in threading.enumerate()]


def test_settings_and_keys_are_taken() -> None:
    with server(keys="sesame:read", max_topics=1) as url, Client(url, "sesame") as client:
        assert client.topics() == []
        with pytest.raises(ApiFailed, match="needs admin"):
            client.put_topic("t")


def test_who_is_still_connected_does_not_hold_it_up() -> None:
    started_s = time.perf_counter()
    with server() as url:
        client = Client(url, retry=RetryPolicy(deadline_s=0))
        client.put_topic("t")
        events = client.watch("t")
        next(events)
    assert time.perf_counter() - started_s < 5
    with pytest.raises(ApiFailed):
        next(events)


def test_the_fixture_gives_each_test_a_server_of_its_own(tmp_path: Path) -> None:
    (tmp_path / "conftest.py").write_text('pytest_plugins = ["everlog.testing"]\n')
    (tmp_path / "test_mine.py").write_text(USER_TESTS)
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-p", "no:schemathesis"]
    ended = subprocess.run(
        [*command, str(tmp_path)], cwd=tmp_path, capture_output=True, text=True, timeout=60, check=False
    )
    assert "2 passed" in ended.stdout, ended.stdout
