"""Sections 0.8, 0.10 and 14 over the wire: what a stop and a start, or a lost process, leave behind."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from everlog.errors import DataDirInUse
from tests.support.http_cases import (
    Api,
    RunningServer,
    append_head,
    assert_error,
    running,
    settings_of,
    taken,
)
from tests.support.processes import eventually

CLASSES = ("ephemeral", "memory", "disk", "fsync")


def fill_each_class(api: Api) -> None:
    for durability in CLASSES:
        api.put(durability, durability=durability, priority=7)
        api.append(
            durability, [{"data": value, "tag": f"t{value}"} for value in range(5)], idempotency_key="k"
        )
        api.delete(durability, match="t3")


def test_a_stop_and_a_start_keep_everything_but_ephemeral_records(tmp_path: Path) -> None:
    with running(memory=False, data_dir=str(tmp_path)) as server:
        fill_each_class(server.api())
        before = {name: server.api().diff(name, include_tags=True).json["records"] for name in CLASSES}
    with running(memory=False, data_dir=str(tmp_path)) as server:
        api = server.api()
        eventually("memory topics are loaded", lambda: api.diff("memory").status != 503)
        for name in CLASSES:
            state = taken(api.state(name))
            assert (state["config"]["durability"], state["config"]["priority"]) == (name, 7)
            records = taken(api.diff(name, include_tags=True))["records"]
            assert records == ([] if name == "ephemeral" else before[name])
            if name != "memory":
                assert state["head_seq"] == 5
        assert taken(api.append("disk"))["seqs"] == [6]
        assert taken(api.append("fsync"))["seqs"] == [6]


def test_keys_of_writes_survive_on_disk_and_fsync_topics_only(tmp_path: Path) -> None:
    with running(memory=False, data_dir=str(tmp_path)) as server:
        fill_each_class(server.api())
    with running(memory=False, data_dir=str(tmp_path)) as server:
        api = server.api()
        for name in ("disk", "fsync"):
            again = taken(api.append(name, idempotency_key="k"))
            assert (again["deduped"], again["seqs"], again["head_seq"]) == (True, [1, 2, 3, 4, 5], 5)
        eventually("memory topics are loaded", lambda: api.diff("memory").status != 503)
        for name in ("ephemeral", "memory"):
            again = taken(api.append(name, idempotency_key="k"))
            assert (again["deduped"], again["count"]) == (False, 1)


def test_deleted_topics_and_evicted_records_never_return(tmp_path: Path) -> None:
    with running(memory=False, data_dir=str(tmp_path)) as server:
        api = server.api()
        api.fill("gone", 1)
        api.drop("gone")
        api.put("capped", cap_records=2, durability="fsync")
        api.fill("capped", 1, 2, 3, 4)
        api.fill("again", 1, 2, 3)
        api.drop("again")
        api.fill("again", "new")
        tombstone = taken(api.diff("capped"))["tombstone"]
    with running(memory=False, data_dir=str(tmp_path)) as server:
        api = server.api()
        assert_error(api.state("gone"), 404, "topic_not_found")
        body = taken(api.diff("capped"))
        assert body["tombstone"] == tombstone
        assert [record["data"] for record in body["records"]] == [3, 4]
        assert api.values("again") == ["new"]


def test_one_final_snapshot_is_left_after_a_stop(tmp_path: Path) -> None:
    for _ in range(3):
        with running(memory=False, data_dir=str(tmp_path)) as server:
            server.api().append("t")
        assert len([path for path in (tmp_path / "meta").iterdir() if "snapshot" in path.name]) == 1


def test_the_number_of_shards_may_change_between_starts(tmp_path: Path) -> None:
    for start, shards in enumerate((1, 4, 2), 1):
        with running(memory=False, data_dir=str(tmp_path), wal_shards=shards) as server:
            api = server.api()
            for number in range(6):
                api.append(f"t{number}", [{"data": start}], config={"durability": "fsync"})
                assert api.values(f"t{number}") == list(range(1, start + 1))


def test_acked_fsync_writes_survive_a_process_that_just_ends(tmp_path: Path) -> None:
    server = RunningServer(settings_of(data_dir=str(tmp_path)), memory=False)
    try:
        api = server.api()
        api.put("t", durability="fsync")
        api.fill("t", 1, 2, 3)
        api.append("t", idempotency_key="k")
    finally:
        engine = server.app.engine
        assert engine is not None
        server.app.engine = None  # so that the stop writes nothing more
        engine.abandon()
        server.stop()
    with running(memory=False, data_dir=str(tmp_path)) as again:
        api = again.api()
        assert api.values("t") == [1, 2, 3, 1]
        assert taken(api.append("t", idempotency_key="k"))["deduped"] is True


@contextmanager
def cold_server(tmp_path: Path) -> Iterator[RunningServer]:
    """A server whose topic `t` has nine records of node `n`, eight of them in cold segments of two each."""
    tiers: dict[str, Any] = {"data_dir": str(tmp_path / "hot"), "cold_dir": str(tmp_path / "cold")}
    tiers |= {"segment_max_events": 2, "hot_retain_segments": 0}
    with running(memory=False, **tiers) as server:
        server.api().append("t", [{"data": value, "node": "n"} for value in range(9)])
        engine = server.app.engine
        assert engine is not None
        server.call(engine.checkpoint)
        assert server.call(engine.relocate) == 4
    with running(memory=False, **tiers) as server:
        yield server


def test_records_are_served_from_the_cold_tier_and_that_is_told(tmp_path: Path) -> None:
    with cold_server(tmp_path) as server:
        api = server.api()
        cursor, found, cold = 0, [], 0
        while cursor < 9:
            body = taken(api.diff("t", from_seq=cursor, wait_ms=1000))
            assert body["next_from_seq"] > cursor
            cursor = body["next_from_seq"]
            found += [record["data"] for record in body["records"]]
            cold += body["performance"].get("cold_segments_read", 0)
        assert (found, cold) == (list(range(9)), 4)
        assert "cold_segments_read" not in taken(api.diff("t", from_seq=9))["performance"]


def test_a_read_that_passes_more_cold_segments_than_fit_into_memory_comes_to_its_end(tmp_path: Path) -> None:
    with cold_server(tmp_path) as server:
        engine = server.app.engine
        assert engine is not None
        assert engine._store is not None
        engine._store.loaded._fetched_bytes_max = 1
        api = server.api()
        api.put("t", cap_records=7)
        api.append("t", [{"data": "other"}])
        body = taken(api.diff("t", node="n"))
        assert [record["data"] for record in body["records"]] == ["other"]
        assert (body["tombstone"]["gap_from"], body["tombstone"]["gap_to"]) == (1, 3)
        assert body["performance"]["cold_segments_read"] == 3


def test_a_second_server_on_the_same_directory_fails_to_start(tmp_path: Path) -> None:
    with running(memory=False, data_dir=str(tmp_path)) as first:
        first.api().fill("t", 1)
        with pytest.raises(DataDirInUse):
            RunningServer(settings_of(data_dir=str(tmp_path)), memory=False)
        assert first.api().values("t") == [1]
        assert (tmp_path / ".topics.lock").exists()


def test_the_port_file_has_the_address_after_binding(tmp_path: Path) -> None:
    port_file = tmp_path / "port"
    with running(port_file=str(port_file)) as server:
        host, port = server.server.address
        assert port_file.read_text() == f"{host}:{port}"
        assert list(tmp_path.iterdir()) == [port_file]


def test_a_stop_answers_readers_that_wait_at_once(tmp_path: Path) -> None:
    server = RunningServer(settings_of(data_dir=str(tmp_path)), memory=False)
    server.api().put("t")
    reader = server.api()
    answer = server.background(reader, lambda reader: reader.diff("t", wait_ms=30_000))
    server.until_parked("t")
    server.keep_clients()
    server.stop(drain_s=15.0)
    body = taken(answer.result())
    assert (body["records"], body["caught_up"]) == ([], True)


def test_a_stop_does_not_wait_for_a_client_that_stopped_in_the_middle(tmp_path: Path) -> None:
    server = RunningServer(settings_of(data_dir=str(tmp_path)), memory=False)
    server.api().fill("t", 1)
    with socket.create_connection(server.server.address) as sock:
        sock.sendall(append_head(100) + b"{")
        server.stop(drain_s=0.05)
        assert sock.recv(1000) == b""
    with running(memory=False, data_dir=str(tmp_path)) as again:
        assert again.api().values("t") == [1]


def test_after_a_stop_nothing_listens(server: RunningServer) -> None:
    address = server.server.address
    server.stop()
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection(address)


def test_a_write_whose_client_has_gone_does_not_disturb_the_stop(tmp_path: Path) -> None:
    for _ in range(5):
        server = RunningServer(settings_of(data_dir=str(tmp_path)), memory=False)
        try:
            api = server.api()
            api.put("t", durability="fsync")
            body = b'{"records":[{"data":1}]}'
            api.http.send(append_head(len(body)) + body)
        finally:
            server.stop()
        assert len([path for path in (tmp_path / "meta").iterdir() if "snapshot" in path.name]) == 1
