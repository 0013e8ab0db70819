"""A server whose older segments are in an object store that hangs: writes go on, reads come back."""

from __future__ import annotations

import socket
import time
from pathlib import Path
from typing import Any

import pytest

from everlog.objects import open_store
from everlog.topics.storage.shipping import MANIFEST
from tests.support.http_cases import running
from tests.support.object_stores import BUCKET, CREDENTIALS, moto_server
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


def storage_of(api: Any) -> dict[str, Any]:
    """What `/v0/ready` says of the storage; empty if all is well."""
    ready = api.request("GET", "/v0/ready")
    assert ready.status == 200, ready.json
    found: dict[str, Any] = ready.json.get("storage", {})
    return found


def values_of(api: Any, name: str) -> list[Any]:
    """The data of all records; a page ends with a cold segment."""
    found: list[Any] = []
    page = api.diff(name).json
    while page["records"]:
        found += [record["data"] for record in page["records"]]
        page = api.diff(name, from_seq=page["next_from_seq"]).json
    return found


def test_a_server_starts_while_the_store_of_old_segments_hangs_and_serves_them_when_it_is_back(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with moto_server() as store:
        for name, value in (store.environment | {"EVERLOG_OBJECTS_TIMEOUT_MS": "500"}).items():
            monkeypatch.setenv(name, value)
        tiers: dict[str, Any] = {"data_dir": str(tmp_path), "cold_url": store.url("cold")}
        tiers |= {"segment_max_events": 2, "hot_retain_segments": 0}
        with running(memory=False, **tiers) as server:
            api = server.api()
            for name in ("tagged", "copied"):
                api.append(name, [{"data": value, "tag": f"t{value % 2}"} for value in range(9)])
            api.append("local", [{"data": 1}])
            api.request("PUT", "/v0/routers/r", {"source": "copied", "dest": "copies"})
            engine = server.app.engine
            assert engine is not None
            server.call(engine.checkpoint)
            assert server.call(engine.relocate) == 8
        with store.paused(), running(memory=False, **tiers) as server:
            api = server.api()
            assert api.append("local", [{"data": 2}]).status == 200
            answer = api.diff("tagged")
            assert (answer.status, answer.json["error"]["code"]) == (503, "not_ready")
            assert answer.headers["retry-after"]
            assert "relocation" in storage_of(api)["failing"]
            assert storage_of(api)["filling_topics"] == 1
            assert api.diff("copied").status == 503  # a router reads it: it is there after the next start
        with store.paused(), running(memory=False, **tiers) as server:
            api = server.api()
            assert api.diff("tagged").status == 503
            store.resume()
            eventually("the topic is served", lambda: api.diff("tagged").status == 200)
            assert values_of(api, "tagged") == list(range(9))
            deleted = api.request("POST", "/v0/topics/tagged/delete", {"match": "t1"})
            assert deleted.json["deleted"] == 4
            assert api.append("tagged", [{"data": 9}]).json["first_seq"] == 10
        with running(memory=False, **tiers) as server:
            api = server.api()
            assert values_of(api, "tagged") == [0, 2, 4, 6, 8, 9]
            assert values_of(api, "copied") == list(range(9))
            eventually("the storage is fine", lambda: storage_of(api) == {})


@pytest.mark.parametrize("ack", ["local", "shipped"])
def test_a_server_starts_before_its_object_stores_and_is_healthy_once_they_are_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, ack: str
) -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    environment = {**CREDENTIALS, "EVERLOG_OBJECTS_ENDPOINT": f"http://127.0.0.1:{port}"}
    for name, value in (environment | {"EVERLOG_OBJECTS_TIMEOUT_MS": "1000"}).items():
        monkeypatch.setenv(name, value)
    urls = {"cold_url": f"s3://{BUCKET}/cold", "backup_url": f"s3://{BUCKET}/backup"}
    with running(memory=False, data_dir=str(tmp_path), ack=ack, **urls) as server:
        api = server.api()
        assert storage_of(api)["failing"].keys() == {"relocation", "backup"}
        if ack == "local":
            assert api.append("t", [{"data": 1}]).status == 201
        with moto_server(port):
            eventually("both stores are reached", lambda: not storage_of(api)["failing"], 30)
            assert api.append("t", [{"data": 2}]).status in (200, 201)
            objects = open_store(urls["backup_url"])
            assert objects.exists(MANIFEST)
            eventually("the backup follows", lambda: len(list(objects.list("log"))) > 1)
