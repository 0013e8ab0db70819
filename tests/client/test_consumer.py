"""`Consumer` and `AsyncConsumer`: what counts as processed, who owns the cursor, and what a gap does."""

from __future__ import annotations

from typing import Any

import pytest

from everlog import AsyncConsumer, Client, Consumer, Fenced, RecordsLost
from everlog.api_types import Tombstone
from tests.support.client_faces import Blocking


def consumer(client: Any, *args: Any, **options: Any) -> Any:
    """A consumer of the kind that belongs to the client, called as a blocking one."""
    if isinstance(client, Client):
        return Consumer(client, *args, **options)
    return Blocking(AsyncConsumer(client._inner, *args, **options), client._thread)


def fill(plain: Client, count: int, **config: Any) -> None:
    for number in range(count):
        plain.append("t", number, config=config or None)  # type: ignore[arg-type]


def test_a_record_counts_as_processed_when_the_next_one_is_asked_for(client: Any, plain: Client) -> None:
    fill(plain, 5)
    with consumer(client, "t", "c", follow=False, limit=2) as reading:
        seen = []
        for record in reading:
            seen.append(record.seq)
            if record.seq == 4:
                break
    assert seen == [1, 2, 3, 4]
    assert plain.consumer("t", "c").cursor == 3
    with consumer(client, "t", "c", follow=False) as reading:
        assert [record.seq for record in reading] == [4, 5]
    assert plain.consumer("t", "c").lag_records == 0


def test_what_raises_in_the_block_is_not_committed_and_what_was_before_is(client: Any, plain: Client) -> None:
    fill(plain, 3)
    with (
        pytest.raises(ZeroDivisionError),
        consumer(client, "t", "c", follow=False) as reading,
    ):
        for record in reading:
            assert 1 / (record.seq - 2)
    assert plain.consumer("t", "c").cursor == 1


def test_it_follows_what_comes_later(client: Any, plain: Client) -> None:
    fill(plain, 1)
    with consumer(client, "t", "c", start="latest") as reading:
        fill(plain, 2)
        records = iter(reading)
        assert [next(records).seq, next(records).seq] == [2, 3]
        assert reading.commit(3).cursor == 3


def test_filtered_records_move_the_cursor_too(client: Any, plain: Client) -> None:
    fill(plain, 6)
    plain.put_consumer("t", "c", filter=["data", "Lt", 2])
    with consumer(client, "t", "c", follow=False) as reading:
        assert [record.seq for record in reading] == [1, 2]
    assert plain.consumer("t", "c").cursor == 6


def test_a_second_owner_ends_the_first(client: Any, plain: Client) -> None:
    fill(plain, 3)
    first = consumer(client, "t", "c", owner="one", follow=False)
    with pytest.raises(Fenced), first:
        with consumer(client, "t", "c", owner="two", follow=False) as second:
            assert [record.seq for record in second] == [1, 2, 3]
            assert second.owner_epoch == 2
        list(first)
    assert plain.consumer("t", "c").cursor == 3


def test_a_gap_is_raised_or_yielded_and_never_passed_over(client: Any, plain: Client) -> None:
    fill(plain, 1, cap_records=2)
    plain.put_consumer("t", "c")
    fill(plain, 4)
    with pytest.raises(RecordsLost), consumer(client, "t", "c", follow=False) as reading:
        list(reading)
    assert plain.consumer("t", "c").cursor == 0
    with consumer(client, "t", "c", follow=False, gaps="yield") as reading:
        gap, *records = list(reading)
    assert isinstance(gap, Tombstone)
    assert (gap.gap_from, gap.gap_to, gap.topic) == (1, 3, "t")
    assert [record.seq for record in records] == [4, 5]
    assert plain.consumer("t", "c").cursor == 5


def test_the_calls_are_those_of_the_server(client: Any, plain: Client) -> None:
    fill(plain, 4)
    assert client.put_consumer("t", "c", start=3).cursor == 2
    assert client.put_consumer("t", "d", start={"time_ms": 2**60}).cursor == 4
    assert [state.name for state in client.consumers("t")] == ["c", "d"]
    assert client.consumers_page("t", page_size=1).next_cursor is not None
    diff = client.read_consumer("t", "c", limit=1, commit=3)
    assert ([record.seq for record in diff.records], diff.consumer.cursor) == ([4], 3)
    assert client.commit_consumer("t", "c", 4).lag_records == 0
    assert client.reset_consumer("t", "c", "earliest", dry_run=True).records == 4
    epoch = client.acquire_consumer("t", "c", "me").owner_epoch
    assert client.commit_consumer("t", "c", 4, owner_epoch=epoch).owner == "me"
    assert client.delete_consumer("t", "c").deleted
    assert [record.data for record in client.diff("t", filter=["data", "Ge", 2]).records] == [2, 3]
    first_ts = client.diff("t").records[0].ts_ms
    assert client.diff("t", from_time_ms=first_ts).records[0].seq == 1
