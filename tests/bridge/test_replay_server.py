"""A replay that others read as a feed: a queue, a topic and WebSockets, and commands while it runs."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

from websockets.asyncio.client import connect

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
