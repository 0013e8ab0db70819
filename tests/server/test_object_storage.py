"""A server whose older segments are in an object store that hangs: writes go on, reads come back."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import pytest

from tests.support.http_cases import running
from tests.support.object_stores import moto_server
from tests.support.processes import eventually


def test_a_store_that_hangs_delays_no_write_and_cold_reads_answer_503_until_it_is_back(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with moto_server() as store:
        for name, value in (store.environment | {"EVERLOG_OBJECTS_TIMEOUT_MS": "500"}).items():
            monkeypatch.setenv(name, value)
        tiers: dict[str, Any] = {"data_dir": str(tmp_path), "cold_url": store.url("cold")}
        with running(memory=False, segment_max_events=2, hot_retain_segments=0, **tiers) as server:
            api = server.api()
            api.append("t", [{"data": value} for value in range(9)])
            engine = server.app.engine
            assert engine is not None
            server.call(engine.checkpoint)
            assert server.call(engine.relocate) == 4
            usual_s = slowest_append_s(api)
            with store.paused():
                api.append("t", [{"data": value} for value in range(9, 19)])
                server.call(engine.checkpoint)  # there is something to move, which hangs
                answer = api.diff("t", from_seq=0, wait_ms=5000)
                assert (answer.status, answer.json["error"]["code"]) == (503, "storage_failed")
                assert answer.headers["retry-after"] == "1"
                hanging_s = slowest_append_s(api)
            assert hanging_s < max(0.2, 10 * usual_s), "an append waited for the store"
            eventually(
                "old records are read again", lambda: api.diff("t", from_seq=0, wait_ms=1000).status == 200
            )


def slowest_append_s(api: Any) -> float:
    """The longest of many appends to another topic."""
    longest_s = 0.0
    for number in range(50):
        began_s = time.monotonic()
        assert api.append("other", [{"data": number}]).status in (200, 201)
        longest_s = max(longest_s, time.monotonic() - began_s)
    return longest_s
