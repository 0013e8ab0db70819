"""Many watchers at once: shared rendering; slow readers, syncs and cold segments hold up no other watcher."""

from __future__ import annotations

import errno
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from everlog.errors import EverlogError, ReadOnly
from everlog.server.fan_out import (
    CACHE_BATCHES,
    CACHE_BYTES,
    Batch,
    BatchCache,
    FanOut,
    ReadOptions,
    Version,
    _both,
)
from everlog.server.watch_sessions import when_all_done
from everlog.server.watch_stream import WatchStream
from everlog.topics import Commit, Diff, NewRecord, TopicConfig
from tests.support.effort import effort
from tests.support.engines import SEGMENT_EVENTS, HeldSyncs, open_small, stopped_directory
from tests.support.files import UnsyncedFs
from tests.support.http_peers import poll_sockets, until
from tests.support.watch_servers import Frame, SseClient, WatchServer, disk_engine, play

KIB = 1024
BIG = b'"' + b"x" * (100 * KIB) + b'"'
LOOPS = ["uvloop", "asyncio"]


def made_batch(lines_bytes: int = 0) -> Batch:
    """A batch with so many bytes of records."""
    diff = Diff(b"x" * lines_bytes, int(lines_bytes > 0), 0, 0, 1, 1, 1, None, Commit())
    return Batch("t", Version(1, 1, 1, 1, True), 0, diff, diff.commit)


# --- Sharing ---------------------------------------------------------------------------------------------


def test_a_batch_is_rendered_once_for_all_watchers_at_its_cursor() -> None:
    async def scenario(server: WatchServer) -> None:
        server.append("a", 2)
        clients = [await server.follow({"a": {"tail": True}}) for _ in range(20)]
        other = await server.follow({"a": {"tail": True}}, include_data=False)
        for client in (*clients, other):
            await client.take("caught-up")
        before = server.watch.fan_out.batches.rendered
        server.append("a", 3)
        texts = {(await client.take("record"))[0].text for client in clients}
        assert len(texts) == 1
        (record,) = await other.take("record")
        assert record.text not in texts
        assert server.watch.fan_out.batches.rendered == before + 2
        assert len(server.watch.fan_out.batches) == 0, "no watcher is left that could share them"

    play(scenario)


def test_watchers_of_other_topics_share_the_records_but_not_the_id() -> None:
    async def scenario(server: WatchServer) -> None:
        server.append("a")
        server.append("b")
        alone = await server.follow({"a": {"tail": True}})
        both = await server.follow({"a": {"tail": True}, "b": {"tail": True}})
        await alone.take("caught-up")
        await both.take("caught-up", "caught-up")
        before = server.watch.fan_out.batches.rendered
        server.append("a")
        (first,), (second,) = await alone.take("record"), await both.take("record")
        assert first.data == second.data
        assert (first.id, second.id) == ({"a": 2}, {"a": 2, "b": 1})
        assert server.watch.fan_out.batches.rendered == before + 1

    play(scenario)


def test_what_was_deleted_is_not_shared_any_more() -> None:
    async def scenario(server: WatchServer) -> None:
        server.append("a", 3)
        fan_out = server.watch.fan_out
        first = read_now(fan_out, "a")
        assert read_now(fan_out, "a") is first
        server.engine.delete_records("a", match="tag1")
        second = read_now(fan_out, "a")
        assert b'"$seq":2' in first.lines and b'"$seq":2' not in second.lines
        server.append("a")
        assert b'"$seq":4' in read_now(fan_out, "a").lines

    play(scenario)


def read_now(fan_out: FanOut, name: str) -> Batch:
    """Read as a watcher does in a step of its own."""
    fan_out._versions.clear()
    batch = fan_out.read(name, 1, 0, ReadOptions())
    assert batch is not None
    return batch


def test_the_shared_batches_are_bounded_in_number_and_bytes() -> None:
    batches = BatchCache()
    keys = [("t", Version(1, 1, 1, 1, True), seq, ReadOptions()) for seq in range(CACHE_BATCHES + 10)]
    for key in keys:
        batches.put(key, made_batch())
    assert len(batches) == CACHE_BATCHES
    assert batches.get(keys[0]) is None and batches.get(keys[-1]) is not None
    batches.clear()
    for key in keys[:5]:
        batches.put(key, made_batch(CACHE_BYTES // 3))
    assert len(batches) == 2
    batches.put(keys[6], made_batch(CACHE_BYTES + 1))
    assert len(batches) == 0


@given(order=st.permutations(range(4)), failing=st.sets(st.integers(0, 3)), done_before=st.integers(0, 4))
def test_all_commits_are_waited_for_and_a_failed_one_is_found(
    order: list[int], failing: set[int], done_before: int
) -> None:
    commits = [Commit() for _ in order]
    told: list[Commit | None] = []

    def finish(number: int) -> None:
        commits[number].finish(EverlogError("lost") if number in failing else None)

    for number in order[:done_before]:
        finish(number)
    when_all_done(commits, told.append)
    for number in order[done_before:]:
        assert told == []
        finish(number)
    assert len(told) == 1
    assert (told[0] is not None and told[0].error is not None) == bool(failing)


@pytest.mark.parametrize("order", [(0, 1), (1, 0)])
@pytest.mark.parametrize("failing", [None, 0, 1])
@pytest.mark.parametrize("done_before", [0, 1, 2])
def test_two_conditions_are_both_waited_for(
    order: tuple[int, int], failing: int | None, done_before: int
) -> None:
    commits = [Commit(), Commit()]
    errors = [EverlogError("lost") if failing == number else None for number in (0, 1)]
    for number in order[:done_before]:
        commits[number].finish(errors[number])
    both = _both(*commits)
    for number in order[done_before:]:
        assert not both.done or failing == 0
        commits[number].finish(errors[number])
    assert both.done
    assert both.error is (None if failing is None else errors[failing])


def test_no_watcher_is_left_registered_when_streams_end() -> None:
    async def scenario(server: WatchServer) -> None:
        server.append("a")
        client = await server.follow({"a": {}})
        await client.take("record", "caught-up")
        topic = server.engine._core.topics["a"]
        assert len(topic.schedule.waiters) == 1
        await server.leave(client)
        assert len(topic.schedule.waiters) == 0
        assert server.watch.fan_out._topics == {}

    play(scenario)


def test_a_watcher_that_fails_does_not_stop_the_others(monkeypatch: pytest.MonkeyPatch) -> None:
    async def scenario(server: WatchServer) -> None:
        await server.put("a")
        await server.put("b")
        # Streams of two topics are delivered to on their own.
        clients = [await server.follow({"a": {}, "b": {}}, limit=limit) for limit in (1, 2, 3)]
        for client in clients:
            await client.take("caught-up", "caught-up")
        deliver = WatchStream.deliver

        def failing_delivery(watch: WatchStream) -> None:
            if watch._session.options.limit == 2:
                raise ZeroDivisionError("a mistake")
            deliver(watch)

        monkeypatch.setattr(WatchStream, "deliver", failing_delivery)
        server.append("a")
        await clients[0].take("record")
        (error,) = await clients[1].take("error")
        assert error.data["code"] == "internal" and "server log" in error.data["message"]
        await clients[1].expect_end()
        await clients[2].take("record")
        assert len(server.watch.streams) == 2

    play(scenario)


# --- Everything is accounted for -------------------------------------------------------------------------

STEPS = st.one_of(
    st.tuples(st.just("append"), st.integers(1, 5), st.sampled_from([None, "me", "you"])),
    st.tuples(st.just("delete below"), st.integers(1, 30)),
    st.tuples(st.just("delete tag"), st.integers(0, 4)),
    st.just(("recreate",)),
    st.just(("turn",)),
)


@settings(max_examples=effort(40))
@given(
    steps=st.lists(STEPS, max_size=15),
    cap=st.sampled_from([0, 0, 7]),
    options=st.lists(st.tuples(st.integers(0, 8), st.integers(1, 3), st.booleans()), min_size=1, max_size=3),
)
def test_every_seq_is_delivered_deleted_filtered_or_in_a_tombstone(
    steps: list[tuple[object, ...]], cap: int, options: list[tuple[int, int, bool]]
) -> None:
    async def scenario(server: WatchServer) -> None:
        book = Book(server, cap)
        book.append(3, None)
        await poll_sockets()
        readers = []
        for from_seq, limit, filters in options:
            node = "me" if filters else []
            client = await server.follow({"t": {"from_seq": from_seq}}, limit=limit, node=node)
            readers.append((client, from_seq, filters))
        for step in steps:
            await book.take(step)
        book.append(1, "last")
        for client, from_seq, filters in readers:
            frames = [await client.next()]
            while not (frames[-1].event == "record" and book.is_last(frames[-1])):
                frames.append(await client.next())
            book.check(frames, from_seq, filters)

    play(scenario)


class Book:
    """What a topic was told to do: the oracle for what its watchers may miss."""

    def __init__(self, server: WatchServer, cap: int) -> None:
        self.server = server
        self.config = TopicConfig(cap_records=cap)
        self.server.engine.put_topic("t", self.config)
        self.nodes: list[str | None] = []  # of the current instance, by seq - 1
        self.deleted: set[int] = set()
        self.instances = 1

    def append(self, count: int, node: str | None) -> None:
        self.server.append("t", count, node=node)
        self.nodes += [node] * count

    async def take(self, step: tuple[object, ...]) -> None:
        kind, *arguments = step
        head_seq = len(self.nodes)
        if kind == "append":
            self.append(*arguments)  # type: ignore[arg-type]
        elif kind == "delete below":
            self.server.engine.delete_records("t", before_seq=arguments[0])  # type: ignore[arg-type]
            self.deleted |= {seq for seq in range(1, head_seq + 1) if seq < arguments[0]}  # type: ignore[operator]
        elif kind == "delete tag":
            alive = set(self._alive())
            self.server.engine.delete_records("t", match=f"tag{arguments[0]}")
            self.deleted |= alive - set(self._alive())
        elif kind == "recreate":
            self.server.delete("t")
            self.server.engine.put_topic("t", self.config)
            self.nodes, self.deleted = [], set()
            self.instances += 1
        else:
            await poll_sockets()

    def _alive(self) -> list[int]:
        log = self.server.engine._core.topics["t"].log
        return [seq for seq in range(1, len(self.nodes) + 1) if log.is_live(seq)]

    def is_last(self, frame: Frame) -> bool:
        records = frame.data["records"]
        return bool(records) and records[-1].get("$node") == "last"

    def check(self, frames: list[Frame], from_seq: int, filters: bool) -> None:
        """Judge what one watcher got of the last instance of the topic."""
        restarts = [n for n, frame in enumerate(frames) if is_restart(frame)]
        if restarts:
            frames = frames[restarts[-1] :]
            from_seq = 0
        else:
            assert self.instances == 1, "a new instance was not announced"
        cursor, accounted = from_seq, set(range(1, from_seq + 1))
        for frame in frames:
            if frame.event == "tombstone" and not is_restart(frame):
                assert frame.data["gap_from"] > cursor, "what was passed in silence is accounted for below"
                cursor = frame.data["gap_to"]
                accounted |= set(range(frame.data["gap_from"], cursor + 1))
            elif frame.event == "record":
                assert frame.data["from_seq"] >= cursor
                assert frame.seqs == sorted(set(frame.seqs)) and frame.seqs[0] > cursor
                cursor = frame.data["to_seq"]
                assert frame.id == {"t": cursor}
                accounted |= set(frame.seqs)
                assert not filters or all(record.get("$node") != "me" for record in frame.data["records"])
        own = {seq for seq, node in enumerate(self.nodes, start=1) if filters and node == "me"}
        missing = set(range(1, len(self.nodes) + 1)) - accounted - own - self.deleted
        # The head of a new instance may have been cut before the watcher saw it: its tombstone covers that.
        if restarts:
            missing -= set(range(1, frames[0].data["earliest_seq"]))
        assert missing == set()


def is_restart(frame: Frame) -> bool:
    return frame.event == "tombstone" and frame.data["reason"] == "recreated"


# --- Slow readers ----------------------------------------------------------------------------------------


async def stuck_reader(server: WatchServer, **config: object) -> tuple[SseClient, WatchStream]:
    """A client that was live and then took nothing more, until its connection was full."""
    await server.put("a", **config)
    wid = await server.session({"a": {}}, limit=1, max_batch_bytes=8 * KIB * KIB)
    client = await server.open(wid, receive_buffer_bytes=4 * KIB)
    await client.take("caught-up")
    (watch,) = server.watch.streams
    while watch._full_timer is None:
        server.append("a", data=BIG)
        await poll_sockets()
    return client, watch


async def drain_seqs(client: SseClient, last_seq: int) -> list[Frame]:
    """Frames up to the record with this seq."""
    frames = [await client.next()]
    while frames[-1].event != "record" or frames[-1].seqs[-1] < last_seq:
        frames.append(await client.next())
    return frames


@pytest.mark.parametrize("loop", LOOPS)
def test_a_slow_reader_lags_alone_and_loses_nothing(loop: str) -> None:
    async def scenario(server: WatchServer) -> None:
        client, watch = await stuck_reader(server)
        quick = await server.follow({"a": {"tail": True}})
        await quick.take("caught-up")
        buffered = watch._stream.buffered
        for _ in range(30):
            server.append("a", data=BIG)
            await quick.take("record")
        assert watch._stream.buffered <= buffered < 1024 * KIB, "it was not given more"
        server.timers.advance(20.0)
        head_seq = server.engine.state("a").head_seq
        frames = await drain_seqs(client, head_seq)
        assert [seq for frame in frames if frame.event == "record" for seq in frame.seqs] == list(
            range(1, head_seq + 1)
        )
        assert all(frame.event != "tombstone" for frame in frames)
        server.timers.advance(100.0)
        server.append("a")
        assert (await drain_seqs(client, head_seq + 1))[-1].seqs == [head_seq + 1]

    play(scenario, loop=loop)


def test_a_slow_reader_of_a_capped_topic_gets_all_that_was_not_evicted() -> None:
    async def scenario(server: WatchServer) -> None:
        client, _ = await stuck_reader(server, cap_records=1_000_000)
        server.append("a", 5, data=BIG)
        await poll_sockets()
        head_seq = server.engine.state("a").head_seq
        server.timers.advance(20.0)
        frames = await drain_seqs(client, head_seq)
        assert all(frame.event != "tombstone" for frame in frames)
        assert [seq for frame in frames for seq in frame.seqs] == list(range(1, head_seq + 1))

    play(scenario)


def test_the_tombstone_of_a_slow_reader_covers_what_was_evicted() -> None:
    async def scenario(server: WatchServer) -> None:
        client, watch = await stuck_reader(server, cap_records=200)
        sent = watch._cursors["a"].seq
        server.append("a", 300)
        await poll_sockets()
        head_seq = server.engine.state("a").head_seq
        server.timers.advance(20.0)
        frames = await client.until_event("tombstone")
        assert frames[-1].data == {
            "topic": "a",
            "reason": "cap",
            "gap_from": sent + 1,
            "gap_to": head_seq - 200,
            "earliest_seq": head_seq - 199,
            "head_seq": head_seq,
        }
        frames = await drain_seqs(client, head_seq)
        assert [seq for frame in frames for seq in frame.seqs] == list(range(head_seq - 199, head_seq + 1))

    play(scenario)


def test_who_reads_history_slowly_gets_all_of_it() -> None:
    async def scenario(server: WatchServer) -> None:
        await server.put("a", cap_records=1_000_000)
        for _ in range(150):
            server.append("a", data=BIG)
        wid = await server.session({"a": {}}, limit=1)
        client = await server.open(wid, receive_buffer_bytes=4 * KIB)
        (watch,) = server.watch.streams
        await until(lambda: watch._full_timer is not None)
        server.timers.advance(20.0)
        frames = await drain_seqs(client, 150)
        assert [seq for frame in frames for seq in frame.seqs] == list(range(1, 151))

    play(scenario)


@pytest.mark.parametrize("loop", LOOPS)
def test_a_reader_that_is_stuck_is_let_go_and_can_resume(loop: str) -> None:
    async def scenario(server: WatchServer) -> None:
        client, _ = await stuck_reader(server)
        head_seq = server.engine.state("a").head_seq
        server.timers.advance(29.9)
        assert len(server.watch.streams) == 1
        server.timers.advance(0.2)
        assert server.watch.streams == set() and server.watch.slots.taken == 0
        (wid,) = server.watch.sessions._sessions
        frames = await client.until_event("error")
        assert frames[-1].data["code"] == 429
        assert (frames[-1].data["retry_after_ms"], frames[-1].data["topics"]) == (2000, ["a"])
        await client.expect_end()
        # Without an id the server can only know what has left this machine: it sends the rest again.
        resumed = await server.open(wid)
        again = [
            seq
            for frame in await drain_seqs(resumed, head_seq)
            if frame.event == "record"
            for seq in frame.seqs
        ]
        assert again[0] <= max(seq for frame in frames if frame.event == "record" for seq in frame.seqs) + 1
        assert again == list(range(again[0], head_seq + 1))
        before = frames[-2].id
        assert before is not None
        assert again[0] <= before["a"], "what was thrown away or not is not known, so it comes again"

    play(scenario, loop=loop)


def test_a_full_connection_gets_no_heartbeats() -> None:
    async def scenario(server: WatchServer) -> None:
        client, _ = await stuck_reader(server)
        server.timers.advance(16.0)
        head_seq = server.engine.state("a").head_seq
        frames = await drain_seqs(client, head_seq)
        assert {frame.event for frame in frames} == {"record"}

    play(scenario)


# --- Syncs and cold segments -----------------------------------------------------------------------------


class FailingFs(UnsyncedFs):
    """A disk whose syncs can be made to fail."""

    fails = False

    def fdatasync(self, fd: int) -> None:
        if self.fails:
            raise OSError(errno.EIO, "the disk is gone")


def test_a_strong_stream_holds_records_until_they_are_synced(tmp_path: Path) -> None:
    syncs = HeldSyncs()

    async def scenario(server: WatchServer) -> None:
        syncs.wake = server.app.turn_soon
        for name, durability in (("a", "disk"), ("m", "memory"), ("e", "ephemeral")):
            await server.put(name, durability=durability)
        answer = await server.ask("POST", "/v0/topics/a", {"records": [{"data": 1}]})
        assert answer.status == 200
        tail = {"a": {"tail": True}, "m": {}, "e": {}}
        strong = await server.follow(tail, consistency="strong")
        eventual = await server.follow(tail)
        for client in (strong, eventual):
            await client.take("caught-up", "caught-up", "caught-up")
        syncs.is_held = True
        for name in ("a", "m"):
            server.append(name)
            (record,) = await eventual.take("record")
            assert record.data["topic"] == name
        server.append("e")
        for client in (eventual, strong):
            (record,) = await client.take("record")
            assert record.data["topic"] == "e", "it is never synced, so there is nothing to wait for"
        assert record.id == {"a": 1, "m": 0, "e": 1}
        syncs.release()
        frames = await strong.take("record", "record")
        assert {frame.data["topic"]: frame.seqs for frame in frames} == {"a": [2], "m": [1]}
        assert frames[-1].id == {"a": 2, "m": 1, "e": 1}
        server.append("a")
        (record,) = await strong.take("record")
        assert record.seqs == [3]

    play(scenario, engine=disk_engine(tmp_path, syncs))


def test_what_comes_while_a_strong_stream_waits_is_not_forgotten(tmp_path: Path) -> None:
    syncs = HeldSyncs()

    async def scenario(server: WatchServer) -> None:
        syncs.wake = server.app.turn_soon
        await server.put("a", durability="memory")
        strong = await server.follow({"a": {}}, consistency="strong")
        eventual = await server.follow({"a": {}})
        await strong.take("caught-up")
        await eventual.take("caught-up")
        syncs.is_held = True
        for _ in range(3):
            server.append("a")
            await eventual.take("record")
        syncs.release()
        frames = await drain_seqs(strong, 3)
        assert [seq for frame in frames for seq in frame.seqs] == [1, 2, 3]

    play(scenario, engine=disk_engine(tmp_path, syncs))


def test_a_strong_stream_ends_if_its_records_cannot_be_synced(tmp_path: Path) -> None:
    syncs, fs = HeldSyncs(), FailingFs()

    async def scenario(server: WatchServer) -> None:
        syncs.wake = server.app.turn_soon
        await server.put("a", durability="memory")
        strong = await server.follow({"a": {}}, consistency="strong")
        eventual = await server.follow({"a": {}})
        await strong.take("caught-up")
        await eventual.take("caught-up")
        fs.fails = True
        server.append("a")
        await eventual.take("record")
        (error,) = await strong.take("error")
        assert error.data["code"] == "internal"
        assert "could not be written or synced (EIO)" in error.data["message"]
        await strong.expect_end()
        with pytest.raises(ReadOnly):
            server.engine.close()

    play(scenario, engine=disk_engine(tmp_path, syncs, fs))


def test_a_cold_segment_delays_no_other_watcher(tmp_path: Path) -> None:
    stopped_directory(tmp_path)
    syncs = HeldSyncs()

    async def scenario(server: WatchServer) -> None:
        syncs.wake = server.app.turn_soon
        await server.put("live", durability="ephemeral")
        syncs.is_held = True
        client = await server.follow({"b": {}, "live": {}})
        (caught_up,) = await client.take("caught-up")
        assert caught_up.data["topic"] == "live", "the cold one is being fetched"
        server.append("live")
        (record,) = await client.take("record")
        assert (record.data["topic"], record.id) == ("live", {"b": 0, "live": 1})
        syncs.release()
        frames = await client.until_event("caught-up")
        seqs = [seq for frame in frames if frame.event == "record" for seq in frame.seqs]
        assert seqs == list(range(1, 31))

    play(scenario, engine=disk_engine(tmp_path, syncs))


def test_a_read_that_waits_for_a_segment_is_not_shared(tmp_path: Path) -> None:
    stopped_directory(tmp_path)
    syncs = HeldSyncs()

    async def scenario(server: WatchServer) -> None:
        epoch = server.engine.state("b").epoch
        fan_out = server.watch.fan_out
        waiting = fan_out.read("b", epoch, 0, ReadOptions())
        assert waiting is not None and waiting.is_incomplete and not waiting.lines
        server.engine.wait_for(waiting.commit)
        found = fan_out.read("b", epoch, 0, ReadOptions())
        assert found is not None and not found.is_incomplete
        assert b'"$seq":1,' in found.lines

    play(scenario, engine=disk_engine(tmp_path, syncs))


def test_a_stream_goes_while_its_cold_segment_is_being_fetched(tmp_path: Path) -> None:
    stopped_directory(tmp_path)
    syncs = HeldSyncs()

    async def scenario(server: WatchServer) -> None:
        syncs.wake = server.app.turn_soon
        syncs.is_held = True
        client = await server.follow({"b": {}})
        (watch,) = server.watch.streams
        await until(lambda: watch._cursors["b"].held is not None)
        await server.leave(client)
        syncs.release()
        await poll_sockets()

    play(scenario, engine=disk_engine(tmp_path, syncs))


def test_a_stream_that_passes_more_cold_segments_than_fit_into_memory_comes_to_the_head(
    tmp_path: Path,
) -> None:
    with open_small(tmp_path) as engine:
        for number in range(4 * SEGMENT_EVENTS):
            engine.wait_for(engine.append("t", [NewRecord(b"%d" % number, node="n")]).commit)
        engine.wait_for(engine.append("t", [NewRecord(b'"other"')]).commit)
        engine.checkpoint()
        assert engine.relocate() >= 2
    syncs = HeldSyncs()

    async def scenario(server: WatchServer) -> None:
        syncs.wake = server.app.turn_soon
        assert server.engine._store is not None
        server.engine._store.loaded._fetched_bytes_max = 1
        client = await server.follow({"t": {}}, node="n")
        record, caught_up = await client.take("record", "caught-up")
        assert record.seqs == [4 * SEGMENT_EVENTS + 1]
        assert caught_up.data["head_seq"] == 4 * SEGMENT_EVENTS + 1

    play(scenario, engine=disk_engine(tmp_path, syncs))
