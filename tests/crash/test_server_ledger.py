"""The books of the crash and soak runs notice every broken promise; checked here without a server."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from tests.support.server_ledger import Batch, Followed, Ledger

Records = list[dict[str, Any]]


def acknowledged(ledger: Ledger, batch: Batch, first_seq: int) -> None:
    answer = {"first_seq": first_seq, "last_seq": first_seq + batch.size - 1, "count": batch.size}
    ledger.acknowledged(batch, answer)


def story(durability: str = "disk") -> tuple[Ledger, Records]:
    """Three batches, of which the last got no answer, and a delete of the first record."""
    ledger = Ledger("t", durability)
    first, second, third = (ledger.begin(writer, 2) for writer in (1, 2, 1))
    acknowledged(ledger, first, 1)
    acknowledged(ledger, second, 3)
    ledger.delete_acknowledged(ledger.delete_begun(2))
    sent = [*first.records(), *second.records(), *third.records()]
    return ledger, [{"$seq": seq, **record} for seq, record in enumerate(sent, start=1)][1:]


def test_what_was_promised_is_accepted_with_and_without_what_got_no_answer() -> None:
    ledger, records = story()
    ledger.check_records(records, 6)
    ledger.check_records(records[:-2], 4)
    ledger.check_records(records[:-2], 4 + 2 + 256)


LIES: dict[str, Callable[[Records], tuple[Records, int]]] = {
    "a record is missing": lambda found: ([found[0], *found[2:]], 6),
    "a deleted one is back": lambda found: ([{**found[0], "$seq": 1, "data": 1 << 48}, *found], 6),
    "another one is in its place": lambda found: ([{**found[0], "data": found[1]["data"]}, *found[1:]], 6),
    "a batch is there in part": lambda found: (found[:-1], 6),
    "a batch is there twice": lambda found: (
        found + [{**one, "$seq": one["$seq"] + 2} for one in found[-2:]],
        8,
    ),
    "a batch was never sent": lambda found: ([*found, {"$seq": 7, "data": 9 << 48}], 7),
    "the head went back": lambda found: (found[:-2], 3),
    "the head is far ahead": lambda found: (found, 6 + 2 + 257),
    "the order is wrong": lambda found: (found[::-1], 6),
}


@pytest.mark.parametrize("lie", LIES)
def test_a_broken_promise_is_noticed(lie: str) -> None:
    ledger, records = story()
    with pytest.raises(AssertionError, match="t \\(disk\\)"):
        ledger.check_records(*LIES[lie](records))


def test_a_retry_must_get_the_seqs_of_the_first_answer() -> None:
    ledger, _ = story()
    batch = ledger.begin(3, 1)
    acknowledged(ledger, batch, 7)
    acknowledged(ledger, batch, 7)
    with pytest.raises(AssertionError, match="other seqs"):
        acknowledged(ledger, batch, 8)


def test_an_ephemeral_topic_owes_nothing_after_its_process_and_must_not_give_it_back() -> None:
    ledger, records = story("ephemeral")
    late = ledger.begin(1, 1)
    ledger.server_ended()
    acknowledged(ledger, late, 7)  # the answer was still under way when the process died
    ledger.check_records([], 0)
    ledger.check_records([], 4)
    with pytest.raises(AssertionError, match="never sent"):
        ledger.check_records(records, 6)


def test_a_follower_that_misses_or_repeats_something_is_noticed() -> None:
    ledger, records = story()
    follower = Followed("t", "a stream")
    follower.take(records[:3], 0, 4)
    ledger.check_follower(follower)
    with pytest.raises(AssertionError, match="is at 4"):
        follower.take(records[3:], 3, 6)
    with pytest.raises(AssertionError, match="got 4 after 4"):
        follower.take(records[2:], 4, 6)
    hasty = Followed("t", "a stream")
    hasty.take([records[0]], 0, 4)
    with pytest.raises(AssertionError, match="did not get seq 3"):
        ledger.check_follower(hasty)
