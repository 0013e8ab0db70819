"""`everlog queue merge`: many queues into one."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from typer.testing import CliRunner

from everlog.cli import main
from everlog.market.protocol import BookEventType, TypeId
from everlog.queue import Queue
from tests.support.book_twins import l2_record
from tests.support.import_runs import messages_of


def merged(*arguments: object, code: int = 0) -> Any:
    result = CliRunner().invoke(main.app, ["queue", "merge", *map(str, arguments), "--json"])
    assert result.exit_code == code, result.output
    return json.loads(result.stdout) if code == 0 else json.loads(result.stderr)


def queue(path: Path, times: list[tuple[int, int]]) -> Path:
    """Write messages with these times of receipt and of the exchange."""
    with Queue.open_publisher(path, segment_size=1 << 12) as writer:
        for receive_ns, exchange_ns in times:
            payload = l2_record(BookEventType.RESET, [], [], times_ns=(receive_ns, exchange_ns))
            writer.append(TypeId.BOOK_EVENT, payload, receive_ns)
    return path


def test_queues_become_one_in_the_order_of_the_chosen_time(tmp_path: Path) -> None:
    one, other = queue(tmp_path / "a", [(1, 9), (5, 10)]), queue(tmp_path / "b", [(2, 3), (5, 4)])
    assert merged(one, other, "--into", tmp_path / "received")["messages"] == 4
    assert [message.timestamp_ns for message in messages_of(tmp_path / "received")] == [1, 2, 5, 5]
    merged(one, other, "--into", tmp_path / "sent", "--by", "exchange")
    assert [message.timestamp_ns for message in messages_of(tmp_path / "sent")] == [2, 5, 1, 5]
    shown = CliRunner().invoke(main.app, ["queue", "merge", str(one), "--into", str(tmp_path / "c")])
    assert shown.stdout == f"2 messages of 1 source in {tmp_path / 'c'}\n"


def test_a_queue_that_is_there_and_a_time_that_is_none_are_refused(tmp_path: Path) -> None:
    one = queue(tmp_path / "a", [(1, 1)])
    assert "is not empty" in str(merged(one, "--into", one, code=1))
    assert "receive or exchange" in str(merged(one, "--into", tmp_path / "b", "--by", "arrival", code=1))
    merged(tmp_path / "absent", "--into", tmp_path / "b", code=1)
    assert not (tmp_path / "b").exists()
