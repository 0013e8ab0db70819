"""A replay that others read as a feed: a queue, a topic and WebSockets, and commands while it runs."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest
from websockets.asyncio.client import connect
from websockets.exceptions import ConnectionClosed, InvalidStatus
from websockets.typing import Origin

from everlog.bridge import replay_server
from everlog.bridge.replay_server import ReplayServer, source_names
from everlog.client import Client, Producer
from everlog.market.pacing import AS_FAST_AS_POSSIBLE
from everlog.market.player import Player
from everlog.market.replay import Replay
from tests.support.market_queues import SECOND_NS, START_NS, write_market_queue
from tests.support.server_processes import running_server

PATIENCE_S = 60


def messages(path: Path) -> list[tuple[int, int, int, bytes]]:
    found = []
    for some in Replay(str(path)).batches():
        rows = zip(
            some.timestamp_ns.tolist(), some.type_id.tolist(), some.flags.tolist(), some.packed, strict=True
        )
        found += [(when, kind, flags, bytes(payload)) for when, kind, flags, payload in rows]
    return found


async def played(server: ReplayServer) -> None:
    try:
        await asyncio.wait_for(server.run(), PATIENCE_S)
    finally:
        await server.close()


def test_a_queue_gets_the_same_messages_with_times_types_and_flags(tmp_path: Path) -> None:
    write_market_queue(str(tmp_path / "q"))
    statuses: list[dict[str, Any]] = []
    player = Player([Replay(str(tmp_path / "q"))], speed=AS_FAST_AS_POSSIBLE)
    server = ReplayServer(player, ["q"], into_queue=str(tmp_path / "live"), on_status=statuses.append)
    asyncio.run(played(server))
    assert messages(tmp_path / "live") == messages(tmp_path / "q")
    assert statuses[-1]["state"] == "done" and statuses[-1]["messages"] == len(messages(tmp_path / "q"))


def test_a_topic_gets_records_as_a_bridge_renders_them(tmp_path: Path) -> None:
    write_market_queue(str(tmp_path / "q"))
    with running_server(tmp_path / "server") as process:
        url = f"http://127.0.0.1:{process.port}"
        with Client(url) as client, Producer(client, "market") as producer:
            player = Player([Replay(str(tmp_path / "q"))], speed=AS_FAST_AS_POSSIBLE)
            asyncio.run(played(ReplayServer(player, ["q"], producer=producer)))
            records = list(client.read("market"))
        process.stop_cleanly()
    sent = messages(tmp_path / "q")
    assert len(records) == len(sent)
    assert [record.meta["ts_ns"] for record in records] == [row[0] for row in sent]
    assert records[0].data["type"] == "book_event" and records[0].data["bids"][0] == ["99.9", "5"]
    assert {record.meta["source"] for record in records} == {"q"}
    assert [record.meta["seq"] for record in records] == list(range(len(sent)))


def test_a_websocket_gets_every_record_and_takes_commands(tmp_path: Path) -> None:
    write_market_queue(str(tmp_path / "q"))

    async def run() -> tuple[list[Any], list[Any]]:
        player = Player([Replay(str(tmp_path / "q"))])
        player.command("pause")
        server = ReplayServer(player, ["q"])
        port = await server.listen()
        running = asyncio.create_task(played(server))
        records, answers = [], []
        async with connect(f"ws://127.0.0.1:{port}") as one:
            for line in ("speed max", "nonsense", "loop off", "resume"):
                await one.send(line)
            async for text in one:
                found = json.loads(text)
                (records if "data" in found else answers).append(found)
        await running
        return records, answers

    records, answers = asyncio.run(asyncio.wait_for(run(), PATIENCE_S))
    assert [record["meta"]["ts_ns"] for record in records] == [row[0] for row in messages(tmp_path / "q")]
    assert [answer.get("status", {}).get("state") for answer in answers] == [
        "paused",
        None,
        "paused",
        "playing",
    ]
    assert answers[1]["error"]["code"]


def test_a_seek_while_it_runs_plays_from_there(tmp_path: Path) -> None:
    write_market_queue(str(tmp_path / "q"))

    async def run() -> None:
        player = Player([Replay(str(tmp_path / "q"))], speed=0.001)
        server = ReplayServer(player, ["q"], into_queue=str(tmp_path / "live"))
        running = asyncio.create_task(played(server))
        await asyncio.sleep(0)
        assert server.command(f"seek {START_NS + SECOND_NS}")["status"]["position_ns"] == START_NS + SECOND_NS
        server.command("speed max")
        await running

    asyncio.run(asyncio.wait_for(run(), PATIENCE_S))
    expected = [row for row in messages(tmp_path / "q") if row[0] >= START_NS + SECOND_NS]
    found = messages(tmp_path / "live")
    assert found[-len(expected) :] == expected
    assert len(found) <= len(expected) + 6  # before them what was due, a snapshot of each book


@pytest.mark.parametrize(
    ("origin", "is_served"),
    [(None, True), ("http://localhost:8000", True), ("http://localhost.example", False), ("null", False)],
)
def test_pages_of_other_sites_get_no_websocket(tmp_path: Path, origin: str | None, is_served: bool) -> None:
    write_market_queue(str(tmp_path / "q"))

    async def run() -> dict[str, Any]:
        server = ReplayServer(Player([Replay(str(tmp_path / "q"))]), ["q"])
        port = await server.listen()
        try:
            async with connect(
                f"ws://127.0.0.1:{port}", origin=None if origin is None else Origin(origin)
            ) as one:
                await one.send("status")
                answer: dict[str, Any] = json.loads(await one.recv())
                return answer
        finally:
            await server.close()

    if is_served:
        assert "status" in asyncio.run(asyncio.wait_for(run(), PATIENCE_S))
    else:
        with pytest.raises(InvalidStatus, match="403"):
            asyncio.run(asyncio.wait_for(run(), PATIENCE_S))


def test_one_client_more_than_the_limit_is_told_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_market_queue(str(tmp_path / "q"))
    monkeypatch.setattr(replay_server, "CLIENTS_MAX", 1)

    async def run() -> None:
        server = ReplayServer(Player([Replay(str(tmp_path / "q"))]), ["q"])
        address = f"ws://127.0.0.1:{await server.listen()}"
        try:
            async with connect(address) as first:
                await first.send("status")
                await first.recv()
                async with connect(address) as second:
                    with pytest.raises(ConnectionClosed, match="1 clients are connected"):
                        await second.recv()
        finally:
            await server.close()

    asyncio.run(asyncio.wait_for(run(), PATIENCE_S))


def test_stop_ends_a_paused_replay(tmp_path: Path) -> None:
    write_market_queue(str(tmp_path / "q"))

    async def run() -> None:
        player = Player([Replay(str(tmp_path / "q"))])
        player.command("pause")
        server = ReplayServer(player, ["q"])
        running = asyncio.create_task(played(server))
        await asyncio.sleep(0)
        server.stop()
        await running

    asyncio.run(asyncio.wait_for(run(), PATIENCE_S))


def test_sources_are_named_by_their_folders() -> None:
    assert source_names(["/a/btc", "/b/eth/"]) == ["btc", "eth"]
    assert source_names(["/a/q", "/b/q"]) == ["q-0", "q-1"]
