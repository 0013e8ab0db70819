"""A server whose older segments are in an object store that hangs: writes go on, reads come back."""

from __future__ import annotations

import json
import re
import shutil
import socket
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from everlog.objects import StoreOptions, open_store
from everlog.topics.storage.shipping import MANIFEST
from tests.support.http_cases import running
from tests.support.object_stores import BUCKET, CREDENTIALS, S3Server, moto_server, without_conditions
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


def free_port() -> int:
    """A port of this host that nothing listens on."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port: int = free.getsockname()[1]
        return port


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


@pytest.fixture
def fast_store(monkeypatch: pytest.MonkeyPatch) -> Iterator[S3Server]:
    """A store in the environment of the servers here, which give a request up soon."""
    with moto_server() as store:
        for name, value in (store.environment | {"EVERLOG_OBJECTS_TIMEOUT_MS": "500"}).items():
            monkeypatch.setenv(name, value)
        yield store


def moved(data_dir: Path, store: S3Server) -> dict[str, Any]:
    """The settings of a directory with all but the newest records of three topics in the store."""
    tiers: dict[str, Any] = {"data_dir": str(data_dir), "cold_url": store.url("cold")}
    tiers |= {"segment_max_events": 2, "hot_retain_segments": 0}
    with running(memory=False, **tiers) as server:
        api = server.api()
        api.put("copied")
        api.request("PUT", "/v0/routers/r", {"source": "copied", "dest": "copies"})
        for name in ("tagged", "copied", "changed"):
            api.append(name, [{"data": value, "tag": f"t{value % 2}"} for value in range(9)])
        eventually("the router has copied", lambda: api.state("copies").json["head_seq"] == 9)
        engine = server.app.engine
        assert engine is not None
        server.call(engine.checkpoint)
        assert server.call(engine.relocate) == 16
        assert api.put("changed", cap_records=100).status == 200  # behind the snapshot
        shutil.copytree(data_dir, f"{data_dir}-killed")  # as a kill would leave it
    return tiers | {"data_dir": f"{data_dir}-killed"}


def test_a_start_needs_no_store_and_only_reads_of_old_records_wait_for_it(
    tmp_path: Path, fast_store: S3Server
) -> None:
    tiers = moved(tmp_path / "data", fast_store)
    names = ("tagged", "copied", "changed", "copies")
    with fast_store.paused(), running(memory=False, **tiers) as server:
        api = server.api()
        assert "relocation" in storage_of(api)["failing"]
        for name in names:
            answer = api.diff(name)
            assert (answer.status, answer.json["error"]["code"]) == (503, "storage_failed")
            assert answer.headers["retry-after"]
        for name in names[:3]:
            assert api.append(name, [{"data": 9, "tag": "t1"}]).json["first_seq"] == 10
        deleted = api.request("POST", "/v0/topics/tagged/delete", {"match": "t1"})
        assert deleted.json["deleted"] == 5
        eventually("the router copies", lambda: api.state("copies").json["head_seq"] == 10)
        fast_store.resume()
        for name in names:
            eventually(f"{name} is read", lambda name=name: api.diff(name).status == 200)  # type: ignore[misc]
        assert values_of(api, "tagged") == [0, 2, 4, 6, 8]
        for name in names[1:]:
            assert values_of(api, name) == list(range(10))
        eventually("the storage is fine", lambda: not storage_of(api)["failing"])


def test_a_server_of_a_directory_of_version_0_2_waits_for_the_store_and_then_goes_on(
    tmp_path: Path, fast_store: S3Server
) -> None:
    tiers = moved(tmp_path / "data", fast_store)
    for path in Path(tiers["data_dir"], "remote", "topics").rglob("seg-*.data"):
        line = json.loads(path.read_bytes().partition(b"\n")[0])
        del line["heads_checksum"]
        path.write_text(json.dumps(line | {"version": 1}))
    with fast_store.paused():
        timer = threading.Timer(2, fast_store.resume)
        timer.start()
        with running(memory=False, **tiers) as server:  # which waits until it is ready
            assert timer.finished.is_set()
            for name in ("tagged", "copied", "changed", "copies"):
                assert values_of(server.api(), name) == list(range(9))
    with fast_store.paused(), running(memory=False, **tiers) as server:
        assert server.api().append("copied", [{"data": 9}]).json["first_seq"] == 10


@pytest.mark.parametrize("ack", ["local", "shipped"])
def test_a_server_starts_before_its_object_stores_and_is_healthy_once_they_are_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, ack: str
) -> None:
    port = free_port()
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


def test_a_store_that_shows_only_after_the_start_that_it_ignores_conditions_gets_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    port = free_port()
    environment = {**CREDENTIALS, "EVERLOG_OBJECTS_ENDPOINT": f"http://127.0.0.1:{port}"}
    for name, value in (environment | {"EVERLOG_OBJECTS_TIMEOUT_MS": "1000"}).items():
        monkeypatch.setenv(name, value)
    urls = {"cold_url": f"s3://{BUCKET}/cold", "backup_url": f"s3://{BUCKET}/backup"}
    tiers: dict[str, Any] = {"segment_max_events": 2, "hot_retain_segments": 0}
    with (
        moto_server() as store,
        running(memory=False, data_dir=str(tmp_path), **urls, **tiers) as server,
    ):
        api = server.api()
        api.append("t", [{"data": value} for value in range(9)])
        server.call(server.app.engine.checkpoint)  # type: ignore[union-attr]
        with without_conditions(store, port):
            refused = {"relocation": "invalid_config", "backup": "invalid_config"}
            eventually("both are refused", lambda: storage_of(api)["failing"] == refused)
            for name in urls.values():
                assert f"{name} ignores conditional puts" in caplog.text
            assert values_of(api, "t") == list(range(9)), "reads and writes go on"
            assert api.append("t", [{"data": 9}]).status == 200
            metrics = api.request("GET", "/v0/metrics").text
        for kind in refused:
            assert re.search(rf'topics_storage_errors_total{{kind="{kind}"}} [1-9]', metrics)
        objects = open_store(
            f"s3://{BUCKET}", StoreOptions(endpoint=store.endpoint, region=CREDENTIALS["AWS_REGION"])
        )
        assert [item.key for item in objects.list() if "everlog-probe-" not in item.key] == []
