"""Clients that others wrote: the package `websockets`, with its own ideas of handshakes, frames and ends."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from pathlib import Path

import pytest
from websockets.asyncio.client import connect
from websockets.exceptions import ConnectionClosed
from websockets.frames import CloseCode

from tests.support.server_clients import JsonSocket, PlainClient
from tests.support.server_processes import ServerProcess, running_server

MANY = 40


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    with running_server(tmp_path_factory.mktemp("server")) as started:
        yield started


def test_what_one_socket_publishes_another_one_gets_live(server: ServerProcess) -> None:
    with JsonSocket(server.url) as writer, JsonSocket(server.url) as reader:
        writer.send(op="publish", topic="live", records=[{"data": 0}], request_id=0)
        assert writer.receive()["created"] is True
        reader.send(op="subscribe", topic="live", from_seq=0)
        seen = [record["$seq"] for each in reader.until("caught_up") for record in each.get("records", ())]
        for number in range(1, 50):
            writer.send(op="publish", topic="live", records=[{"data": number}], request_id=number)
        while len(seen) < 50:
            seen += [record["$seq"] for record in reader.receive()["records"]]
        assert seen == list(range(1, 51))
        acks = [writer.receive() for _ in range(1, 50)]
        assert [(ack["request_id"], ack["last_seq"]) for ack in acks] == [(n, n + 1) for n in range(1, 50)]


def test_large_messages_come_through_whole_in_both_directions(server: ServerProcess) -> None:
    text = "ä\u2028\U0001f600" * 40_000
    with JsonSocket(server.url) as socket:
        socket.send(op="publish", topic="large", records=[{"data": text}])
        assert socket.receive()["op"] == "ack"
        pieces = json.dumps(
            {"op": "publish", "topic": "large", "records": [{"data": text}]}, ensure_ascii=False
        )
        socket.connection.send(pieces[start : start + 70_000] for start in range(0, len(pieces), 70_000))
        assert socket.receive()["last_seq"] == 2
        socket.send(op="subscribe", topic="large")
        records = [record for each in socket.until("caught_up") for record in each.get("records", ())]
        assert [record["data"] == text for record in records] == [True, True]


def test_a_ping_is_answered_and_a_close_is_agreed_to(server: ServerProcess) -> None:
    with JsonSocket(server.url) as socket:
        assert socket.connection.ping(b"payload").wait(20)
        socket.connection.close(CloseCode.GOING_AWAY, "enough")
        assert socket.connection.close_code == CloseCode.GOING_AWAY


def test_compression_is_not_agreed_to_and_nothing_is_lost_by_that(server: ServerProcess) -> None:
    with JsonSocket(server.url) as socket:
        assert socket.connection.protocol.extensions == []
        socket.send(op="ping", request_id=7)
        assert socket.receive() == {"op": "pong", "request_id": 7}


def test_many_sockets_at_once_all_get_everything(server: ServerProcess) -> None:
    async def follow(number: int) -> list[int]:
        address = server.url.replace("http://", "ws://", 1) + "/v0/ws"
        async with connect(address, proxy=None) as socket:
            await socket.send(json.dumps({"op": "subscribe", "topic": "many"}))
            await socket.send(
                json.dumps({"op": "publish", "topic": "many", "records": [{"data": number}], "request_id": 1})
            )
            seqs: list[int] = []
            while len(seqs) < MANY + 1:
                message = json.loads(await socket.recv())
                if message["op"] == "record":
                    seqs += [record["$seq"] for record in message["records"]]
            return seqs

    async def run() -> list[list[int]]:
        return await asyncio.wait_for(asyncio.gather(*(follow(number) for number in range(MANY))), 60)

    with PlainClient(server.url) as client:
        client.append("many", [{"data": None}])
    assert asyncio.run(run()) == [list(range(1, MANY + 2))] * MANY


def test_after_a_restart_a_reader_goes_on_from_its_cursor_without_a_gap(tmp_path: Path) -> None:
    seen: list[int] = []
    for life in range(3):
        with running_server(tmp_path) as server, JsonSocket(server.url) as socket:
            socket.send(op="publish", topic="t", records=[{"data": life}] * 5, request_id=0)
            assert socket.receive()["op"] == "ack"
            socket.send(op="subscribe", topic="t", from_seq=seen[-1] if seen else 0)
            seen += [r["$seq"] for each in socket.until("caught_up") for r in each.get("records", ())]
            assert server.stop()[0] == 0
            assert socket.receive()["code"] == "server_shutting_down"
            with pytest.raises(ConnectionClosed) as closed:
                socket.connection.recv(20)
            assert closed.value.rcvd is not None
            assert closed.value.rcvd.code == CloseCode.GOING_AWAY
    assert seen == list(range(1, 16))


def test_a_socket_without_a_valid_key_is_refused_before_the_upgrade(tmp_path: Path) -> None:
    (tmp_path / "server.toml").write_text('api_keys = ["secret"]\n')
    with running_server(tmp_path, "--config", tmp_path / "server.toml", key="secret") as server:
        with pytest.raises(ConnectionError, match="401"):
            JsonSocket(server.url)
        with pytest.raises(ConnectionError, match="401"):
            JsonSocket(server.url, Authorization="Bearer wrong")
        with JsonSocket(server.url, Authorization="Bearer secret") as socket:
            socket.send(op="ping")
            assert socket.receive()["op"] == "pong"
