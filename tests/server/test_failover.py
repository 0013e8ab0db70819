"""A primary that ships its log is killed or paused under load: a takeover has all that was acknowledged."""

from __future__ import annotations

import json
import os
import random
import signal
import threading
from collections.abc import Iterator
from pathlib import Path
from urllib.error import HTTPError
from urllib.request import urlopen

import pytest

from everlog.client import ApiFailed, Client, NewRecord, RetryPolicy
from everlog.clock import SystemClock
from everlog.errors import EverlogError
from everlog.objects import open_store
from everlog.topics.storage.shipping import fence, take_epoch
from tests.support.command_lines import run
from tests.support.object_stores import versitygw_server
from tests.support.processes import eventually
from tests.support.server_processes import ServerProcess, running_server

WRITERS = 3
ONCE = RetryPolicy(deadline_s=0)


class Writers:
    """Threads that append to one server, one record at a time, and note what it acknowledged."""

    def __init__(self, url: str, name: str) -> None:
        self.acked: dict[int, str] = {}
        self._is_over = threading.Event()
        self._threads = [
            threading.Thread(target=self._write, args=(url, f"{name}-{number}")) for number in range(WRITERS)
        ]
        for thread in self._threads:
            thread.start()

    def _write(self, url: str, name: str) -> None:
        with Client(url, timeout_s=2, retry=ONCE) as client:
            number = 0
            while not self._is_over.is_set():
                number += 1
                value = f"{name}-{number}"
                try:
                    answer = client.append_many("t", [NewRecord(value)], config={"durability": "disk"})
                except (EverlogError, ApiFailed, OSError):
                    self._is_over.wait(0.02)
                    continue
                self.acked[answer.first_seq] = value

    def end(self) -> dict[int, str]:
        self._is_over.set()
        for thread in self._threads:
            thread.join()
        return self.acked


def records_of(url: str) -> dict[int, str]:
    with Client(url) as client:
        found: dict[int, str] = {}
        cursor = 0
        while True:
            page = client.diff("t", cursor, limit=1000)
            found |= {record.seq: record.data for record in page.records}
            if page.next_from_seq >= page.head_seq:
                return found
            cursor = page.next_from_seq


def promoted(folder: Path, url: str) -> None:
    folder.mkdir()
    result = run("everlog", "promote", folder / "data", "--from", url, "--json")
    assert result.returncode == 0, result.stderr


def fail_over(root: Path, url: str, rounds: int, rng: random.Random) -> None:
    """Each round: load, a primary that is killed or paused, a promotion; the copy is the next primary."""
    folder = root / "0"
    folder.mkdir()
    acked: dict[int, str] = {}
    for number in range(1, rounds + 1):
        is_paused = rng.random() < 0.5
        with running_server(folder) as primary:
            assert acked.items() <= (records_of(primary.url) if acked else {}).items()
            writers = Writers(primary.url, f"round{number}")
            eventually("something is acknowledged", lambda w=writers: len(w.acked) > rng.randint(5, 60))  # type: ignore[misc]
            primary.command.process.send_signal(signal.SIGSTOP if is_paused else signal.SIGKILL)
            promoted(root / str(number), url)
            if is_paused:
                primary.command.process.send_signal(signal.SIGCONT)
                refuses(primary)
            fresh = writers.end()
            assert not acked.keys() & fresh.keys(), f"round {number}: seqs were given out twice"
            acked |= fresh
        folder = root / str(number)
    with running_server(folder) as last, Client(last.url) as client:
        found = records_of(last.url)
        assert client.diff("t", max(acked)).tombstone is None, "nothing can be lost, so no seq is skipped"
        assert acked.items() <= found.items(), sorted(acked.items() - found.items())[:5]


def refuses(server: ServerProcess) -> None:
    """The resumed primary finds that it was superseded, and says so to writers."""

    def is_refused() -> bool:
        with Client(server.url, timeout_s=5, retry=ONCE) as client:
            try:
                client.append("t", "after the takeover")
            except ApiFailed as error:
                return error.status == 503 and "taken over" in str(error)
            except (EverlogError, OSError):
                return False
        raise AssertionError("a superseded server has acknowledged a write")

    eventually("the earlier primary refuses writes", is_refused)
    with pytest.raises(HTTPError) as unready:
        urlopen(f"{server.url}/v0/ready", timeout=5)
    assert b"another server has taken over" in unready.value.read()


def has_shipped(url: str, text: bytes) -> bool:
    """Whether the store has a base, and a shipment with `text` in a record."""
    store = open_store(url)
    return any(store.list("base")) and any(text in store.get(each.key).data for each in store.list("log"))


@pytest.fixture
def shipped(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """A URL that servers started now ship to, and wait for."""
    url = f"file://{tmp_path}/bucket"
    monkeypatch.setenv("TOPICS_BACKUP_URL", url)
    monkeypatch.setenv("TOPICS_ACK", "shipped")
    yield url


def test_a_takeover_loses_nothing_that_was_acknowledged(tmp_path: Path, shipped: str) -> None:
    fail_over(tmp_path, shipped, 2, random.Random(7))  # one is paused, one killed


@pytest.mark.object_store
def test_many_takeovers_on_a_real_s3_server_lose_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rounds = int(os.environ.get("FAILOVER_ROUNDS") or 20)
    (tmp_path / "s3").mkdir()
    with versitygw_server(tmp_path / "s3") as server:
        url = server.url("failover")
        for name, value in {**server.environment, "TOPICS_BACKUP_URL": url, "TOPICS_ACK": "shipped"}.items():
            monkeypatch.setenv(name, value)
        fail_over(tmp_path, url, rounds, random.Random())


def test_a_write_that_waits_when_another_server_takes_over_is_told_so(
    tmp_path: Path, shipped: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TOPICS_BACKUP_INTERVAL_MS", "3600000")  # only writes that wait are shipped
    with running_server(tmp_path / "0") as primary, Client(primary.url, retry=ONCE) as client:
        client.append("t", "acknowledged", config={"durability": "disk"})
        store = open_store(shipped)
        fence(store, take_epoch(store, "http://127.0.0.1:1"), SystemClock())
        with pytest.raises(ApiFailed, match="another server has taken over while this change") as unknown:
            client.append("t", "not shipped")
        assert (unknown.value.status, unknown.value.code) == (500, "outcome_unknown")
        assert unknown.value.detail == {"primary": "http://127.0.0.1:1"}
        with pytest.raises(ApiFailed, match="another server has taken over; send writes to it"):
            client.append("t", "later")
        with pytest.raises(ApiFailed, match="another server has taken over; send writes to it"):
            client.put_schedule("s", "t", "0 0 1 1 *", NewRecord(1))
        with urlopen(f"{primary.url}/v0/overview", timeout=5) as answer:
            overview = json.load(answer)
        assert [alert["code"] for alert in overview["alerts"]] == ["superseded", "storage_failing"]
        assert set(overview["storage"]["closed_shards"].values()) == {"superseded"}


def test_a_write_that_waits_for_a_backup_that_is_gone_at_the_stop_is_told_so(
    tmp_path: Path, shipped: str
) -> None:
    with running_server(tmp_path / "0") as primary, Client(primary.url, retry=ONCE, timeout_s=60) as client:
        client.append("t", "acknowledged", config={"durability": "disk"})
        bucket = tmp_path / "bucket"
        bucket.rename(tmp_path / "elsewhere")
        bucket.write_text("no directory")
        answers: list[BaseException] = []

        def append() -> None:
            with pytest.raises(ApiFailed) as failed:
                client.append("t", "not shipped")
            answers.append(failed.value)

        with Client(primary.url) as other:
            written = other.metrics()["wal"]["frames"]
            writer = threading.Thread(target=append)
            writer.start()
            eventually("the record is in the log", lambda: other.metrics()["wal"]["frames"] > written)
        primary.command.process.send_signal(signal.SIGTERM)
        writer.join()
    (answer,) = answers
    assert isinstance(answer, ApiFailed) and answer.code == "outcome_unknown"
    assert "the backup did not take this change before the server stopped" in str(answer)


def test_a_superseded_primary_that_comes_back_does_not_start(tmp_path: Path, shipped: str) -> None:
    (tmp_path / "a").mkdir()
    with running_server(tmp_path / "a") as primary, Client(primary.url) as client:
        client.append("t", 1)
        primary.kill()
    promoted(tmp_path / "b", shipped)
    result = run("everlog", "serve", "--port", "0", "--data-dir", tmp_path / "a" / "data")
    assert result.returncode != 0
    assert "everlog promote" in result.stderr
    with running_server(tmp_path / "b") as again:
        assert list(records_of(again.url).values()) == [1]


def test_a_primary_that_stops_and_starts_goes_on_shipping(tmp_path: Path, shipped: str) -> None:
    for number in range(3):
        with running_server(tmp_path) as server, Client(server.url) as client:
            client.append("t", number)
            if number == 1:
                server.kill()
            else:
                server.stop_cleanly()
    promoted(tmp_path / "copy", shipped)
    with running_server(tmp_path / "copy") as server:
        assert list(records_of(server.url).values()) == [0, 1, 2]


def test_without_waiting_for_shipments_the_loss_is_the_suffix_that_was_not_shipped(
    tmp_path: Path, shipped: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TOPICS_ACK", "local")
    monkeypatch.setenv("TOPICS_BACKUP_INTERVAL_MS", "50")
    (tmp_path / "a").mkdir()
    with running_server(tmp_path / "a") as primary:
        writers = Writers(primary.url, "w")
        eventually("there is something", lambda: len(writers.acked) > 100)
        eventually("some of it is shipped", lambda: has_shipped(shipped, b'"w-'))
        primary.command.process.kill()
        acked = writers.end()
    promoted(tmp_path / "b", shipped)
    with running_server(tmp_path / "b") as again, Client(again.url) as client:
        found = records_of(again.url)
        kept = max(found)
        assert {seq: value for seq, value in acked.items() if seq <= kept}.items() <= found.items()
        last = max(acked)
        for _ in range(2):  # at once, and when others have written
            gap = client.diff("t", kept).tombstone
            assert gap is not None and (gap.reason, gap.gap_from) == ("corrupt", kept + 1)
            seen = client.diff("t", last).tombstone
            assert last == kept or (seen is not None and seen.gap_to == gap.gap_to > last)
            assert client.append("t", "later").first_seq > max(last, gap.gap_to)
