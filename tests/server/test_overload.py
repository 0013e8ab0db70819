"""What clients see of pressure: later pushes, advice, refused writes, and numbers; and that it ends."""

from __future__ import annotations

import asyncio
import math
from pathlib import Path

from everlog.server.probe_routes import ProbeRoutes
from everlog.topics import NewRecord
from everlog.topics.core import QUEUE_MAX
from tests.server.pressure import full_pressure, no_pressure
from tests.support.engines import HeldSyncs
from tests.support.http_peers import poll_sockets, until
from tests.support.watch_servers import Frame, SseClient, WatchServer, disk_engine, play


def test_a_write_is_pushed_in_the_turn_of_its_acknowledgement() -> None:
    async def scenario(server: WatchServer) -> None:
        await server.put("a", durability="ephemeral")
        client = await server.follow({"a": {}})
        await client.take("caught-up")
        (watch,) = server.watch.streams
        server.engine.append("a", [NewRecord(b"1")])
        server.app._turn()
        assert watch._cursors["a"].seq == 1
        await client.take("record")

    play(scenario)


def test_under_pressure_records_are_pushed_together() -> None:
    async def scenario(server: WatchServer) -> None:
        await server.put("a", durability="ephemeral")
        client = await server.follow({"a": {}})
        await client.take("caught-up")
        with full_pressure(server.engine):
            server.append("a")
            assert [frame.seqs for frame in await client.take("record")] == [[1]]
            for _ in range(5):
                server.append("a")
                await poll_sockets()
            (frame,) = await client.take("record")
            assert frame.seqs == [2, 3, 4, 5, 6]
        no_pressure(server.engine)
        for seq in (7, 8):
            server.append("a")
            assert [frame.seqs for frame in await client.take("record")] == [[seq]]

    play(scenario)


def test_a_paused_topic_is_announced_once_can_be_read_and_is_pushed_in_the_end() -> None:
    async def scenario(server: WatchServer) -> None:
        for name, priority in (("low", -10), ("quiet", -10), ("normal", None)):
            await server.put(name, durability="ephemeral", priority=priority)
        client = await server.follow({"low": {}, "normal": {}, "quiet": {}})
        await client.take("caught-up", "caught-up", "caught-up")
        with full_pressure(server.engine):
            for _ in range(3):
                server.append("low")
                server.append("normal")
            (advice,) = [frame for frame in await take_any(client, 2) if frame.event == "error"]
            assert advice.data["code"] == 429 and advice.data["topics"] == ["low"]
            assert advice.data["retry_after_ms"] > 0 and advice.id is None
            answer = await server.ask("POST", "/v0/topics/low/diff", {})
            assert [record["$seq"] for record in answer.json["records"]] == [1, 2, 3]
            await asyncio.sleep(0.25)
            server.append("normal")
            (record,) = await client.take("record")
            assert record.data["topic"] == "normal", "the advice is not repeated"
        no_pressure(server.engine)
        server.app.turn_soon()
        (record,) = await client.take("record")
        assert (record.data["topic"], record.seqs) == ("low", [1, 2, 3])
        with full_pressure(server.engine):
            server.append("low")
            await client.take("error")
        no_pressure(server.engine)
        server.app.turn_soon()
        await client.take("record")

    play(scenario)


async def take_any(client: SseClient, count: int) -> list[Frame]:
    """The next frames, whatever they are."""
    return [await client.next() for _ in range(count)]


def test_a_socket_is_told_too() -> None:
    async def scenario(server: WatchServer) -> None:
        await server.put("low", durability="ephemeral", priority=-10)
        client = await server.talk()
        await client.ask("subscribe", topic="low")
        await client.take("caught_up")
        with full_pressure(server.engine):
            server.append("low")
            (error,) = await client.take("error")
            assert error["code"] == "throttled" and "low" in error["message"]
        no_pressure(server.engine)
        server.app.turn_soon()
        (record,) = await client.take("record")
        assert record["to_seq"] == 1
        await client.close()

    play(scenario)


def test_a_long_poll_of_a_paused_topic_is_answered_when_its_time_is_over() -> None:
    async def scenario(server: WatchServer) -> None:
        await server.put("low", durability="ephemeral", priority=-10)
        with full_pressure(server.engine):
            waiting = asyncio.ensure_future(server.ask("POST", "/v0/topics/low/diff", {"wait_ms": 300}))
            await until(lambda: bool(server.app.parked))
            server.append("low")
            answer = await waiting
            assert [record["$seq"] for record in answer.json["records"]] == [1]
            assert answer.json["performance"]["throttle_wait_ms"] >= 0

    play(scenario)


def test_a_slow_answer_says_how_much_of_it_is_due_to_pressure(tmp_path: Path) -> None:
    syncs = HeldSyncs()

    async def scenario(server: WatchServer) -> None:
        syncs.wake = server.app.turn_soon
        await server.put("f", durability="fsync")
        calm = await server.ask("POST", "/v0/topics/f", {"records": [{"data": 1}]})
        assert "throttle_wait_ms" not in calm.json["performance"]
        with full_pressure(server.engine):
            waited_ms = 0.0
            while waited_ms < 1:  # two syncs that follow each other are a window apart
                slow = await server.ask("POST", "/v0/topics/f", {"records": [{"data": 1}]})
                performance = slow.json["performance"]
                waited_ms = performance["throttle_wait_ms"]
                assert 0 <= waited_ms <= performance["server_total_ms"] + 0.002, "one is rounded, one cut off"
            state = await server.ask("GET", "/v0/topics/f")
            assert state.json["performance"]["throttle_wait_ms"] == 0

    play(scenario, engine=disk_engine(tmp_path, syncs))


def test_a_refused_write_says_when_to_come_back_and_can_be_forced(tmp_path: Path) -> None:
    syncs = HeldSyncs()

    async def scenario(server: WatchServer) -> None:
        syncs.wake = server.app.turn_soon
        await server.put("f", durability="fsync")
        body = {"records": [{"data": 1}]}
        assert (await server.ask("POST", "/v0/topics/f", body)).status == 200
        syncs.is_held = True
        while server.engine.counts().queue_depth < QUEUE_MAX * 3 // 4:
            server.engine.append("f", [NewRecord(b"1")])
        with full_pressure(server.engine):
            refused = await server.ask("POST", "/v0/topics/f", body)
            assert (refused.status, refused.code) == (429, "throttled")
            retry_after_ms = refused.json["error"]["detail"]["retry_after_ms"]
            assert refused.headers[b"retry-after"] == b"%d" % math.ceil(retry_after_ms / 1000)
            forced = asyncio.ensure_future(
                server.ask("POST", "/v0/topics/f", {**body, "disable_backpressure": True})
            )
            await poll_sockets()
            syncs.release()
            last_seq = (await forced).json["last_seq"]
            assert last_seq == server.engine.state("f").head_seq
            assert (await server.ask("POST", "/v0/topics/f", body)).json["first_seq"] == last_seq + 1

    play(scenario, engine=disk_engine(tmp_path, syncs))


def test_metrics_show_the_bands_the_rungs_and_the_pressure() -> None:
    async def scenario(server: WatchServer) -> None:
        ProbeRoutes(server.app, dict)
        await server.put("low", durability="ephemeral", priority=-10)
        client = await server.follow({"low": {}})
        await client.take("caught-up")
        calm = await measured(server)
        assert calm["topics_pressure"] < 0.3
        assert calm['topics_rung_engaged{rung="defer"}'] == 0
        with full_pressure(server.engine):
            server.append("low")
            await client.take("error")
            pressed = await measured(server)
            assert pressed["topics_pressure"] == 1
            assert pressed['topics_band_depth{band="B0"}'] == pressed["topics_scheduler_paused"] == 1
            assert pressed["topics_coalesce_window_ms"] == 20
            assert pressed["topics_commit_window_floor_ms"] == 10
            for rung in ("coalesce", "commit", "defer", "refuse"):
                assert pressed[f'topics_rung_engaged{{rung="{rung}"}}'] == 1
                assert pressed[f'topics_rung_taken_total{{rung="{rung}"}}'] == 1
        no_pressure(server.engine)
        server.app.turn_soon()
        await client.take("record")
        after = await measured(server)
        assert after["topics_scheduler_serviced_total"] == calm["topics_scheduler_serviced_total"] + 1
        assert after["topics_scheduling_latency_us_count"] == after["topics_scheduler_serviced_total"]
        assert after["topics_throttled_total"] == 0
        assert after['topics_rung_engaged{rung="defer"}'] == 0

    play(scenario)


async def measured(server: WatchServer) -> dict[str, float]:
    """The metrics by name."""
    peer = await server.connect()
    response = await peer.ask(b"GET /v0/metrics HTTP/1.1\r\nHost: localhost\r\n\r\n")
    peer.sock.close()
    lines = (line.rpartition(" ") for line in response.body.decode().splitlines() if not line.startswith("#"))
    return {name: float(value) for name, _, value in lines}
