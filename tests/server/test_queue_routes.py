"""The routes of queues below a bus directory: exact lags, bounded reads, and no way out of the directory."""

from __future__ import annotations

from pathlib import Path
from urllib.parse import quote

import msgspec
import pytest

from everlog.bus.feed_status import STATUS_FILE, FeedStatus, SymbolStatus, read_statuses
from everlog.queue import Queue, WriterConfig
from everlog.server.queue_routes import all_queues, one_queue, read_messages
from tests.support.http_cases import running

SEGMENT = 64 * 1024


def filled(root: Path, count: int, read: int) -> Path:
    """A queue of several segments with a reader that has committed `read` messages."""
    path = root / "streams" / "q"
    with (
        Queue.open_publisher(path, WriterConfig(segment_size=SEGMENT)) as writer,
        Queue.open_subscriber(path, "slow", start="earliest") as reader,
    ):
        for number in range(count):
            writer.append(7, b"message %d " % number + b"x" * (number % 200))
        for _ in range(read):
            assert reader.next() is not None
        reader.commit()
    return path


@pytest.mark.parametrize(("count", "read"), [(1, 0), (1, 1), (999, 0), (999, 1), (999, 500), (999, 999)])
def test_the_lag_of_a_reader_is_exact_in_messages(tmp_path: Path, count: int, read: int) -> None:
    path = filled(tmp_path, count, read)
    state = one_queue(str(tmp_path), str(path)).queues[0]
    # Segments that every reader has read may be gone already.
    assert state.first_seq is not None and state.first_seq <= read
    assert state.last_seq == count - 1
    assert [(each.name, each.lag_messages) for each in state.readers] == [("slow", count - read)]
    (reader,) = state.readers
    assert reader.next_seq == read and reader.lag_ms is not None
    assert (reader.lag_ms >= 0) if count > read else (reader.lag_ms == 0)
    assert state.queue == "streams/q" and state.error is None


def test_a_list_of_queues_counts_the_messages_of_the_reader_most_behind(tmp_path: Path) -> None:
    path = filled(tmp_path, 900, 100)
    with Queue.open_subscriber(path, "fast", start="latest") as fast:
        fast.commit()
    (state,) = all_queues(str(tmp_path)).queues
    assert {each.name: each.lag_messages for each in state.readers} == {"fast": None, "slow": 800}


def test_a_list_of_queues_that_takes_too_long_has_lags_in_bytes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    filled(tmp_path, 900, 100)
    monkeypatch.setattr("everlog.server.queue_routes.COUNTING_NS", 0)
    (state,) = all_queues(str(tmp_path)).queues
    assert [(each.lag_messages, (each.lag_bytes or 0) > 0) for each in state.readers] == [(None, True)]


def test_messages_are_read_from_a_seq_or_from_the_end(tmp_path: Path) -> None:
    path = str(filled(tmp_path, 300, 0))
    last = read_messages(path, 1 << 62, 5)
    assert last.last_seq is not None and last.first_seq is not None
    assert [each.seq for each in last.messages] == list(range(last.last_seq - 4, last.last_seq + 1))
    some = read_messages(path, last.first_seq + 10, 3)
    assert [each.payload_text and each.payload_text.split()[1] for each in some.messages] == [
        "10",
        "11",
        "12",
    ]
    assert bytes.fromhex(some.messages[0].payload_hex).startswith(b"message 10 ")
    assert some.messages[0].type_id == 7
    assert sorted(each.name for each in (Path(path) / "readers").iterdir() if "slow" not in each.name) == []


def test_the_routes_stay_below_the_directory(tmp_path: Path) -> None:
    filled(tmp_path / "bus", 10, 4)
    outside = filled(tmp_path / "elsewhere", 3, 0)
    (tmp_path / "bus" / "link").symlink_to(outside)
    with running(bus_root=str(tmp_path / "bus"), keys="all,some:read:own.") as server:
        api = server.api("all")
        listed = api.request("GET", "/v0/queues").json
        assert [each["queue"] for each in listed["queues"] if "link" not in each["queue"]] == ["streams/q"]
        shown = api.request("GET", "/v0/queues?queue=streams/q").json["queues"][0]
        assert shown["readers"][0]["lag_messages"] == 6
        assert len(api.request("GET", "/v0/queues/messages?queue=streams/q&limit=2").json["messages"]) == 2
        for name in ("../elsewhere/streams/q", str(outside), "link", "", "nothing", "streams/q/../../.."):
            for path in (f"/v0/queues/messages?queue={quote(name)}", f"/v0/queues?queue={quote(name)}"):
                answer = api.request("GET", path)
                assert answer.status == 404 or (not name and answer.status == 200), (path, answer)
        assert server.api("some").request("GET", "/v0/queues").status == 403
    with running() as server:
        assert server.api().request("GET", "/v0/queues").json["root"] is None
        assert server.api().request("GET", "/v0/queues/messages?queue=q").status == 404


def test_feeds_tell_their_gaps_and_a_status_that_cannot_be_read_is_none(tmp_path: Path) -> None:
    folder = tmp_path / "streams" / "raw"
    status = FeedStatus(
        name="kraken-1",
        venue="kraken",
        pid=1,
        updated_ns=5,
        connection_id=3,
        is_connected=True,
        frames_per_s=2.5,
        clock_offset_ms=None,
        counts={"gaps_sequence": 2},
        refusals=[],
        symbols={"XBT/USD": SymbolStatus(True, {"gaps": 2, "diffs": 70}, 4, 12.5)},
    )
    for name, content in (("kraken-1", msgspec.json.encode(status)), ("broken", b"{")):
        (folder / name).mkdir(parents=True)
        (folder / name / STATUS_FILE).write_bytes(content)
    (folder / "no-feed").mkdir()
    assert read_statuses(tmp_path) == [status]
    with running(bus_root=str(tmp_path), keys="all,some:read:own.") as server:
        answer = server.api("all").request("GET", "/v0/feeds").json
        assert answer["feeds"] == [msgspec.to_builtins(status)]
        assert answer["time_ms"] > 0
        assert server.api("some").request("GET", "/v0/feeds").status == 403
    with running(bus_root=str(tmp_path / "nothing")) as server:
        assert server.api().request("GET", "/v0/feeds").json["feeds"] == []
    with running() as server:
        assert server.api().request("GET", "/v0/feeds").json["root"] is None
