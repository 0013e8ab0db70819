"""The accounts of the demonstration: whatever is lost, doubled or different must show as unexplained."""

from __future__ import annotations

from collections import Counter
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from examples.demo.accounts import (
    Account,
    Verdict,
    account_of_counts,
    account_of_seqs,
    job_account,
    stream_accounts,
    venue_account,
)
from examples.demo.bridged import SourceSeqs, payload_of, type_id_of
from examples.demo.tables import END, L2, L3, TRADES, MarketTable, Table

SEQS = st.lists(st.integers(0, 12), max_size=20)


def array(values: list[int]) -> Any:
    return np.array(values, dtype=np.uint64)


@given(st.integers(0, 12), SEQS)
def test_every_seq_that_is_missing_doubled_or_foreign_is_counted_as_a_plain_model_does(
    sent: int, arrived: list[int]
) -> None:
    account = account_of_seqs("queue", "a to b", array(list(range(sent))), array(arrived), "by seq")
    counted = Counter(arrived)
    assert account.lost == sum(seq not in counted for seq in range(sent))
    doubled = sum(counted[seq] - 1 for seq in range(sent) if seq in counted)
    foreign = sum(times for seq, times in counted.items() if seq >= sent)
    assert account.duplicated == doubled + foreign
    assert account.expected == sent
    assert Verdict([account], []).is_sound == (sorted(arrived) == list(range(sent)))


@pytest.mark.parametrize(("sent", "found", "unexplained"), [(5, 5, 0), (5, 4, 1), (5, 7, 2), (0, 0, 0)])
def test_counts_that_differ_are_unexplained(sent: int, found: int, unexplained: int) -> None:
    assert account_of_counts("topics", "a to b", sent, found, "").unexplained == unexplained


def test_a_problem_alone_is_enough_to_be_unsound() -> None:
    good = Account("queue", "a to b", 3, 3)
    assert Verdict([good], []).is_sound
    assert not Verdict([good], ["odd"]).is_sound


@pytest.mark.parametrize(
    ("done", "deliveries", "again", "unexplained"),
    [
        ([1, 2, 3], [1, 1, 1], 0, 0),
        ([1, 2, 3, 2], [1, 1, 1, 2], 1, 0),
        ([1, 2, 3, 2], [1, 1, 1, 1], 0, 1),
        ([1, 3], [1, 1], 0, 1),
        ([1, 2, 3, 9], [1, 1, 1, 1], 0, 1),
    ],
)
def test_a_job_is_done_again_only_when_its_lease_had_ended(
    done: list[int], deliveries: list[int], again: int, unexplained: int
) -> None:
    account = job_account(array([1, 2, 3]), array(done), array(deliveries))
    assert (account.again, account.unexplained) == (again, unexplained)


def market(kinds: list[int], seqs: list[int]) -> MarketTable:
    none = Table(array([]), array([]), array([]), array([]), 0)
    return MarketTable(array(seqs), array(seqs), np.array(kinds, dtype=np.uint8), none, array([]), 1)


@pytest.mark.parametrize(
    ("kinds", "seqs", "unexplained"),
    [
        ([L3, L3, L2, TRADES, END], [0, 1, 2, 3, 4], 0),
        ([L3, L2, TRADES, END], [0, 1, 2, 3], 1),
        ([L3, L2, TRADES, END], [0, 1, 3, 4], 2),
        ([L3, L3, L2, L2, TRADES, END], [0, 1, 2, 3, 4, 5], 1),
        ([L3, L3, L2, TRADES], [0, 1, 2, 3], 1),
    ],
)
def test_the_queue_holds_what_the_venue_says_to_have_sent(
    kinds: list[int], seqs: list[int], unexplained: int
) -> None:
    truth = {"counts": {"l3_events": 2, "l2_events": 1, "trades": 1}}
    assert venue_account(market(kinds, seqs), truth).unexplained == unexplained


@pytest.mark.parametrize(
    ("changes", "unexplained"),
    [
        ({}, 0),
        ({"delivered": 9}, 1),
        ({"delivered": 9, "missing": 1}, 1),
        ({"delivered": 8, "gap": 1, "deleted": 1}, 0),
        ({"duplicate": 2}, 2),
    ],
)
def test_an_archive_that_ends_too_early_is_unexplained_although_spark_finds_no_hole_in_it(
    changes: dict[str, int], unexplained: int
) -> None:
    stream = {"delivered": 10, "gap": 0, "deleted": 0, "missing": 0, "duplicate": 0, **changes}
    [account] = stream_accounts("queue to lake", [stream], 10)
    assert account.unexplained == unexplained


def test_an_archive_without_the_stream_is_unexplained() -> None:
    [account] = stream_accounts("queue to lake", [], 10)
    assert account.unexplained == 10


def test_records_between_two_marked_ones_belong_to_the_messages_in_between() -> None:
    sources = SourceSeqs()
    marks: dict[int, dict[str, Any]] = {1: {"bridge": {"first_seq": 100}}, 4: {"bridge": {"first_seq": 7}}}
    assert [sources.of(seq, marks.get(seq)) for seq in range(1, 6)] == [100, 101, 102, 7, 8]
    with pytest.raises(ValueError, match="record 3 is the first that is read"):
        SourceSeqs().of(3, None)


def test_bytes_that_a_bridge_brought_are_turned_back() -> None:
    assert payload_of("AAEC") == b"\x00\x01\x02"
    assert type_id_of({"encoding": "base64", "type": 0x4000}) == 0x4000
    assert type_id_of(None) is None
