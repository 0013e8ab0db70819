"""Clients and producers across forks and event loops: no caller gets the answer to another one's request."""

from __future__ import annotations

import asyncio
import os
import sys
import traceback
from collections.abc import Callable

import pytest

from everlog import AsyncClient, Client, Producer
from everlog.client import Records
from everlog.errors import Closed

CALLS = 100


def in_a_child(work: Callable[[], None]) -> int:
    """Do something in a forked child while this process goes on; its process id."""
    child = os.fork()
    if child:
        return child
    code = 1
    try:
        work()
        code = 0
    except BaseException:
        traceback.print_exc(file=sys.stderr)
    finally:
        os._exit(code)


def ended_well(child: int) -> bool:
    """Wait for a child."""
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0


def test_a_child_and_its_parent_share_a_client_but_no_connection(url: str) -> None:
    with Client(url) as client:
        client.append("of-parent", 0)

        def append_all() -> None:
            for number in range(CALLS):
                assert client.append("of-child", number).topic == "of-child"

        child = in_a_child(append_all)
        for _ in range(CALLS):
            assert client.topic("of-parent").topic == "of-parent"
        assert ended_well(child)
        assert client.topic("of-child").count == CALLS


@pytest.mark.timeout(60)
def test_a_child_that_closes_the_client_leaves_the_streams_of_its_parent_alone(
    url: str, caplog: pytest.LogCaptureFixture
) -> None:
    with Client(url) as client:
        client.append("t", "before")
        events = client.watch({"t": "earliest"})
        assert type(next(events)).__name__ == "Records"
        assert ended_well(in_a_child(client.close))
        client.append("t", "after")
        while not isinstance(event := next(events), Records) or event.records[0].data != "after":
            pass
    assert caplog.text == "", "no connection was lost"


@pytest.mark.timeout(60)
def test_a_producer_in_a_forked_child_refuses_instead_of_waiting_for_ever(url: str) -> None:
    with Client(url) as client, Producer(client, "t", linger_s=3600) as producer:
        producer.send("given before the fork")

        def use() -> None:
            for call in (lambda: producer.send("of the child"), producer.flush):
                try:
                    call()
                except Closed as error:
                    assert "after fork" in str(error)
                else:
                    raise AssertionError("received what is never sent")
            producer.close()  # what it holds is the parent's to deliver

        assert ended_well(in_a_child(use))
        producer.flush()
        assert [record.data for record in client.read("t")] == ["given before the fork"]


def test_an_asynchronous_client_may_outlive_its_event_loop(url: str) -> None:
    client = AsyncClient(url)

    async def append_two() -> list[int]:
        answers = await asyncio.gather(client.append("t", 1), client.append("t", 2))
        return [answer.count for answer in answers]

    assert asyncio.run(append_two()) == [1, 1]
    first = asyncio.new_event_loop()
    second = asyncio.new_event_loop()
    try:
        for loop in (first, second, first):
            assert loop.run_until_complete(append_two()) == [1, 1]
        first.close()
        assert second.run_until_complete(append_two()) == [1, 1]
        second.run_until_complete(client.close())
    finally:
        second.close()
