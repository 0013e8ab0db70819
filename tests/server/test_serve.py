"""A server from start to stop: a stop during recovery, who may write the port file, half-closed clients."""

from __future__ import annotations

import asyncio
import gc
import os
import signal
import socket
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from everlog.errors import EverlogError, Io
from everlog.server import serve
from everlog.server.serve import StartCancelled, TopicsServer
from everlog.topics import Durability, Engine, EngineSettings, NewRecord, TopicConfig
from everlog.topics.storage.memory_fill import MemoryFill
from everlog.topics.storage.recovery import Progress
from tests.support.http_cases import PATIENCE_S, HttpClient, RunningServer, settings_of

RECORDS = 50


@pytest.fixture
def data_dir(tmp_path: Path) -> Path:
    """A data directory whose records are in the log only, as after a crash."""
    path = tmp_path / "data"
    engine = Engine.open(path, EngineSettings(shards=2))
    engine.wait_for(engine.put_topic("t", TopicConfig(durability=Durability.FSYNC)).commit)
    for number in range(RECORDS):
        engine.wait_for(engine.append("t", [NewRecord(b"%d" % number)]).commit)
    engine.abandon()
    return path


def record_count(path: Path) -> int:
    """How many records a directory has, by a start of its own."""
    engine = Engine.open(path, EngineSettings(shards=2))
    try:
        return engine.state("t").count
    finally:
        engine.close()


class HeldRecovery:
    """Lets a test act in the middle of recovery, which then waits until the server is told to stop."""

    def __init__(self, patch: pytest.MonkeyPatch, act: Callable[[], None]) -> None:
        self.told = threading.Event()
        self._act = act
        self._open = Engine.open
        tell = TopicsServer.cancel_start

        def cancel_start(server: TopicsServer) -> None:
            tell(server)
            self.told.set()

        patch.setattr(TopicsServer, "cancel_start", cancel_start)
        patch.setattr(serve.Engine, "open", self.open)

    def open(self, *arguments: Any, progress: Callable[[Progress], None], **more: Any) -> Engine:
        """Open as usual, but at the first sign of progress wait for the stop."""

        def held(state: Progress) -> None:
            if not self.told.is_set():
                self._act()
                assert self.told.wait(PATIENCE_S), "the server was not told to stop"
            progress(state)

        return self._open(*arguments, progress=held, **more)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_during_recovery_ends_the_server_and_damages_nothing(
    monkeypatch: pytest.MonkeyPatch, data_dir: Path, number: signal.Signals
) -> None:
    became_ready: list[TopicsServer] = []
    with monkeypatch.context() as patch:
        HeldRecovery(patch, lambda: os.kill(os.getpid(), number))
        serve.run(settings_of(data_dir=str(data_dir)), started=became_ready.append)
    assert became_ready == []
    assert record_count(data_dir) == RECORDS


def test_a_start_that_is_cancelled_says_so_and_can_be_repeated(
    monkeypatch: pytest.MonkeyPatch, data_dir: Path
) -> None:
    async def scenario() -> None:
        server = TopicsServer(settings_of(data_dir=str(data_dir)))
        loop = asyncio.get_running_loop()
        with monkeypatch.context() as patch:
            HeldRecovery(patch, lambda: loop.call_soon_threadsafe(server.cancel_start) and None)
            with pytest.raises(StartCancelled):
                await server.start()
        again = TopicsServer(settings_of(data_dir=str(data_dir)))
        await again.start()
        await again.stop(0)

    asyncio.run(scenario())
    assert record_count(data_dir) == RECORDS


# --- Memory topics ---------------------------------------------------------------------------------------


def test_a_server_is_ready_before_its_memory_topics_are_loaded(
    monkeypatch: pytest.MonkeyPatch, data_dir: Path
) -> None:
    engine = Engine.open(data_dir, EngineSettings(shards=2))
    engine.wait_for(engine.put_topic("m", TopicConfig(durability=Durability.MEMORY)).commit)
    engine.wait_for(engine.append("m", [NewRecord(b"1")] * 1000).commit)
    engine.checkpoint()
    engine.abandon()
    may_load = threading.Event()
    load = MemoryFill._load

    def held_load(fill: MemoryFill) -> None:
        assert may_load.wait(PATIENCE_S)
        load(fill)

    monkeypatch.setattr(MemoryFill, "_load", held_load)
    server = RunningServer(settings_of(data_dir=str(data_dir)), memory=False)
    try:
        client = HttpClient(server.server.address)
        assert client.request("GET", "/v0/ready").status == 200
        assert client.request("GET", "/v0/topics/t").json["count"] == RECORDS
        for method, path, body in (
            ("GET", "/v0/topics/m", None),
            ("POST", "/v0/topics/m", {"records": [{"data": 1}]}),
            ("POST", "/v0/topics/m/diff", {}),
            ("POST", "/v0/watch", {"topics": {"m": {}}}),
        ):
            refused = client.request(method, path, body)
            assert (refused.status, refused.json["error"]["code"]) == (503, "not_ready"), path
            assert refused.headers["retry-after"] == "1"
        assert "topics_filling_topics 1.0" in client.request("GET", "/v0/metrics").text
        may_load.set()
        deadline = time.monotonic() + PATIENCE_S
        while (state := client.request("GET", "/v0/topics/m")).status == 503:
            assert time.monotonic() < deadline
        assert state.json["count"] == 1000
    finally:
        may_load.set()
        server.stop()


# --- The port file ---------------------------------------------------------------------------------------


@pytest.fixture
def first(tmp_path: Path) -> Iterator[RunningServer]:
    """A server with a port file."""
    settings = settings_of(data_dir=str(tmp_path / "data"), port_file=str(tmp_path / "port"))
    server = RunningServer(settings, memory=False)
    try:
        yield server
    finally:
        server.stop()


def test_the_port_file_says_where_a_server_listens(first: RunningServer, tmp_path: Path) -> None:
    host, port = first.server.address
    assert (tmp_path / "port").read_text() == f"{host}:{port}"


def test_a_server_that_does_not_get_the_data_leaves_the_port_file_alone(
    first: RunningServer, tmp_path: Path
) -> None:
    before = (tmp_path / "port").read_text()
    with pytest.raises(EverlogError):
        asyncio.run(TopicsServer(first.server.settings).start())
    assert (tmp_path / "port").read_text() == before


@pytest.mark.parametrize("memory", [False, True])
def test_a_port_file_that_cannot_be_written_ends_the_start_with_its_name(
    tmp_path: Path, memory: bool
) -> None:
    missing = tmp_path / "missing" / "port"
    settings = settings_of(data_dir=str(tmp_path / "data"), port_file=str(missing))
    with pytest.raises(Io, match=str(missing)):
        asyncio.run(TopicsServer(settings, memory=memory).start())
    if not memory:
        Engine.open(tmp_path / "data", EngineSettings(shards=2)).close()


# --- Half-closed clients ---------------------------------------------------------------------------------


@pytest.mark.parametrize("key", [None, "k"])
def test_a_client_that_ends_its_sending_side_still_gets_its_answer(tmp_path: Path, key: str | None) -> None:
    server = RunningServer(settings_of(keys=key or "", data_dir=str(tmp_path / "data")), memory=False)
    try:
        server.api(key).put("t", durability="fsync")
        body = b'{"records":[{"data":1}]}'
        head = b"POST /v0/topics/t HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
        head += b"Authorization: Bearer k\r\nContent-Length: %d\r\n\r\n" % len(body)
        with socket.create_connection(server.server.address, timeout=PATIENCE_S) as client:
            # Both are there at once, so the end is read before the sync is done.
            client.sendall(head + body)
            client.shutdown(socket.SHUT_WR)
            answer = b""
            while piece := client.recv(65536):
                answer += piece
        assert answer.startswith(b"HTTP/1.1 200 OK\r\n")
        assert b'"last_seq":1' in answer
        server.until_in_flight(0)
    finally:
        server.stop()


def test_a_long_body_without_a_key_is_told_how_to_send_one(tmp_path: Path) -> None:
    server = RunningServer(settings_of(keys="k"))
    try:
        reply = server.api().http.request("POST", "/v0/topics/t", b" " * 200_000)
        assert reply.status == 401
        assert reply.headers["www-authenticate"] == "Bearer"
    finally:
        server.stop()


def test_no_collection_of_objects_that_stay_looks_at_many_of_them() -> None:
    looked_at: list[int] = []

    def note(phase: str, about: dict[str, int]) -> None:
        if phase == "start" and about["generation"] == 1:
            looked_at.append(sum(len(gc.get_objects(generation)) for generation in (0, 1)))

    thresholds = gc.get_threshold()
    serve._freeze_gc()
    gc.callbacks.append(note)
    try:
        kept = [[] for _ in range(20 * serve.COLLECTOR_ALLOCATIONS)]
    finally:
        gc.callbacks.remove(note)
        gc.set_threshold(*thresholds)
        gc.unfreeze()
    assert len(kept) == 20 * serve.COLLECTOR_ALLOCATIONS
    assert 0 < max(looked_at) <= 4 * serve.COLLECTOR_ALLOCATIONS
