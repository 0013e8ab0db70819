"""Both clients against a real server: topics, records, gaps, watching, routers, queues, sockets."""

from __future__ import annotations

import inspect
import subprocess
import sys
import threading
from typing import Any, get_type_hints

import msgspec
import pytest

import everlog.client
from everlog import api_types as shapes
from everlog.client import (
    ApiFailed,
    AsyncClient,
    CaughtUp,
    Client,
    NewRecord,
    Record,
    Records,
    RecordsLost,
    RetryPolicy,
    Tombstone,
    TopicCreated,
    TopicGone,
    calls,
)
from everlog.errors import InvalidRequest
from everlog.testing import server
from everlog.topics import TopicConfig
from tests.support.client_faces import face
from tests.support.http_cases import RunningServer, settings_of
from tests.support.tcp_peers import FaultProxy


def filled(client: Any, topic: str, *values: object, **config: Any) -> None:
    client.put_topic(topic, config)
    client.append_many(topic, [NewRecord(value) for value in values])


def values_until_caught_up(events: Any) -> list[object]:
    """The data of the records up to the first sign that all were sent."""
    found: list[object] = []
    for event in events:
        if isinstance(event, CaughtUp):
            break
        found += [record.data for record in event.records]
    events.close()
    return found


# --- The two are the same --------------------------------------------------------------------------------


def test_both_clients_have_the_same_methods() -> None:
    def public(kind: type) -> dict[str, list[str]]:
        return {
            name: list(inspect.signature(value).parameters)
            for name, value in inspect.getmembers(kind, callable)
            if not name.startswith("_")
        }

    assert public(Client) == public(AsyncClient)
    described = {
        name for name, value in vars(calls).items() if getattr(value, "__module__", "") == calls.__name__
    }
    operations = {name for name in described if name[0].islower()}
    assert operations - {"new_key", "start_watch"} <= set(public(Client))


def test_the_settings_of_a_topic_are_those_of_the_engine() -> None:
    fields = [field.name for field in msgspec.structs.fields(TopicConfig)]
    assert [field.name for field in msgspec.structs.fields(shapes.TopicConfig)] == fields
    assert list(get_type_hints(shapes.TopicSettings)) == fields


def test_importing_everlog_loads_neither_clients_nor_server() -> None:
    program = (
        "import sys, everlog; heavy = [n for n in sys.modules if n.startswith(('everlog.client', "
        "'everlog.server', 'asyncio'))]; assert not heavy, heavy; from everlog import Client, Producer; "
        "assert 'everlog.server' not in sys.modules; import everlog.client as c; "
        "[getattr(c, name) for name in c.__all__]"
    )
    subprocess.run([sys.executable, "-c", program], check=True, timeout=60)
    with pytest.raises(AttributeError, match="nothing"):
        everlog.client.nothing  # noqa: B018
    with pytest.raises(AttributeError, match="nothing"):
        everlog.nothing  # noqa: B018


# --- Topics and records ----------------------------------------------------------------------------------


def test_topics_are_created_looked_at_listed_and_deleted(client: Any) -> None:
    put = client.put_topic("a", {"durability": "memory", "cap_records": 5})
    assert (put.created, put.config.cap_records, put.config.durability) == (True, 5, "memory")
    filled(client, "b", 1, 2)
    assert [topic.topic for topic in client.topics()] == ["a", "b"]
    assert [topic.count for topic in client.topics("b")] == [2]
    state = client.topic("b")
    assert (state.head_seq, state.count, state.queue) == (2, 2, None)
    with pytest.raises(ApiFailed) as raised:
        client.delete_topic("b", if_empty=True)
    assert (raised.value.code, raised.value.detail) == ("topic_not_empty", {"topic": "b", "count": 2})
    assert client.delete_topic("b").deleted
    assert not client.delete_topic("b").deleted


def test_a_long_list_is_read_page_by_page(client: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    whole = calls.topics_page
    monkeypatch.setattr(
        calls, "topics_page", lambda prefix, cursor: whole(prefix, page_size=2, cursor=cursor)
    )
    for number in range(5):
        client.put_topic(f"t{number}")
    assert [topic.topic for topic in client.topics()] == [f"t{number}" for number in range(5)]


def test_a_record_comes_back_as_it_was_given(client: Any) -> None:
    appended = client.append("t", {"id": 1}, tag="eu", node="n", meta={"k": [1]})
    assert (appended.first_seq, appended.created, appended.deduped) == (1, True, False)
    (record,) = client.read("t")
    assert record == Record(1, record.ts_ms, {"id": 1}, "n", "eu", {"k": [1]})
    assert client.append("t", 2, idempotency_key="k").deduped is False
    assert client.append("t", 3, idempotency_key="k").deduped is True


def test_records_are_deleted_by_seq_and_by_tag(client: Any) -> None:
    client.append_many("t", [NewRecord(1, tag="eu"), NewRecord(2, tag="us"), NewRecord(3)], return_seqs=True)
    previewed = client.delete_records("t", match="e*", dry_run=True)
    assert (previewed.deleted, client.topic("t").count) == (1, 3)
    assert client.delete_records("t", match="e*").deleted == 1
    assert client.delete_records("t", before_seq=3).deleted == 1
    assert [record.data for record in client.read("t")] == [3]


def test_a_server_error_has_the_code_and_detail_of_the_server(client: Any) -> None:
    with pytest.raises(ApiFailed) as raised:
        client.diff("nothing")
    assert (raised.value.status, raised.value.code) == (404, "topic_not_found")
    assert raised.value.detail == {"topic": "nothing"}


@pytest.mark.parametrize("kind", ["sync", "async"])
def test_the_key_is_sent_and_a_wrong_one_is_refused(kind: str) -> None:
    with server(keys="sesame") as url:
        with face(kind, url, "sesame") as client:
            client.put_topic("t")
            assert values_until_caught_up(client.watch({"t": "earliest"})) == []
            with client.socket() as socket:
                socket.ping()
        with face(kind, url, "wrong") as stranger:
            for attempt in (stranger.topics, lambda: stranger.socket().__enter__()):
                with pytest.raises(ApiFailed) as raised:
                    attempt()
                assert raised.value.status == 401


def test_a_line_break_cannot_enter_a_request(client: Any) -> None:
    with pytest.raises(InvalidRequest):
        client.exchange("GET", "/v0/health", None, {"X": "a\r\nY: b"})


# --- Reading ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("start", "wanted"), [("earliest", [1, 2, 3]), (2, [2, 3]), (0, [1, 2, 3]), (4, [])])
def test_a_read_goes_from_its_start_to_the_present_end(client: Any, start: Any, wanted: list[int]) -> None:
    filled(client, "t", 1, 2, 3)
    assert [record.data for record in client.read("t", start=start, limit=2)] == wanted


def test_a_read_from_now_on_follows(client: Any, plain: Client) -> None:
    filled(client, "t", 1)
    records = client.read("t", start="now")
    found: list[object] = []
    reader = threading.Thread(target=lambda: found.append(next(records).data))
    reader.start()
    while not found:
        plain.append("t", "new")
        reader.join(0.05)
    assert found == ["new"]
    records.close()


def test_a_gap_is_an_exception_that_says_where_to_go_on(client: Any) -> None:
    filled(client, "t", *range(10), cap_records=3)
    with pytest.raises(RecordsLost, match=r"seqs 2 to 7 .* start=8") as raised:
        list(client.read("t", start=2))
    gap = raised.value.tombstone
    assert gap is not None
    assert (gap.gap_from, gap.gap_to, gap.reason, gap.topic) == (2, 7, "cap", "t")
    assert [record.seq for record in client.read("t", start=gap.resume)] == [8, 9, 10]


def test_a_gap_is_a_value_if_that_is_asked_for(client: Any) -> None:
    filled(client, "t", *range(10), cap_records=3)
    first, *rest = client.read("t", start=2, gaps="yield")
    assert isinstance(first, Tombstone)
    assert (first.gap_from, first.gap_to) == (2, 7)
    assert [record.seq for record in rest] == [8, 9, 10]


def test_who_asks_for_what_is_there_misses_nothing_that_had_gone(client: Any) -> None:
    filled(client, "t", *range(10), cap_records=3)
    assert [record.seq for record in client.read("t")] == [8, 9, 10]
    assert values_until_caught_up(client.watch({"t": "earliest"})) == [7, 8, 9]


def test_another_topic_of_the_same_name_is_told(client: Any) -> None:
    filled(client, "t", 1, 2)
    with pytest.raises(RecordsLost, match="created again"):
        list(client.read("t", start=9))
    first, *rest = client.read("t", start=9, gaps="yield")
    assert (first.reason, [record.data for record in rest]) == ("recreated", [1, 2])


# --- Watching --------------------------------------------------------------------------------------------


def test_a_watch_tells_what_there_is_what_comes_and_the_end(client: Any, plain: Client) -> None:
    filled(client, "a", 1, 2)
    filled(client, "b", 3)
    events = client.watch({"a": 2, "b": "now"}, include_tags=True)
    seen: list[Any] = [next(events) for _ in range(3)]
    assert sorted(event.topic for event in seen if isinstance(event, CaughtUp)) == ["a", "b"]
    assert [event.records[0].data for event in seen if isinstance(event, Records)] == [2]
    plain.append("b", 4, tag="eu")
    event = next(events)
    assert (event.topic, event.from_seq, event.to_seq) == ("b", 1, 2)
    assert (event.records[0].data, event.records[0].tag) == (4, "eu")
    plain.delete_topic("a")
    plain.delete_topic("b")
    assert sorted((type(event), event.topic) for event in events) == [(TopicGone, "a"), (TopicGone, "b")]


def test_a_gap_of_a_watch_is_an_exception_or_a_value(client: Any) -> None:
    filled(client, "t", *range(10), cap_records=3)
    with pytest.raises(RecordsLost):
        next(client.watch({"t": 2}))
    events = client.watch({"t": 2}, gaps="yield")
    gap = next(events)
    assert isinstance(gap, Tombstone)
    assert (gap.gap_from, gap.gap_to) == (2, 7)
    assert values_until_caught_up(events) == [7, 8, 9]


def test_an_unknown_topic_is_refused_or_left_out(client: Any) -> None:
    filled(client, "t", 1)
    with pytest.raises(ApiFailed, match="nothing"):
        next(client.watch(["t", "nothing"]))
    events = client.watch({"t": "earliest", "nothing": "now"}, lenient=True)
    assert values_until_caught_up(events) == [1]


@pytest.mark.parametrize("kind", ["sync", "async"])
def test_a_watch_over_connections_that_are_cut_misses_and_repeats_nothing(url: str, kind: str) -> None:
    retry = RetryPolicy(first_pause_s=0.001, longest_pause_s=0.01)
    with Client(url) as writer, FaultProxy(url, seed=11, most_bytes=6000) as proxy:
        filled(writer, "t", *range(300))
        with face(kind, proxy.url, retry=retry) as client:
            seen: list[object] = []
            for event in client.watch({"t": "earliest"}, limit=7, gaps="yield"):
                if isinstance(event, CaughtUp) and len(seen) == 300:
                    writer.append_many("t", [NewRecord(number) for number in range(300, 320)])
                elif isinstance(event, Records):
                    seen += [record.data for record in event.records]
                if len(seen) >= 320:
                    break
        assert seen == list(range(320))
        assert proxy.cuts > 2


@pytest.mark.parametrize("kind", ["sync", "async"])
def test_a_watch_goes_on_after_the_server_came_back_without_its_sessions(tmp_path: Any, kind: str) -> None:
    first = RunningServer(settings_of(data_dir=str(tmp_path)), memory=False)
    port = first.server.address[1]
    retry = RetryPolicy(first_pause_s=0.01, longest_pause_s=0.05)
    try:
        with face(kind, f"http://127.0.0.1:{port}", retry=retry) as client:
            filled(client, "t", 1, 2)
            events = client.watch({"t": "earliest"})
            assert [record.data for record in next(events).records] == [1, 2]
            assert isinstance(next(events), CaughtUp)
            first.stop(drain_s=1)
            second = RunningServer(settings_of(data_dir=str(tmp_path), port=port), memory=False)
            try:
                client.append("t", 3)
                assert values_until_caught_up(events) == [3]
            finally:
                second.stop(drain_s=0.2)
    finally:
        first.stop()


# --- Routers and queues ----------------------------------------------------------------------------------


def test_routers_are_made_looked_at_listed_and_deleted(client: Any) -> None:
    put = client.put_router("r", "a", "b", filter="eu*")
    assert (put.created, put.filter) == (True, ["tag", "Glob", "eu*"])
    client.append_many("a", [NewRecord(1, tag="eu"), NewRecord(2)])
    assert [record.data for record in client.read("b")] == [1]
    assert client.router("r").source == "a"
    assert [router.router for router in client.routers(source="a")] == ["r"]
    assert client.delete_router("r").deleted
    assert client.routers() == []


def test_a_member_that_the_server_does_not_know_is_refused(client: Any) -> None:
    client.put_topic("t")
    with pytest.raises(ApiFailed, match="did you mean 'tail'") as refused:
        client.call(calls.start_watch({"t": {"tial": True}}))
    assert refused.value.status == 400
    with pytest.raises(ApiFailed, match="idempotency key ''"):
        client.append("t", 1, idempotency_key="")


def test_jobs_are_claimed_extended_given_back_and_done(client: Any) -> None:
    filled(client, "q", "x", "y", type="queue")
    first, second = client.claim("q", "w", 5).claimed
    assert (first.data, first.deliveries, second.seq) == ("x", 1, 2)
    extended = client.extend("q", "w", [1, 7], 60_000, lease_ids=[first.lease_id, ""])
    assert (extended.extended, extended.skipped, list(extended.deadlines)) == (1, [7], [1])
    assert client.nack("q", "w", [2]).nacked == 1
    assert client.ack("q", "w", [1], lease_ids=[first.lease_id]).acked == 1
    assert client.claim("q", "w").claimed[0].deliveries == 2
    counts = client.topic("q").queue
    assert (counts.ready, counts.in_flight) == (0, 1)


def test_pushed_jobs_are_given_back_when_the_iteration_ends(client: Any, plain: Client) -> None:
    filled(client, "q", "x", "y", type="queue")
    jobs = client.work("q", "w", 1)
    job = next(jobs)
    assert job.data == "x"
    plain.ack("q", "w", [job.seq], lease_ids=[job.lease_id])
    assert next(jobs).data == "y"
    jobs.close()
    while not (again := plain.claim("q", "other").claimed):
        pass
    assert again[0].data == "y"


# --- WebSocket -------------------------------------------------------------------------------------------


def test_a_socket_publishes_and_is_pushed_to(client: Any) -> None:
    filled(client, "t", 1, 2)
    with client.socket() as socket:
        assert socket.subscribe({"t": 2})["t"].from_seq == 1
        appended = socket.publish("t", [NewRecord(3), NewRecord(4, tag="eu")])
        assert (appended.first_seq, appended.count) == (3, 2)
        seen: list[object] = []
        while len(seen) < 3:
            event = socket.next_event()
            seen += [record.data for record in event.records] if isinstance(event, Records) else []
        assert seen == [2, 3, 4]
        assert socket.at == {"t": 4}
        socket.unsubscribe("t")
        socket.ping()


def test_what_is_wrong_with_a_command_is_told_and_the_socket_lives_on(client: Any) -> None:
    with client.socket() as socket:
        with pytest.raises(ApiFailed) as raised:
            socket.subscribe({"nothing": "now"})
        assert raised.value.code == "topic_not_found"
        assert socket.publish("t", [NewRecord(1)]).created


def test_a_gap_of_a_subscription_is_an_exception_or_a_value(client: Any) -> None:
    filled(client, "t", *range(10), cap_records=3)
    with client.socket() as socket:
        socket.subscribe({"t": 2})
        with pytest.raises(RecordsLost):
            socket.next_event()
    with client.socket(gaps="yield") as socket:
        socket.subscribe({"t": 2})
        assert isinstance(socket.next_event(), Tombstone)


def test_a_closed_socket_says_so(client: Any) -> None:
    with client.socket() as socket:
        socket.ping()
    with pytest.raises(ApiFailed, match="closed"):
        socket.ping()


def test_a_thread_publishes_while_another_waits_for_news(plain: Client) -> None:
    plain.put_topic("t")
    with plain.socket() as socket:
        socket.subscribe({"t": "now"})
        seen: list[object] = []
        is_caught_up = threading.Event()

        def listen() -> None:
            for event in socket:
                is_caught_up.set()
                if isinstance(event, Records):
                    seen.extend(record.data for record in event.records)
                    if 9 in seen:
                        return

        listener = threading.Thread(target=listen)
        listener.start()
        assert is_caught_up.wait(10)
        for number in range(10):
            assert socket.publish("t", [NewRecord(number)]).count == 1
        listener.join(10)
        assert seen == list(range(10))


# --- Watches of patterns, consumers and filters ------------------------------------------------------------


def test_a_watch_takes_patterns_filters_times_and_consumers(client: Any, plain: Client) -> None:
    filled(plain, "p.a", 1, 2, 3)
    plain.put_consumer("p.a", "c", start=3)
    assert values_until_caught_up(client.watch({"p.a": {"consumer": "c"}})) == [3]
    assert values_until_caught_up(client.watch({"p.a": {"filter": ["data", "Ge", 2]}})) == [2, 3]
    assert values_until_caught_up(client.watch({"p.a": {"from_time_ms": 2**50}})) == []
    events = client.watch({"p.*": "earliest"})
    assert [record.data for record in next(events).records] == [1, 2, 3]
    assert isinstance(next(events), CaughtUp)
    plain.append("p.b", 7)
    created = next(events)
    assert isinstance(created, TopicCreated)
    assert (created.topic, next(events).records[0].data) == ("p.b", 7)
    events.close()
    with client.socket() as socket:
        assert set(socket.subscribe({"p.*": "now"})) == {"p.a", "p.b"}
        plain.append("p.c", 8)
        found = [socket.next_event() for _ in range(4)]
        assert [event.topic for event in found if isinstance(event, TopicCreated)] == ["p.c"]


@pytest.mark.parametrize("kind", ["sync", "async"])
def test_a_watch_of_a_pattern_misses_and_repeats_nothing_over_cut_connections(url: str, kind: str) -> None:
    retry = RetryPolicy(first_pause_s=0.001, longest_pause_s=0.01)
    with Client(url) as writer, FaultProxy(url, seed=5, most_bytes=6000) as proxy:
        for number in range(20):
            filled(writer, f"p.{number}", *range(20))
        with face(kind, proxy.url, retry=retry) as client:
            seen: dict[str, list[object]] = {}
            for event in client.watch({"p.*": "earliest"}, limit=7):
                if isinstance(event, Records):
                    seen.setdefault(event.topic, []).extend(record.data for record in event.records)
                    if sum(map(len, seen.values())) == 400:
                        filled(writer, "p.new", *range(20))
                if sum(map(len, seen.values())) >= 420:
                    break
        assert seen == {f"p.{number}": list(range(20)) for number in (*range(20), "new")}
        assert proxy.cuts > 2


@pytest.mark.parametrize("kind", ["sync", "async"])
def test_a_watch_of_a_pattern_goes_on_after_the_server_came_back(tmp_path: Any, kind: str) -> None:
    first = RunningServer(settings_of(data_dir=str(tmp_path)), memory=False)
    port = first.server.address[1]
    retry = RetryPolicy(first_pause_s=0.01, longest_pause_s=0.05)
    try:
        with face(kind, f"http://127.0.0.1:{port}", retry=retry) as client:
            filled(client, "p.a", 1, 2)
            events = client.watch({"p.*": {"filter": ["data", "Ne", 2]}})
            assert [record.data for record in next(events).records] == [1]
            assert isinstance(next(events), CaughtUp)
            first.stop(drain_s=1)
            second = RunningServer(settings_of(data_dir=str(tmp_path), port=port), memory=False)
            try:
                client.append_many("p.a", [NewRecord(2), NewRecord(3)])
                assert values_until_caught_up(events) == [3]
            finally:
                second.stop(drain_s=0.2)
    finally:
        first.stop()
